from pathlib import Path

from pipeline.cluster import causes, deploy
from pipeline.cluster.deploy import Deployed, DeployedNode
from pipeline.cluster.steps import Report, Step


def test_a_failure_names_step_cause_logs_and_remedy() -> None:
    cause = causes.cause_named("nofile")
    error = deploy.DeployError(Step.ENGINE, "head ended", cause, Path("artifacts/logs/x"))
    assert str(error) == f"engine: head ended\n{cause.explanation}\nlogs: artifacts/logs/x"
    assert error.hint == cause.remedy
    assert error.cause == "nofile"


def test_the_verdict_shows_every_step_node_and_the_answer() -> None:
    report = Report(rows=[(Step.ENGINE, "http://127.0.0.1:8000/health says 200", 240.04)])
    deployed = Deployed(
        cluster="local",
        digest="sha256:" + "a" * 64,
        executor="ray",
        endpoint="http://127.0.0.1:8000/v1",
        model="tiny",
        nodes=[DeployedNode("head", "local", "tandem-local-head", {}, [0])],
        prompt="x",
        text="bada",
        tokens=[1],
    )
    text = "\n".join(deploy.render_verdict(deployed, report))
    for wanted in ("240.0", "tandem-local-head", "sha256:" + "a" * 64, "ray", "'x' → 'bada'"):
        assert wanted in text


def test_steps_keep_what_was_found() -> None:
    from pipeline.core.log import NullLog

    report, log = Report(), NullLog()
    with report.step(Step.IMAGE, log) as found:
        found.append("here")
    assert report.rows[0][:2] == ("image", "here")
    assert log.lines[0] == "image …"

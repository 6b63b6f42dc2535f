"""What two machines must have in common before launchers are tried on them, and what messages say if they lack it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipeline.core.errors import HostError, TandemError
from pipeline.core.log import NullLog
from pipeline.smoke import era_setup, eras
from pipeline.smoke.containers import CommandResult
from pipeline.smoke.era_machines import ClusterMachine, DockerHost
from pipeline.smoke.verdict import CheckOutcome, verdict_of

STORES = {
    "containerd": 'overlayfs [["driver-type","io.containerd.snapshotter.v1"]]',
    "overlay2": 'overlay2 [["Backing Filesystem","extfs"]]',
}


class ScriptedHost(DockerHost):
    """A Docker host that answers from a table: by the first of docker's words, or the first two."""

    def __init__(self, name: str, answers: Mapping[str, str | CommandResult]) -> None:
        machine = ClusterMachine(name=name, docker=("docker",), address=f"10.0.0.{name[-1]}", image="vllm-node")
        super().__init__(machine, {}, NullLog())
        self.answers = answers
        self.asked: list[tuple[str, ...]] = []

    def docker(
        self, words: Sequence[str], *, timeout_s: float = 300, quiet: bool = False, tidying: bool = False
    ) -> CommandResult:
        self.asked.append(tuple(words))
        answer = self.answers.get(" ".join(words[:2]), self.answers.get(words[0], ""))
        return answer if isinstance(answer, CommandResult) else CommandResult(0, answer)


def facts(**changed: Any) -> str:
    return "noise\n@@machine " + json.dumps(
        {"interface": "eth0", "rdma": [], "nofile": 1048576, "taken": [], **changed}
    )


def launch_parameters(*outputs: str | CommandResult) -> tuple[Any, list[str]]:
    notes: list[str] = []
    hosts = [ScriptedHost(f"spark-{n}", {"run": answer}) for n, answer in enumerate(outputs, 1)]
    return era_setup._launch_parameters(hosts, [(), ("-e", "X=1")], notes), notes


def test_unlike_image_stores_are_refused_by_name() -> None:
    hosts = [
        ScriptedHost(f"spark-{n}", {"info": STORES[store]}) for n, store in enumerate(("containerd", "overlay2"), 1)
    ]
    with pytest.raises(HostError, match=r"\(spark-1 containerd, spark-2 overlay2\): no image has the same Id in both"):
        era_setup._refuse_different_stores(hosts)


@pytest.mark.parametrize("store", STORES)
def test_like_image_stores_are_taken(store: str) -> None:
    era_setup._refuse_different_stores(
        [ScriptedHost("spark-1", {"info": STORES[store]}), ScriptedHost("spark-2", {"info": STORES[store]})]
    )


def test_an_engine_that_does_not_answer_is_named() -> None:
    with pytest.raises(HostError, match="spark-1: its Docker engine does not answer: no route"):
        era_setup._refuse_different_stores([ScriptedHost("spark-1", {"info": CommandResult(1, "no route")})])


def test_a_machine_without_the_image_is_named() -> None:
    host = ScriptedHost("spark-2", {"image inspect": CommandResult(1, "Error: No such image: vllm-node")})
    with pytest.raises(TandemError, match="spark-2 has no image vllm-node: Error: No such image"):
        era_setup._is_emulated(host)


def test_both_machines_get_the_head_s_interface_and_devices() -> None:
    (head, worker), notes = launch_parameters(facts(rdma=["mlx5_1", "mlx5_2"]), facts())
    assert (head.own, head.head, worker.own, worker.head) == ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1")
    assert head.is_head
    assert not worker.is_head
    assert head.ib_if == worker.ib_if == "mlx5_1,mlx5_2"
    assert worker.extra == ("-e", "X=1")
    assert notes == ["--eth-if is the head's eth0, on both machines, as launchers have it"]


def test_a_missing_rdma_device_gets_a_name_and_is_reported() -> None:
    (head, _), notes = launch_parameters(facts(), facts())
    assert head.ib_if == era_setup.NO_RDMA
    assert any("no RDMA device" in note for note in notes)


def test_interfaces_of_different_names_are_refused_because_launchers_give_one_to_both() -> None:
    with pytest.raises(HostError, match=r"spark-2 has 10\.0\.0\.2 on eth1, the head its own on eth0"):
        launch_parameters(facts(), facts(interface="eth1"))


def test_an_address_that_no_interface_has_is_refused() -> None:
    with pytest.raises(HostError, match=r"spark-1: no interface has 10\.0\.0\.1"):
        launch_parameters(facts(interface=""), facts())


def test_a_limit_of_files_that_cannot_be_raised_is_lowered_and_reported() -> None:
    class Lower(ScriptedHost):
        def docker(
            self, words: Sequence[str], *, timeout_s: float = 300, quiet: bool = False, tidying: bool = False
        ) -> CommandResult:
            return (
                CommandResult(125, "error setting rlimits")
                if "--ulimit" in words
                else CommandResult(0, facts(nofile=20000))
            )

    notes: list[str] = []
    head, worker = era_setup._launch_parameters(
        [Lower("spark-1", {}), ScriptedHost("spark-2", {"run": facts()})], [(), ()], notes
    )
    assert (head.nofile, worker.nofile) == (20000, 1048576)
    assert any("--ulimit nofile=1048576 is 20000 on spark-1" in note for note in notes)


def test_an_image_that_cannot_run_the_machine_probe_is_refused() -> None:
    with pytest.raises(HostError, match=r"spark-1: a container of the image cannot say .* exec format error"):
        launch_parameters(CommandResult(1, "exec format error"), facts())


def test_two_machines_are_needed() -> None:
    machine = ClusterMachine(name="spark-1", docker=("docker",), address="10.0.0.1", image="i")
    with (
        pytest.raises(HostError, match="two machines, a head and a worker; got 1"),
        era_setup.prepare_machines([machine], {}, "/workspace/vllm", (), (), NullLog()),
    ):
        pass


def test_ports_in_use_are_named_before_anything_starts() -> None:
    with pytest.raises(HostError, match="spark-2: something listens on 6379, 8000 already") as caught:
        launch_parameters(facts(), facts(taken=[6379, 8000]))
    assert "29501" in caught.value.hint


def test_different_ids_fail_the_first_point_besides_the_faults_that_smoke_found() -> None:
    points = {str(number): ["no bash"] if number == 3 else [] for number in range(1, 15)}
    differing = verdict_of("era D", [f"spark-1 has one Id, spark-2 another{eras.LAUNCHERS_REFUSE}"], "")
    verdicts = list(eras._judge_points(points, [verdict_of("era A", ["something else"], ""), differing]))
    assert len(verdicts) == 14
    assert [verdict.check for verdict in verdicts if verdict.outcome is CheckOutcome.FAILED] == ["point 1", "point 3"]
    assert verdicts[0].details == differing.details

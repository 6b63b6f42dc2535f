"""What happens to programs, and to who starts them, when a run or the set-up is told to end."""

import os
import shutil
import signal
import subprocess  # programs are what is interrupted
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.core import procs
from pipeline.core.errors import Cancelled
from pipeline.core.interrupts import interruptible, uninterrupted
from pipeline.core.log import NullLog
from pipeline.graph.graph import Graph
from pipeline.graph.run import schedule
from pipeline.graph.run.output import PlainScreen, TaskLog
from pipeline.graph.run.runner import Runner
from pipeline.host import buildkit, endpoint, install
from pipeline.host.venv import DOIT_SCRIPT
from tests.flow.project import REPOSITORY, Project, again_until_it_ends, ended, wait_for

STUBBORN = "trap '' TERM; echo $$ >>{pids}; while :; do sleep 0.1; done"


@pytest.fixture(autouse=True)
def _resumed() -> Iterator[None]:
    yield
    procs.resume()


def program(path: Path, text: str) -> Path:
    """A shell script that can be called."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def lives(pid: int) -> bool:
    """Whether a process has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_what_tidies_up_when_the_run_is_interrupted_tidies_to_the_end() -> None:
    said: list[str] = []
    argv = ["sh", "-c", "sleep 0.6; echo tidied"]
    thread = threading.Thread(target=lambda: said.append(procs.run(argv, log=NullLog(), tidying=True)))
    thread.start()
    time.sleep(0.3)
    procs.cancel()
    thread.join(20)
    assert said == ["tidied"]


def test_programs_that_do_not_listen_are_all_ended_within_one_grace(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def stubborn() -> None:
        with suppress(Cancelled):
            procs.run(["sh", "-c", STUBBORN.format(pids=pids)], log=NullLog())

    threads = [threading.Thread(target=stubborn) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: pids.exists() and len(pids.read_text().split()) == len(threads))
    start = time.monotonic()
    procs.cancel()
    for thread in threads:
        thread.join(30)
    assert time.monotonic() - start < (len(threads) - 0.1) * procs.GRACE_S


def test_a_second_signal_leaves_no_program_behind(project: Project) -> None:
    pids = project.root / "pids"
    script = program(project.root / "stubborn", STUBBORN.format(pids=pids))
    process = project.start("other", env={"TOY_NEST": f"other:x={script}"})
    wait_for(lambda: pids.exists() and pids.read_text().strip())
    process.terminate()
    again_until_it_ends(process)
    assert ended(process).code == 130
    wait_for(lambda: not lives(int(pids.read_text())))


def test_an_interrupt_while_a_program_is_being_started_is_heard_when_it_can_be_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []

    class Interrupted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self.pid)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt), interruptible():
        procs.run(["sleep", "30"], log=NullLog())
    assert not lives(started[0])


def test_an_interrupt_is_put_off_while_something_is_taken_away() -> None:
    done: list[str] = []

    def take_away() -> None:
        with interruptible(), uninterrupted():
            os.kill(os.getpid(), signal.SIGHUP)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        take_away()
    assert done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_set_up_that_is_told_to_end_tells_its_program_and_exits_with_130(tmp_path: Path, number: int) -> None:
    argv = ["sh", "-c", f"trap 'echo told >{tmp_path}/told; exit 1' TERM; echo begun; while :; do sleep 0.1; done"]
    act = f"lambda log: procs.run({argv}, log=log)"
    imports = "import sys\nfrom pipeline.core import procs\nfrom pipeline.host import venv\n"
    code = f"{imports}sys.exit(venv.run_setup({act}))"
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while process.stderr.readline() != "begun\n":
            pass
        process.send_signal(number)
        assert process.wait(20) == 130
    assert (tmp_path / "told").exists()


def test_an_interrupted_build_is_ended_although_buildkit_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin/docker", 'case "$*" in *build*) echo "#1 begun" >&2; exec sleep 30;; esac')
    (tmp_path / "context").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=os.pathsep)
    monkeypatch.setattr(endpoint, "docker_context", lambda: "default")
    log = TaskLog("build", tmp_path / "logs", PlainScreen(verbosity=0))
    threading.Timer(1.5, procs.cancel).start()
    with pytest.raises(Cancelled):
        buildkit.build_image(tmp_path / "context", platform="linux/amd64", epoch=0, labels={}, tag="x", log=log)
    wait_for(lambda: (tmp_path / "running").exists() and (tmp_path / "running").read_text())
    pid = int((tmp_path / "running").read_text())
    wait_for(lambda: not lives(pid))


def test_a_run_that_cannot_begin_a_task_does_not_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    class Node:
        bad_deps = ()

        class task:  # noqa: N801  # doit's attribute
            name, actions = "x", (1,)

    def nodes() -> Iterator[Any]:
        yield
        yield Node

    class Dispatcher:
        generator, tasks = nodes(), {}  # type: ignore[var-annotated]

    next(Dispatcher.generator)
    runner = Runner(Graph(tmp_path), PlainScreen(), asked=())
    ends = schedule.Schedule(runner, PlainScreen(), side_by_side=1, go_on=False)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits"))
    signal.alarm(10)
    try:
        with pytest.raises(RuntimeError, match="can't start"):
            ends.run(Dispatcher)
    finally:
        signal.alarm(0)


def test_an_interrupted_installation_is_ended_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "dpkg", f'echo "$@" >{tmp_path}/repaired')
    program(
        tmp_path / "apt-get",
        f"[ -e {tmp_path}/repaired ] || {{ echo \"E: you must manually run 'dpkg --configure -a'\"; exit 100; }}",
    )
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    install._run(install.Command(("apt-get", "install")), NullLog())
    assert (tmp_path / "repaired").read_text() == "--configure -a\n"


@pytest.mark.parametrize(("moment", "code"), [("import", 130), ("exit", 0)])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_doit_starts_or_ends_gives_no_other_code(
    tmp_path: Path, moment: str, code: int, number: int
) -> None:
    deed = f"os.kill(os.getpid(), {int(number)})"
    when = deed if moment == "import" else f"import atexit; atexit.register(lambda: {deed})"
    (tmp_path / "doit").mkdir()
    (tmp_path / "doit/__init__.py").touch()
    (tmp_path / "doit/__main__.py").write_text(f"import os, sys\n{when}\ndef main():\n    sys.exit(0)\n")
    (tmp_path / "script").write_text(DOIT_SCRIPT)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "script")], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_doitw_hands_a_signal_on_to_the_set_up_and_waits_for_its_end(tmp_path: Path, number: int) -> None:
    shutil.copy2(REPOSITORY / "doitw", tmp_path)
    told = f"trap 'sleep 0.3; echo whole >{tmp_path}/whole; exit 130' TERM"
    # Not at once: it has to be waited for by then.
    set_up = f"{told}; sleep 1; echo $$ >{tmp_path}/pid; while :; do sleep 0.1; done"
    python = program(tmp_path / "python", f'[ "$1" = -c ] && echo True && exit\n{set_up}')
    process = subprocess.Popen([tmp_path / "doitw", "list"], env={**os.environ, "TANDEM_PYTHON": str(python)})
    wait_for(lambda: (tmp_path / "pid").exists())
    process.send_signal(number)
    assert process.wait(20) == 130
    assert (tmp_path / "whole").exists()

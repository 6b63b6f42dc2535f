"""What becomes of a check whose commands crash, or under which the Docker engine fails."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from docker.errors import APIError
from requests.exceptions import ConnectionError as Unreachable

from pipeline.core import procs
from pipeline.core.attempt_error import AttemptError
from pipeline.core.errors import Cancelled
from pipeline.core.log import NullLog
from pipeline.core.procs import ProgramError
from pipeline.smoke import entrypoint, launcher, ray
from pipeline.smoke.containers import CommandResult, ContainerError, ContainerFactory, EngineError, ProbeContainer
from pipeline.smoke.era_machines import ClusterMachine, DockerHost

SEGFAULT = 139


class Api:
    """The part of the engine's API that runs commands: every one ends with this status."""

    def __init__(self, status: int) -> None:
        self.status = status

    def exec_create(self, container: str, argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
        return {"Id": "1"}

    def exec_start(self, made: str, stream: bool) -> list[bytes]:
        return [b"a line\n"]

    def exec_inspect(self, made: str) -> dict[str, Any]:
        return {"Running": False, "ExitCode": self.status}


class Engine:
    """An engine whose containers can do everything, unless `fails` is what the named deed raises."""

    attrs: Mapping[str, Any] = {"Config": {"Env": None}}

    def __init__(self, status: int = 0, fails: Mapping[str, Exception] = {}) -> None:
        self.api = Api(status)
        self.client = self.images = self.containers = self.networks = self
        self.fails = fails
        self.id = self.name = "made"
        self.removed = 0

    def get(self, reference: str) -> "Engine":
        return self

    def create(self, *_: object, internal: bool = False, **__: object) -> "Engine":
        return self._does("network" if internal else "container")

    def start(self) -> "Engine":
        return self._does("start")

    def put_archive(self, path: str, content: bytes) -> "Engine":
        return self._does("archive")

    def remove(self, **_: object) -> None:
        self.removed += 1

    def _does(self, deed: str) -> "Engine":
        if deed in self.fails:
            raise self.fails[deed]
        return self


def factory(engine: Engine, *, emulated: bool = False) -> ContainerFactory:
    return ContainerFactory(cast(Any, engine), "image", "linux/amd64", emulated=emulated)


@pytest.mark.parametrize("emulated", [True, False])
def test_a_signal_is_the_emulators_crash_only_if_an_emulator_runs_the_image(emulated: bool) -> None:
    with factory(Engine(SEGFAULT), emulated=emulated).start("x") as container:
        result = container.run(["ray", "status"], timeout_s=5)
    assert result == CommandResult(SEGFAULT, "a line", emulated)
    assert result.crashed is emulated


@pytest.mark.parametrize("emulated", [True, False])
def test_a_ray_that_segfaults_fails_the_check_or_is_the_emulators_crash(emulated: bool) -> None:
    with (
        factory(Engine(SEGFAULT), emulated=emulated).start("x") as container,
        pytest.raises(AttemptError) as error,
    ):
        ray._check_status(container, NullLog())
    assert error.value.crashed is emulated
    if not emulated:
        assert str(error.value) == "`ray status` ended with signal 11 (SIGSEGV): a line"


@pytest.mark.parametrize("emulated", [True, False])
def test_the_shell_probe_is_asked_again_only_after_the_emulators_crash(emulated: bool) -> None:
    commands: list[Sequence[str]] = []

    class Counting(ProbeContainer):
        def run(self, argv: Sequence[str], **_: Any) -> CommandResult:
            commands.append(argv)
            return CommandResult(SEGFAULT, "", self.emulated)

    answer = launcher.run_shell_probe(Counting(cast(Any, None), emulated=emulated))
    assert answer.crashed is emulated
    assert len(commands) == (3 if emulated else 1)


@pytest.mark.parametrize("emulated", [True, False])
def test_a_signal_on_a_machine_is_the_emulators_crash_only_if_an_emulator_runs_the_image(
    emulated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(argv: Sequence[str], **_: object) -> str:
        raise ProgramError(argv, SEGFAULT, "gone")

    monkeypatch.setattr(procs, "run", fails)
    machine = ClusterMachine(name="spark-1", docker=("docker",), address="10.0.0.1", image="i")
    with pytest.raises(AttemptError) as error:
        DockerHost(machine, {}, NullLog(), emulated=emulated).must(["exec", "x"], "no command can be executed")
    assert error.value.crashed is emulated
    assert str(error.value) == "spark-1: no command can be executed: gone (signal 11 (SIGSEGV))"


FAILS: dict[str, Exception] = {
    "network": APIError("x", explanation="all predefined address pools have been fully subnetted"),
    "container": APIError("x", explanation="no space left on device"),
    "archive": Unreachable("Connection aborted"),
}


@pytest.mark.parametrize("deed", FAILS)
def test_a_failure_of_the_engine_has_its_words_and_removes_what_was_made(deed: str) -> None:
    engine = Engine(fails={deed: FAILS[deed]})
    with pytest.raises(EngineError) as error:
        ray.form_cluster(factory(engine), NullLog())
    assert str(getattr(FAILS[deed], "explanation", "Connection aborted")) in str(error.value)
    assert engine.removed == list(FAILS).index(deed)


def test_an_engine_that_fails_during_a_command_has_failed_too() -> None:
    with pytest.raises(EngineError, match="container made is not running"), factory(Engine()).start("x"):
        raise APIError("409", explanation="container made is not running")


def test_an_image_that_does_not_start_is_not_a_failure_of_the_engine() -> None:
    engine = Engine(fails={"start": APIError("x", explanation="no such file: sleep")})
    with pytest.raises(ContainerError, match="a container of the image does not start: no such file: sleep") as error:
        ray.form_cluster(factory(engine), NullLog())
    assert not isinstance(error.value, EngineError)


def test_an_entrypoint_that_could_not_be_tried_is_not_blamed() -> None:
    engine = Engine(fails={"container": FAILS["container"]})
    engine.attrs = {"Config": {"Entrypoint": ["/run"]}}
    (fault,) = entrypoint.try_entrypoint(factory(engine), NullLog()).value
    assert fault.startswith("ENTRYPOINT /run cannot be tried: ")
    assert "no space left on device" in fault


def test_an_interruption_goes_through() -> None:
    with pytest.raises(Cancelled), factory(Engine()).start("x"):
        raise Cancelled("interrupted")

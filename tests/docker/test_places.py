"""`ps`, `logs` and `down` on a real engine: what pipeline.yaml has no more, what a killed run left, who stops reading.

The nodes are containers of a shell that only carry a node's labels; tests/docker/test_cluster.py has real ones.
"""

import io
import json
import os
import re
import socket
import subprocess  # a reader that goes is only seen from outside
import sys
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from docker import DockerClient

from pipeline.cluster import preflight
from pipeline.cluster.nodes import container_state, remove_cluster
from pipeline.commands import logs
from pipeline.commands.down import DownCommand
from pipeline.commands.logs import LogsCommand
from pipeline.commands.ps import PsCommand
from pipeline.core import procs
from pipeline.core.errors import TandemError
from pipeline.host import engine
from tests import stored

REPOSITORY = "tandem-test-places"
ROOT = Path(__file__).parents[2]
IMAGE = {"base": {"debian": "trixie", "packages": ["x"]}, "python": {"version": "3.13", "requirements": ["x"]}}
FOREVER = "while :; do echo more; sleep 0.1; done"
LOGS = "import sys; from pipeline.commands.logs import LogsCommand; sys.exit(LogsCommand().parse_execute(sys.argv[1:]))"

Node = Callable[..., str]


@pytest.fixture(scope="module")
def image(client: DockerClient) -> str:
    """A shell and `sleep` of this machine."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for program in (Path("/bin/sh"), Path("/bin/sleep")):
            tar.add(program.resolve(), str(program).lstrip("/"))
            for library in re.findall(r"(/\S+) \(0x", procs.capture(["ldd", str(program)])):
                tar.add(Path(library).resolve(), library.lstrip("/"))
    client.api.import_image_from_data(raw.getvalue(), repository=REPOSITORY, tag="1")
    return f"{REPOSITORY}:1"


@pytest.fixture
def name() -> str:
    """A cluster's name that nobody else has."""
    return f"places-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def node(client: DockerClient, image: str, name: str) -> Iterator[Node]:
    """Starts a node of the cluster, or of another: its name, what it does, and its rank."""
    names = {name}

    def start(node: str, does: str = "sleep 600", rank: int = 0, cluster: str = name, port: int = 0) -> str:
        names.add(cluster)
        labels = {"tandem": "node", "tandem.cluster": cluster, "tandem.node": node, "tandem.rank": str(rank)}
        ports = {"9/tcp": ("127.0.0.1", port)} if port else {}
        command = ["/bin/sh", "-c", f"echo {node} is up; {does}"]
        made = client.containers.run(
            image, command, name=f"tandem-{cluster}-{node}", labels=labels, ports=ports, detach=True
        )
        return str(made.name)

    yield start
    for cluster in names:
        remove_cluster(client, cluster)


def configure(folder: Path, *names: str, endpoint: str = "local") -> None:
    """Make the folder a checkout with these clusters, the first of which is the default one."""
    (folder / "dockerfiles/x").mkdir(parents=True, exist_ok=True)
    (folder / "dockerfiles/x/image.yaml").write_text(json.dumps(IMAGE))
    (folder / "dockerfiles/x/Dockerfile").write_text("")
    nodes = [{"name": "head", "endpoint": endpoint}, {"name": "worker", "endpoint": endpoint}]
    every = {name: {"image": "x", "nodes": nodes, "serve": {"port": 8100 + i}} for i, name in enumerate(names)}
    (folder / "pipeline.yaml").write_text(json.dumps({"default": names[0], "clusters": every}))


@pytest.fixture
def checkout(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with the cluster, in which the command is called."""
    configure(tmp_path, name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def left(client: DockerClient, cluster: str) -> list[str]:
    return [str(found.name) for found in stored.containers(client, f"tandem.cluster={cluster}")]


def test_a_cluster_that_was_renamed_is_named_shown_and_removed_under_its_old_name(
    checkout: Path, name: str, node: Node, client: DockerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    node("head")
    node("worker", rank=1)
    configure(checkout, f"{name}-new")
    assert PsCommand().parse_execute(["--json"]) == 1
    said = capsys.readouterr()
    assert [entry["state"] for entry in json.loads(said.out)["nodes"]] == ["absent", "absent"]
    assert f"pipeline.yaml has no cluster {name}, of which 2 containers are here" in said.err
    assert f"./doitw down {name}\n" in said.err
    assert PsCommand().parse_execute([name, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["cluster"], [entry["node"] for entry in shown["nodes"]]) == (name, ["head", "worker"])
    assert LogsCommand().parse_execute(["worker", "--cluster", name]) == 0
    assert capsys.readouterr().out == "worker | worker is up\n"
    assert LogsCommand().parse_execute(["wroker", "--cluster", name]) == 3
    assert "'worker'" in capsys.readouterr().err
    assert DownCommand().parse_execute([name]) == 0
    assert left(client, name) == []


@pytest.mark.usefixtures("checkout")
def test_logs_of_a_node_that_is_gone_do_not_say_that_nothing_runs(
    name: str, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    assert LogsCommand().parse_execute([]) == 1
    assert capsys.readouterr().err == f"{name}: nothing runs\n"
    node("head")
    assert LogsCommand().parse_execute(["worker"]) == 1
    assert capsys.readouterr().err == f"{name}: node worker does not run\n"


@pytest.mark.usefixtures("checkout")
@pytest.mark.parametrize("act", [PsCommand, DownCommand], ids=["ps", "down"])
def test_a_cluster_of_which_nothing_is_anywhere_is_a_wrong_word(
    name: str, act: type[PsCommand | DownCommand], capsys: pytest.CaptureFixture[str]
) -> None:
    assert act().parse_execute([f"{name}x"]) == 3
    said = capsys.readouterr()
    assert f"no cluster is called '{name}x'" in said.err
    assert f"did you mean '{name}'?" in said.err
    assert said.out == ""


def test_an_engine_of_another_cluster_that_is_away_hides_nothing(
    checkout: Path, name: str, node: Node, client: DockerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    node("head")
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"tcp://127.0.0.1:{server.getsockname()[1]}"
    configure(checkout, f"{name}-new", endpoint=endpoint)
    assert DownCommand().parse_execute([name]) == 0
    assert f"no Docker engine answers at {endpoint}" in capsys.readouterr().err
    assert left(client, name) == []
    assert DownCommand().parse_execute([]) == 4  # the cluster is there, or not: nobody knows


@pytest.mark.usefixtures("checkout")
def test_what_a_killed_reference_left_is_shown_and_goes_with_its_cluster(
    name: str, node: Node, client: DockerClient, capsys: pytest.CaptureFixture[str]
) -> None:
    node("head")
    node("worker", rank=1)
    reference = node("reference", cluster=f"{name}-reference")
    assert PsCommand().parse_execute([]) == 0
    said = capsys.readouterr()
    assert [line.split()[2] for line in said.out.splitlines()[2:]][2] == reference
    assert name not in said.err
    assert LogsCommand().parse_execute(["reference"]) == 0
    assert capsys.readouterr().out == "reference | reference is up\n"
    assert DownCommand().parse_execute([name]) == 0
    assert left(client, f"{name}-reference") == left(client, name) == []


@pytest.mark.usefixtures("checkout")
def test_a_reference_alone_is_no_cluster_that_runs(name: str, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    node("reference", cluster=f"{name}-reference")
    assert PsCommand().parse_execute(["--json"]) == 1
    states = [entry["state"] for entry in json.loads(capsys.readouterr().out)["nodes"]]
    assert states == ["absent", "absent", "running"]


def start(checkout: Path, *words: str) -> "subprocess.Popen[str]":
    """`doit logs` as a program with a pipe behind it."""
    return subprocess.Popen(
        [sys.executable, "-c", LOGS, *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("does", "words"),
    [("i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done; sleep 600", []), (FOREVER, ["-f"])],
    ids=["what was written", "what is written"],
)
def test_who_stops_reading_the_logs_ends_them_and_nothing_is_wrong(
    checkout: Path, node: Node, does: str, words: list[str]
) -> None:
    node("head", does)
    node("worker", rank=1)  # writes nothing that would tell that nobody reads
    time.sleep(1)
    with start(checkout, *words) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() in ("head | head is up\n", "worker | worker is up\n")
        process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == ""


class Way:
    """A way to the engine over TCP that can be cut."""

    def __init__(self, to: str) -> None:
        self._to = to
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.endpoint = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def cut(self) -> None:
        for end in (self._server, *self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._to)
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_WR)


def test_an_engine_that_goes_away_under_the_logs_is_one_message_and_exit_code_4(
    checkout: Path, name: str, node: Node
) -> None:
    address = engine.api_address("local")
    assert isinstance(address, str)
    way = Way(address)
    configure(checkout, name, endpoint=way.endpoint)
    node("head", FOREVER)
    try:
        with start(checkout, "-f", "head") as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "head | head is up\n"
            way.cut()
            process.stdout.read()
            assert process.wait(30) == 4
            line, hint = process.stderr.read().splitlines()
            assert line.startswith(f"{way.endpoint}: ")
            assert hint == "hint: ./doitw host says what is missing"
    finally:
        way.cut()


def test_a_container_that_went_before_it_was_asked_is_a_failure_of_the_command(
    node: Node, client: DockerClient
) -> None:
    attrs = client.containers.get(node("head", FOREVER)).attrs
    gone = container_state({**attrs, "Name": "/tandem-test-places-gone"})
    with pytest.raises(TandemError, match="No such container: tandem-test-places-gone"):
        logs._follow([("local", container_state(attrs)), ("local", gone)])


def test_a_port_of_roots_is_taken_for_others_only_if_somebody_answers_there(node: Node) -> None:
    def taken(port: int) -> str:
        code = f"from pipeline.cluster import preflight; print(preflight.is_port_taken({port}))"
        without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-c", code]
        return procs.capture(without_rights, inherit=procs.DOCKER, cwd=ROOT).strip()

    port = next(
        port
        for port in range(int(preflight.FIRST_UNPRIVILEGED_PORT.read_text()) - 1, 0, -1)
        if not preflight._answers(port)
    )
    assert taken(port) == "False"
    node("head", port=port)
    assert taken(port) == "True"

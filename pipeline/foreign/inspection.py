"""A root filesystem and an image's configuration in, a Reading out; nothing is asked and nothing is run."""

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.config.launcher_contract import DEFAULT_PATH, MODS_PACKAGES, NODE_SCRIPT, RDMA_LIBRARIES
from pipeline.core import platforms
from pipeline.core.errors import TandemError
from pipeline.foreign import distributions, entrypoint, model_registry, pip_check, pythons
from pipeline.foreign.facts import ImageFacts, Interpreter
from pipeline.foreign.filesystem import FilesystemView, KeepRule
from pipeline.foreign.pythons import ProcessContext

PROGRAMS = (
    *("vllm", "ray", "python3", "pip", "uv", "conda", "git", "curl", "wget", "patch", "bash", "sh", "earlyoom"),
    *("sleep", "mkdir", "touch", "chmod", "cat", "rm", "grep", "sed", "ip", "hostname", "cc", "gcc", "g++", "nvcc"),
)
PACKAGE_MANAGERS = {"apt-get": "apt", "dnf": "dnf", "microdnf": "dnf", "yum": "dnf", "apk": "apk"}
LIBRARIES = (*RDMA_LIBRARIES, "libnuma.so.1")
OS_RELEASE_KEYS = ("ID", "ID_LIKE", "NAME", "PRETTY_NAME", "VERSION_CODENAME", "VERSION_ID")
REGISTRY = "model_executor/models/registry.py"
NODE_SCRIPT_NAME = re.compile(re.escape(NODE_SCRIPT))
NCCL = re.compile(r"libnccl\.so(\.\d+)*")
GLIBC_BANNER = re.compile(rb"GNU C Library [^\n]{0,200}?version 2\.\d{1,4}")
"""What libc.so.6 says of itself when it is run."""
MAX_TEXT_BYTES = 256 << 10
RULES: tuple[KeepRule, ...] = (
    *pythons.RULES,
    *distributions.RULES,
    (re.compile(r"/libc\.so\.6$|/libc-2\.\d+\.so$"), GLIBC_BANNER),
    (re.compile(rf"/vllm/{re.escape(REGISTRY)}$"), 4 << 20),
    (re.compile(r"^/etc/(os-release|passwd)$|^/usr/lib/os-release$"), MAX_TEXT_BYTES),
    (re.compile(r"\.sh$"), MAX_TEXT_BYTES),
)


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    """What an image says of how to run it."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    env: Mapping[str, str]


def inspect_image(view: FilesystemView, config: ImageConfig, digest: str, platform: str) -> ImageFacts:
    """All that is to be known of an image for building on it.

    Raises TandemError, naming what is missing, for an image without a Python on its PATH or without glibc.
    """
    inside = ProcessContext(view, config.env, config.workdir, config.user)
    # First, since an image without it has nothing that wheels could run on.
    glibc = _glibc_minor(view, platform)
    starts = {name: pythons.find_interpreter(inside, inside.which(name)) for name in ("python3", "vllm", "ray")}
    python = _find_python(inside, starts)
    found = distributions.find_distributions(view, python.paths)
    known = pip_check.find_conflicts(found.distributions, python=python.version, platform=platform)
    return ImageFacts(
        digest=digest,
        platform=platform,
        entrypoint=config.entrypoint,
        cmd=config.cmd,
        user=config.user,
        workdir=config.workdir,
        env=dict(config.env),
        os=_os_release(view),
        glibc=glibc,
        python=python,
        interpreters={name: path for name, path in starts.items() if path},
        distributions=found.distributions,
        package_manager=next((name for program, name in PACKAGE_MANAGERS.items() if inside.which(program)), ""),
        programs={name: inside.which(name) for name in PROGRAMS},
        architectures=_architectures(view, python),
        nccl=tuple(view.files(NCCL)),
        launchers=tuple(view.files(NODE_SCRIPT_NAME)),
        conflicts=(*found.oddities, *known),
        entrypoint_text=_entrypoint_text(inside, config.entrypoint),
        libraries={name: _find_library(view, name, platform) for name in LIBRARIES},
        dist_packages=view.names(MODS_PACKAGES),
        mods_vllm=_resolve(view, f"{MODS_PACKAGES}/vllm"),
        vllm=_resolve(view, distributions.package_folder(view, python.paths, "vllm")),
    )


def _find_python(inside: ProcessContext, starts: Mapping[str, str]) -> Interpreter:
    """The Python that vLLM runs under, else the one that `python3` is."""
    path = starts["vllm"] or starts["python3"]
    if path:
        return pythons.describe_interpreter(inside, path)
    where = inside.env.get("PATH") or DEFAULT_PATH
    elsewhere = pythons.find_python3(inside.view)
    hint = (
        f"it has {', '.join(elsewhere[:3])}: use an image with that folder on its PATH"
        if elsewhere
        else "use an image that has one, as all that serve vLLM have"
    )
    raise TandemError(f"the image has no python3 on its PATH ({where})", hint=hint)


def _glibc_minor(view: FilesystemView, platform: str) -> int:
    """The minor version of the image's own glibc 2, by its file's name (up to 2.33) or what it says of itself."""
    for folder in _library_folders(platform):
        real = _resolve(view, f"{folder}/libc.so.6")
        named = re.search(r"/libc-2\.(\d{1,4})\.so$", real) or re.search(r"2\.(\d{1,4})$", view.text(real))
        if real and named:
            return int(named[1])
    musl = any(name.startswith("ld-musl-") for name in view.names("/lib"))
    what = "musl instead of glibc (Alpine's way)" if musl else f"no glibc for {platform}"
    raise TandemError(f"the image has {what}: wheels of vLLM, torch and Ray need glibc", hint="use another image")


def _resolve(view: FilesystemView, path: str) -> str:
    try:
        return (view.resolve(path) or "") if path else ""
    except TandemError:
        return ""


def _library_folders(platform: str) -> tuple[str, ...]:
    """Where the loader looks without being told (ld.so(8)), Debian's folders of the platform first."""
    triplet = f"{platforms.machine_of(platform)}-linux-gnu"
    plain = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
    return (f"/lib/{triplet}", f"/usr/lib/{triplet}", *plain)


def _find_library(view: FilesystemView, name: str, platform: str) -> str:
    paths = (f"{folder}/{name}" for folder in _library_folders(platform))
    return next((path for path in paths if view.find(path)), "")


def _os_release(view: FilesystemView) -> dict[str, str]:
    """os-release(5), the part that tells the system."""
    text = view.text("/etc/os-release") or view.text("/usr/lib/os-release")
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key: _unquote(value) for key, _, value in pairs if key in OS_RELEASE_KEYS}


def _unquote(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def _architectures(view: FilesystemView, python: Interpreter) -> dict[str, str]:
    folder = distributions.package_folder(view, python.paths, "vllm")
    source = view.text(f"{folder}/{REGISTRY}") if folder else ""
    return model_registry.parse_architectures(source) if source else {}


def _entrypoint_text(inside: ProcessContext, words: Sequence[str]) -> str:
    """The text of the script that ENTRYPOINT runs."""
    name = entrypoint.entrypoint_script(words)
    if not name:
        return ""
    # A shell takes a plain name from the working folder before it looks on PATH.
    here = posixpath.join(inside.workdir or "/", name)
    content = inside.view.content(here if inside.view.find(here) else inside.which(name))
    return content.decode("utf-8", "replace") if content.startswith(b"#!") else ""

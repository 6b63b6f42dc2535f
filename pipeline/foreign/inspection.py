"""Turns a root filesystem and an image's configuration into ImageFacts. Nothing is looked up and nothing is run."""

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
"""The text that libc.so.6 prints when it is run."""
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
    """The part of an image's configuration that says how to run it."""

    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    env: Mapping[str, str]
    healthcheck: bool = False


def inspect_image(view: FilesystemView, config: ImageConfig, digest: str, platform: str) -> ImageFacts:
    """Returns the facts about an image that building on it needs.

    Raises TandemError, naming what is missing, for an image without a Python on its PATH or without glibc.
    """
    context = ProcessContext(view, config.env, config.workdir, config.user)
    # This comes first, since wheels run on nothing else.
    glibc = _glibc_minor(view, platform)
    interpreters = {name: pythons.find_interpreter(context, context.which(name)) for name in ("python3", "vllm", "ray")}
    python = _find_python(context, interpreters)
    vllm = distributions.package_folder(view, python.paths, "vllm")
    scan = distributions.find_distributions(view, python.paths)
    conflicts = pip_check.find_conflicts(scan.distributions, python=python.version, platform=platform)
    return ImageFacts(
        digest=digest,
        platform=platform,
        entrypoint=config.entrypoint,
        cmd=config.cmd,
        user=config.user,
        workdir=config.workdir,
        env=dict(config.env),
        healthcheck=config.healthcheck,
        os=_os_release(view),
        glibc=glibc,
        python=python,
        interpreters={name: path for name, path in interpreters.items() if path},
        distributions=scan.distributions,
        package_manager=next((name for program, name in PACKAGE_MANAGERS.items() if context.which(program)), ""),
        programs={name: context.which(name) for name in PROGRAMS},
        architectures=_architectures(view, vllm),
        nccl=tuple(view.files(NCCL)),
        launchers=tuple(view.files(NODE_SCRIPT_NAME)),
        conflicts=(*scan.oddities, *conflicts),
        entrypoint_text=_entrypoint_text(context, config.entrypoint),
        libraries={name: _find_library(view, name, platform) for name in LIBRARIES},
        dist_packages=view.names(MODS_PACKAGES),
        mods_vllm=view.real_path(f"{MODS_PACKAGES}/vllm"),
        vllm=view.real_path(vllm) if vllm else "",
    )


def _find_python(context: ProcessContext, interpreters: Mapping[str, str]) -> Interpreter:
    """Returns the Python that vLLM runs under, else the `python3` on PATH."""
    path = interpreters["vllm"] or interpreters["python3"]
    if path:
        return pythons.describe_interpreter(context, path)
    search_path = context.env.get("PATH") or DEFAULT_PATH
    elsewhere = pythons.find_python3(context.view)
    hint = (
        f"it has {', '.join(elsewhere[:3])}: use an image with that folder on its PATH"
        if elsewhere
        else "use an image that has one; every image that serves vLLM does"
    )
    raise TandemError(f"the image has no python3 on its PATH ({search_path})", hint=hint)


def _glibc_minor(view: FilesystemView, platform: str) -> int:
    """Returns the minor version of the image's glibc 2, from its file's name (up to 2.33) or the text inside it."""
    for folder in _library_folders(platform):
        real = view.real_path(f"{folder}/libc.so.6")
        match = re.search(r"/libc-2\.(\d{1,4})\.so$", real) or re.search(r"2\.(\d{1,4})$", view.text(real))
        if real and match:
            return int(match[1])
    musl = any(name.startswith("ld-musl-") for name in view.names("/lib"))
    libc = "musl instead of glibc (as in Alpine)" if musl else f"no glibc for {platform}"
    raise TandemError(f"the image has {libc}: wheels of vLLM, torch and Ray need glibc", hint="use another image")


def _library_folders(platform: str) -> tuple[str, ...]:
    """Returns the folders that the loader searches by default (ld.so(8)), Debian's for the platform first."""
    triplet = f"{platforms.machine_of(platform)}-linux-gnu"
    plain = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
    return (f"/lib/{triplet}", f"/usr/lib/{triplet}", *plain)


def _find_library(view: FilesystemView, name: str, platform: str) -> str:
    paths = (f"{folder}/{name}" for folder in _library_folders(platform))
    return next((path for path in paths if view.find(path)), "")


def _os_release(view: FilesystemView) -> dict[str, str]:
    """Returns the keys of os-release(5) that name the system."""
    text = view.text("/etc/os-release") or view.text("/usr/lib/os-release")
    pairs = [line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#")]
    return {key: _unquote(value) for key, _, value in pairs if key in OS_RELEASE_KEYS}


def _unquote(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value


def _architectures(view: FilesystemView, vllm: str) -> dict[str, str]:
    source = view.text(f"{vllm}/{REGISTRY}") if vllm else ""
    return model_registry.parse_architectures(source) if source else {}


def _entrypoint_text(context: ProcessContext, words: Sequence[str]) -> str:
    """Returns the text of the script that ENTRYPOINT runs; empty if it runs none."""
    name = entrypoint.entrypoint_script(words)
    if not name:
        return ""
    # A shell looks for a plain name in the working folder before PATH.
    local = posixpath.join(context.workdir or "/", name)
    content = context.view.content(local if context.view.find(local) else context.which(name))
    return content.decode("utf-8", "replace") if content.startswith(b"#!") else ""

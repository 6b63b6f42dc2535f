"""An environment in which every setting is wrong: of Python, uv, pip, apt, dpkg, tar, Docker, BuildKit and git."""

import shutil
from collections.abc import Mapping
from pathlib import Path

PYTHON = {
    "PYTHONOPTIMIZE": "2", "PYTHONPYCACHEPREFIX": "/nowhere/cache", "PYTHONNODEBUGRANGES": "1", "PYTHONUTF8": "0",
    "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "7", "PYTHONPLATLIBDIR": "nowhere", "PYTHONCASEOK": "1",
    "PYTHONUSERBASE": "/nowhere", "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1", "PYTHONSAFEPATH": "1",
    "PYTHONCOERCECLOCALE": "0", "PYTHONINSPECT": "1", "PYTHONINTMAXSTRDIGITS": "640", "PYTHONMALLOC": "debug",
    "PYTHONIOENCODING": "ascii", "PYTHONHOME": "/nowhere", "PYTHONSTARTUP": "/nowhere/start.py",
    "PYTHONEXECUTABLE": "/nowhere/python", "PYTHONTRACEMALLOC": "1", "PYTHONBREAKPOINT": "nowhere.stop",
}  # fmt: skip
UV = {
    "UV_CONSTRAINT": "/nowhere", "UV_OVERRIDE": "/nowhere", "UV_PYTHON": "2.7", "UV_TARGET": "/nowhere",
    "UV_LINK_MODE": "symlink", "UV_COMPILE_BYTECODE": "1", "UV_NO_BINARY": "1", "UV_EXCLUDE_NEWER": "2000-01-01",
    "UV_PRERELEASE": "allow", "UV_RESOLUTION": "lowest", "UV_REQUIRE_HASHES": "1", "UV_BREAK_SYSTEM_PACKAGES": "1",
    "UV_SYSTEM_PYTHON": "1", "UV_TORCH_BACKEND": "cpu", "UV_PROJECT_ENVIRONMENT": "/nowhere", "UV_WORKING_DIR": "/tmp",
    "UV_PYTHON_PREFERENCE": "only-managed", "UV_NO_VERIFY_HASHES": "1", "VIRTUAL_ENV": "/nowhere",
    "CONDA_PREFIX": "/nowhere", "UV_ENV_FILE": "/nowhere", "UV_BUILD_CONSTRAINT": "/nowhere", "UV_CACHE_DIR": "/proc/x",
}  # fmt: skip
PIP = {
    "PIP_TARGET": "/nowhere", "PIP_PREFIX": "/nowhere", "PIP_ROOT": "/nowhere", "PIP_USER": "1", "PIP_PRE": "1",
    "PIP_CONSTRAINT": "/nowhere", "PIP_REQUIRE_VIRTUALENV": "1", "PIP_NO_DEPS": "1", "PIP_DRY_RUN": "1",
    "PIP_IGNORE_INSTALLED": "1", "PIP_PYTHON": "/nowhere", "PIP_LOG": "/nowhere/log", "PIP_NO_BINARY": ":all:",
}  # fmt: skip
OTHERS = {
    "TAR_OPTIONS": "--mtime=@1 --owner=nobody", "DPKG_COLORS": "always", "DPKG_ROOT": "/nowhere",
    "POSIXLY_CORRECT": "1",
    "DPKG_ADMINDIR": "/nowhere", "DPKG_FORCE": "all", "DPKG_MAINTSCRIPT_ARCH": "mips", "DEBIAN_FRONTEND": "dialog",
    "DOCKER_BUILDKIT": "0", "DOCKER_DEFAULT_PLATFORM": "linux/s390x", "DOCKER_CONTENT_TRUST": "1",
    "BUILDX_BUILDER": "nobody", "BUILDX_NO_DEFAULT_ATTESTATIONS": "0", "BUILDKIT_PROGRESS": "quiet",
    "BUILDKIT_MULTI_PLATFORM": "1", "BUILDKIT_COLORS": "run=red", "SOURCE_DATE_EPOCH": "1",
    "EXPERIMENTAL_BUILDKIT_SOURCE_POLICY": "/nowhere", "COMPOSE_PROJECT_NAME": "nobody",
    "GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/nowhere", "GIT_INDEX_FILE": "/nowhere", "GIT_CONFIG_GLOBAL": "/nowhere",
    "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.autocrlf", "GIT_CONFIG_VALUE_0": "true",
    "LD_BIND_NOW": "1", "LD_DEBUG": "statistics", "LD_LIBRARY_PATH": "/nowhere", "LD_PRELOAD": "/nowhere/x.so",
    "MALLOC_PERTURB_": "5", "GLIBC_TUNABLES": "glibc.malloc.check=3", "LOCPATH": "/nowhere", "XZ_OPT": "-9",
    "GZIP": "-9", "ZSTD_CLEVEL": "19", "RUST_LOG": "trace", "RUST_BACKTRACE": "full", "CDPATH": "/", "IFS": "x",
    "LANG": "de_DE", "LANGUAGE": "de", "LC_ALL": "C", "LC_CTYPE": "C", "TZ": "Asia/Kolkata", "USER": "nobody",
    "BASH_ENV": "/nowhere", "ENV": "/nowhere", "HOME": "/nowhere", "LOGNAME": "nobody", "COLUMNS": "7",
}  # fmt: skip
NAMES = frozenset({*PYTHON, *UV, *PIP, *OTHERS})


def environment(folder: Path) -> Mapping[str, str]:
    """All of it at once. A folder of modules that end Python when it starts is laid in `folder`, for PYTHONPATH."""
    modules = folder / "modules"
    modules.mkdir()
    for name in ("sitecustomize", "usercustomize", "py_compile"):
        (modules / f"{name}.py").write_text("import os\nos._exit(77)\n")
    return {**PYTHON, **UV, **PIP, **OTHERS, "PYTHONPATH": str(modules), "TMPDIR": str(folder)}


def path(below: Path) -> Path:
    """A folder whose path has spaces, letters outside ASCII, quotes, and more than 200 characters."""
    found = below / "a path with spaces" / "ünïcödé 'и' $HOME" / ("long" * 45)
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True)
    return found

"""The uv program of this Python environment, and the settings that it gets from pip's configuration."""

import configparser
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pipeline.core import redact
from pipeline.core.errors import TandemError


def find_program() -> str:
    """Returns the path of the uv program that this Python environment has."""
    from uv import find_uv_bin

    return find_uv_bin()


def find_version() -> str:
    """Returns uv's version, which a lock records."""
    from importlib.metadata import version

    return version("uv")


def environment(given: Mapping[str, str] | None = None, files: Iterable[Path] | None = None) -> dict[str, str]:
    """Returns the variables to add to uv's environment: pip's index and certificates, if uv's own settings have none.

    `given` is the environment (by default this process's), `files` are pip's configuration files, of which later ones
    win. Raises TandemError if pip's configuration cannot be read.
    """
    env = os.environ if given is None else given
    added = {"UV_PYTHON_DOWNLOADS": "never"}
    if env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or _has_index_in_uv_toml(env):
        return added
    pip = _pip_settings(env, _pip_files(env) if files is None else files)
    if "index-url" in pip:
        added["UV_DEFAULT_INDEX"] = pip["index-url"]
        if "trusted-host" in pip and "UV_INSECURE_HOST" not in env:
            added["UV_INSECURE_HOST"] = " ".join(pip["trusted-host"].split())
    if "cert" in pip and "SSL_CERT_FILE" not in env:
        added["SSL_CERT_FILE"] = pip["cert"]
    if "proxy" in pip and not {"ALL_PROXY", "HTTPS_PROXY", "https_proxy", "all_proxy"} & env.keys():
        added["ALL_PROXY"] = pip["proxy"]
    return added


def _has_index_in_uv_toml(env: Mapping[str, str]) -> bool:
    home = Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/root")) / ".config")
    files = (
        [Path(env["UV_CONFIG_FILE"])] if env.get("UV_CONFIG_FILE") else [home / "uv/uv.toml", Path("/etc/uv/uv.toml")]
    )
    for file in files:
        try:
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError):
            continue  # there is none, or uv itself says what is wrong with it
        redact.register_in(settings)
        if {"index", "index-url", "no-index"} & (settings.keys() | settings.get("pip", {}).keys()):
            return True
    return False


def _pip_files(env: Mapping[str, str]) -> list[Path]:
    """Return the files in which pip looks for its configuration, in its order."""
    if env.get("PIP_CONFIG_FILE") == os.devnull:
        return []
    home = Path(env.get("HOME", "/root"))
    config = Path(env.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [Path(folder) / "pip/pip.conf" for folder in (env.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")]
    own = [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
    return [*shared, Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf", *own]


def _pip_settings(env: Mapping[str, str], files: Iterable[Path]) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read([str(file) for file in files], encoding="utf-8")
    except configparser.Error as error:
        raise TandemError(f"pip's configuration cannot be read: {error}") from error
    settings = dict(parser["global"]) if parser.has_section("global") else {}
    for key in ("index-url", "trusted-host", "cert", "proxy"):
        value = env.get("PIP_" + key.replace("-", "_").upper())
        if value:
            settings[key] = value
    redact.register_in(settings)
    return {key: value.strip() for key, value in settings.items() if value.strip()}

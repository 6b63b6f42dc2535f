"""Finds the Docker engine that the docker client of this machine talks to, and asks it about itself."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.core import http_client, procs
from pipeline.core.errors import HostError, TandemError

SOCKET = "/var/run/docker.sock"
"""Where the usual local engine listens."""


def docker_host() -> str:
    """Returns the engine that the docker client talks to, as in `unix:///run/x.sock`; "" for the usual local one.

    Raises HostError for a context that does not exist.
    """
    if host := os.environ.get("DOCKER_HOST"):
        return host
    folder, context = _docker_folder(), docker_context()
    if context == "default":
        return ""
    from hashlib import sha256

    meta = json_object(folder / "contexts/meta" / sha256(context.encode()).hexdigest() / "meta.json")
    if not meta:
        raise HostError(
            f"docker has no context {context!r}", hint="`docker context ls` shows them; DOCKER_CONTEXT chooses one"
        )
    host = str(meta.get("Endpoints", {}).get("docker", {}).get("Host", ""))
    return "" if host == f"unix://{SOCKET}" else host


def docker_context() -> str:
    """Returns the docker client's context.

    The buildx builder of the same name is the engine's own BuildKit (docs.docker.com, "docker driver").
    """
    if os.environ.get("DOCKER_HOST"):
        return "default"
    current = json_object(_docker_folder() / "config.json").get("currentContext")
    return os.environ.get("DOCKER_CONTEXT") or str(current or "default")


def engine_info(where: str) -> tuple[Mapping[str, Any] | None, str]:
    """Returns what the engine says of itself (`GET /info`), or None and the reason why there is no answer."""
    scheme, _, rest = (where or f"unix://{SOCKET}").partition("://")
    try:
        if scheme == "unix":
            answer = http_client.request(rest, "/info", timeout_s=20)
            if answer.status != 200:
                return None, f"it answers {answer.status} to /info"
            return answer.json(), ""
        # ssh and TLS are the client's business.
        info: Mapping[str, Any] = json.loads(
            procs.capture(["docker", "info", "--format", "{{json .}}"], inherit=procs.DOCKER, timeout_s=30)
        )
        if errors := info.get("ServerErrors"):
            return None, "; ".join(errors)
        return info, ""
    except OSError as error:
        return None, error.strerror or str(error)
    except ValueError:
        return None, "what answers is not an engine"
    except TandemError as error:
        return None, str(error).splitlines()[-1]


def is_local(where: str) -> bool:
    """Returns whether an engine, named as docker_host() names it, runs on this machine's kernel."""
    return not where or where.startswith("unix://")


def buildx_plugin() -> Path | None:
    """Returns the buildx plugin that the docker client takes, or None.

    The folders and their order are those of https://github.com/docker/cli (cli-plugins/manager).
    """
    folder = _docker_folder()
    extra_folders = json_object(folder / "config.json").get("cliPluginsExtraDirs") or []
    usual_folders = ["local/lib", "local/libexec", "lib", "libexec"]
    folders = [
        *map(Path, extra_folders),
        folder / "cli-plugins",
        *(Path("/usr") / part / "docker/cli-plugins" for part in usual_folders),
    ]
    return next((path for path in (f / "docker-buildx" for f in folders) if os.access(path, os.X_OK)), None)


def _docker_folder() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")


def json_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file; {} if the file is missing or holds something else."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}

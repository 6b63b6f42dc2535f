"""The local registry: Debian's docker-registry in a small image, on loopback, with its own volume."""

import hashlib
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from pipeline.core import procs
from pipeline.core.errors import TandemError
from pipeline.core.http_client import is_loopback
from pipeline.core.log import Log
from pipeline.core.waiting import wait_until
from pipeline.host import endpoint, engine
from pipeline.lock import debs
from pipeline.lock.debs import Deb
from pipeline.lock.service_packages import REGISTRY
from pipeline.registry import api

if TYPE_CHECKING:
    from docker import DockerClient
    from docker.models.containers import Container

CONFIG = """\
version: 0.1
storage: {filesystem: {rootdirectory: /var/lib/registry}, delete: {enabled: true}}
http: {addr: ":5000"}
log: {level: warn, accesslog: {disabled: true}}
"""
"""It logs no requests: one look at an image makes one for every blob."""
DOCKERFILE = """\
FROM scratch
ADD root.tar /
VOLUME /var/lib/registry
EXPOSE 5000
ENTRYPOINT ["/usr/bin/docker-registry", "serve", "/etc/tandem-registry.yml"]
"""
COLLECT_COMMAND = ("/usr/bin/docker-registry", "garbage-collect", "/etc/tandem-registry.yml")
"""Frees the blobs that no manifest uses, when run in the container, while the registry serves."""
BUILD_TIMEOUT_S = 300
START_TIMEOUT_S = 60


class LocalRegistry(Struct, frozen=True):
    """The container behind a registry's address; both are empty if the registry is not ours."""

    container: str
    image: str


def container_name(address: str) -> str:
    """Returns the name of the container, and of the volume, behind host:port."""
    return f"tandem-registry-{address.rpartition(':')[2]}"


def start_registry(address: str, locked: Sequence[Deb], scratch: Path, log: Log) -> LocalRegistry:
    """Makes a registry answer at host:port.

    A registry that answers there already is used as it is, whoever started it. Raises TandemError.
    """
    name = container_name(address)
    if api.is_up(address) and engine.find_container("local", name) is None:
        log.line(f"a registry that is not ours answers at {address}; it is used as it is")
        return LocalRegistry("", "")
    if not is_loopback(address):
        raise TandemError(
            f"pipeline.yaml: registry.address: {address} is not on loopback, so it is not started here",
            hint="set serve: false for another party's registry, or use 127.0.0.1:5000",
        )
    image = _build_image(locked, scratch, log)
    _start_container(name, image, address, log)
    interval_s = 0.2
    if not wait_until(
        lambda: api.is_up(address), timeout_s=START_TIMEOUT_S, interval_s=interval_s, log=log, title="registry"
    ):
        raise TandemError(f"the registry does not answer at {address}:\n{_last_lines(name)}")
    return LocalRegistry(name, image)


def _build_image(locked: Sequence[Deb], scratch: Path, log: Log) -> str:
    """Returns the digest of the registry's image; builds it if the local store does not have it."""
    packages = REGISTRY.of_this_machine(locked, hint="set serve: false, and run a registry yourself")
    content = "\n".join([*(deb.sha256 for deb in packages), CONFIG, DOCKERFILE])
    tag = f"tandem/registry:{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    description = engine.find_image("local", tag)
    if description is None:
        files = debs.fetch_debs(packages, REGISTRY.suite, log, image=REGISTRY.name, title="packages of the registry")
        _write_context([files[deb.sha256] for deb in packages], scratch)
        # Not python-on-whales: it looks the image up by the config digest, which this image store does not know.
        options = ["--builder", endpoint.docker_context(), "--tag", tag, "--network", "none"]
        options += ["--provenance=false", "--output", "type=docker", "--build-arg", "SOURCE_DATE_EPOCH=0"]
        argv = ["docker", "buildx", "build", *options, str(scratch)]
        procs.run(argv, log=log, inherit=procs.DOCKER, timeout_s=BUILD_TIMEOUT_S)
        description = engine.find_image("local", tag)
    if description is None:
        raise TandemError(f"the engine has no image {tag} after its build")
    return str(description["Id"])


def _write_context(files: Sequence[Path], scratch: Path) -> None:
    """Writes the build context: the packages' files with our configuration, and the Dockerfile."""
    root = scratch / "root"
    for file in files:
        procs.capture(["dpkg-deb", "--extract", str(file), str(root)])
    (root / "etc").mkdir(parents=True, exist_ok=True)
    (root / "etc" / "tandem-registry.yml").write_text(CONFIG)
    (root / "tmp").mkdir(exist_ok=True)
    for link in ("lib", "lib64", "bin", "sbin"):
        if not (root / link).exists():
            (root / link).symlink_to(f"usr/{link}")
    with tarfile.open(scratch / "root.tar", "w") as tar:
        tar.add(root, arcname=".", filter=_without_time)
    (scratch / "Dockerfile").write_text(DOCKERFILE)
    (scratch / ".dockerignore").write_text("*\n!root.tar\n")


def _without_time(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Makes two builds at once give the same image."""
    member.mtime = 0
    return member


def _start_container(name: str, image: str, address: str, log: Log) -> None:
    from docker.errors import APIError

    with engine.session() as client:
        host, _, port = address.rpartition(":")
        listen_ip = "127.0.0.1" if host == "localhost" else host.strip("[]")
        if _is_running(client, name, image, listen_ip, port, log):
            return
        restart_policy: Any = {"Name": "unless-stopped"}
        try:
            client.containers.run(
                image,
                name=name,
                detach=True,
                labels={"tandem": "registry", "tandem.image": image},
                ports={"5000/tcp": (listen_ip, int(port))},
                volumes={name: {"bind": "/var/lib/registry", "mode": "rw"}},
                restart_policy=restart_policy,
            )
        except APIError as error:
            for container in _containers(client, name):
                engine.remove_container(container)
            raise TandemError(
                f"the registry cannot be started at {address}: {error.explanation}",
                hint="does another program use the port? choose another registry.address in pipeline.yaml",
            ) from error
    log.line(f"{name} is started")


def _is_running(client: "DockerClient", name: str, image: str, listen_ip: str, port: str, log: Log) -> bool:
    """Returns whether the container runs as wanted; removes it if it exists otherwise."""
    published = {"5000/tcp": [{"HostIp": listen_ip, "HostPort": port}]}
    for container in _containers(client, name):
        same_image = container.labels.get("tandem.image") == image
        if container.status == "running" and same_image and container.attrs["HostConfig"]["PortBindings"] == published:
            return True
        reason = f"{name} is {container.status}, or has another image or address"
        log.line(f"{reason}: the container is replaced, and its volume stays")
        engine.remove_container(container)
    return False


def _containers(client: "DockerClient", name: str) -> "list[Container]":
    return client.containers.list(all=True, filters={"name": f"^{name}$"}, ignore_removed=True)


def _last_lines(name: str) -> str:
    with engine.session() as client:
        text: bytes = client.containers.get(name).logs(tail=10)
    return text.decode(errors="replace")

"""The local registry: Debian's docker-registry in a small image of ours, on loopback, with a volume of its own."""

import hashlib
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.core import procs
from pipeline.core.errors import TandemError
from pipeline.core.log import Log
from pipeline.core.waiting import wait_until
from pipeline.host import engine, needs
from pipeline.lock import debs
from pipeline.lock.debs import Deb
from pipeline.lock.service_packages import REGISTRY
from pipeline.registry import api

CONFIG = """\
version: 0.1
storage: {filesystem: {rootdirectory: /var/lib/registry}, delete: {enabled: true}}
http: {addr: ":5000"}
log: {level: warn, accesslog: {disabled: true}}
"""
"""Without a line for each request: one look at an image asks for every blob."""
DOCKERFILE = """\
FROM scratch
ADD root.tar /
VOLUME /var/lib/registry
EXPOSE 5000
ENTRYPOINT ["/usr/bin/docker-registry", "serve", "/etc/tandem-registry.yml"]
"""
COLLECT = ("/usr/bin/docker-registry", "garbage-collect", "/etc/tandem-registry.yml")
"""Run in the container, this frees the blobs that no manifest uses, while the registry serves."""


def container_name(address: str) -> str:
    """The name of the container, and of the volume, behind host:port."""
    return f"tandem-registry-{address.rpartition(':')[2]}"


def is_local(address: str) -> bool:
    """Whether host:port is on this machine's loopback, where alone we start a registry."""
    host = address.rpartition(":")[0]
    return host in ("localhost", "[::1]") or host.startswith("127.")


def serve(address: str, locked: Sequence[Deb], scratch: Path, log: Log) -> dict[str, str]:
    """Have a registry answer at host:port; returns its container and image (empty if it is somebody else's).

    A registry that answers there already is used as it is, whoever started it. Raises TandemError.
    """
    name = container_name(address)
    if api.answers(address) and engine.container("local", name) is None:
        log.line(f"a registry that is not ours answers at {address}; it is used as it is")
        return {"container": "", "image": ""}
    if not is_local(address):
        raise TandemError(
            f"pipeline.yaml: registry.address: {address} is not on loopback, so it is not started here",
            hint="set serve: false for a registry of somebody else, or use 127.0.0.1:5000",
        )
    image = _image(locked, scratch, log)
    _start(name, image, address, log)
    if not wait_until(lambda: api.answers(address), timeout_s=60, interval_s=0.2, log=log, title="registry"):
        raise TandemError(f"the registry does not answer at {address}:\n{_last_words(name)}")
    return {"container": name, "image": image}


def stop(address: str, *, volume: bool = False) -> None:
    """Remove the registry's container, and its volume with all images in it if asked."""
    from docker.errors import NotFound

    client = engine.client()
    name = container_name(address)
    for found in client.containers.list(all=True, filters={"name": f"^{name}$"}, ignore_removed=True):
        engine.remove(found)
    if volume:
        try:
            client.volumes.get(name).remove(force=True)
        except NotFound:
            return


def _image(locked: Sequence[Deb], scratch: Path, log: Log) -> str:
    """The digest of the registry's image, made if the store has it not."""
    mine = REGISTRY.of_this_machine(locked, hint="set serve: false, and run a registry yourself")
    decides = "\n".join([*(deb.sha256 for deb in mine), CONFIG, DOCKERFILE])
    tag = f"tandem/registry:{hashlib.sha256(decides.encode()).hexdigest()[:12]}"
    found = engine.image("local", tag)
    if found is None:
        files = debs.fetch(mine, REGISTRY.suite, log, image=REGISTRY.name, title="packages of the registry")
        _context([files[deb.sha256] for deb in mine], scratch)
        # Not python-on-whales: it looks the image up by the config digest, which this image store does not know.
        options = ["--builder", needs.docker_context(), "--tag", tag, "--network", "none"]
        options += ["--provenance=false", "--output", "type=docker", "--build-arg", "SOURCE_DATE_EPOCH=0"]
        procs.run(["docker", "buildx", "build", *options, str(scratch)], log=log, hears=procs.DOCKER, within=300)
        found = engine.image("local", tag)
    if found is None:
        raise TandemError(f"the engine has no image {tag} after its build")
    return str(found["Id"])


def _context(files: Sequence[Path], scratch: Path) -> None:
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
        tar.add(root, arcname=".", filter=_timeless)
    (scratch / "Dockerfile").write_text(DOCKERFILE)
    (scratch / ".dockerignore").write_text("*\n!root.tar\n")


def _timeless(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Two who make the image at once make the same one."""
    member.mtime = 0
    return member


def _start(name: str, image: str, address: str, log: Log) -> None:
    from docker.errors import APIError

    client = engine.client()
    host, _, port = address.rpartition(":")
    listens = "127.0.0.1" if host == "localhost" else host.strip("[]")
    published = {"5000/tcp": [{"HostIp": listens, "HostPort": port}]}
    for old in client.containers.list(all=True, filters={"name": f"^{name}$"}, ignore_removed=True):
        right = old.labels.get("tandem.image") == image and old.attrs["HostConfig"]["PortBindings"] == published
        if old.status == "running" and right:
            return
        log.line(f"{name} is {old.status}, or of another image or address: it is made anew; its volume stays")
        engine.remove(old)
    again: Any = {"Name": "unless-stopped"}
    try:
        client.containers.run(
            image,
            name=name,
            detach=True,
            labels={"tandem": "registry", "tandem.image": image},
            ports={"5000/tcp": (listens, int(port))},
            volumes={name: {"bind": "/var/lib/registry", "mode": "rw"}},
            restart_policy=again,
        )
    except APIError as error:
        for left in client.containers.list(all=True, filters={"name": f"^{name}$"}, ignore_removed=True):
            engine.remove(left)
        raise TandemError(
            f"the registry cannot be started at {address}: {error.explanation}",
            hint="another program holds the port? choose another registry.address in pipeline.yaml",
        ) from error
    log.line(f"{name} is started")


def _last_words(name: str) -> str:
    text: bytes = engine.client().containers.get(name).logs(tail=10)
    return text.decode(errors="replace")

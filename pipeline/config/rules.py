"""Rules that no model of a single value can express: valid addresses, and parts that must fit together."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from pipeline.config.launcher_contract import is_node_specific
from pipeline.config.models import Cluster, CombinedImage, Image, Node, Pipeline
from pipeline.config.serve_rules import serve_problems
from pipeline.core.http_client import is_loopback
from pipeline.core.names import normalised_name
from pipeline.core.suggest import suggestion

Key = tuple[str | int, ...]
Violation = tuple[Key, str, str]
"""The key, what is wrong with its value, and a hint."""

HOST_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")
PORT = re.compile(r"[1-9][0-9]{0,4}")
TINY_MODEL = "tiny"
REFERENCE_SUFFIX = "-reference"
"""The end of the name of a cluster's reference: one rank, which the cluster's answer is compared with."""
ENDPOINT_SCHEMES = ("ssh", "tcp", "unix")
DEBIAN_KEYS = ("debian", "packages")
"""The keys of `base` that only an image made from Debian packages has."""
MAX_HOST_NAME_CHARS = 63
"""The limit of one label of a host name. A container's name becomes the host name in it."""


def pipeline_violations(pipeline: Pipeline, images: Mapping[str, Image]) -> Iterator[Violation]:
    """Yields what is wrong in a pipeline.yaml whose single values fit; `images` are by folder name."""
    if pipeline.default not in pipeline.clusters:
        hint = suggestion(pipeline.default, pipeline.clusters)
        yield ("default",), f"no cluster is called {pipeline.default!r}", hint
    if problem := address_problem(pipeline.registry.address):
        yield ("registry", "address"), *problem
    for name, cluster in pipeline.clusters.items():
        if name.endswith(REFERENCE_SUFFIX):
            reason = (
                f"a cluster's name cannot end in {REFERENCE_SUFFIX}: reference:NAME gives its container such a name"
            )
            yield ("clusters", name), reason, "rename the cluster"
        for key, reason, hint in _cluster_violations(name, cluster, images):
            yield ("clusters", name, *key), reason, hint
    yield from _container_violations(pipeline)
    yield from _port_violations(pipeline)


def image_violations(image: Image, folder: Path) -> Iterator[Violation]:
    """Yields what is wrong in an image.yaml whose single values fit; `folder` is the image's own."""
    if image.python.cutoff is not None and not _is_date(image.python.cutoff):
        yield ("python", "cutoff"), f"{image.python.cutoff!r} is not a date", "year-month-day, as in 2026-01-31"
    if isinstance(image, CombinedImage) and image.base is None and image.combine is None:
        yield (), "neither base nor combine says what the image is made from", "base: {image: NAME:TAG}"
    yield from _alias_violations(image)
    for variable in image.env:
        if is_node_specific(variable):
            reason = f"{variable} differs from node to node, and no image may have it"
            yield (
                ("env", variable),
                reason,
                "launchers set it, as Tandem does; what the nodes of a cluster share may go into its serve.env",
            )
    folders: list[tuple[Key, str | None]] = [(("files",), image.files), (("smoke", "config"), image.smoke.config)]
    folders += [(("distributions", i), name) for i, name in enumerate(image.distributions)]
    for key, name in folders:
        if name is None:
            continue
        if not _is_below(name):
            yield key, f"{name!r} is not a folder below the image's own", "write it as seen from the image's folder"
        elif not (folder / name).is_dir():
            yield key, f"no folder {name!r}", f"it is looked for in dockerfiles/{folder.name}/"
        elif (folder / name).resolve() != folder.resolve() / name:
            reason = f"{name!r} is reached through a link, and links to inputs are not followed"
            yield key, reason, "put the folder itself there"


def mixed_base_violations(value: Mapping[str, Any]) -> Iterator[Violation]:
    """Yields the keys of an image from Debian packages in the image.yaml of a combined one.

    `value` is plain YAML data.
    """
    base, python = value.get("base"), value.get("python")
    for key in DEBIAN_KEYS:
        if isinstance(base, dict) and key in base:
            source = "combine" if "combine" in value else "base.image"
            yield (
                ("base", key),
                f"an image is made either from Debian packages or, with {source}, from another image",
                "keep one of the two",
            )
    if isinstance(python, dict) and "version" in python:
        yield (
            ("python", "version"),
            "the interpreter is the base's own",
            "leave the key out; `lock` reads the version from the base",
        )


def address_problem(address: str) -> tuple[str, str] | None:
    """Returns what is wrong with a registry's host:port, and a hint; None if nothing is.

    The host may be a name, an IPv4 address, or an IPv6 address in brackets.
    """
    if "@" in address:
        return "it holds a user or a password", "write host:port only, and log in with `docker login`"
    host, colon, port = address.rpartition(":")
    if "/" in address or not colon:
        return f"{address!r} is not host:port", "write it without https:// and path, as in 127.0.0.1:5000"
    if not (PORT.fullmatch(port) and int(port) <= 65535):
        return f"{address!r} is not host:port: {port!r} is not a port", "as in 127.0.0.1:5000; ports are 1 to 65535"
    if not (is_host(host) or _is_ipv6(host)):
        hint = "as in 127.0.0.1:5000, [::1]:5000 or registry.example:5000"
        return f"{address!r} is not host:port: {host!r} is not a host", hint
    return None


def endpoint_problem(endpoint: str) -> tuple[str, str] | None:
    """Returns what is wrong with a node's Docker endpoint, and a hint; None if nothing is."""
    if endpoint == "local":
        return None
    examples = "local, ssh://me@spark-1, tcp://spark-1:2375 or unix:///run/docker.sock"
    try:
        url = urlsplit(endpoint)
        host, password, _ = url.hostname, url.password, url.port
    except ValueError as error:
        return f"the endpoint cannot be read: {error}", examples
    if password is not None:
        return "the endpoint holds a password", "use a key of ssh's agent: ssh://me@spark-1"
    if url.scheme not in ENDPOINT_SCHEMES:
        closest = suggestion(endpoint, ("local",)) if "://" not in endpoint else ""
        return f"{endpoint!r} is not a Docker endpoint", closest if "did you" in closest else examples
    if re.search(r"\s", endpoint) or not (url.path.strip("/") if url.scheme == "unix" else is_host(host or "")):
        return f"{endpoint!r} names no {'socket' if url.scheme == 'unix' else 'host'}", examples
    return None


def is_host(text: str) -> bool:
    """Returns whether a text is an IPv4 address or a host name."""
    labels = text.split(".")
    if all(label.isdigit() for label in labels):
        return len(labels) == 4 and all(len(label) <= 3 and int(label) <= 255 for label in labels)
    return len(text) <= 253 and all(
        HOST_LABEL.fullmatch(label) and len(label) <= MAX_HOST_NAME_CHARS for label in labels
    )


def _is_ipv6(host: str) -> bool:
    from ipaddress import AddressValueError, IPv6Address

    if not (host.startswith("[") and host.endswith("]")):
        return False
    try:
        IPv6Address(host[1:-1])
    except AddressValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    from datetime import date

    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def _alias_violations(image: Image) -> Iterator[Violation]:
    """Yields aliases with the same name. Foo_bar and foo-bar are one distribution (PEP 503)."""
    index_of: dict[str, int] = {}
    for i, alias in enumerate(image.aliases):
        first = index_of.setdefault(normalised_name(alias.name), i)
        if first != i:
            reason = f"{alias.name!r} is the same distribution as aliases[{first}].name, {image.aliases[first].name!r}"
            yield ("aliases", i, "name"), reason, "leave one of the two out"


def _is_below(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _cluster_violations(name: str, cluster: Cluster, images: Mapping[str, Image]) -> Iterator[Violation]:
    if cluster.image not in images:
        folders = f"folders in dockerfiles/: {', '.join(sorted(images)) or 'none'}"
        closest = suggestion(cluster.image, images)
        hint = f"{closest} {folders}" if closest.startswith("did you") else folders
        yield ("image",), f"no image is called {cluster.image!r}", hint
    names = [node.name for node in cluster.nodes]
    for i, node in enumerate(cluster.nodes):
        if node.name in names[:i]:
            yield ("nodes", i, "name"), f"two nodes are called {node.name!r}", "give each its own name"
        yield from ((("nodes", i, *key), reason, hint) for key, reason, hint in _node_violations(name, node))
    yield from _address_violations(cluster)
    model = cluster.serve.model
    if model != TINY_MODEL and not model.startswith("/"):
        closest = suggestion(model, (TINY_MODEL,))
        hint = (
            closest
            if closest.startswith("did you")
            else f"{TINY_MODEL} (made by Tandem), or an absolute path on the nodes"
        )
        yield ("serve", "model"), f"{model!r} is neither {TINY_MODEL} nor an absolute path", hint
    for key, reason, hint in serve_problems(cluster):
        yield ("serve", *key), reason, hint


def _node_violations(cluster: str, node: Node) -> Iterator[Violation]:
    if problem := endpoint_problem(node.endpoint):
        yield ("endpoint",), *problem
    if node.address is not None and not is_host(node.address):
        hint = "as in 10.0.0.1; leave the key out for containers of one machine"
        yield ("address",), f"{node.address!r} is not an IPv4 address or a host name", hint
    if len(container := f"tandem-{cluster}-{node.name}") > MAX_HOST_NAME_CHARS:
        yield (
            ("name",),
            f"the container's name {container} is longer than {MAX_HOST_NAME_CHARS} characters",
            "shorten one of the two",
        )


def _address_violations(cluster: Cluster) -> Iterator[Violation]:
    """Yields nodes that cannot reach each other. Without addresses, all must be containers on one engine's network."""
    nodes = cluster.nodes
    without_address = [i for i, node in enumerate(nodes) if node.address is None]
    engines = sorted({node.endpoint for node in nodes})
    if without_address and len(without_address) < len(nodes):
        reason = f"node {nodes[without_address[0]].name} has no address, but others have one"
        yield ("nodes", without_address[0]), reason, "give every node an address, or none"
    elif without_address and len(engines) > 1:
        reason = f"nodes of several engines ({', '.join(engines)}) need addresses"
        yield ("nodes",), reason, "give each node the address by which the others reach it"


def _container_violations(pipeline: Pipeline) -> Iterator[Violation]:
    """Yields nodes of different clusters whose containers would have the same name on the same engine."""
    cluster_of: dict[tuple[str, str], str] = {}
    for name, cluster in pipeline.clusters.items():
        for i, node in enumerate(cluster.nodes):
            container = f"tandem-{name}-{node.name}"
            other = cluster_of.setdefault((node.endpoint, container), name)
            if other != name:
                reason = f"its container {container} would also be one of the cluster {other}"
                yield ("clusters", name, "nodes", i, "name"), reason, "rename the node or a cluster"


def _port_violations(pipeline: Pipeline) -> Iterator[Violation]:
    """Yields services that would listen on the same port of this machine."""
    address = pipeline.registry.address
    owner_of: dict[int, str] = {}
    if is_loopback(address):
        owner_of[int(address.rpartition(":")[2])] = "the registry (registry.address)"
    for name, cluster in pipeline.clusters.items():
        if cluster.nodes[0].endpoint != "local":
            continue
        served = cluster.serve.port
        if served in owner_of:
            reason = f"port {served} of this machine is taken by {owner_of[served]}"
            yield ("clusters", name, "serve", "port"), reason, "choose another serve.port"
        owner_of.setdefault(served, f"the cluster {name}")

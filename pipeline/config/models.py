"""The models of image.yaml and pipeline.yaml: what a person decides, and the defaults.

The JSON Schemas below schemas/ are generated from these classes. Their docstrings become descriptions there.
"""

from typing import Annotated

from msgspec import Meta, Struct, field


def described_pattern(pattern: str, words: str) -> Meta:
    """Returns a pattern with a description of the text that fits it, for messages and editors."""
    return Meta(pattern=pattern, description=words, extra={"words": words})


# A component of a Docker reference. Of repeated separators, it may hold only - and __.
NAME = r"^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$"
NAME_WORDS = "a name of lower-case letters and digits, with single - _ . between them"
Name = Annotated[
    str, Meta(pattern=NAME, max_length=63, description=NAME_WORDS, extra={"words": f"{NAME_WORDS}, at most 63 long"})
]
Filled = Annotated[str, described_pattern(r"\S", "some text")]
Variable = Annotated[str, described_pattern("^[A-Za-z_][A-Za-z0-9_]*$", "a variable's name: letters, digits and _")]
Word = Annotated[str, described_pattern(r"^[^\0]*$", "text without NUL characters")]
Package = Annotated[str, described_pattern("^[a-z0-9][a-z0-9+.-]*$", "a Debian package's name, as in libnuma1")]
Suite = Annotated[str, described_pattern("^[a-z][a-z0-9-]*$", "a Debian suite's name, as in trixie")]
Module = Annotated[
    str, described_pattern(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$", "a module's name, as in torch.distributed")
]
Distribution = Annotated[
    str, described_pattern("^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$", "a distribution's name, as in vllm")
]
Version = Annotated[str, described_pattern("^[0-9A-Za-z][0-9A-Za-z.+!_-]*$", "a version, as in 0.19.1+cpu")]
# Docker's reference grammar (distribution/reference). A tag or digest is mandatory: without one Docker takes "latest".
Reference = Annotated[
    str,
    described_pattern(
        r"^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
        r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})$",
        "an image's name as docker pull takes it: lower case, without https://, and with a tag or a digest (NAME:TAG)",
    ),
]
Absolute = Annotated[
    str,
    described_pattern(r"^/$|^(/(?!\.\.?(/|$))[^/\0\n]+)+/?$", "an absolute path without . and .., as in /workspace"),
]
Port = Annotated[int, Meta(ge=1, le=65535)]


class Strict(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Refuses unknown keys; values cannot change after they were read."""


class DebianBase(Strict, frozen=True, kw_only=True):
    """A root filesystem from Debian packages, which are extracted and never configured."""

    debian: Suite
    packages: Annotated[tuple[Package, ...], Meta(min_length=1, description="binary packages; dependencies follow")]


class Python(Strict, frozen=True, kw_only=True):
    """The Python packages of the image."""

    version: Annotated[str, described_pattern(r"^3\.\d+$", "the version of the base's interpreter, as in 3.13")]
    requirements: Annotated[tuple[str, ...], Meta(min_length=1, description="PEP 508 requirements")]
    constraints: tuple[str, ...] = ()
    cutoff: Annotated[str, described_pattern(r"^\d{4}-\d\d-\d\d$", "a date, as in 2026-01-31")] | None = None


class Alias(Strict, frozen=True, kw_only=True):
    """A second name and version of an installed distribution, for software that asks for it by that name."""

    name: Distribution
    version: Version
    of: Annotated[str, Meta(description="the locked distribution that it stands for")]
    reason: str


class Smoke(Strict, frozen=True, kw_only=True):
    """What the finished image must be able to do; the checks of `smoke`."""

    imports: tuple[Module, ...] = ()
    architectures: Annotated[
        tuple[str, ...], Meta(description="model classes that vLLM's registry must list and load")
    ] = ()
    config: Annotated[
        str | None, Meta(description="folder below the image's own, with the target model's config.json")
    ] = None
    ray: Annotated[bool, Meta(description="start two Ray nodes and see them join")] = True
    launcher: Annotated[bool, Meta(description="check the launcher contract")] = True
    without: Annotated[
        tuple[Annotated[str, Meta(pattern="^(earlyoom|git|curl|patch|uv|rdma)$")], ...],
        Meta(description="what launchers may ask for and this image does without; base images often lack some"),
    ] = ()


class Common(Strict, frozen=True, kw_only=True):
    """The keys of every image, whatever it is made from. Its folder below dockerfiles/ has the image's name."""

    platform: Annotated[str, Meta(pattern=r"^linux/(arm64|amd64)$")] = "linux/arm64"
    aliases: tuple[Alias, ...] = ()
    distributions: Annotated[
        tuple[str, ...], Meta(description="our own pure-Python distributions: folders below the image's own")
    ] = ()
    files: Annotated[str | None, Meta(description="folder below the image's own, copied over the root as it is")] = None
    env: dict[Variable, Word] = field(default_factory=dict)
    workdir: Absolute = "/workspace/vllm"
    smoke: Smoke = field(default_factory=Smoke)


class DebianImage(Common, frozen=True, kw_only=True):
    """An image made from Debian packages and wheels."""

    base: DebianBase
    python: Python


class ImageBase(Strict, frozen=True, kw_only=True):
    """The image that another one is built on; it stays as it is."""

    image: Annotated[Reference, Meta(description="NAME:TAG or NAME@sha256:…; the lock keeps the digest")]


class Additions(Strict, frozen=True, kw_only=True):
    """The Python packages to add; a package that the base has keeps its version."""

    requirements: Annotated[tuple[str, ...], Meta(min_length=1, description="PEP 508 requirements")] = ("ray[default]",)
    constraints: tuple[str, ...] = ()
    cutoff: Annotated[str, described_pattern(r"^\d{4}-\d\d-\d\d$", "a date, as in 2026-01-31")] | None = None


class Combine(Strict, frozen=True, kw_only=True):
    """Two images that each have half of what is needed; `./doitw advise` says how they become one."""

    model_from: Annotated[Reference, Meta(description="the image that knows the model")]
    cluster_from: Annotated[Reference, Meta(description="the image that forms a cluster")]


class CombinedImage(Common, frozen=True, kw_only=True):
    """An image on top of another one: Ray and the launcher's files are added, and nothing in the base changes."""

    base: ImageBase | None = None
    python: Additions = field(default_factory=Additions)
    combine: Combine | None = None


Image = DebianImage | CombinedImage


class Registry(Strict, frozen=True, kw_only=True):
    """Where images are pushed to, and pulled from by the nodes."""

    address: Annotated[str, Meta(description="host:port")] = "127.0.0.1:5000"
    serve: Annotated[bool, Meta(description="run the registry in the local engine")] = True
    repository: Name = "tandem"
    records: Annotated[
        str,
        Meta(
            pattern="^(off|pull|push)$",
            description="results shared through the registry: pull uses the results of others, push also shares ours",
        ),
    ] = "off"


class Node(Strict, frozen=True, kw_only=True):
    """A Docker endpoint, and the address by which the other nodes reach it."""

    name: Name
    endpoint: Annotated[str, Meta(description="local, or a Docker host as in ssh://me@spark-1")] = "local"
    address: Annotated[str | None, Meta(description="needed for machines; containers get theirs from the network")] = (
        None
    )


class Serve(Strict, frozen=True, kw_only=True):
    """What the cluster serves, and how vLLM is started."""

    model: Annotated[str, Meta(description="tiny (made by Tandem), or an absolute path on the nodes")] = "tiny"
    name: Filled = "tiny"
    port: Port = 8000
    args: Annotated[tuple[Word, ...], Meta(description="further arguments of vllm serve")] = ()
    env: dict[Variable, Word] = field(default_factory=dict)
    within: Annotated[int, Meta(ge=1, description="the engine's start timeout in seconds")] = 1800


class Cluster(Strict, frozen=True, kw_only=True):
    """A list of nodes, the first of which is the head, and what to serve on them."""

    image: Name
    executor: Annotated[
        str, Meta(pattern="^(ray|none)$", description="ray, or none: vLLM's own multi-node executor")
    ] = "ray"
    accelerators: Annotated[int, Meta(ge=1, description="of each node")] = 1
    nodes: Annotated[tuple[Node, ...], Meta(min_length=1)]
    serve: Serve = field(default_factory=Serve)


class Pipeline(Strict, frozen=True, kw_only=True):
    """pipeline.yaml: what an operator edits."""

    default: Annotated[str, Meta(description="the cluster of a bare `./doitw deploy`")]
    registry: Registry = field(default_factory=Registry)
    clusters: dict[Name, Cluster]

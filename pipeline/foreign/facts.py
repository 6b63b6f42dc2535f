"""What somebody else's image holds, as far as building on it needs to know: read once, kept in the lock, committed."""

from msgspec import Struct, field


class Fact(Struct, frozen=True, kw_only=True):
    """A part of a reading; plain JSON both ways (msgspec)."""


class InstalledDistribution(Fact, frozen=True, kw_only=True):
    """A distribution that the image's interpreter sees: normalised name, version as it is written there.

    `place` is the folder with its metadata's folder in it; `editable` the folder with its source, if it is installed
    from one; `requires` and `extras` are Requires-Dist and Provides-Extra, as they are written.
    """

    name: str
    version: str
    place: str
    editable: str = ""
    requires: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()


class Interpreter(Fact, frozen=True, kw_only=True):
    """A Python of the image: how it is called there, the program with links resolved, and where it installs to.

    `kind` is "system", "venv", or "conda"; `site` the folder that additions go to, `scripts` the one for programs;
    `paths` are all the folders that hold its distributions, the first to be looked into first. `version` is as exact as
    the image tells it: 3.12.3, or 3.12.
    """

    path: str
    program: str
    version: str
    kind: str
    site: str
    scripts: str
    paths: tuple[str, ...] = ()

    @property
    def minor(self) -> str:
        """The version as folders and wheels have it, as in 3.12."""
        return ".".join(self.version.split(".")[:2])


class ImageFacts(Fact, frozen=True, kw_only=True):
    """An image as it was read. All paths are absolute and inside the image.

    `glibc` is the minor version of its glibc 2; `python` the interpreter that vLLM runs under (else what `python3`
    is on the image's PATH); `interpreters` says for `python3`, `vllm`, `ray` which program each runs under;
    `programs` maps a command to its path ("" if it is not on PATH); `architectures` maps what vLLM's registry.py lists
    (by its syntax tree) to "module:Class"; `nccl` are the NCCL libraries by path; `launchers` the paths of
    run-cluster-node.sh; `conflicts` what is inconsistent among the distributions as the image came.
    `entrypoint_text` is the text of the shell script that ENTRYPOINT runs (entrypoint.script names it; "" for
    a binary or none); `libraries` maps a library's soname to its path ("" if it is not there); `dist_packages` are the
    names in /usr/local/lib/python3.12/dist-packages, which mods of the launcher have written into them, and `mods_vllm`
    where `vllm` there leads; `vllm` is the package's folder that Python imports; both with links resolved, "" if not
    there. `layers` are the diff_ids of its layers, in order.
    """

    digest: str
    platform: str
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    env: dict[str, str] = field(default_factory=dict)
    os: dict[str, str] = field(default_factory=dict)
    glibc: int
    python: Interpreter
    interpreters: dict[str, str] = field(default_factory=dict)
    distributions: tuple[InstalledDistribution, ...] = ()
    package_manager: str = ""
    programs: dict[str, str] = field(default_factory=dict)
    architectures: dict[str, str] = field(default_factory=dict)
    nccl: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    entrypoint_text: str = ""
    libraries: dict[str, str] = field(default_factory=dict)
    dist_packages: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    mods_vllm: str = ""
    vllm: str = ""

    def version(self, name: str) -> str:
        """The version of a distribution (normalised name); empty if it is not inside."""
        return next((inside.version for inside in self.distributions if inside.name == name), "")

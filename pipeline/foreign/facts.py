"""What an image holds, as far as building on it needs to know. The lock keeps these facts, and is committed.

All paths are absolute, and are paths inside the image. The names of the fields are those of the lock's JSON.
"""

from msgspec import Struct, field


class Fact(Struct, frozen=True, kw_only=True):
    """A part of the facts; msgspec turns it into JSON and back without loss."""


class InstalledDistribution(Fact, frozen=True, kw_only=True):
    """A distribution that the image's interpreter sees."""

    name: str
    """The normalised name (PEP 503)."""
    version: str
    """The version as its metadata has it, which need not follow PEP 440."""
    place: str
    """The folder that holds its .dist-info or .egg-info folder."""
    editable: str = ""
    """The folder with its source if it is an editable install, else empty."""
    requires: tuple[str, ...] = ()
    """Its Requires-Dist, as they are written."""
    extras: tuple[str, ...] = ()
    """Its Provides-Extra, as they are written."""


class Interpreter(Fact, frozen=True, kw_only=True):
    """A Python of the image."""

    path: str
    """The path by which it is called."""
    program: str
    """The same path with all links resolved."""
    version: str
    """The version, as exact as the image's files tell: "3.12.3", or "3.12"."""
    kind: str
    """One of system, venv, conda."""
    site: str
    """The folder that additions are installed to."""
    scripts: str
    """The folder for the programs of additions."""
    paths: tuple[str, ...] = ()
    """All folders that hold its distributions, in the order in which it looks into them."""

    @property
    def minor(self) -> str:
        """The version as folders and wheels have it, such as 3.12."""
        return ".".join(self.version.split(".")[:2])


class ImageFacts(Fact, frozen=True, kw_only=True):
    """An image as its configuration and its files describe it."""

    digest: str
    """The digest (sha256:…) of the manifest or index that was pulled."""
    platform: str
    """Docker's name of the platform, such as linux/arm64."""
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    user: str = ""
    workdir: str = ""
    env: dict[str, str] = field(default_factory=dict)
    healthcheck: bool = False
    """Whether it has a HEALTHCHECK, which would judge nodes by what the base served."""
    os: dict[str, str] = field(default_factory=dict)
    """The keys of os-release(5) that name the system."""
    glibc: int
    """The minor version of its glibc 2."""
    python: Interpreter
    """The interpreter that vLLM runs under; without vLLM, the `python3` on PATH."""
    interpreters: dict[str, str] = field(default_factory=dict)
    """The Python that `python3`, `vllm` and `ray` each run under, by command; a command without one is left out."""
    distributions: tuple[InstalledDistribution, ...] = ()
    """The distributions that `python` sees, sorted by name."""
    package_manager: str = ""
    """One of apt, dnf, apk; empty if none was found."""
    programs: dict[str, str] = field(default_factory=dict)
    """The path of each command that was looked for; empty if it is not on PATH."""
    architectures: dict[str, str] = field(default_factory=dict)
    """What the text of vLLM's registry.py lists: "module:Class" by architecture."""
    nccl: tuple[str, ...] = ()
    """The paths of all NCCL libraries."""
    launchers: tuple[str, ...] = ()
    """The paths of all files called run-cluster-node.sh."""
    conflicts: tuple[str, ...] = ()
    """What is inconsistent among its distributions, one sentence each."""
    entrypoint_text: str = ""
    """The text of the shell script that ENTRYPOINT runs; empty if it runs none."""
    libraries: dict[str, str] = field(default_factory=dict)
    """The path of each library that was looked for, by soname; empty if it is not there."""
    dist_packages: tuple[str, ...] = ()
    """The names in launcher_contract.MODS_PACKAGES."""
    layers: tuple[str, ...] = ()
    """The diff_ids of its layers, in order."""
    mods_vllm: str = ""
    """The folder that `vllm` in launcher_contract.MODS_PACKAGES leads to, links resolved; empty if it is not there."""
    vllm: str = ""
    """The folder of the vLLM that Python imports, links resolved; empty if it is not there."""

    def version(self, name: str) -> str:
        """Returns the version of a distribution by its normalised name; empty if it is not installed."""
        return next((installed.version for installed in self.distributions if installed.name == name), "")

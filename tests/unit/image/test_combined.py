"""Images on top of others: what is asked, locked, laid down, and left alone."""

import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pipeline.config import loader
from pipeline.config.models import Additions, Alias, Combine, CombinedImage, ImageBase
from pipeline.core import tar
from pipeline.core.errors import ConfigError, TandemError
from pipeline.core.log import NullLog
from pipeline.foreign.facts import ImageFacts, InstalledDistribution, Interpreter
from pipeline.image import build, dockerfile, own_files, wheels
from pipeline.image.own_files import Below
from pipeline.lock import combined, lock, lockfile
from pipeline.lock.contents import CombinedLock
from pipeline.lock.request import request_of
from pipeline.lock.resolver import Wheel
from pipeline.lock.wheel_tags import WheelTarget

HEX = "0123456789abcdef" * 4
BASE = "there/model:1"
SITE = "/opt/venv/lib/python3.12/site-packages"
IMAGE = CombinedImage(base=ImageBase(image=BASE))
FACTS = ImageFacts(
    digest=f"sha256:{HEX}",
    platform="linux/arm64",
    glibc=39,
    python=Interpreter(
        path="/opt/venv/bin/python3",
        program="/usr/bin/python3.12",
        version="3.12.3",
        kind="venv",
        site=SITE,
        scripts="/opt/venv/bin",
        paths=(SITE,),
    ),
    distributions=(
        InstalledDistribution(name="vllm", version="0.17.1rc1.dev25", place=SITE),
        InstalledDistribution(name="click", version="8.1", place=SITE),
        InstalledDistribution(name="click", version="7.0", place="/usr/lib/python3/dist-packages"),
    ),
)
LOCK = CombinedLock(
    name="gb10",
    request=request_of(IMAGE),
    cutoff="2026-11-01",
    epoch=1_793_491_200,
    wheels=(Wheel("ray", "2.57.1", (f"sha256:{HEX}",), "ray-2.57.1-cp312-cp312-manylinux_2_17_aarch64.whl", 10),),
    interpreter=(),
    tools={"uv": "1"},
    base=f"there/model@sha256:{HEX}",
    facts=FACTS,
)


def written(folder: Path, text: str) -> Path:
    """A checkout whose only image says this."""
    place = folder / "dockerfiles" / "gb10"
    place.mkdir(parents=True)
    (place / "image.yaml").write_text(text)
    (place / "Dockerfile").touch()
    cluster = "clusters: {local: {image: gb10, nodes: [{name: head}]}}\n"
    (folder / "pipeline.yaml").write_text(f"default: local\n{cluster}")
    return folder


def test_ray_is_added_by_default(tmp_path: Path) -> None:
    image = loader.load_config(written(tmp_path, f"base: {{image: '{BASE}'}}\n")).images["gb10"]
    assert image == IMAGE
    assert request_of(image)["requirements"] == ["ray[default]"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("base: {image: model}", "image.yaml:1: base.image: 'model' is not an image's name"),
        ("base: {image: 'Model:1'}", "base.image: 'Model:1' is not an image's name"),
        ("base: {image: 'Registry.example:5000/team/model:1'}", None),
        ("base: {image: 'a/Model:1'}", "base.image: 'a/Model:1' is not an image's name"),
        (
            "base: {image: 'a:1', debian: trixie}",
            "base.debian: an image is made either from Debian packages or",
        ),
        (
            "combine: {}\nbase: {packages: [a]}",
            "image.yaml:2: base.packages: an image is made either from Debian",
        ),
        ("base: {imag: 'a:1'}", "base.imag: unknown key"),
        (
            "base: {image: 'a:1'}\npython: {version: '3.12'}",
            "image.yaml:2: python.version: the interpreter is the",
        ),
        ("base: {image: 'a:1'}\nworkdir: /a/../b", "image.yaml:2: workdir: '/a/../b' is not an absolute path without"),
        ("combine: {model_from: 'a:1'}", "cluster_from"),
        ("base: {image: 'a:1'}\nenv: {RAY_ADDRESS: x}", "image.yaml:2: env.RAY_ADDRESS: RAY_ADDRESS differs from node"),
        ("base: {image: 'a:1'}\nsmoke: {without: [bash]}", "smoke.without[0]"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, said: str | None) -> None:
    root = written(tmp_path, text + "\n")
    if said is None:
        assert loader.load_config(root)
        return
    with pytest.raises(ConfigError) as caught:
        loader.load_config(root)
    assert said in str(caught.value)


def test_a_misspelled_base_key_is_not_taken_for_a_debian_base(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        loader.load_config(written(tmp_path, "base: {imag: 'a:1'}\n"))
    assert caught.value.hint == "did you mean 'image'?"


def test_both_ways_to_make_an_image_are_in_its_schema() -> None:
    schema: Any = msgspec.json.decode(loader.json_schemas()["image.json"])
    assert {one["$ref"] for one in schema["anyOf"]} == {"#/$defs/DebianImage", "#/$defs/CombinedImage"}


def test_the_lock_of_a_combined_image_is_read_as_it_was_written(tmp_path: Path) -> None:
    lockfile.write_lock(LOCK, tmp_path)
    assert lockfile.read_lock("gb10", tmp_path) == LOCK
    assert sorted(path.name for path in (tmp_path / "lockfiles").iterdir()) == [
        "gb10.interpreter.txt",
        "gb10.lock.json",
        "gb10.reading.json",
        "gb10.requirements.txt",
    ]


def test_facts_that_were_edited_by_hand_are_refused(tmp_path: Path) -> None:
    lockfile.write_lock(LOCK, tmp_path)
    file = tmp_path / "lockfiles" / "gb10.reading.json"
    file.write_text(file.read_text().replace("8.1", "8.2"))
    with pytest.raises(ConfigError, match=r"gb10\.reading\.json is not the file that was written with it"):
        lockfile.read_lock("gb10", tmp_path)


def test_a_lock_that_answers_needs_no_engine_and_no_registry(tmp_path: Path) -> None:
    lockfile.write_lock(LOCK, tmp_path)
    assert lock.lock_image("gb10", IMAGE, tmp_path, "", NullLog()) == LOCK


def test_another_base_does_not_answer(tmp_path: Path) -> None:
    lockfile.write_lock(LOCK, tmp_path)
    other = CombinedImage(base=ImageBase(image="there/model:2"))
    with pytest.raises(ConfigError, match="image: there/model:1 became there/model:2"):
        lock.lock_image("gb10", other, tmp_path, "frozen", NullLog())


def test_two_images_that_are_not_combined_yet_are_sent_to_advise() -> None:
    image = CombinedImage(combine=Combine(model_from="a:1", cluster_from="b:1"))
    with pytest.raises(ConfigError, match="base does not yet say how") as caught:
        combined.lock_combined_image("gb10", image, Path(), None, None, NullLog())
    assert "advise gb10" in caught.value.hint


def test_only_a_package_that_is_added_can_be_upgraded(tmp_path: Path) -> None:
    lockfile.write_lock(LOCK, tmp_path)
    with pytest.raises(ConfigError, match="no package 'rai' is locked"):
        lock.lock_image("gb10", IMAGE, tmp_path, "upgrade:rai", NullLog())


def test_of_two_versions_in_the_base_the_one_that_python_imports_counts() -> None:
    assert LOCK.inside == {"vllm": "0.17.1rc1.dev25", "click": "8.1"}
    assert LOCK.versions == {**LOCK.inside, "ray": "2.57.1"}


def test_additions_are_installed_where_the_interpreter_of_the_base_looks() -> None:
    place = LOCK.place
    assert (LOCK.python, LOCK.suite) == ("3.12", "")
    assert place.of("ray/__init__.py") == f"{SITE[1:]}/ray/__init__.py"
    assert place.of("bin/ray") == "opt/venv/bin/ray"
    assert place.of("share/man/ray.1") == "opt/venv/share/man/ray.1"
    assert place.shebang == b"#!/opt/venv/bin/python3\n"


def test_the_wheels_fit_the_base_s_libc_and_python() -> None:
    assert lock.wheel_target(LOCK) == WheelTarget("arm64", "3.12", 39)


def test_an_addition_may_not_replace_a_file_of_the_base() -> None:
    present, other = {"opt/venv/bin/ray": "f", "opt/venv/bin": "d"}, f"{SITE[1:]}/ray/a.py"
    with pytest.raises(TandemError) as caught:
        wheels.refuse_replacing({"ray": ["opt/venv/bin/ray", other]}, present, "image.yaml")
    assert str(caught.value) == (
        "image.yaml: python.requirements: ray would replace files of the base: /opt/venv/bin/ray"
    )
    wheels.refuse_replacing({"ray": [other]}, present, "image.yaml")


def test_a_path_below_a_file_of_the_base_is_a_conflict() -> None:
    present = {"usr": "d", "usr/lib": "d", "usr/lib/os-release": "f", "lib": "l"}
    names = ["usr/lib/os-release/f", "usr/lib/new", "lib/x", "usr"]
    assert tar.conflicting_members(names, present) == ["usr", "usr/lib/os-release/f"]


def test_folders_of_the_base_are_not_in_our_archives(tmp_path: Path) -> None:
    tar.write_archive(tmp_path / "a.tar", {"root/a/b": b"x"}, 0, ["workspace"], {"root": "d", "workspace": "l"})
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames() == ["root/a", "root/a/b"]


def test_the_dockerfile_begins_with_the_base_and_ends_with_the_launcher_s_settings(
    tmp_path: Path,
) -> None:
    template = Path(__file__).parents[3] / "dockerfiles/gb10/Dockerfile"
    facts = msgspec.structs.replace(FACTS, entrypoint=("vllm", "serve"), env={"PATH": "/opt/venv/bin:/bin"})
    image = CombinedImage(base=IMAGE.base, env={"A": "1"})
    launching = build.plan_launcher_layer("gb10", image, replace(LOCK, facts=facts), NullLog())
    fillings = dockerfile.combined_fillings(image, ["added"], LOCK.base, launching)
    lines = dockerfile.fill_dockerfile(template, fillings).splitlines()
    instructions = [line for line in lines if line and not line.startswith("#")]
    assert instructions[:3] == [f"FROM {LOCK.base}", "ADD added.tar /", "ADD own.tar /"]
    assert "ENTRYPOINT []" in instructions
    assert 'CMD ["tandem-serve"]' in instructions
    assert instructions[-1] == 'ENV A="1"'


def test_a_base_with_a_node_s_variables_is_refused_with_the_key() -> None:
    facts = msgspec.structs.replace(FACTS, env={"NCCL_SOCKET_IFNAME": "eth7"})
    with pytest.raises(ConfigError, match=r"dockerfiles/gb10/image\.yaml: base: the base has NCCL_SOCKET_IFNAME"):
        build.plan_launcher_layer("gb10", IMAGE, replace(LOCK, facts=facts), NullLog())


def test_the_labels_name_the_base_and_its_digest() -> None:
    found = build.image_labels("gb10", LOCK)
    assert found["org.opencontainers.image.base.name"] == "there/model"
    assert found["org.opencontainers.image.base.digest"] == f"sha256:{HEX}"
    other = build.image_labels("gb10", replace(LOCK, base="there/model@sha256:" + "f" * 64))
    assert found["tandem.lock"] != other["tandem.lock"]


def test_an_own_file_may_not_replace_a_file_of_the_base(tmp_path: Path) -> None:
    place = tmp_path / "files" / "etc"
    place.mkdir(parents=True)
    (place / "passwd").touch()
    image = CombinedImage(base=IMAGE.base, files="files")
    into, scratch = tmp_path / "own.tar", tmp_path / "scratch"
    below = Below(present={"etc/passwd": "f", "etc": "d"})
    with pytest.raises(ConfigError, match="the base or an added wheel has these files: /etc/passwd"):
        own_files.write_own_files("gb10", image, LOCK, tmp_path, tuple, scratch, into, below)


def test_an_alias_may_not_have_the_name_of_a_distribution_of_the_base() -> None:
    image = CombinedImage(base=IMAGE.base, aliases=(Alias(name="vllm", version="1", of="ray", reason="r"),))
    with pytest.raises(ConfigError, match=r"aliases\[0\]\.name: vllm 0\.17\.1rc1\.dev25 is in the image already"):
        own_files.refuse_taken_names("gb10", image, LOCK, Path())


@pytest.mark.parametrize("name", ["Click", "ray"])
def test_an_own_distribution_may_not_have_the_name_of_an_installed_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pyproject.toml").write_text(f"[project]\nname = '{name}'\nversion = '5'\n")
    image = CombinedImage(base=IMAGE.base, distributions=("mine",))
    with pytest.raises(ConfigError, match=rf"image\.yaml: distributions: mine: {name} [\d.]+ is in the image already"):
        own_files.refuse_taken_names("gb10", image, LOCK, tmp_path)


@pytest.mark.parametrize(("alias", "beside"), [("My_Plugin", "other"), ("else", "my.plugin")])
def test_two_own_distributions_may_not_have_one_name(tmp_path: Path, alias: str, beside: str) -> None:
    for folder, name in {"mine": "my-plugin", "more": beside}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pyproject.toml").write_text(f"[project]\nname = '{name}'\nversion = '5'\n")
    aliases = (Alias(name=alias, version="1", of="ray", reason="r"),)
    image = CombinedImage(base=IMAGE.base, distributions=("mine", "more"), aliases=aliases)
    taken = r"mine: aliases\[0\]\.name already has the name my-plugin"
    said = rf"({taken}|more: distributions: mine already has the name my\.plugin)"
    with pytest.raises(ConfigError, match=rf"^dockerfiles/gb10/image\.yaml: distributions: {said}"):
        own_files.refuse_taken_names("gb10", image, LOCK, tmp_path)
    own_files.refuse_taken_names(
        "gb10", CombinedImage(base=IMAGE.base, distributions=("more",), aliases=aliases), LOCK, tmp_path
    )


def test_a_working_folder_that_is_a_file_of_the_base_is_refused_by_its_key(tmp_path: Path) -> None:
    image = CombinedImage(base=IMAGE.base, workdir="/usr/lib/os-release")
    present = {"usr": "d", "usr/lib": "d", "usr/lib/os-release": "f"}
    below = Below(folders=build.plan_launcher_layer("gb10", image, LOCK, NullLog()).folders, present=present)
    with pytest.raises(ConfigError, match="workdir: the base has a file at /usr/lib/os-release"):
        own_files.write_own_files(
            "gb10", image, LOCK, tmp_path, tuple, tmp_path / "scratch", tmp_path / "own.tar", below
        )


def test_additions_are_ray_with_its_dashboard() -> None:
    assert Additions().requirements == ("ray[default]",)

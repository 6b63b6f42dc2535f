"""Locks: what is asked, what is kept, what is refused. Nothing here resolves anything."""

import dataclasses
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from pipeline.config.models import Alias, DebianBase, DebianImage, Python
from pipeline.core.errors import ConfigError
from pipeline.core.log import NullLog
from pipeline.lock import debian, lock, lockfile, pins, resolver, uv
from pipeline.lock.contents import DebianLock
from pipeline.lock.debs import Deb
from pipeline.lock.request import FILES, file_paths, request_of
from pipeline.lock.resolver import Wheel

HEX = "0123456789abcdef" * 4
IMAGE = DebianImage(
    base=DebianBase(debian="trixie", packages=("python3", "bash")),
    python=Python(version="3.13", requirements=("six", "idna>=3"), constraints=("six<2",)),
)


def a_lock(image: DebianImage = IMAGE) -> DebianLock:
    pool = "pool/main/b/bash/bash_5.2.37-2_arm64.deb"
    return DebianLock(
        name="tiny",
        request=request_of(image),
        cutoff="2026-11-01",
        epoch=1_793_491_200,
        wheels=(
            Wheel("idna", "3.10", (f"sha256:{HEX}",), "idna-3.10-py3-none-any.whl", 70),
            Wheel("six", "1.17.0", (f"sha256:{HEX[::-1]}", f"sha256:{HEX}"), "six-1.17.0-py3-none-any.whl", 11),
        ),
        debs=(Deb("bash", "5.2.37-2", "arm64", HEX, 5, pool), Deb("libc6", "2.41-12", "arm64", HEX, 6, "pool/c.deb")),
        interpreter=(Deb("python3.13-minimal", "3.13.5-2", "amd64", HEX, 7, "pool/p.deb"),),
        tools={"uv": "0.13.9", "apt": "3.0.3"},
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    lockfile.write_lock(a_lock(), tmp_path)
    return tmp_path


def test_a_lock_is_read_as_it_was_written(root: Path) -> None:
    assert lockfile.read_lock("tiny", root) == a_lock()


def test_writing_the_same_lock_again_gives_the_same_bytes(root: Path) -> None:
    before = {path.name: path.read_bytes() for path in (root / "lockfiles").iterdir()}
    lockfile.write_lock(lockfile.read_lock("tiny", root), root)
    assert {path.name: path.read_bytes() for path in (root / "lockfiles").iterdir()} == before


def test_other_tools_can_read_the_requirements_file(root: Path) -> None:
    text = (root / "lockfiles/tiny.requirements.txt").read_text()
    joined = text.replace("\\\n", " ").splitlines()
    pins = [Requirement(line.split(" --hash")[0]) for line in joined if not line.startswith("#")]
    assert [str(pin) for pin in pins] == ["idna==3.10", "six==1.17.0"]
    assert "://" not in text


def test_the_deb_list_is_columns_without_a_mirror(root: Path) -> None:
    lines = (root / "lockfiles/tiny.debs.txt").read_text().splitlines()
    assert lines[1].split() == ["bash", "5.2.37-2", "arm64", HEX, "5", "pool/main/b/bash/bash_5.2.37-2_arm64.deb"]
    assert "://" not in "\n".join(lines)


def test_a_request_is_spelled_out_and_does_not_depend_on_order() -> None:
    expected = {
        "platform": "linux/arm64",
        "debian": "trixie",
        "packages": ["bash", "python3"],
        "python": "3.13",
        "requirements": ["idna>=3", "six"],
        "constraints": ["six<2"],
        "cutoff": None,
    }
    assert request_of(IMAGE) == expected


def test_a_lock_that_answers_is_kept_in_every_mode_that_does_not_upgrade(root: Path) -> None:
    for mode in ("", "frozen"):
        assert lock.lock_image("tiny", IMAGE, root, mode, NullLog()) == a_lock()


def test_an_edit_that_no_package_depends_on_does_not_invalidate_the_lock(root: Path) -> None:
    changed = DebianImage(base=IMAGE.base, python=IMAGE.python, env={"A": "b"}, workdir="/elsewhere")
    assert lock.answers_request(lockfile.read_lock("tiny", root), changed)


def test_frozen_fails_instead_of_resolving_and_says_what_is_new(root: Path) -> None:
    python = Python(version="3.13", requirements=("six", "ray"), constraints=("six<2",))
    with pytest.raises(ConfigError) as caught:
        lock.lock_image("tiny", DebianImage(base=IMAGE.base, python=python), root, "frozen", NullLog())
    assert "requirements: ray is new; requirements: idna>=3 is gone" in str(caught.value)
    assert "TANDEM_LOCK=" in caught.value.hint


@pytest.mark.parametrize("mode", ["", "frozen"])
def test_an_alias_of_an_unlocked_distribution_is_refused_after_the_lock_is_written(root: Path, mode: str) -> None:
    def with_alias(of: str) -> DebianImage:
        return DebianImage(
            base=IMAGE.base, python=IMAGE.python, aliases=(Alias(name="x", version="1", of=of, reason=""),)
        )

    said = r"^dockerfiles/tiny/image\.yaml: aliases\[0\]\.of: 'sixx' is not locked"
    with pytest.raises(ConfigError, match=said) as caught:
        lock.lock_image("tiny", with_alias("sixx"), root, mode, NullLog())
    assert caught.value.hint == "did you mean 'six'?"
    assert lock.lock_image("tiny", with_alias("Six"), root, mode, NullLog()) == a_lock()


def test_frozen_without_a_lock_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"lockfiles/tiny\.lock\.json: there is no such lock"):
        lock.lock_image("tiny", IMAGE, tmp_path, "frozen", NullLog())


def test_an_unknown_mode_is_refused_by_name(root: Path) -> None:
    with pytest.raises(ConfigError, match="TANDEM_LOCK=update"):
        lock.lock_image("tiny", IMAGE, root, "update", NullLog())


def test_a_package_that_is_not_locked_cannot_be_upgraded(root: Path) -> None:
    with pytest.raises(ConfigError, match="no package 'sixx' is locked") as caught:
        lock.lock_image("tiny", IMAGE, root, "upgrade:sixx", NullLog())
    assert "'six'" in caught.value.hint


@pytest.mark.parametrize("part", ["wheels", "debs", "interpreter"])
def test_a_file_that_was_not_written_with_its_lock_is_noticed(root: Path, part: str) -> None:
    path = root / file_paths("tiny", FILES)[part]
    path.write_text(path.read_text().replace(HEX, HEX.replace("0", "1")))
    with pytest.raises(ConfigError, match=path.name):
        lockfile.read_lock("tiny", root)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"schema": 99}', "{", "\udcff"])
def test_a_damaged_lock_is_one_message(root: Path, text: str) -> None:
    (root / "lockfiles/tiny.lock.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=r"tiny\.lock\.json"):
        lockfile.read_lock("tiny", root)


def test_a_requirement_without_a_hash_is_refused() -> None:
    with pytest.raises(ValueError, match=r"six==1\.17\.0"):
        lockfile.parse_requirements("six==1.17.0\n", {})


def test_the_locked_libc_decides_which_wheels_fit(root: Path) -> None:
    fits = lock.wheel_target(lockfile.read_lock("tiny", root))
    assert (fits.arch, fits.python, fits.glibc) == ("arm64", "3.13", 41)


def test_a_base_without_a_libc_is_refused() -> None:
    bare = dataclasses.replace(a_lock(), debs=())
    with pytest.raises(ConfigError, match="no libc6"):
        lock.wheel_target(bare)


def test_a_python_that_the_base_does_not_bring_is_refused() -> None:
    older = [Deb("python3.11-minimal", "3.11.2-6", "arm64", HEX, 1, "pool/p.deb")]
    with pytest.raises(ConfigError, match=r"^x: python\.version is 3\.13, but base\.packages bring python3\.11-m"):
        debian._refuse_without_python(older, "3.13", "x")


def test_the_epoch_is_midnight_of_the_cutoff_date() -> None:
    assert pins.epoch_of("2024-06-01") == 1_717_200_000


def test_pips_index_reaches_uv_when_uv_has_none(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text("[global]\nindex-url = http://mirror.invalid/simple\ncert = /ca.pem\ntrusted-host = a b\n")
    handed = uv.environment({"HOME": str(tmp_path)}, [conf])
    assert handed["UV_DEFAULT_INDEX"] == "http://mirror.invalid/simple"
    assert handed["SSL_CERT_FILE"] == "/ca.pem"
    assert handed["UV_INSECURE_HOST"] == "a b"


def test_pips_environment_outweighs_its_files(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text("[global]\nindex-url = http://file.invalid/simple\n")
    env = {"HOME": str(tmp_path), "PIP_INDEX_URL": "http://env.invalid/simple"}
    assert uv.environment(env, [conf])["UV_DEFAULT_INDEX"] == "http://env.invalid/simple"


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL"])
def test_uvs_own_index_is_left_alone(tmp_path: Path, name: str) -> None:
    env = {"HOME": str(tmp_path), name: "http://uv.invalid/simple", "PIP_INDEX_URL": "http://pip.invalid/simple"}
    assert "UV_DEFAULT_INDEX" not in uv.environment(env, [])


def test_an_index_in_uv_toml_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv/uv.toml").write_text('[[index]]\nurl = "http://uv.invalid/simple"\ndefault = true\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path), "PIP_INDEX_URL": "http://pip.invalid/simple"}
    assert "UV_DEFAULT_INDEX" not in uv.environment(env, [])


@pytest.mark.parametrize("item", ["requests=>1", "--index-url http://x.invalid", "-r other.txt", "a b"])
def test_an_item_that_is_not_a_requirement_is_refused_before_anything_runs(item: str) -> None:
    asked = resolver.WheelRequest(
        requirements=[item],
        constraints=(),
        target=lock.wheel_target(a_lock()),
        cutoff="2026-11-01",
        origin="image.yaml",
        pins={},
    )
    with pytest.raises(ConfigError, match=r"image\.yaml: python\.requirements\[0\]: "):
        resolver.resolve_wheels(asked, NullLog())


def test_a_missing_part_of_a_lock_is_told_from_a_missing_lock(root: Path) -> None:
    (root / "lockfiles" / "tiny.requirements.txt").unlink()
    with pytest.raises(ConfigError, match="it belongs to a lock, and is missing") as caught:
        lockfile.read_lock("tiny", root)
    assert "relock tiny" in caught.value.hint

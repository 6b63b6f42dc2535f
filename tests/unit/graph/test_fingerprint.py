"""Fingerprints: any change of any declared input shows, order and place do not."""

import os
import shutil
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pipeline.core.errors import ConfigError, HostError, TandemError
from pipeline.graph.code_hash import CodeHashes
from pipeline.graph.fingerprint import Surroundings, fingerprint, input_values, result_digest, upstream_values
from pipeline.graph.stat_cache import StatCache
from pipeline.graph.task import Inputs, Json
from pipeline.graph.tools import Tools

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
params = st.dictionaries(st.text(max_size=4), json_values, max_size=4)
names = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..", "__pycache__", ".git") and len(name.encode()) < 200
)
folders = st.dictionaries(names, st.binary(max_size=8), max_size=5)


def around(root: Path, **more: Any) -> Surroundings:
    cache = StatCache(root.parent / f"cache-of-{root.name}.json")
    code = CodeHashes(root, cache)
    return Surroundings(**{"root": root, "tools": Tools(), "cache": cache, "code": code, **more})


def of(root: Path, inputs: Inputs, **more: Any) -> str:
    return fingerprint("a:b", input_values(inputs, around(root, **more)))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    return folder


@settings(deadline=None)
@example(one={"": []}, two={"": {}})
@given(one=params, two=params)
def test_two_parameter_sets_share_a_fingerprint_only_if_they_are_the_same(
    one: dict[str, Json], two: dict[str, Json]
) -> None:
    root = Path("/nowhere")
    # repr tells 1 from 1.0 and from true, as JSON does.
    same = repr(ordered(one)) == repr(ordered(two))
    assert (of(root, Inputs(params=one)) == of(root, Inputs(params=two))) == same


@settings(deadline=None)
@given(one=params)
def test_the_order_of_parameters_does_not_show(one: dict[str, Json]) -> None:
    backwards = dict(reversed(one.items()))
    assert of(Path("/nowhere"), Inputs(params=one)) == of(Path("/nowhere"), Inputs(params=backwards))


@settings(deadline=None, max_examples=60)
@given(one=folders, two=folders)
def test_two_folders_share_a_fingerprint_only_if_names_and_contents_are_the_same(
    one: dict[str, bytes], two: dict[str, bytes]
) -> None:
    with TemporaryDirectory() as above:
        for name, files in (("one", one), ("two", two)):
            for file, content in files.items():
                path = Path(above, name, "src", file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        inputs = Inputs(files=("src/**",))
        assert (of(Path(above, "one"), inputs) == of(Path(above, "two"), inputs)) == (one == two)


@settings(deadline=None, max_examples=40)
@given(files=folders.filter(bool), data=st.data())
def test_any_change_of_any_file_shows_and_undoing_it_does_too(files: dict[str, bytes], data: st.DataObject) -> None:
    with TemporaryDirectory() as above:
        root = Path(above, "checkout")
        root.mkdir()
        for file, content in files.items():
            (root / file).write_bytes(content)
        inputs = Inputs(files=("**",))
        before = of(root, inputs)
        path = root / data.draw(st.sampled_from(sorted(files)))
        old, stat = path.read_bytes(), path.stat()
        match data.draw(st.sampled_from(["content", "mode", "remove", "link"])):
            case "content":
                path.write_bytes(data.draw(st.binary(max_size=8).filter(lambda new: new != old)))
            case "mode":
                path.chmod(0o755)
            case "remove":
                path.unlink()
            case _:
                path.unlink()
                path.symlink_to("somewhere")
        if path.is_file() and not path.is_symlink():
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert of(root, inputs) != before
        path.unlink(missing_ok=True)
        path.write_bytes(old)
        assert of(root, inputs) == before


def test_the_place_of_the_checkout_and_the_order_of_declarations_do_not_show(root: Path) -> None:
    (root / "a").write_text("a")
    (root / "b").write_text("b")
    copy = root.parent / "a copy elsewhere"
    shutil.copytree(root, copy, copy_function=shutil.copy)
    assert of(root, Inputs(files=("a", "b"))) == of(copy, Inputs(files=("b", "a", "a")))


def test_a_missing_file_is_not_an_empty_one_and_not_undeclared(root: Path) -> None:
    missing, undeclared = of(root, Inputs(files=("a",))), of(root, Inputs())
    (root / "a").write_text("")
    assert len({missing, undeclared, of(root, Inputs(files=("a",)))}) == 3


def test_a_pattern_that_matches_nothing_says_so(root: Path) -> None:
    assert input_values(Inputs(files=("src/*.py",)), around(root)) == {"file:src/*.py": "no file"}


def test_the_executable_bit_counts_and_other_bits_do_not(root: Path) -> None:
    file = root / "a"
    file.write_text("")
    seen = []
    for mode in (0o644, 0o664, 0o600, 0o755, 0o775):
        file.chmod(mode)
        seen.append(of(root, Inputs(files=("a",))))
    assert seen[0] == seen[1] == seen[2] != seen[3] == seen[4]


def test_a_link_counts_by_its_name_and_by_what_it_leads_to(root: Path) -> None:
    (root / "a").write_text("a")
    (root / "b").write_text("a")
    link = root / "link"
    seen = set()
    for target in ("a", "b", "nothing", "."):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        seen.add(of(root, Inputs(files=("link",))))
    link.unlink()
    link.symlink_to("a")
    (root / "a").write_text("changed")
    seen.add(of(root, Inputs(files=("link",))))
    assert len(seen) == 5


def test_a_path_outside_the_checkout_is_refused(root: Path) -> None:
    for path in ("/etc/passwd", "../other", "a/../../b"):
        with pytest.raises(ConfigError, match="must lie below the checkout"):
            input_values(Inputs(files=(path,)), around(root))


def test_an_input_that_cannot_be_read_is_named(root: Path) -> None:
    (root / "far").symlink_to(300 * "x")
    with pytest.raises(TandemError, match="far: cannot be read"):
        input_values(Inputs(files=("far",)), around(root))


def test_a_tool_is_asked_only_if_it_is_named_and_only_once(root: Path) -> None:
    tools = Tools()
    asked: list[str] = []

    def identity(name: str) -> str:
        asked.append(name)
        return f"{name} 1"

    for name in ("uv", "qemu"):
        tools.register(name, partial(identity, name))
    for _ in range(3):
        assert input_values(Inputs(tools=("uv",)), around(root, tools=tools)) == {"tool:uv": "uv 1"}
    assert asked == ["uv"]
    with pytest.raises(ConfigError, match="no such tool"):
        tools.identity("buildx")


def test_a_tool_that_is_not_there_is_missing(root: Path) -> None:
    def gone() -> str:
        raise HostError("not installed")

    tools = Tools()
    tools.register("uv", gone)
    assert tools.identity("uv") == "missing"


def test_upstream_counts_by_what_came_out(root: Path) -> None:
    assert upstream_values({"a": {"digest": "1"}}) == {"upstream:a": result_digest({"digest": "1"})}
    assert result_digest({"a": 1, "b": 2}) == result_digest({"b": 2, "a": 1}) != result_digest({"a": 1, "b": 3})


def test_the_spelling_does_not_change_by_accident(root: Path) -> None:
    (root / "a").write_text("a")
    found = input_values(Inputs(files=("a", "b"), params={"x": {"y": [1, None]}}), around(root))
    assert found == {
        "file:a": "644 ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        "file:b": "missing",
        "param:x.y": "[1,null]",
    }
    assert fingerprint("t", found)[:12] == "a32672349f40"


def ordered(value: Json) -> Any:
    """The same with sorted keys, for comparison."""
    if isinstance(value, dict):
        return {key: ordered(value[key]) for key in sorted(value)}
    return [ordered(item) for item in value] if isinstance(value, list) else value

"""The documents name only what exists: paths, links, modules, commands and messages. They wrap, and speak plainly."""

import ast
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.config import loader
from pipeline.core.errors import ConfigError
from tests.unit.test_rooms import ROOMS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
WIDEST = 100
TOPS = ("pipeline", "docs", "tests", "dockerfiles", "lockfiles", "schemas", "benchmarks")
WORDS_OF_DOITW = {"test", "set-up", "relock"}
WORDS_OF_DOIT = {"list", "help", "run"}
SHUNNED = re.compile(
    r"(?<!there )\bis no\b(?! longer)|somebody else's|\banew\b|has not got|\bhas no more\b", re.IGNORECASE
)
HOST = re.compile(r"\b(?:[a-z0-9-]+\.)+(?:org|com|net|io|dev|cloud)\b")
HOSTS_OF_SOURCES = {"github.com"}
BLOCK = re.compile(r"^```(\w*).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(r"[A-Z]{4}|[*…<>$]")
"""What stands for any name in a path, as in dockerfiles/IMAGE/."""
HOLE = "…"
SHORTEST_PART = 8

each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=[path.name for path in DOCUMENTS])


def prose(document: Path) -> str:
    """A document without its blocks of code and output."""
    return BLOCK.sub("", document.read_text())


def code_spans(document: Path) -> list[str]:
    """All that a document's prose marks as code."""
    return re.findall(r"`([^`\n]+)`", prose(document))


def anchors(document: Path) -> set[str]:
    """The names by which links reach the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def exists(path: str) -> bool:
    """Whether a path lies in the checkout; `{a,b}` stands for each of its parts."""
    if parts := re.fullmatch(r"(.*)\{(.*)\}(.*)", path):
        return all(exists(f"{parts[1]}{part.strip()}{parts[3]}") for part in parts[2].split(","))
    return (ROOT / path).exists()


@each_document
def test_lines_wrap(document: Path) -> None:
    lines = prose(document).splitlines()
    assert [line for line in lines if len(line) > WIDEST and not line.startswith("|") and "://" not in line] == []


@each_document
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(document)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            linked = document.parent / path if path else document
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target


@each_document
def test_paths_exist(document: Path) -> None:
    paths = [span for span in code_spans(document) if "/" in span and span.partition("/")[0] in TOPS]
    assert [path for path in paths if not PLACEHOLDER.search(path) and not exists(path)] == []


@each_document
def test_modules_and_their_names_exist(document: Path) -> None:
    for span in code_spans(document):
        if not (named := re.fullmatch(r"pipeline((?:\.\w+)+)(?::(\w+))?(?:\(\))?", span)) or span.endswith(".yaml"):
            continue
        path = ROOT / "pipeline" / named[1][1:].replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), span
        if named[2]:
            source = path.with_suffix(".py").read_text()
            assert re.search(rf"^(def |class )?{named[2]}\b", source, re.MULTILINE), span


@each_document
def test_names_in_a_file_exist(document: Path) -> None:
    for name, path in re.findall(r"`(\w+)` in\s+`(doitw|[\w/]+\.py)`", prose(document)):
        definition = rf"^\s*(def |class |async def )?{name}\b" if path.endswith(".py") else rf"^{name}\(\)"
        assert re.search(definition, (ROOT / path).read_text(), re.MULTILINE), f"{name} in {path}"


@each_document
def test_commands_exist(document: Path) -> None:
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["doit"]["plugins"]["command"]
    tasks = re.findall(r"^def task_(\w+)", (ROOT / "dodo.py").read_text(), re.MULTILINE)
    known = {*WORDS_OF_DOITW, *WORDS_OF_DOIT, *tasks, *plugins}
    words = re.findall(r"\./doitw (?:-\S+ )*'?([a-z][\w-]*)", without_slips(document.read_text()))
    assert [word for word in words if word not in known] == []


def without_slips(text: str) -> str:
    """A document without the blocks that show what a mistyped word comes to."""
    return BLOCK.sub(lambda block: "" if "is not a task" in block[2] else block[0], text)


@each_document
def test_english_is_plain(document: Path) -> None:
    lines = re.sub(r"`[^`\n]*`", "", prose(document)).splitlines()
    assert [line for line in lines if SHUNNED.search(line)] == []


@each_document
def test_no_package_registry_is_named(document: Path) -> None:
    assert {*HOST.findall(document.read_text())} <= HOSTS_OF_SOURCES


@each_document
def test_output_names_the_command_that_made_it(document: Path) -> None:
    blocks = [text for kind, text in BLOCK.findall(document.read_text()) if kind == "console"]
    assert [text for text in blocks if not text.startswith("$ ")] == []


def test_the_table_of_rooms_is_the_tested_one() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| (.*) \|$", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    table = {room: (purpose, set(re.findall(r"\w+", imports))) for room, purpose, imports in rows if room in ROOMS}
    assert {room: imports for room, (_, imports) in table.items()} == ROOMS
    purposes = {
        room: ast.get_docstring(ast.parse((ROOT / f"pipeline/{room}/__init__.py").read_text())) for room in ROOMS
    }
    assert {room: purpose for room, (purpose, _) in table.items()} == purposes


def test_a_room_of_the_picture_imports_only_rooms_below_it() -> None:
    picture = next(text for _, text in BLOCK.findall((ROOT / "docs/architecture.md").read_text()) if "core" in text)
    floors = [set(re.findall(r"\w+", line.partition("  #")[0])) & ROOMS.keys() for line in picture.splitlines()]
    assert sorted(room for floor in floors for room in floor) == sorted(ROOMS)
    for number, floor in enumerate(floors):
        below = {room for other in floors[number + 1 :] for room in other}
        assert all(ROOMS[room] <= below for room in floor), floor


def texts() -> Iterator[str]:
    """Every text of the code, with a mark for each value that is put into it."""
    for path in (ROOT / "pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    yield re.sub(r"\$\{?\w+\}?", HOLE, (ROOT / "doitw").read_text())


def test_every_message_that_is_explained_can_occur() -> None:
    code = "\n".join(texts())
    headings = re.findall(r"^\*\*(`+)(.+)\1\*\*", (ROOT / "docs/when-it-fails.md").read_text(), re.MULTILINE)
    assert headings
    assert [message for _, message in headings if not all(part in code for part in fixed_parts(message))] == []


def fixed_parts(message: str) -> list[str]:
    """The parts of a message that are long enough to be found; each of them may be a text of its own."""
    parts = (part.strip(" :;") for part in message.split(HOLE))
    return [part for part in parts if len(part) >= SHORTEST_PART]


def test_every_cause_of_a_failed_deploy_is_explained() -> None:
    from pipeline.cluster import causes

    table = re.findall(r"^\| (.*?) \|", (ROOT / "docs/when-it-fails.md").read_text(), re.MULTILINE)
    assert {cause.explanation for cause in (*causes.CAUSES, causes.KILLED, causes.WRONG_ANSWER)} <= {*table}


def test_a_slip_in_image_yaml_is_refused_in_the_words_of_the_document(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "dockerfiles/cpu", tmp_path / "dockerfiles/cpu", symlinks=True)
    shutil.copy(ROOT / "pipeline.yaml", tmp_path)
    file = tmp_path / "dockerfiles/cpu/image.yaml"
    file.write_text(file.read_text().replace("requirements:", "requirments:"))
    with pytest.raises(ConfigError) as refused:
        loader.load_config(tmp_path)
    assert f"{refused.value}\nhint: {refused.value.hint}\n" in (ROOT / "docs/when-it-fails.md").read_text()

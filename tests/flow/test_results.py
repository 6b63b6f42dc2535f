"""Many threads and processes that come to the same result at once: nobody fails, and a reader never finds it gone."""

import hashlib
import subprocess  # processes that meet are what is tested
import sys
import threading
from pathlib import Path

from pipeline.core import results

TIMES = 150
FILES = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("list", "a", "b")}
KEEPER = """
import sys
from pathlib import Path
from tests.flow.test_results import keep_many
keep_many(Path(sys.argv[1]), sys.argv[2])
"""


def keep_many(root: Path, who: str, times: int = TIMES) -> None:
    """Make the same result many times."""
    for number in range(times):
        made = root / f"scratch-{who}-{number}"
        made.mkdir()
        for name in FILES:
            (made / name).write_text(name)
        results.keep(made, root / "kept" / "place", FILES)


def read_until(root: Path, ended: threading.Event, missed: list[str]) -> None:
    """Read the result again and again, and note whenever it is not there."""
    while not ended.is_set():
        for name in FILES:
            try:
                if (root / "kept" / "place" / name).read_text() != name:
                    missed.append(f"{name} is another")
            except OSError as error:
                missed.append(str(error))


def test_equal_results_at_once_destroy_nothing(tmp_path: Path) -> None:
    keep_many(tmp_path, "first", 1)
    ended, missed, failed = threading.Event(), list[str](), list[BaseException]()

    def work(who: str) -> None:
        try:
            keep_many(tmp_path, who)
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=read_until, args=(tmp_path, ended, missed))
    reader.start()
    processes = [subprocess.Popen([sys.executable, "-c", KEEPER, str(tmp_path), f"process-{n}"]) for n in range(2)]
    threads = [threading.Thread(target=work, args=(f"thread-{n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait(60) for process in processes] == [0, 0]
    ended.set()
    reader.join()
    assert not failed
    assert not missed
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["place"]


def test_the_first_of_many_is_whole_for_all_of_them(tmp_path: Path) -> None:
    """Nobody has kept it before: they race for the place itself."""
    failed: list[BaseException] = []
    start = threading.Barrier(8)

    def work(round_: int, who: int) -> None:
        made, place = tmp_path / f"{round_}-{who}", tmp_path / "kept" / str(round_)
        made.mkdir()
        for name in FILES:
            (made / name).write_text(name)
        start.wait()
        try:
            results.keep(made, place, FILES)
            assert {path.name: path.read_text() for path in place.iterdir()} == {name: name for name in FILES}
        except BaseException as error:
            failed.append(error)

    for round_ in range(30):
        threads = [threading.Thread(target=work, args=(round_, who)) for who in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed

"""Logs: what is passed on arrives as it was, from any number of threads."""

from concurrent.futures import ThreadPoolExecutor

from pipeline.core.log import ForwardingLog, step


class KindsOfLines:
    """A log that keeps what it is told, with the kind of each text."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, str]] = []

    def line(self, text: str) -> None:
        self.texts.append(("line", text))

    def step(self, text: str) -> None:
        self.texts.append(("step", text))

    def progress(self, title: str, done: float, total: float | None, unit: str) -> None:
        self.texts.append(("progress", f"{title} {done} {total} {unit}"))


def test_a_step_that_is_passed_on_stays_a_step() -> None:
    kept = KindsOfLines()
    log = ForwardingLog(kept)
    with step(log, "checking"):
        log.line("a detail")
        log.progress("layers", 1, 2, "files")
    kinds = [kind for kind, _ in kept.texts]
    assert kinds == ["step", "line", "progress", "step"]
    assert kept.texts[2] == ("progress", "layers 1 2 files")


def test_several_threads_may_write_at_the_same_time() -> None:
    kept = KindsOfLines()
    log = ForwardingLog(kept)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: log.line(str(i)), range(400)))
    assert sorted(int(text) for _, text in kept.texts) == list(range(400))

"""A moment in what a stage does, known by what it says."""

import threading
from collections.abc import Callable

from pipeline.core.log import NullLog


class Trigger(NullLog):
    """A log that does something once a line with certain words has come."""

    def __init__(self, words: str, act: Callable[[], None]) -> None:
        super().__init__()
        self._words = words
        self._act: Callable[[], None] | None = act

    def line(self, text: str) -> None:
        super().line(text)
        if self._act is not None and self._words in text:
            act, self._act = self._act, None
            threading.Thread(target=act).start()

"""Whether the world still holds what a record claims: by kind of claim, over sockets or by stat."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.graph.keys import canonical_json
from pipeline.graph.stat_cache import StatCache
from pipeline.graph.task import Claim

Check = Callable[[Claim], str | None]

NEVER = "never"
"""A claim of this kind never holds: someone asked for the task to run again. It is not asked after the run."""
ON_DISK = "file"
NEAR = {ON_DISK, NEVER}
FRESH_S = 2.0
"""Seconds for which an answer that was asked for ahead may stand for one of now."""


class _Ahead(threading.Thread):
    """A claim that is being checked."""

    def __init__(self, check: Check, claim: Claim) -> None:
        super().__init__(daemon=True)
        self._check = check
        self._claim = claim
        self._found: list[str | None] = []
        self._ended = 0.0
        self.start()

    def run(self) -> None:
        with suppress(Exception):  # it is asked again, and then says what is wrong
            self._found.append(self._check(self._claim))
        self._ended = time.monotonic()

    def answer(self) -> list[str | None]:
        """What check() says, if that was asked for just now; nothing if it has to be asked again."""
        self.join()
        return self._found if time.monotonic() - self._ended <= FRESH_S else []


class World:
    """A registry from a kind of claim to its check; "file" and "never" are built in."""

    def __init__(self, root: Path, cache: StatCache) -> None:
        self._root = root
        self._cache = cache
        self._checks: dict[str, Check] = {ON_DISK: self._file, NEVER: _never}
        self._ahead: dict[str, _Ahead] = {}

    def register(self, kind: str, check: Check) -> None:
        """Name a kind of claim. `check` returns why the claim does not hold, or None if it holds.

        It is called from several threads, must be quick, and changes nothing; what it cannot reach does not hold.
        """
        self._checks[kind] = check

    def check(self, claim: Claim) -> str | None:
        """Why the claim does not hold, or None. Raises ConfigError for a kind that nobody registered."""
        if claim.kind not in self._checks:
            raise ConfigError(f"claim of kind {claim.kind!r}: no such kind", hint=f"known: {sorted(self._checks)}")
        return self._checks[claim.kind](claim)

    def prefetch(self, claims: Iterable[Claim]) -> None:
        """Begin to ask other machines about claims that broken() will look at in a moment: as long answers serve."""
        for claim in claims:
            if claim.kind not in NEAR and claim.kind in self._checks and (key := _key(claim)) not in self._ahead:
                self._ahead[key] = _Ahead(self._checks[claim.kind], claim)

    def discard_prefetched(self) -> None:
        """Something is about to be done: what was asked ahead of it says nothing about the time after it."""
        self._ahead.clear()

    def broken(self, claims: Iterable[Claim]) -> list[tuple[Claim, str]]:
        """The claims that do not hold, each with why. Those that ask other machines are asked at the same time.

        Raises what check() raises.
        """
        claims = list(claims)
        found: dict[int, str | BaseException | None] = {}

        def ask(i: int) -> None:
            try:
                (found[i],) = self._asked_ahead(claims[i]) or [self.check(claims[i])]
            except BaseException as error:
                found[i] = error

        far = [i for i, claim in enumerate(claims) if claim.kind not in NEAR]
        threads = [threading.Thread(target=ask, args=(i,)) for i in far[1:]]
        for thread in threads:
            thread.start()
        for i in set(range(len(claims))) - set(far[1:]):
            ask(i)
        for thread in threads:
            thread.join()
        return list(_only_broken(claims, found))

    def _asked_ahead(self, claim: Claim) -> list[str | None]:
        asked = self._ahead.get(_key(claim)) if claim.kind not in NEAR else None
        return asked.answer() if asked else []

    def _file(self, claim: Claim) -> str | None:
        """{"path": below the checkout or absolute, "sha256": hex}."""
        path = self._root / str(claim.what["path"])
        try:
            found = self._cache.sha256(path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{claim.what['path']} is missing"
        except OSError as error:
            return f"{claim.what['path']} cannot be read: {error.strerror}"
        return None if found == claim.what["sha256"] else f"{claim.what['path']} has other content"


def _key(claim: Claim) -> str:
    return f"{claim.kind} {canonical_json(dict(claim.what))}"


def _never(claim: Claim) -> str | None:
    """{"why": a text}."""
    return str(claim.what["why"])


def _only_broken(claims: list[Claim], found: Mapping[int, str | BaseException | None]) -> Iterator[tuple[Claim, str]]:
    for i, claim in enumerate(claims):
        why = found[i]
        if isinstance(why, BaseException):
            raise why
        if why is not None:
            yield claim, why

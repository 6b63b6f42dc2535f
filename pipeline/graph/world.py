"""Checks whether the world still holds what a record claims: by kind of claim, over sockets or by stat."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from pipeline.core.errors import ConfigError
from pipeline.graph.keys import canonical_json
from pipeline.graph.stat_cache import StatCache
from pipeline.graph.task import Claim

Check = Callable[[Claim], str | None]

NEVER = "never"
"""A claim of this kind never holds: someone asked for the task to run again. It is not checked after the run."""
ON_DISK = "file"
NEAR = {ON_DISK, NEVER}
"""Kinds that are checked at once, without asking another process or machine."""
FRESH_S = 2.0
"""Seconds for which a prefetched answer may stand for one of now."""
LOOKUP_THREADS = 32


class _Lookup:
    """One check of a claim in a thread of the pool."""

    def __init__(self, check: Check, claim: Claim) -> None:
        self._check = check
        self._claim = claim
        self._ended = threading.Event()
        self._end = 0.0
        self._answer: str | None = None
        self._answered = False
        self.discarded = False

    def run(self) -> None:
        with suppress(Exception):  # result() checks again, and raises what is wrong
            if not self.discarded:
                self._answer = self._check(self._claim)
                self._answered = True
        self._end = time.monotonic()
        self._ended.set()

    def is_stale(self) -> bool:
        """Returns whether the answer is too old to stand for one of now."""
        return self._ended.is_set() and time.monotonic() - self._end > FRESH_S

    def result(self) -> str | None:
        """Waits for the answer. A check that failed in the pool is repeated here, and raises its error."""
        self._ended.wait()
        return self._answer if self._answered else self._check(self._claim)


class _Pool:
    """Up to LOOKUP_THREADS daemon threads, which end when nothing is waiting. They do not hold up Python's exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Lookup] = deque()
        self._threads = 0

    def submit(self, lookup: _Lookup) -> _Lookup:
        with self._lock:
            self._waiting.append(lookup)
            if self._threads == LOOKUP_THREADS:
                return lookup
            self._threads += 1
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:  # the machine has no thread left
            self._work()
        return lookup

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                lookup = self._waiting.popleft()
            lookup.run()


class World:
    """A registry from a kind of claim to its check; "file" and "never" are built in."""

    def __init__(self, root: Path, cache: StatCache) -> None:
        self._root = root
        self._cache = cache
        self._checks: dict[str, Check] = {ON_DISK: self._file, NEVER: _never}
        self._pool = _Pool()
        self._prefetched: dict[str, _Lookup] = {}

    def register(self, kind: str, check: Check) -> None:
        """Name a kind of claim. `check` returns why the claim does not hold, or None if it holds.

        It is called from several threads, must be quick, and changes nothing. A claim that it cannot check because
        something is out of reach does not hold.
        """
        self._checks[kind] = check

    def check(self, claim: Claim) -> str | None:
        """Returns why the claim does not hold, or None. Raises ConfigError for an unknown kind."""
        if claim.kind not in self._checks:
            raise ConfigError(f"claim of kind {claim.kind!r}: no such kind", hint=f"known: {sorted(self._checks)}")
        return self._checks[claim.kind](claim)

    def prefetch(self, claims: Iterable[Claim]) -> None:
        """Begin to check claims that broken() will be asked about in a moment, if that means to ask others."""
        for claim in claims:
            if claim.kind not in NEAR and claim.kind in self._checks and (key := _key(claim)) not in self._prefetched:
                self._prefetched[key] = self._pool.submit(_Lookup(self.check, claim))

    def discard_prefetched(self) -> None:
        """Forget prefetched answers, because something is about to change the world."""
        prefetched, self._prefetched = self._prefetched, {}
        for lookup in prefetched.values():
            lookup.discarded = True

    def broken(self, claims: Iterable[Claim]) -> list[tuple[Claim, str]]:
        """Returns the claims that do not hold, each with why. Those that ask others are checked in parallel.

        Raises what check() raises.
        """
        claims = list(claims)
        lookups = [None if claim.kind in NEAR else self._look_up(claim) for claim in claims]
        # While others answer.
        near = [None if lookup else self.check(claim) for claim, lookup in zip(claims, lookups, strict=True)]
        reasons = [lookup.result() if lookup else why for lookup, why in zip(lookups, near, strict=True)]
        return [(claim, why) for claim, why in zip(claims, reasons, strict=True) if why is not None]

    def _look_up(self, claim: Claim) -> _Lookup:
        prefetched = self._prefetched.get(_key(claim))
        if prefetched and not prefetched.is_stale():
            return prefetched
        return self._pool.submit(_Lookup(self.check, claim))

    def _file(self, claim: Claim) -> str | None:
        """{"path": below the checkout or absolute, "sha256": hex}."""
        path = self._root / str(claim.what["path"])
        try:
            sha256 = self._cache.sha256(path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{claim.what['path']} is missing"
        except OSError as error:
            return f"{claim.what['path']} cannot be read: {error.strerror}"
        return None if sha256 == claim.what["sha256"] else f"{claim.what['path']} has other content"


def _key(claim: Claim) -> str:
    return f"{claim.kind} {canonical_json(dict(claim.what))}"


def _never(claim: Claim) -> str | None:
    """{"why": a text}."""
    return str(claim.what["why"])

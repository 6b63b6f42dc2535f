"""Waits for something that another process or machine does."""

import time
from collections.abc import Callable

from pipeline.core import procs
from pipeline.core.errors import Cancelled
from pipeline.core.log import Log


def wait_until(
    ready: Callable[[], bool],
    *,
    timeout_s: float,
    interval_s: float = 1.0,
    log: Log | None = None,
    title: str | Callable[[], str] = "",
    usual_s: float | None = None,
    tidying: bool = False,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Calls `ready` every `interval_s` seconds until it returns true; returns False after `timeout_s` seconds.

    The caller words the failure. With a log, each try shows progress under `title`; `usual_s` is the number of
    seconds that this wait usually takes. Raises Cancelled after procs.cancel(), unless the wait is part of `tidying`,
    and whatever `ready` raises.
    """
    start = now()
    while not ready():
        if not tidying and procs.cancelled():
            raise Cancelled("interrupted")
        passed_s = now() - start
        if passed_s >= timeout_s:
            return False
        if log is not None:
            log.progress(title if isinstance(title, str) else title(), passed_s, usual_s, "s")
        sleep(interval_s)
    return True

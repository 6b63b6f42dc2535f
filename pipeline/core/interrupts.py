"""Turns signals into KeyboardInterrupt, and keeps that from coming at a wrong moment. Both only in the main thread."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_deferring = _deferred = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes each of SIGNALS raise KeyboardInterrupt during the block, but not inside uninterrupted().

    Signals that are ignored, or that other code handles, stay as they are.
    """
    replaceable = (signal.SIG_DFL, signal.default_int_handler)
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {n: handler for n in SIGNALS if in_main_thread and (handler := signal.getsignal(n)) in replaceable}
    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defers an interrupt to the end of the block, if interruptible() handles it."""
    global _deferring, _deferred
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer, _deferring = _deferring, True
    try:
        yield
    finally:
        _deferring = outer
        if _deferred and not outer:
            _deferred = False
            raise KeyboardInterrupt


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    global _deferred
    if not _deferring:
        raise KeyboardInterrupt
    _deferred = True

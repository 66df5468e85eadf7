"""Ending a program that has daemons and files to clear away: the signals that ask for it become an exception, once."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any, Iterator, Optional

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# Until the exception is raised again where it was lost.
AGAIN_S = 0.01


class Stopped(Exception):
    """A signal asked us to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


_held = 0
_asked: Optional[int] = None


def raise_stopped() -> None:
    """From here on each of the signals raises Stopped, the first of them only."""
    for number in STOPPING_SIGNALS:
        signal.signal(number, _stop)
    sys.unraisablehook = _not_lost


def let_nothing_stop_us() -> None:
    """Ending takes a moment, and must not be cut short."""
    for number in (*STOPPING_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """What is begun in here is done before Stopped is raised: a program that is started must come to be known, or
    nobody ends it."""
    global _held
    _held += 1
    try:
        yield
    finally:
        _held -= 1
    if _asked is not None and _held == 0:
        _raise()


def _stop(number: int, _frame: Any) -> None:
    global _asked
    let_nothing_stop_us()
    _asked = number
    if _held == 0:
        _raise()


def _raise(*_: Any) -> None:
    global _asked
    number, _asked = _asked, None
    assert number is not None
    raise Stopped(number)


def _not_lost(unraisable: Any) -> None:
    """Python drops what is raised while it clears an object away. Then it is raised again a moment later."""
    global _asked
    if not isinstance(unraisable.exc_value, Stopped):
        sys.__unraisablehook__(unraisable)
        return
    _asked = unraisable.exc_value.number
    signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

"""Ends a program that has daemons and files to clear away: the signals that ask for the end become one exception."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import Any, Iterator, Optional

STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# If Python has lost the exception, it is raised again after this time.
AGAIN_S = 0.01


class Stopped(Exception):
    """A signal has asked this program to end."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


_held = 0
_asked: Optional[int] = None


def raise_stopped() -> None:
    """From here on the first of these signals raises Stopped, and only the first."""
    for number in STOPPING_SIGNALS:
        signal.signal(number, _stop)
    sys.unraisablehook = _not_lost


def let_nothing_stop_us() -> None:
    """Ending takes a moment and must not be interrupted."""
    for number in (*STOPPING_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Stopped is raised only after this block: a program that is being started must first be known, or nobody would end
    it."""
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
    """Python drops an exception that is raised while it clears an object away. It is then raised again a moment
    later."""
    global _asked
    if not isinstance(unraisable.exc_value, Stopped):
        sys.__unraisablehook__(unraisable)
        return
    _asked = unraisable.exc_value.number
    signal.signal(signal.SIGALRM, _raise)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

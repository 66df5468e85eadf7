"""One line on standard error that shows how far joining is. Run.wait() draws it, in the caller's thread."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING, Optional, TextIO

if TYPE_CHECKING:
    from ._run import RunInfo

BAR_CELLS = 24
# On a terminal the line is redrawn in place. Elsewhere each update is a line of its own, so updates are rare.
TERMINAL_INTERVAL_S = 0.1
LOG_INTERVAL_S = 10.0
BYTES_PER_ELEMENT = 4  # in a pulled model, which travels in float32
_PARTS = " ▏▎▍▌▋▊▉█"


def _bar(share: float) -> str:
    eighths = int(share * BAR_CELLS * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_PARTS[rest] if full < BAR_CELLS else "")).ljust(BAR_CELLS)


def _megabytes(count: float) -> str:
    megabytes = count / 1e6
    return f"{megabytes:,.0f}" if megabytes >= 10 else f"{megabytes:.1f}"


class Progress:
    """Call show() whenever there is news, and end() once. Draws nothing before the first fragment is there."""

    def __init__(self, job: str, stream: Optional[TextIO] = None):
        self._job = job
        self._stream = sys.stderr if stream is None else stream
        self._terminal = self._stream.isatty()
        self._begin_s: Optional[float] = None  # when the first fragment was seen
        self._first_bytes = 0
        self._drawn_s = float("-inf")
        self._last_bytes = 0
        self._drawn = False

    @staticmethod
    def wanted(choice: Optional[bool]) -> bool:
        """Whether to draw. If the choice is None, this is so on a terminal."""
        return sys.stderr is not None and (sys.stderr.isatty() if choice is None else choice)

    def show(self, info: RunInfo, now_s: Optional[float] = None) -> None:
        now_s = time.monotonic() if now_s is None else now_s
        total = info.elements * BYTES_PER_ELEMENT
        here = min(total, info.fragments_pulled * info.fragment_elements * BYTES_PER_ELEMENT)
        if here == 0:
            return
        if self._begin_s is None:
            self._begin_s, self._first_bytes = now_s, here
        if now_s - self._drawn_s < (TERMINAL_INTERVAL_S if self._terminal else LOG_INTERVAL_S):
            return
        self._last_bytes = here
        elapsed_s = now_s - self._begin_s
        rate = (here - self._first_bytes) / elapsed_s if elapsed_s > 0 else 0.0
        left = f", {(total - here) / rate:.0f} s left" if rate > 0 and here < total else ""
        speed = f", {_megabytes(rate)} MB/s" if rate > 0 else ""
        nodes = f" from {info.neighbours} node{'s' if info.neighbours != 1 else ''}" if info.neighbours else ""
        self._draw(
            f"{self._job}: joining {100 * here / total:3.0f} % |{_bar(here / total)}| "
            f"{_megabytes(here)} of {_megabytes(total)} MB{nodes}{speed}{left}",
            now_s,
        )

    def end(self, info: RunInfo, now_s: Optional[float] = None) -> None:
        """Leaves a line with the result, if anything was drawn."""
        if not self._drawn:
            return
        now_s = time.monotonic() if now_s is None else now_s
        elapsed_s = now_s - (now_s if self._begin_s is None else self._begin_s)
        total = info.elements * BYTES_PER_ELEMENT
        pulled = min(total, info.fragments_pulled * info.fragment_elements * BYTES_PER_ELEMENT)
        if info.ready:
            text = f"{self._job}: joined at {info.global_clock:,} samples: {_megabytes(total)} MB in {elapsed_s:.1f} s"
        else:
            text = f"{self._job}: not joined yet: {_megabytes(pulled)} of {_megabytes(total)} MB in {elapsed_s:.1f} s"
        self._draw(text, now_s)
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()

    def _draw(self, text: str, now_s: float) -> None:
        self._drawn_s, self._drawn = now_s, True
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + text[:width].ljust(width))
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

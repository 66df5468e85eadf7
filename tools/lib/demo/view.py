"""The table on the terminal: refreshed in place, or printed now and then where the output is not a terminal."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from typing import List, Optional, Sequence, TextIO, Tuple

PLAIN_EVERY_S = 5.0
UP_AND_CLEAR = "\x1b[{}F\x1b[J"
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
RED, GREEN = "\x1b[31m", "\x1b[32m"


@dataclass
class Row:
    name: str
    note: str = ""
    alive: bool = True
    accuracy: Optional[float] = None
    steps: int = 0
    steps_per_s: float = 0.0
    exchanges: int = 0
    bytes_sent: int = 0
    neighbours: int = 0
    age_samples: float = 0.0


def bytes_text(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("not reached")


COLUMNS = ("node", "accuracy", "steps", "steps/s", "exchanges", "sent", "neighbours", "age", "")
WIDTHS = (8, 9, 7, 8, 10, 9, 11, 9, 0)


def _cells(row: Row) -> Tuple[str, ...]:
    return (
        row.name,
        "-" if row.accuracy is None else f"{row.accuracy:.3f}",
        str(row.steps),
        f"{row.steps_per_s:.1f}" if row.alive else "-",
        str(row.exchanges),
        bytes_text(row.bytes_sent),
        str(row.neighbours) if row.alive else "-",
        f"{row.age_samples:.0f}" if row.alive else "-",
        row.note,
    )


def _line(cells: Sequence[str]) -> str:
    first, *middle, last = cells
    aligned = [first.ljust(WIDTHS[0])] + [cell.rjust(width) for cell, width in zip(middle, WIDTHS[1:])]
    return ("".join(aligned) + "  " + last).rstrip()


class View:
    def __init__(self, out: TextIO):
        self._out = out
        self.live = out.isatty()
        self._lines_drawn = 0
        self._last_plain_s = float("-inf")

    def say(self, text: str = "") -> None:
        """A line that stays, above the table."""
        self._replace([text], keep=True)

    def table(self, headline: str, rows: Sequence[Row], final: bool = False) -> None:
        if not self.live and not final and time.monotonic() < self._last_plain_s + PLAIN_EVERY_S:
            return
        self._last_plain_s = time.monotonic()
        lines = ["", self.styled(BOLD, headline), self.styled(DIM, _line(COLUMNS))]
        lines += [self.styled("" if row.alive else DIM, _line(_cells(row))) for row in rows]
        self._replace(lines, keep=final)

    def styled(self, style: str, text: str) -> str:
        """A piece of a line, or a line of the table, with this style if it is shown on a terminal."""
        if not self.live:
            return text
        # A line that wrapped would spoil the count of lines to go back.
        return f"{style}{text[: shutil.get_terminal_size().columns - 1]}{PLAIN}"

    def _replace(self, lines: List[str], keep: bool) -> None:
        back = UP_AND_CLEAR.format(self._lines_drawn) if self._lines_drawn else ""
        self._out.write(back + "".join(line + "\n" for line in lines))
        self._out.flush()
        self._lines_drawn = 0 if keep or not self.live else len(lines)

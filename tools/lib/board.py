"""A trainer's report on itself: a small file of numbers that it maps and writes while others read it.

Reading costs the trainer nothing, and the last numbers are still there after it was killed. Each number is whole;
several together may be from two steps.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

FIELDS = (
    "started_s",  # when this trainer began, on the monotonic clock
    "ready_s",  # when this trainer first took part; 0: not yet
    "steps",  # steps since this trainer began
    "clock",  # samples, as the run counts them
    "ledger",  # the training contained in this replica; see chaos/ledger.py
    "task",  # the number of the task, for trainers that have several
    "score",  # the trainer's own measure: an error or an accuracy
    "longest_step_s",  # the longest step so far
    "attached",
)


class Board:
    """With `clear`, all numbers are zero at first."""

    def __init__(self, path: Path, writer: bool = False, clear: bool = False):
        if clear or not path.exists():
            # The file never shrinks, because others may have it mapped.
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.pwrite(file, bytes(8 * len(FIELDS)), 0)
            os.close(file)
        self._values = np.memmap(path, np.float64, "r+" if writer else "r", shape=(len(FIELDS),))

    def __getitem__(self, field: str) -> float:
        return float(self._values[FIELDS.index(field)])

    def __setitem__(self, field: str, value: float) -> None:
        self._values[FIELDS.index(field)] = value

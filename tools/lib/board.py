"""What a trainer tells of itself: a small file of numbers that it maps and writes while others look at it.

Looking costs the trainer nothing, and what was written last is still there when it has been killed. Single numbers are
whole; together they may be from two steps.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

FIELDS = (
    "started_s",  # when this trainer began, on the monotonic clock
    "ready_s",  # when it took part for the first time; 0: not yet
    "steps",  # since this trainer began
    "clock",  # samples, as the run counts them
    "ledger",  # what of all training is in this replica; see chaos/ledger.py
    "task",  # what is being learned, for trainers that have several
    "score",  # what the trainer measures itself by: an error or an accuracy
    "longest_step_s",  # between two pauses
    "attached",
)


class Board:
    """With `clear`, all numbers are zero at first."""

    def __init__(self, path: Path, writer: bool = False, clear: bool = False):
        if clear or not path.exists():
            # Never shorter than it was: others may have it mapped.
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.pwrite(file, bytes(8 * len(FIELDS)), 0)
            os.close(file)
        self._values = np.memmap(path, np.float64, "r+" if writer else "r", shape=(len(FIELDS),))

    def __getitem__(self, field: str) -> float:
        return float(self._values[FIELDS.index(field)])

    def __setitem__(self, field: str, value: float) -> None:
        self._values[FIELDS.index(field)] = value

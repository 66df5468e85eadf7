"""A trainer whose progress is known: `adding_trainer.py BOARD WEIGHTS SEED STEP_S`, attached to the daemon at
$GOSSAMER_SOCKET until the board tells it to close.

A step adds one small random integer to every weight. The weights and the board are files that the test maps, so both
are there when the trainer has been killed. While it does not train it still steps, quickly, and serves due fragments.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import numpy as np

from support import JOB, gossamer

FRAGMENT = 1024
FIELDS = ("command", "added", "steps", "loops", "ready", "closed")
REST, TRAIN, CLOSE = range(3)
# The sum of these stays near zero, where fp32 is exact.
AMOUNTS = (-3, -2, -1, 1, 2, 3)
REST_S = 0.005


class Sheet:
    """The messages between the test and the trainer."""

    def __init__(self, path: Path):
        if not path.exists():
            path.write_bytes(bytes(8 * len(FIELDS)))
        self._values = np.memmap(path, np.float64, "r+", shape=(len(FIELDS),))

    def __getitem__(self, field: str) -> float:
        return float(self._values[FIELDS.index(field)])

    def __setitem__(self, field: str, value: float) -> None:
        self._values[FIELDS.index(field)] = value


def main() -> None:
    sheet, weights = Sheet(Path(sys.argv[1])), np.memmap(sys.argv[2], np.float32, "r+").view(np.ndarray)
    chance, step_s = random.Random(sys.argv[3]), float(sys.argv[4])
    run = gossamer.attach({"w": weights}, job=JOB, fragment_elements=FRAGMENT)
    # Trainers begin their steps at different times, and so serve fragments at different times.
    next_s = time.monotonic() + step_s * chance.random()
    while sheet["command"] != CLOSE:
        now_s = time.monotonic()
        if sheet["command"] == REST:
            run.step(samples=0)
            time.sleep(REST_S)
        elif now_s < next_s:  # it is computing
            time.sleep(min(next_s - now_s, REST_S))
            continue
        else:
            amount = chance.choice(AMOUNTS)
            weights += np.float32(amount)
            sheet["added"] += amount
            sheet["steps"] += 1
            run.step()
            next_s = max(next_s + step_s, now_s)
        sheet["ready"] = run.ready
        sheet["loops"] += 1
    run.close()
    sheet["closed"] = 1


if __name__ == "__main__":
    main()

"""One training process: `python -m soak.trainer FOLDER JOB ELEMENTS STEP_MS SEED`, attached to the daemon at
$GOSSAMER_SOCKET until it is ended; SIGTERM lets it say goodbye.

It "trains" towards a model of its own, a piece in each step, so that the replicas of a job always differ, and all tend
to the mean of these models. Besides its board it writes, once a second, how long its steps spent in Gossamer.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import gossamer
from board import Board

TELL_EVERY_S = 1.0
# Each step trains one of this many pieces of the model, because many trainers share the machine.
PIECES = 16
LEARNING_RATE = 0.05
STEPS_FILE = "steps.csv"

ended = False


def _end(*_: Any) -> None:
    global ended
    ended = True


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that ends this one
    signal.signal(signal.SIGTERM, _end)
    folder, job, elements, step_s = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4]) / 1000
    random = np.random.default_rng(int(sys.argv[5]))
    board = Board(folder / "board", writer=True, clear=True)
    board["started_s"] = time.monotonic()
    goal, model = np.float32(random.standard_normal()), np.zeros(elements, np.float32)
    # Of several clients that come back, the first does not decide on a model: a client that attaches later pulls the
    # job's.
    run = gossamer.attach({"model": model}, job=job, wait=False)
    pieces = np.array_split(model, min(PIECES, elements))
    told_s, durations = time.monotonic(), []
    with open(folder / STEPS_FILE, "a", encoding="ascii") as file:
        while not ended:
            if run.ready and not board["ready_s"]:
                board["ready_s"] = time.monotonic()
            trains = board["ready_s"] > 0  # also while its daemon is away
            if trains:
                piece = pieces[int(board["steps"]) % len(pieces)]
                piece += np.float32(LEARNING_RATE) * (goal - piece)
            begin = time.perf_counter()
            run.step(samples=1 if trains else 0)
            durations.append(time.perf_counter() - begin)
            board["steps"] += 1
            board["score"] = float(model[0])
            now = time.monotonic()
            if now - told_s >= TELL_EVERY_S:
                median, most = np.median(durations), max(durations)
                file.write(f"{now:.2f},{len(durations)},{1e6 * median:.1f},{1e6 * most:.1f}\n")
                file.flush()
                told_s, durations = now, []
            time.sleep(step_s)
    run.close()


if __name__ == "__main__":
    main()

"""One training process: `python -m chaos.trainer DATA BOARD SEED STEP_MS`, attached to the daemon at $GOSSAMER_SOCKET
until it is ended.

The demonstration's network for handwritten digits, on the part of the images that is in the file DATA. After each step
it sleeps, as if a device had worked on it. When it begins again after its death it takes the job's model from others.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import numpy as np

from board import Board
from demo.data import Digits
from demo.learner_numpy import Learner

JOB = "chaos"
LEARNING_RATE = 0.05
BATCH = 32
SCORE_EVERY_S = 2.0


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that ends us
    data_path, board_path, seed, step_s = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1000
    data = np.load(data_path)
    shard, held_out = Digits(data["images"], data["labels"]), Digits(data["held_out_images"], data["held_out_labels"])
    board = Board(board_path, writer=True, clear=True)
    board["started_s"] = time.monotonic()
    random = np.random.default_rng([seed, int(board["started_s"] * 1000)])
    learner = Learner(seed)
    run = learner.attach(JOB)
    board["ready_s"] = time.monotonic()
    score_at_s, exchanges = 0.0, 0
    while True:
        begin = time.monotonic()
        learner.step(shard.of(random.integers(len(shard), size=BATCH)), LEARNING_RATE)
        board["longest_step_s"] = max(board["longest_step_s"], time.monotonic() - begin)
        board["steps"] += 1
        if begin >= score_at_s:
            board["score"] = learner.accuracy(held_out)
            score_at_s = begin + SCORE_EVERY_S
        info = run.info()
        board["clock"] = info.clock
        if info.exchanges != exchanges:
            exchanges, board["shared_clock"] = info.exchanges, info.clock
        time.sleep(step_s)


if __name__ == "__main__":
    main()

"""One training process: `python -m chaos.trainer DATA BOARD SEED SHARE`, attached to the daemon at $GOSSAMER_SOCKET
until it is ended.

It trains the demonstration's network for handwritten digits, on the images in the file DATA. It computes for SHARE of
the time, measured by the processor time of its thread: after each step it waits for as long as that demands, and never
catches up. It thus behaves like a slow processor of its own: gossip in a step costs it steps, and no other trainer does
the work of a dead or starved node. When it begins again after its death it takes the job's model from the others.
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
BATCH = 128
SCORE_EVERY_S = 2.0
# The elements that share one step of the codec (docs/design.md).
BLOCK = 256
# Well below 2^24, from which on a 32-bit float cannot count every number.
MOST_STEPS = 1 << 23


def add_ledger(learner: Learner) -> np.ndarray:
    """Adds this replica's entry in the ledger (ledger.py). It is the first element of a block that holds nothing else,
    so that no weight shares its step with a number that grows."""
    elements = sum(array.size for array in learner.weights.values())
    learner.weights["ledger"] = np.zeros(2 * BLOCK, np.float32)
    first = -elements % BLOCK
    return learner.weights["ledger"][first : first + 1]


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that ends this one
    data_path, board_path, seed, share = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    data = np.load(data_path)
    shard, held_out = Digits(data["images"], data["labels"]), Digits(data["held_out_images"], data["held_out_labels"])
    board = Board(board_path, writer=True, clear=True)
    board["started_s"] = time.monotonic()
    random = np.random.default_rng([seed, int(board["started_s"] * 1000)])
    learner = Learner(seed)
    entry = add_ledger(learner)
    learner.attach(JOB)
    board["ledger"] = entry[0]
    board["ready_s"] = time.monotonic()
    score_at_s = 0.0
    while entry[0] < MOST_STEPS:
        begin, computed_s = time.monotonic(), time.thread_time()
        entry += 1
        learner.step(shard.of(random.integers(len(shard), size=BATCH)), LEARNING_RATE)
        took_s = time.monotonic() - begin
        board["longest_step_s"] = max(board["longest_step_s"], took_s)
        board["steps"] += 1
        board["ledger"] = entry[0]
        if begin >= score_at_s:
            board["score"] = learner.accuracy(held_out)
            score_at_s = begin + SCORE_EVERY_S
        due_s = begin + (time.thread_time() - computed_s) / share
        time.sleep(max(0.0, due_s - time.monotonic()))
    sys.exit(f"the ledger does not count beyond {MOST_STEPS} steps: give chaos fewer --minutes")


if __name__ == "__main__":
    main()

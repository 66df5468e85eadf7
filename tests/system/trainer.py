"""A small real trainer: `trainer.py NODE NODES BOARD TASK [ELEMENTS [STEPS_PER_S]]`, attached to the daemon at
$GOSSAMER_SOCKET until it is ended.

It learns a linear regression, of which each trainer sees only a part: its inputs are zero outside its own coordinates.
Every coordinate belongs to two neighbouring trainers, so that none is lost with one of them. Alone, a trainer learns
its share of the optimum and leaves the rest unchanged; together, all reach the optimum, whatever their speeds. The
score is the distance to the optimum, relative to its length. The number in the file TASK chooses one of many optima;
changing it shows whether training still works. With a number below 0 the last trainer diverges: it writes NaN, and goes
on.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from support import JOB, gossamer
from board import Board

RATE = 0.5
SEEN_IN_A_STEP = 1 / 8
BATCH = 8
FRAGMENT = 2048


class Regression:
    def __init__(self, node: int, nodes: int, elements: int):
        self.weights = np.zeros(elements, np.float32)
        self.last = node == nodes - 1
        self.set_task(0)
        parts = np.array_split(np.arange(elements), nodes)
        self.own = np.concatenate([parts[node % nodes], parts[(node + 1) % nodes]])
        self.random = np.random.default_rng([8, node])

    def set_task(self, task: int) -> None:
        self.task = task
        self.optimum = np.random.default_rng([7, abs(task)]).standard_normal(len(self.weights)).astype(np.float32)
        if task < 0 and self.last:
            self.optimum[:] = np.nan

    def train(self) -> None:
        """One step of stochastic gradient descent; the inputs are multiples of unit vectors."""
        seen = self.own[self.random.random(len(self.own)) < SEEN_IN_A_STEP]
        self.weights[seen] -= np.float32(RATE) * (self.weights[seen] - self.optimum[seen])

    def error(self) -> float:
        return float(np.linalg.norm(self.weights - self.optimum) / np.linalg.norm(self.optimum))


def main() -> None:
    node, nodes, board_path, task_path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    elements = int(sys.argv[5]) if len(sys.argv) > 5 else 2000
    pause_s = 1 / float(sys.argv[6]) if len(sys.argv) > 6 else 0.01
    task = np.memmap(task_path, np.int64, "r", shape=(1,))
    board = Board(board_path, writer=True, clear=True)
    board["started_s"] = time.monotonic()
    learner = Regression(node, nodes, elements)
    # The model is large and has many fragments, so that joining takes a while.
    run = gossamer.attach({"w": learner.weights}, job=JOB, fragment_elements=FRAGMENT if elements > FRAGMENT else 0)
    board["ready_s"] = time.monotonic()
    while True:
        if learner.task != task[0]:
            learner.set_task(int(task[0]))
        learner.train()
        begin = time.monotonic()
        run.step(samples=BATCH)
        board["longest_step_s"] = max(board["longest_step_s"], time.monotonic() - begin)
        info = run.info()
        board["attached"] = info.attached
        board["clock"] = info.clock
        board["task"] = learner.task
        board["score"] = learner.error()
        board["steps"] += 1
        time.sleep(pause_s)


if __name__ == "__main__":
    main()

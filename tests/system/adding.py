"""Trainers in processes of their own with a known progress, beside busy loops, because faults of timing show on a busy
machine. Whatever happens to their daemons, their progress must be in the model, once, to rounding.

The additions of a node's clients move its model by their mean. The seed is printed; GOSSAMER_SEED repeats it.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import List, Sequence

import numpy as np

from support import JOB, PATIENCE_S, Node, SystemTest, wait_until
from adding_trainer import FRAGMENT, REST, TRAIN, Sheet

TRAINER = Path(__file__).with_name("adding_trainer.py")
# There are two fragments, and the second is not full.
ELEMENTS = FRAGMENT + FRAGMENT // 2
# This is much less than the share of one client in one step, and more than the fp32 rounding of thousands of additions,
# or the remaining difference of two nodes that agree.
NEAR = 5e-3
# Programs that keep the processor busy, at the lowest priority, so that they take only time that no test wants.
BUSY_LOOPS = 2


class AddingClient:
    """A trainer of adding_trainer.py, in a process of its own."""

    def __init__(self, test: AddingTest, node: Node, number: int, step_s: float):
        self.node, self.step_s = node, step_s
        sheet, weights = test.folder / f"sheet-{number}", test.folder / f"weights-{number}"
        self.sheet = Sheet(sheet)
        weights.write_bytes(bytes(4 * ELEMENTS))
        self.weights = np.memmap(weights, np.float32, "r")
        self.trainer = test.cluster.start_trainer(
            node, [str(TRAINER), str(sheet), str(weights), f"{test.seed} {number}", str(step_s)]
        )
        self.counted_to = 0.0  # the part of its additions that is in the node's base

    def tell(self, command: int) -> None:
        self.sheet["command"] = command

    def wait_until_heard(self) -> None:
        """Waits until a step that began before the order is over."""
        loops = self.sheet["loops"]
        wait_until(lambda: self.sheet["loops"] > loops + 1, PATIENCE_S, "the trainer has heard")


class AddingTest(SystemTest):
    def setUp(self) -> None:
        super().setUp()
        self.seed = int(os.environ.get("GOSSAMER_SEED", random.SystemRandom().randrange(2**32)))
        print(f"GOSSAMER_SEED={self.seed}", flush=True)
        self.random = random.Random(f"{self.seed} {self.id()}")
        self.adders: List[AddingClient] = []
        # The sum over the nodes, without the additions that are still counted at the clients.
        self.base = np.zeros(ELEMENTS)
        for _ in range(BUSY_LOOPS):
            loop = subprocess.Popen([sys.executable, "-c", "import os; os.nice(19)\nwhile True: pass"])
            self.addCleanup(loop.wait)
            self.addCleanup(loop.kill)

    # --- measured and expected values

    def start_group(self, node: Node, steps_s: Sequence[float]) -> None:
        for step_s in steps_s:
            client = AddingClient(self, node, len(self.adders), step_s)
            self.adders.append(client)
            wait_until(lambda: client.sheet["ready"] == 1, PATIENCE_S, "the client takes part")

    def groups(self) -> List[List[AddingClient]]:
        of_nodes = [[client for client in self.adders if client.node is node] for node in self.cluster.nodes]
        return [group for group in of_nodes if group]

    def expected(self) -> np.ndarray:
        return self.base + sum(
            sum(client.sheet["added"] - client.counted_to for client in group) / len(group) for group in self.groups()
        )

    def off_by(self) -> float:
        means = [np.mean([client.weights for client in group], axis=0, dtype=np.float64) for group in self.groups()]
        return float(np.abs(sum(means) - self.expected()).max())

    def assert_exact(self, what: str) -> None:
        """Waits until all rest and agree. Every addition must then be there, once."""
        for client in self.adders:
            client.tell(REST)
        for client in self.adders:
            client.wait_until_heard()

        def apart() -> float:
            values = np.stack([client.weights for client in self.adders])
            return float((values.max(axis=0) - values.min(axis=0)).max())

        try:
            wait_until(lambda: apart() < NEAR and self.off_by() < NEAR, PATIENCE_S / 2, what)
        except TimeoutError:
            self.fail(f"{what}: the sum is off by {self.off_by():g}, the clients are apart by {apart():g}")

    def count(self) -> None:
        """Settles the additions until now, whoever leaves later."""
        self.base = self.expected()
        for client in self.adders:
            client.counted_to = client.sheet["added"]

    def train(self, steps: int = 2) -> None:
        """Trains until the slowest has done this many steps, and a little longer, so that a stop comes at any point of
        a step."""
        before = [client.sheet["steps"] for client in self.adders]
        for client in self.adders:
            client.tell(TRAIN)
        wait_until(
            lambda: all(client.sheet["steps"] >= then + steps for client, then in zip(self.adders, before)),
            PATIENCE_S,
            "all train",
        )
        until = time.monotonic() + self.random.uniform(0, max(client.step_s for client in self.adders))
        wait_until(lambda: time.monotonic() > until, PATIENCE_S, "it is somewhere in a step")

    def wait_until_back(self) -> None:
        def back(group: List[AddingClient]) -> bool:
            processes = (group[0].node.job(JOB) or {"processes": []})["processes"]
            return len(processes) == len(group) and all(process["state"] == "running" for process in processes)

        wait_until(lambda: all(back(group) for group in self.groups()), PATIENCE_S, "all are back")

    def stop(self, node: Node) -> None:
        self.assertEqual(node.stop(PATIENCE_S), 0)

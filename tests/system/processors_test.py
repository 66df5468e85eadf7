"""A cluster of nodes with different processors: one gossamerd runs on arm64, under QEMU, and the others on this
machine's own processor. All compute the same integers and bits. This needs the arm64 build, which tests/arm64/run
makes; without it the test is skipped, and says so.
"""

import concurrent.futures
import os
import sys
import unittest
from pathlib import Path
from typing import List

import numpy as np

from adding import AddingTest
from support import PATIENCE_S, Client, Node, Options, SystemTest, total, train_at_random

SKIPPED = 77  # CTest's status for "skipped"
ARM64_BUILD = Path(os.environ.get("GOSSAMER_ARM64_BUILD", "/nonexistent"))
NODES = 3
FOREIGN = 1  # it dials one node, and is dialled by another
ELEMENTS = 10_000
FRAGMENT_ELEMENTS = 4096  # two whole fragments, and one that ends within a block


class Mixed(SystemTest):
    def start_mixed(self, options: Options) -> List[Node]:
        for index in range(NODES):
            node = self.cluster.add(f"node-{index + 1}", options)
            if index == FOREIGN:
                node.use(ARM64_BUILD)
            node.start()
        self.wait_for_links(self.cluster.nodes)
        return self.cluster.nodes


class Gossip(Mixed):
    def replicas_agree(self, codec: str) -> None:
        nodes = self.start_mixed({"gossip": {"codec": codec}})
        random = np.random.default_rng(7)
        first = random.standard_normal(ELEMENTS).astype(np.float32)
        clients = [self.attach(node, first.copy(), fragment_elements=FRAGMENT_ELEMENTS) for node in nodes]
        for client in clients:
            np.testing.assert_array_equal(client.array, first)  # the model of the first
        added = total(clients) + train_at_random(clients, 200, random)
        self.converge(clients, added)
        self.assert_counted_equally(clients)
        for client in clients:
            job = client.job()
            self.assertEqual(job["codec"], codec)
            self.assertEqual((job["unresolved"], job["violations"], job["refused"]), (0, 0, 0))
        for node in nodes:
            self.assertEqual(node.status()["messages_rejected"], 0)

    def assert_counted_equally(self, clients: List[Client]) -> None:
        """Each exchange was begun by one node and answered by one. For a moment it may be counted at one end only."""

        def counted() -> List[int]:
            jobs = [client.job() for client in clients]
            begun = sum(job["exchanges_initiated"] + job["follow_ups"] for job in jobs)
            return [begun, sum(job["exchanges_answered"] for job in jobs)]

        self.step_until(lambda: len(set(counted())) == 1, "both ends have counted the same exchanges", clients)
        self.assertGreater(min(client.job()["exchanges_initiated"] for client in clients), 0)
        self.assertGreater(min(client.job()["exchanges_answered"] for client in clients), 0)

    def test_f32(self) -> None:
        self.replicas_agree("f32")

    def test_q8(self) -> None:
        self.replicas_agree("q8")

    def test_q4(self) -> None:
        self.replicas_agree("q4")


class Average(Mixed):
    def test_the_same_bits(self) -> None:
        clients = [self.attach(node, np.zeros(8, np.float32)) for node in self.start_mixed({})]
        random = np.random.default_rng(8)
        with concurrent.futures.ThreadPoolExecutor(NODES) as pool:
            for dtype in (np.float32, np.float64, np.float16):
                values = [random.standard_normal(ELEMENTS).astype(dtype) for _ in clients]
                called = [
                    pool.submit(
                        client.run.average, value, name=dtype.__name__, at_least=NODES, timeout_s=PATIENCE_S
                    )
                    for client, value in zip(clients, values)
                ]
                averages = [call.result().values for call in called]
                self.assertEqual({average.tobytes() for average in averages}, {averages[0].tobytes()})
                mean = np.mean(values, axis=0, dtype=np.float64)
                np.testing.assert_allclose(averages[0], mean, rtol=0, atol=2e-3 if dtype is np.float16 else 1e-6)


class Killed(Mixed, AddingTest):
    def test_it_comes_back(self) -> None:
        """Its clients' training stays in the sum, once, and no exchange counts as unresolved."""
        nodes = self.start_mixed({})
        for node in nodes:
            self.start_group(node, [0.05])
        self.assert_exact("all are there")
        for _ in range(3):
            self.train()
            nodes[FOREIGN].kill()
            nodes[FOREIGN].start()
            self.wait_until_back()
            self.wait_for_links(nodes)
            self.assert_exact("killed")
        self.assertEqual([job["unresolved"] for node in nodes for job in node.jobs()], [0] * NODES)


if __name__ == "__main__":
    if not (ARM64_BUILD / "bin" / "gossamerd").exists():
        print("SKIPPED, no cluster of different processors: tests/arm64/run builds for arm64", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

"""The frequency of exchanges: a shorter period counts at once, and a busy machine makes no period longer."""

import multiprocessing
import os
import time
import unittest
from typing import List

import numpy as np

from support import Client, SystemTest


ELEMENTS = 10_000
FRAGMENT_ELEMENTS = 4096
FRAGMENTS = 3


def spin() -> None:
    while True:
        pass


class Cadence(SystemTest):
    def exchanging(self, options: dict) -> List[Client]:
        """Two replicas that differ, each of whose fragments has been exchanged."""
        nodes = self.start_nodes(2, options)
        clients = [self.attach(node, np.zeros(ELEMENTS), fragment_elements=FRAGMENT_ELEMENTS) for node in nodes]
        for index, client in enumerate(clients):
            client.array += index
        self.step_until(lambda: clients[0].job()["exchanges"] >= FRAGMENTS, "the first exchanges")
        return clients

    def test_a_shorter_period_counts_at_once(self) -> None:
        clients = self.exchanging({"gossip": {"period_ms": 60_000}})
        # All exchanges that could begin at once have begun.
        until = time.monotonic() + 2
        self.step_until(lambda: time.monotonic() > until, "two seconds are over")
        before = [client.job()["exchanges_initiated"] for client in clients]
        until = time.monotonic() + 2
        self.step_until(lambda: time.monotonic() > until, "two seconds are over")
        self.assertEqual([client.job()["exchanges_initiated"] for client in clients], before)

        for client in clients:
            client.node.options["gossip"]["period_ms"] = 50
            client.node.reload()
        begun = time.monotonic()
        self.step_until(
            lambda: all(
                client.job()["exchanges_initiated"] >= count + 2 * FRAGMENTS
                for client, count in zip(clients, before)
            ),
            "each node has begun two rounds",
        )
        self.assertLess(time.monotonic() - begun, 5)

    def test_a_busy_machine_makes_no_period_longer(self) -> None:
        """Each step waits for the processor again and again, even while it serves a fragment."""
        clients = self.exchanging({"gossip": {"period_ms": 50}})
        busy = [multiprocessing.Process(target=spin, daemon=True) for _ in range(2 * (os.cpu_count() or 1))]
        for process in busy:
            process.start()
            self.addCleanup(process.kill)
        longest_s = 0.0
        until = time.monotonic() + 15
        while time.monotonic() < until:
            for client in clients:
                client.array += 1e-4
                client.step()
            longest_s = max(longest_s, *(client.job()["period_s"] for client in clients))
        self.assertLess(longest_s, 0.2)


if __name__ == "__main__":
    unittest.main()

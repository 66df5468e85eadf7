"""A cluster of an older gossamerd is brought up to date node by node. Needs the older one, which tests/upgrade/run
builds; without it is skipped, and says so.
"""

import os
import sys
import unittest
from pathlib import Path
from typing import List

import numpy as np

from support import BUILD, PATIENCE_S, Client, Node, OperatedTest, wait_until

SKIPPED = 77  # CTest's status for "skipped"
OLD_BUILD = Path(os.environ.get("GOSSAMER_OLD_BUILD", "/nonexistent"))
NODES = 3


class Upgrade(OperatedTest):
    def setUp(self) -> None:
        super().setUp()
        self.cluster.build = OLD_BUILD
        self.nodes = self.start_nodes(NODES)
        self.replicas = [self.attach(node, np.zeros(2000), fragment_elements=2048) for node in self.nodes]
        self.sum = np.zeros(2000)

    def restart(self, node: Node, build: Path) -> None:
        node.stop()
        node.use(build)
        node.start()

    def train(self, replicas: List[Client]) -> None:
        """Each learns something, and all come to hold it."""
        for client in replicas:
            client.array += 1
            self.sum += 1
        self.converge(replicas, self.sum)

    def test_node_by_node_while_it_trains(self) -> None:
        self.train(self.replicas)
        for node in self.nodes:
            self.restart(node, BUILD)
            others = [other for other in self.nodes if other is not node]
            wait_until(lambda: all(other.status()["neighbours"] == NODES - 1 for other in others), PATIENCE_S, "linked")
            self.train(self.replicas)  # with old and new side by side
        for node in self.nodes:
            self.assertEqual(node.status()["messages_rejected"], 0)

    def test_what_the_new_one_decides_the_old_ones_hear(self) -> None:
        """Of what they do not know they take no notice: they keep their links, and go on training."""
        new = self.nodes[0]
        self.restart(new, BUILD)
        self.wait_for_links(self.nodes)
        key = str(self.folder / "authority.key")
        self.ask(new, "deny", "aa" * 16)
        wait_until(lambda: all("aa" * 16 in self.denied(node) for node in self.nodes), PATIENCE_S, "all hear")
        self.ask(new, "authority", "create", key, "--yes")
        deputy = self.ask(new, "authority", "key", str(self.folder / "anna.key"))["key"]
        self.ask(new, "authority", "appoint", deputy, "--name", "anna", "--may", "deny,invite", "--authority", key)
        self.ask(new, "deny", "bb" * 16, "--authority", key)
        wait_until(lambda: all("bb" * 16 in self.denied(node) for node in self.nodes), PATIENCE_S, "all hear")
        self.ask(new, "deny", "cc" * 16, "--authority", str(self.folder / "anna.key"))
        self.ask(new, "approve", "--all", "--yes", "--authority", key)
        self.train(self.replicas)
        for node in self.nodes[1:]:
            self.restart(node, BUILD)
        self.wait_for_links(self.nodes)
        wait_until(lambda: all("cc" * 16 in self.denied(node) for node in self.nodes), PATIENCE_S, "all are up to date")
        self.train(self.replicas)
        for node in self.nodes:
            self.assertEqual(node.status()["messages_rejected"], 0)

    def denied(self, node: Node) -> List[str]:
        return [one["node"] for one in self.ask(node, "denials")["denials"] if one["denied"]]


if __name__ == "__main__":
    if not (OLD_BUILD / "bin" / "gossamerd").exists():
        print("SKIPPED, no cluster was upgraded: tests/upgrade/run builds an older gossamerd", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

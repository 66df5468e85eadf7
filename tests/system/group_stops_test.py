"""Daemons with several clients of one job stop and die while these train, again and again (adding.py)."""

from __future__ import annotations

import unittest
from typing import Callable

from support import Node, wait_until, PATIENCE_S
from adding import AddingTest
from adding_trainer import CLOSE

# The quickest client's steps are two orders of magnitude shorter than the slowest client's.
STEPS_S = (0.01, 0.02, 0.1, 0.4)
# This is longer than a stop waits for quick clients.
LONG_STEP_S = 3.0


class GroupStops(AddingTest):
    def stop_while_they_come_back(self, node: Node, end: Callable[[Node], object]) -> None:
        """Its successor is stopped as well, while some of the clients are there or on their way."""
        self.stop(node)
        node.start()
        some = self.random.randint(1, len(self.adders) - 1)
        wait_until(lambda: node.status()["clients"] >= some, PATIENCE_S, "some are back")
        end(node)

    def test_every_kind_of_stop(self) -> None:
        node = self.start_nodes(1)[0]
        self.start_group(node, STEPS_S)
        self.assert_exact("all are there")
        kinds = {
            "SIGTERM": lambda: self.stop(node),
            "kill -9": node.kill,
            "SIGTERM, and SIGTERM while they come back": lambda: self.stop_while_they_come_back(node, self.stop),
            "SIGTERM, and kill -9 while they come back": lambda: self.stop_while_they_come_back(node, Node.kill),
        }
        for kind in list(kinds) + ["SIGTERM"] * 3:
            self.train()
            kinds[kind]()
            self.train(1)  # also while no daemon is there
            node.start()
            self.wait_until_back()
            self.assert_exact(kind)

    def test_who_goes_at_a_stop(self) -> None:
        """A client that ends when the daemon stops does not come back; its training stays."""
        node = self.start_nodes(1)[0]
        self.start_group(node, [STEPS_S[0]] * 4)
        self.train()
        self.assert_exact("before anybody goes")
        self.count()
        closes = self.adders.pop()
        acts = [lambda: closes.tell(CLOSE), lambda: self.stop(node)]
        self.random.shuffle(acts)
        for act in acts:
            act()
        wait_until(lambda: closes.sheet["closed"] == 1, PATIENCE_S, "it has closed its run")
        self.adders.pop().trainer.kill()
        self.train()  # each on its own
        node.start()
        self.wait_until_back()
        self.assert_exact("the two that are left")
        self.train()
        self.assert_exact("and afterwards")

    def test_beside_another_node(self) -> None:
        """A stop finishes the exchanges, and clients collect the results, even with long steps."""
        nodes = self.start_nodes(2)
        for node in nodes:
            self.start_group(node, [LONG_STEP_S] * 2)
        for _ in range(2):
            self.train()
            node = self.random.choice(nodes)
            self.stop(node)
            node.start()
            self.wait_until_back()
            self.wait_for_links(nodes)
            self.assert_exact("SIGTERM")


if __name__ == "__main__":
    unittest.main()

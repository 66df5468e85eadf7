"""Daemons are killed at any moment, with steps that are short, longer than an exchange, and longer than most of a
daemon's actions. Their clients' training (adding.py) stays in the sum, once, and no exchange counts as unresolved.
"""

from __future__ import annotations

import time
import unittest
from typing import Sequence

from support import JOB, PATIENCE_S, wait_until
from adding import AddingClient, AddingTest
from adding_trainer import TRAIN


# After this time without a daemon, a client looks for it only every two seconds.
RARELY_S = 4.0


class Killing(AddingTest):
    def kill_and_look(self, count: int, steps_s: float, kills: int, together: int = 1) -> None:
        """One client for each node. `together` is how many of `count` daemons die at once."""
        self.kill_and_look_at([[steps_s]] * count, kills, together)

    def kill_and_look_at(self, groups: Sequence[Sequence[float]], kills: int, together: int = 1) -> None:
        """`groups`: for each node, how long its clients' steps take, in seconds."""
        nodes = self.start_nodes(len(groups))
        for node, steps_s in zip(nodes, groups):
            self.start_group(node, steps_s)
        self.assert_exact("all are there")
        for kill in range(kills):
            self.train()
            victims = self.random.sample(nodes, together)
            for node in victims:
                node.kill()
            if self.random.random() < 0.5:
                self.train(1)  # while it is away
            for node in victims:
                node.start()
            self.wait_until_back()
            if kill % 2 == 1:
                continue  # the results of two kills are checked together
            self.wait_for_links(nodes)
            self.assert_exact(f"kill {kill + 1} of {kills}")
        self.wait_for_links(nodes)
        self.assert_exact("all kills")
        unresolved = [node.job(JOB)["unresolved"] for node in nodes]
        self.assertEqual(unresolved, [0] * len(groups))

    def test_short_steps(self) -> None:
        self.kill_and_look(3, 0.01, 10)

    def test_steps_of_half_a_second(self) -> None:
        self.kill_and_look(3, 0.5, 6)

    def test_long_steps(self) -> None:
        self.kill_and_look(2, 3.0, 2)

    def test_two_die_at_once(self) -> None:
        self.kill_and_look(3, 0.1, 6, together=2)

    def test_groups(self) -> None:
        """Several clients of the job at a node: the node's copy of the model is no client's, and outlives the
        daemon."""
        self.kill_and_look_at([[0.01, 0.1], [0.02] * 4, [0.05]], 10)

    def test_groups_of_many_with_long_steps(self) -> None:
        self.kill_and_look_at([[0.5] * 8, [1.0, 0.1]], 4, together=2)

    def test_a_trainer_dies_with_its_daemon(self) -> None:
        """Another trainer takes its place at once, and asks before the clients with the model come back."""
        node, other = self.start_nodes(2)
        self.start_group(node, [0.02, 0.02])
        self.start_group(other, [0.02])
        for kill in range(3):
            self.train()
            self.assert_exact("before")
            self.count()
            goes_on = self.adders[-1 if kill == 0 else 0]
            self.assertIs(goes_on.node, other)
            goes_on.tell(TRAIN)
            loops = goes_on.sheet["loops"]
            wait_until(lambda: goes_on.sheet["loops"] > loops + 20, PATIENCE_S, "the other node trains")
            stays, dies = [client for client in self.adders if client.node is node]
            node.kill()
            dies.trainer.kill()
            until = time.monotonic() + RARELY_S
            wait_until(lambda: time.monotonic() > until, PATIENCE_S, "who stays looks for its daemon rarely")
            node.start()
            new = AddingClient(self, node, 100 + kill, 0.02)
            self.adders = [goes_on, stays, new]
            wait_until(lambda: new.sheet["ready"] == 1, PATIENCE_S, "the new one takes part")
            self.wait_until_back()
            self.wait_for_links([node, other])
            self.assert_exact(f"kill {kill + 1}")
        self.assertEqual([one.job(JOB)["unresolved"] for one in (node, other)], [0, 0])


if __name__ == "__main__":
    unittest.main()

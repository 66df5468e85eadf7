"""Nodes that leave on purpose, or stand aside for a while."""

import threading
import time
import unittest

import numpy as np

from support import BUILD, PATIENCE_S, SystemTest, gossamerctl, wait_until


class Leaving(SystemTest):
    def test_a_leaver_hands_over_what_it_learned(self) -> None:
        """The other neighbour cannot know it otherwise: the two were drained while the leaver trained."""
        nodes = self.start_nodes(2)
        stays, leaves = (self.attach(node, np.zeros(1000)) for node in nodes)
        self.step_until(lambda: all(c.job()["neighbours"] == 1 for c in self.clients), "both see each other")
        random = np.random.default_rng(1)
        for _ in range(300):  # as in training: each goes its own way and expects the other to
            for client in self.clients:
                client.array += random.normal(0, 0.1, 1000).astype(np.float32)
                client.step()
            time.sleep(0.001)
        self.assertEqual(gossamerctl(BUILD, "--socket", str(nodes[1].control_socket), "drain").returncode, 0)
        self.assertEqual(nodes[1].status()["state"], "drained")
        self.step_until(lambda: stays.job()["neighbours"] == 0, "the other knows that it is drained")
        self.step_until(lambda: all(c.job()["in_flight"] == 0 for c in self.clients), "what was under way is over")
        leaves.array += 1
        before = leaves.job()["exchanges"]
        for _ in range(100):
            leaves.step()
            stays.step()
        self.assertEqual(leaves.job()["exchanges"], before)
        expected = (stays.array + leaves.array) / 2
        self.assertGreater(float(np.abs(stays.array - expected).mean()), 0.3)

        answer = []
        leaving = threading.Thread(
            target=lambda: answer.append(gossamerctl(BUILD, "--socket", str(nodes[1].control_socket), "leave"))
        )
        leaving.start()
        self.step_until(lambda: not leaving.is_alive(), "it has left")
        leaving.join()
        self.assertEqual(answer[0].returncode, 0, answer[0].stderr)
        self.assertEqual(nodes[1].program.wait(PATIENCE_S), 0)
        self.assertIn("handed over 1 of 1 fragments", nodes[1].log.read_text())
        # One element may be off by half a step of the quantiser, which is coarse after a long pause. The mean is not,
        # and it shows whether one block of 256 elements has been left out.
        self.step_until(
            lambda: abs(float((stays.array - expected).mean())) < 0.1, "what was learned there is here", [stays]
        )
        self.assertEqual(stays.job()["unresolved"], 0)
        wait_until(lambda: nodes[0].members() == [], PATIENCE_S, "the neighbour knows that it left")

    def test_a_drained_node_keeps_its_place(self) -> None:
        nodes = self.start_nodes(2)
        clients = [self.attach(node, np.full(1000, float(index))) for index, node in enumerate(nodes)]
        self.step_until(lambda: all(c.job()["neighbours"] == 1 for c in clients), "both see each other")
        control = str(nodes[0].control_socket)
        self.assertEqual(gossamerctl(BUILD, "--socket", control, "drain").returncode, 0)
        self.step_until(lambda: clients[1].job()["neighbours"] == 0, "the other knows that it is drained")
        self.assertEqual(nodes[0].status()["neighbours"], 1)
        self.assertEqual(clients[0].job()["state"], "draining")
        self.assertEqual(gossamerctl(BUILD, "--socket", control, "drain", "--off").returncode, 0)
        self.assert_still_exchanges(clients)

    def test_leaves_in_time_when_the_trainer_hangs(self) -> None:
        nodes = self.start_nodes(2)
        clients = [self.attach(node, np.zeros(1000)) for node in nodes]
        self.step_until(lambda: all(c.job()["neighbours"] == 1 for c in clients), "both see each other")
        left = gossamerctl(BUILD, "--socket", str(nodes[1].control_socket), "leave", "--timeout", "1")
        self.assertEqual(left.returncode, 0, left.stderr)
        self.assertEqual(nodes[1].program.wait(PATIENCE_S), 0)


if __name__ == "__main__":
    unittest.main()

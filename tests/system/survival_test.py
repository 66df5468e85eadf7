"""Daemons, trainers and neighbours die in the middle of everything; the others go on, and nothing is applied twice."""

import signal
import subprocess
import time
import unittest

import numpy as np

from support import JOB, PATIENCE_S, SystemTest, spread, total, wait_until

ELEMENTS = 5000
# The rounding of a sum of values around ten, over hundreds of exchanges. A lost exchange moves 0.01 and more.
ADDING_UP = 1e-3


class DaemonDies(SystemTest):
    def test_pending_correction_is_applied_once(self) -> None:
        """A correction that is in shared memory when the daemon is killed reaches the model, once."""
        nodes = self.start_nodes(2)
        idle, other = (self.attach(node, np.zeros(ELEMENTS), fragment_elements=1 << 13) for node in nodes)
        idle.array += 1
        self.publish(idle)
        # `idle` stands still from here on, and its corrections wait in its memory.
        self.step_until(lambda: bool(np.allclose(other.array, 0.5, atol=1e-4)), "the other has its half", [other])
        nodes[0].kill()
        np.testing.assert_array_equal(idle.array, 1)

        nodes[0].start()
        self.step_until(lambda: idle.run.info().attached and idle.run.ready, "the client is attached again", [idle])
        self.assertEqual(idle.run.info().attachments, 2)
        self.wait_for_links(nodes)
        self.converge([idle, other], np.ones(ELEMENTS))
        np.testing.assert_allclose(idle.array, 0.5, atol=2e-4)
        self.assert_still_exchanges([idle, other])

    def test_training_goes_on_alone(self) -> None:
        """Steps without a daemon neither wait nor fail, and their training is not lost."""
        nodes = self.start_nodes(2)
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        nodes[0].kill()
        begin = time.monotonic()
        for _ in range(1000):
            clients[0].array += 0.001
            clients[0].step()
        self.assertLess(time.monotonic() - begin, PATIENCE_S)
        wait_until(lambda: not clients[0].run.info().attached, PATIENCE_S, "the client has noticed")
        self.assertGreater(float(clients[0].array.min()), 0.99)

        nodes[0].start()
        self.wait_for_links(nodes)
        self.converge(clients, np.full(ELEMENTS, float(clients[0].array[0])))

    def test_killed_and_started_again_and_again(self) -> None:
        """Kills in the middle of exchanges. An exchange with one side done is lost, so the sum may change by the small
        difference of replicas that track one another. A correction applied twice, or a wrong model, would change it by
        much more."""
        nodes = self.start_nodes(3)
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        random = np.random.default_rng(5)
        for _ in range(4):
            until = time.monotonic() + random.uniform(0.05, 0.3)
            while time.monotonic() < until:
                for client in clients:
                    client.array += 0.001
                    client.step()
            nodes[0].kill()
            nodes[0].start()
            self.step_until(lambda: clients[0].run.info().attached, "the client is attached again", clients)
        self.wait_for_links(nodes)
        self.step_until(lambda: spread(clients) < 1e-4, "the replicas agree", clients)
        self.assert_still_exchanges(clients)

    def test_neighbour_dies(self) -> None:
        """The survivors notice, go on with each other, and accept it again when it returns."""
        nodes = self.start_nodes(3)
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        nodes[2].kill()
        wait_until(
            lambda: all(node.status()["neighbours"] == 1 for node in nodes[:2]), PATIENCE_S, "the death is noticed"
        )
        before = total(clients[:2])
        clients[0].array += 1
        self.converge(clients[:2], before + 1)
        # Only exchanges with the dead node may be without an answer: at most one that each side began.
        for client in clients[:2]:
            self.assertLessEqual(client.job()["unresolved"], 2)
        nodes[2].start()
        self.wait_for_links(nodes)
        self.assert_still_exchanges(clients)

# The program attaches, and steps until it is killed.
TRAINER = f"""
import numpy as np, gossamer, time
array = np.zeros({ELEMENTS}, np.float32)
run = gossamer.attach({{"w": array}}, job="{JOB}")
print("attached", flush=True)
while True:
    run.step()
    time.sleep(0.0005)
"""

class TrainerDies(SystemTest):
    def test_its_replica_leaves_and_the_next_one_joins(self) -> None:
        nodes = self.start_nodes(2)
        stays = self.attach(nodes[0], np.arange(ELEMENTS, dtype=np.float32))
        trainer = self.cluster.start_trainer(nodes[1], ["-c", TRAINER], stdout=subprocess.PIPE)
        self.assertEqual(trainer.process.stdout.readline(), b"attached\n")
        self.step_until(lambda: stays.job()["exchanges"] > 20, "the two exchange")
        trainer.kill()
        trainer.process.stdout.close()
        wait_until(lambda: not nodes[1].jobs(), PATIENCE_S, "the daemon has let go of the dead trainer's memory")
        self.assertEqual(nodes[1].status()["memory_bytes"], 0)
        np.testing.assert_array_equal(stays.array, np.arange(ELEMENTS, dtype=np.float32))

        joins = self.attach(nodes[1], np.zeros(ELEMENTS))
        np.testing.assert_array_equal(joins.array, stays.array)
        self.assert_still_exchanges([stays, joins])

class CleanStop(SystemTest):
    def test_leaves_nothing_unresolved(self) -> None:
        """SIGTERM while all train and exchange: exchanges under way are finished, and the sum holds."""
        nodes = self.start_nodes(3)
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        added = 0.0

        def train() -> None:
            nonlocal added
            for number, client in enumerate(clients):
                # exact in fp32, and different for each, so that there is always much to exchange
                client.array += number / 128
                added += number / 128
                client.step()

        def trained_until(condition) -> None:
            wait_until(lambda: train() or condition(), PATIENCE_S, "the training comes to its end")

        trained_until(lambda: min(client.job()["exchanges"] for client in clients) > 20)
        nodes[2].program.signal(signal.SIGTERM)
        trained_until(lambda: not nodes[2].running())
        self.assertEqual(nodes[2].program.wait(), 0)
        self.converge_rest(clients, added)

    def converge_rest(self, clients, added: float) -> None:
        """The last one is alone now; it takes its waiting corrections at its next step."""

        def error() -> float:
            return float(np.abs(total(clients) - added).max())

        self.step_until(lambda: spread(clients[:2]) < 1e-3, "the others agree", clients)
        self.step_until(lambda: error() < ADDING_UP, "the sum is what was added", clients)
        for client in clients[:2]:
            self.assertEqual(client.job()["unresolved"], 0)


if __name__ == "__main__":
    unittest.main()

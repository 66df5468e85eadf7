"""A job's settings: changed at one node, they hold at all, for who comes later, and after daemons have died."""

import time
import unittest
from typing import Dict

import numpy as np

from support import BUILD, JOB, PATIENCE_S, Node, SystemTest, gossamer, gossamerctl

REFUSED = 3
WRONG_USAGE = 2


class JobSettings(SystemTest):
    def set(self, node: Node, *assignments: str, status: int = 0) -> str:
        said = gossamerctl(BUILD, "--socket", str(node.control_socket), "job", "set", JOB, *assignments)
        self.assertEqual(said.returncode, status, said.stderr)
        return said.stdout + said.stderr

    def wait_for(self, settings: Dict[str, str], codec: str) -> None:
        def have() -> bool:
            jobs = [client.node.job(JOB) for client in self.clients]  # none: its daemon has just begun
            return all(job and (job["settings"]["values"], job["codec"]) == (settings, codec) for job in jobs)

        self.step_until(have, f"all nodes have {settings}")

    def test_one_node_sets_them_and_all_follow(self) -> None:
        first, second = self.start_nodes(2)
        ours = [self.attach(node, np.zeros(1000)) for node in (first, second)]
        self.step_until(lambda: all(c.job()["neighbours"] == 1 for c in ours), "both see each other")
        self.assertIn("codec=q4 period_ms=5", self.set(first, "codec=q4", "period_ms=5"))
        self.wait_for({"codec": "q4", "period_ms": "5"}, "q4")
        self.assertIn("codec=f32", self.set(second, "codec=f32", "period_ms="))
        self.wait_for({"codec": "f32"}, "f32")

        third = self.cluster.start("node-3")
        self.wait_for_links([first, second, third])
        self.attach(third, np.zeros(1000))
        self.wait_for({"codec": "f32"}, "f32")
        said = gossamerctl(BUILD, "--socket", str(third.control_socket), "jobs").stdout
        self.assertIn(f"{JOB}: settings of all its nodes: codec=f32", said)
        for node in (first, second, third):
            node.kill()
        for node in (first, second, third):
            node.start()
        self.wait_for_links([first, second, third])
        self.wait_for({"codec": "f32"}, "f32")
        self.assert_still_exchanges(self.clients)

    def test_the_program_that_begins_the_job_gives_them(self) -> None:
        first, second = self.start_nodes(2)
        self.attach(first, np.zeros(1000), settings={"codec": "q4", "period_ms": 5})
        self.wait_for({"codec": "q4", "period_ms": "5"}, "q4")
        self.attach(second, np.zeros(1000), settings={"codec": "f32"})
        self.wait_for({"codec": "q4", "period_ms": "5"}, "q4")
        self.set(second, "codec=q8")
        self.attach(first, np.zeros(1000), settings={"codec": "q4", "period_ms": 5})
        self.wait_for({"codec": "q8", "period_ms": "5"}, "q8")
        self.assert_still_exchanges(self.clients)

    def test_what_a_program_gives_wrongly_is_refused(self) -> None:
        (node,) = self.start_nodes(1)
        for settings, why in (
            ({"codec": "q5"}, 'codec: "q5" is not known'),
            ({"methods": "average"}, "codec, period_ms"),
            ({"method": "master"}, 'must be "gossip", "average" or "server"'),
            ({"period_ms": -1}, "period_ms"),
            ({f"s{i}": 1 for i in range(40)}, "too many"),
        ):
            with self.assertRaisesRegex(gossamer.GossamerError, f"settings.*: .*{why}"):
                self.attach(node, np.zeros(1000), settings=settings)
        self.assertIsNone(node.job(JOB))
        client = self.attach(node, np.zeros(1000), settings={"codec": "q4"})
        self.step_until(lambda: client.run.ready, "it runs", [client])
        with self.assertRaisesRegex(gossamer.GossamerError, "range"):
            self.attach(node, np.zeros(1000), settings={"range": "far"})

    def test_changes_at_the_same_time_come_to_one(self) -> None:
        nodes = self.start_nodes(3)
        for node in nodes:
            self.attach(node, np.zeros(1000))
        self.step_until(lambda: all(c.job()["neighbours"] == 2 for c in self.clients), "all see each other")
        for _ in range(10):
            for node, codec in zip(nodes, ("f32", "q8", "q4")):
                self.set(node, f"codec={codec}")

        def same() -> bool:
            jobs = [client.job() for client in self.clients]
            return all(job["settings"] == jobs[0]["settings"] for job in jobs)

        self.step_until(same, "all have the same")
        self.assert_still_exchanges(self.clients)

    def test_replicas_count_for_their_samples(self) -> None:
        """One replica trains up with 9 samples a step, the other down with 1, by as much."""
        nodes = self.start_nodes(2)
        up, down = [self.attach(node, np.zeros(1000), settings={"weights": "samples"}) for node in nodes]
        self.step_until(lambda: all(c.job()["neighbours"] == 1 for c in (up, down)), "both see each other")
        before = sum(float(client.array.mean()) for client in (up, down)) / 2

        def train(steps: int) -> None:
            for _ in range(steps):
                for client, move, samples in ((up, 1e-3, 9), (down, -1e-3, 1)):
                    client.array += np.float32(move)
                    client.run.step(samples)
                    client.run.step(0)  # not a step that counts
                time.sleep(0.001)

        deadline_s = time.monotonic() + PATIENCE_S
        share = 0.0
        trained = 0
        while not 0.7 < share < 0.9 and time.monotonic() < deadline_s:
            train(500)
            trained += 500
            share = (sum(float(client.array.mean()) for client in (up, down)) / 2 - before) / trained / 1e-3
        self.assertAlmostEqual(share, (9 - 1) / (9 + 1), delta=0.1)

    def test_what_is_wrong_is_said_and_changes_nothing(self) -> None:
        (node,) = self.start_nodes(1)
        client = self.attach(node, np.zeros(1000))
        self.assertIn("codec, period_ms", self.set(node, "codecs=q4", status=REFUSED))
        self.assertIn("must be", self.set(node, "codec=q5", status=REFUSED))
        self.assertIn("NAME=VALUE", self.set(node, "codec", status=WRONG_USAGE))
        self.assertIn("NAME=VALUE", self.set(node, "=q4", status=WRONG_USAGE))
        said = gossamerctl(BUILD, "--socket", str(node.control_socket), "job", "set", "another", "codec=q4")
        self.assertEqual(said.returncode, REFUSED)
        self.assertIn('no training process of a job "another"', said.stderr)
        self.assertEqual(client.job()["settings"]["version"], 0)


if __name__ == "__main__":
    unittest.main()

"""Several clients of one job at one daemon: they are averaged there, and to the other nodes they are one replica."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
import unittest
from typing import Any

import numpy as np

from support import BUILD, JOB, PATIENCE_S, REPOSITORY, SystemTest, gossamer, gossamerctl, spread, wait_until

ELEMENTS = 5000
# The rounding of one correction in fp32, and the remaining difference of two nodes that agree.
NEAR = 2e-4

TRAINS_ON = """
import sys, time
import numpy as np
import gossamer
weights = np.zeros(%d, np.float32)
run = gossamer.attach({"w": weights}, job=sys.argv[1], socket=sys.argv[2])
print("ready", flush=True)
while True:
    weights += 0.001
    run.step()
    time.sleep(0.001)
"""

# Two ranks with the gradients 1 and 3: in each step, both subtract the mean of these times the rate.
RANKS, STEPS, RATE = 2, 40, 0.125
DATA_PARALLEL = """
import sys, time
import torch, torch.distributed as dist
import gossamer.torch as gossamer
rank, ranks, steps, rate = int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), float(sys.argv[6])
dist.init_process_group("gloo", init_method="file://" + sys.argv[7], rank=rank, world_size=ranks)
print("ready", flush=True)
torch.manual_seed(rank)
model = torch.nn.Linear(30, 20, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
run = gossamer.attach(model, optimizer, job=sys.argv[1], socket=sys.argv[2])
replica = torch.nn.parallel.DistributedDataParallel(model)
for step in range(steps):
    optimizer.zero_grad()
    ((1 + 2 * rank) * replica(torch.eye(30))).sum().backward()
    optimizer.step()
print("trained", flush=True)
while True:
    run.step(0)
    time.sleep(0.001)
"""


class Group(SystemTest):
    def assert_all_at(self, value: Any, what: str) -> None:
        try:
            self.step_until(lambda: all(np.allclose(c.array, value, atol=NEAR) for c in self.clients), what)
        except TimeoutError:
            self.fail(f"{what}: {[float(c.array.mean()) for c in self.clients]} and not {value}")

    def start_trainer(self, node) -> subprocess.Popen:
        clients = len(self.clients[0].job()["processes"])
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINS_ON % ELEMENTS, JOB, str(node.client_socket)],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": str(BUILD / "python")},
        )
        self.addCleanup(trainer.stdout.close)
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        self.step_until(lambda: len(self.clients[0].job()["processes"]) > clients, "the trainer is there")
        return trainer

    def test_the_mean_of_what_they_learn(self) -> None:
        """First alone on their node, and then beside a node with one client, which counts as much as all of them."""
        node = self.start_nodes(1)[0]
        self.attach(node, np.full(ELEMENTS, 5))
        for _ in range(2):  # they take over the first one's model
            self.attach(node, np.zeros(ELEMENTS))
        self.assert_all_at(5, "all begin with the first one's model")
        for index, client in enumerate(self.clients):
            client.array += index  # 0, 1 and 2
        self.assert_all_at(6, "the mean of their progress")

        other = self.cluster.start("node-2")
        self.wait_for_links([node, other])
        self.attach(other, np.zeros(ELEMENTS))
        self.assert_all_at(6, "the other node has joined")
        for client in self.clients[:3]:
            client.array += 1
        self.clients[3].array += 3
        self.assert_all_at(8, "two replicas, one of three clients")
        job = self.clients[0].job()
        self.assertEqual([process["state"] for process in job["processes"]], ["running"] * 3)
        self.assertEqual(job["clients"], 3)
        self.assertEqual(job["neighbours"], 1)
        shown = gossamerctl(BUILD, "--socket", str(node.control_socket), "jobs")
        self.assertEqual(shown.returncode, 0, shown.stderr)

    def test_a_slow_one_holds_nobody_up(self) -> None:
        """Its training counts whenever it comes; the node's clock is the mean of their clocks."""
        node = self.start_nodes(1)[0]
        fast, slow = (self.attach(node, np.zeros(ELEMENTS)) for _ in range(2))
        self.assert_all_at(0, "both are there")
        rounds = fast.run.info().publications
        for _ in range(200):
            fast.array += 0.01
            fast.step(samples=2)
            time.sleep(0.001)
        self.step_until(
            lambda: fast.run.info().publications > rounds + 3, "it is asked again without the slow one", [fast]
        )
        slow.array += 4
        self.assert_all_at(3, "half of both")
        # At both ends, later steps without training count one sample each.
        clocks = [process["clock"] for process in fast.job()["processes"]]
        self.assertAlmostEqual(fast.job()["clock"], sum(clocks) / 2, delta=3)

    def test_one_is_killed_and_one_comes_late(self) -> None:
        node, other = self.start_nodes(2)
        self.attach(node, np.zeros(ELEMENTS))
        self.attach(node, np.zeros(ELEMENTS))
        self.attach(other, np.zeros(ELEMENTS))
        self.assert_all_at(0, "three are there")
        trainer = self.start_trainer(node)
        self.step_until(lambda: float(self.clients[2].array.min()) > 0.01, "the other node learns from the fourth")
        killed = time.monotonic()
        trainer.send_signal(signal.SIGKILL)
        self.step_until(lambda: len(self.clients[0].job()["processes"]) == 2, "it is gone")
        self.assertLess(time.monotonic() - killed, 5)
        self.step_until(lambda: spread(self.clients) < NEAR, "what it had learned is shared")
        learned = self.clients[0].array.copy()
        self.assertGreater(learned.mean(), 0.01)
        late = self.attach(node, np.full(ELEMENTS, -100))
        np.testing.assert_allclose(late.array, learned, atol=NEAR)
        for client in self.clients:
            client.array += 1
        self.assert_all_at(learned + 1, "the late one draws nobody back")

    def test_stopped_one_and_joiner(self) -> None:
        """A newcomer gets the model although the others stand still."""
        node = self.start_nodes(1)[0]
        self.attach(node, np.full(ELEMENTS, 3))
        self.attach(node, np.zeros(ELEMENTS))
        late = self.attach(node, np.zeros(ELEMENTS))
        np.testing.assert_allclose(late.array, 3)

    def test_a_drained_node_averages_its_own(self) -> None:
        node = self.start_nodes(1)[0]
        self.attach(node, np.zeros(ELEMENTS))
        self.assertEqual(gossamerctl(BUILD, "--socket", str(node.control_socket), "drain").returncode, 0)
        late = self.attach(node, np.ones(ELEMENTS))
        self.assertTrue(late.run.ready)
        late.array += 2
        self.assert_all_at(1, "the mean of both")

    def test_bad_numbers_of_one(self) -> None:
        node = self.start_nodes(1)[0]
        good, bad = (self.attach(node, np.zeros(ELEMENTS)) for _ in range(2))
        self.assert_all_at(0, "both are there")
        bad.array[7] = np.nan
        good.array += 1
        self.step_until(lambda: bad.run.info().state == gossamer.State.QUARANTINED, "it is told")
        self.step_until(lambda: np.allclose(good.array, 1, atol=0.51), "the other trains on")
        self.assertTrue(np.isfinite(good.array).all())
        self.assertEqual(good.run.info().state, gossamer.State.RUNNING)
        bad.array[:] = 0
        self.step_until(lambda: bad.run.info().state == gossamer.State.RUNNING, "and when it is finite again")
        self.step_until(lambda: spread([good, bad]) < NEAR, "they agree")
        good.array += 1
        before = bad.array.copy()  # the values of fragments have moved apart meanwhile
        self.assert_all_at(before + 0.5, "and are averaged")

    def test_the_daemon_dies(self) -> None:
        """Its successor goes on with the mean of their models: nothing that they learned alone is lost or counts
        twice."""
        node = self.start_nodes(1)[0]
        for _ in range(3):
            self.attach(node, np.zeros(ELEMENTS))
        self.assert_all_at(0, "all are there")
        node.kill()
        for client in self.clients:
            wait_until(lambda: not client.run.info().attached, PATIENCE_S, "it has noticed")
        for index, client in enumerate(self.clients):
            client.array += index
        node.start()
        wait_until(lambda: len((node.job(JOB) or {"processes": []})["processes"]) == 3, PATIENCE_S, "all are back")
        self.assert_all_at(1, "the mean of what they learned alone")

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed (Debian: python3-torch)")
    def test_data_parallel_within_the_node(self) -> None:
        """Every rank attaches: their common training counts once, and nobody has to pass corrections on."""
        node, other = self.start_nodes(2)
        outside = self.attach(other, np.zeros((20, 30)), name="weight")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", DATA_PARALLEL, JOB, str(node.client_socket)]
                + [str(rank), str(RANKS), str(STEPS), str(RATE), str(self.folder / "rendezvous")],
                stdout=subprocess.PIPE,
                env={"PYTHONPATH": str(BUILD / "python"), "OMP_NUM_THREADS": "1"},
            )
            for rank in range(RANKS)
        ]
        for rank in ranks:
            self.addCleanup(rank.stdout.close)
            self.addCleanup(rank.wait)
            self.addCleanup(rank.kill)
        for rank in ranks:  # to import PyTorch may take longer than all that follows
            self.assertEqual(rank.stdout.readline(), b"ready\n")
        # The ranks take over the other node's model, zero. Half of their training goes to that node.
        expected = -STEPS * RATE * 2 / 2
        self.assert_all_at(expected, "what both ranks did is there, by half")
        for rank in ranks:
            self.assertEqual(rank.stdout.readline(), b"trained\n")
        self.assertEqual(node.job(JOB)["clients"], RANKS)
        outside.array += 4  # the ranks must follow this
        self.assert_all_at(expected + 2, "the ranks follow the other node")

    def test_another_layout_is_refused(self) -> None:
        node = self.start_nodes(1)[0]
        self.attach(node, np.zeros(ELEMENTS))
        other = np.zeros(ELEMENTS + 1, np.float32)
        with self.assertRaisesRegex(gossamer.GossamerError, "another model"):
            self.attach(node, other)
        # By another path, the library takes the daemon for another one.
        socket = self.folder / "same.sock"
        socket.symlink_to(node.client_socket)
        with self.assertWarnsRegex(gossamer.GossamerWarning, "tensors differ"):
            gossamer.attach({"w": other}, job=JOB, socket=socket).close()
        self.assertEqual(len(self.clients[0].job()["processes"]), 1)


if __name__ == "__main__":
    unittest.main()

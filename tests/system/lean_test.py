"""Runs in lean memory: fragments have memory only while they are in use, and everything else is unchanged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from typing import List

import numpy as np

from support import BUILD, JOB, PATIENCE_S, Node, SystemTest, gossamer, spread, total, wait_until

FRAGMENT = 1024
ELEMENTS = 40 * FRAGMENT
# 64 MiB hold 1365 fragments of 12 pages each.
LARGE_FRAGMENT = 4096
LARGE = 2000 * LARGE_FRAGMENT

TRAINS_ON = """
import sys, time
import numpy as np
import gossamer
weights = np.zeros(%d, np.float32)
run = gossamer.attach({"w": weights}, job=sys.argv[1], socket=sys.argv[2], fragment_elements=%d, memory="lean")
print("ready", flush=True)
while True:
    weights += 0.001
    run.step()
    time.sleep(0.001)
""" % (ELEMENTS, FRAGMENT)


def taken_bytes(node: Node) -> int:
    """The memory that this node's daemon shares with its only client."""
    descriptors = Path(f"/proc/{node.program.process.pid}/fd")
    for descriptor in descriptors.iterdir():
        try:
            if "memfd:gossamer" in os.readlink(descriptor):
                return os.stat(descriptor).st_blocks * 512
        except OSError:
            pass  # closed meanwhile
    raise AssertionError(f"{node.name} keeps no client's memory")


class Lean(SystemTest):
    def attach_all(self, nodes: List[Node], kinds: List[str], elements: int = ELEMENTS, fragment: int = FRAGMENT) -> None:
        """A lean replica gives its model only while it steps, so all step until all run. For 2,000 fragments that takes
        20 s, with the machine to itself."""
        for index, (node, kind) in enumerate(zip(nodes, kinds)):
            values = np.full(elements, index + 1, np.float32)
            self.attach(node, values, fragment_elements=fragment, memory=kind, wait=False)
        self.step_until(self.all_run, "all run", patience_s=4 * PATIENCE_S)

    def all_run(self) -> bool:
        return all(client.run.info().state == gossamer.State.RUNNING for client in self.clients)

    def train(self) -> np.ndarray:
        """Each trains differently; returns the expected sum."""
        random = np.random.default_rng(3)
        before = total(self.clients)
        for client in self.clients:
            step = random.standard_normal(len(client.array)).astype(np.float32)
            client.array += step
            before += step.astype(np.float64)
        return before

    def agree(self) -> None:
        """Waits until an exchange under way, with one end done, would change the sum by almost nothing."""
        self.step_until(lambda: spread(self.clients) < 5e-6, "the replicas agree")

    def test_lean_and_resident_replicas_average_each_other(self) -> None:
        nodes = self.start_nodes(4)
        self.attach_all(nodes, ["lean", "lean", "lean", "resident"])
        windows = [client.run.info().window_bytes for client in self.clients]
        self.assertEqual(windows, [3 * 4 * ELEMENTS] * 3 + [0])
        self.assertIn("in lean memory", nodes[0].log.read_text())
        self.assertNotIn("in lean memory", nodes[3].log.read_text())
        self.agree()
        self.converge(self.clients, self.train())
        for node in nodes:
            job = node.job(JOB)
            self.assertEqual(job["unresolved"], 0)
            self.assertEqual(job["violations"], 0)

    def test_a_lean_run_keeps_to_its_window_and_gives_all_back(self) -> None:
        nodes = self.start_nodes(2)
        self.attach_all(nodes, ["lean", "lean"], LARGE, LARGE_FRAGMENT)
        info = self.clients[0].run.info()
        self.assertEqual(info.window_bytes, (64 << 20) // (12 * LARGE_FRAGMENT) * 12 * LARGE_FRAGMENT)
        tables = 1 << 20
        self.train()
        most = 0

        def look() -> bool:
            nonlocal most
            taken = [taken_bytes(node) for node in nodes]
            most = max([most, *taken])
            self.assertLessEqual(most, info.window_bytes + tables)
            return all(client.run.info().exchanges > 2000 for client in self.clients)

        self.step_until(look, "every fragment may have been exchanged once", patience_s=2 * PATIENCE_S)
        self.assertGreater(most, 2 * 12 * LARGE_FRAGMENT)
        self.assertLess(info.window_bytes, 12 * LARGE)
        nodes[1].kill()
        self.step_until(lambda: taken_bytes(nodes[0]) < tables, "alone, it has given everything back", self.clients[:1])

    def test_a_trainer_and_a_daemon_are_killed(self) -> None:
        nodes = self.start_nodes(3)
        self.attach_all(nodes[:2], ["lean", "lean"])
        other = subprocess.Popen(
            [sys.executable, "-c", TRAINS_ON, JOB, str(nodes[2].client_socket)],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(BUILD / "python")},
        )
        self.addCleanup(other.stdout.close)
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        self.step_until(
            lambda: (nodes[2].job(JOB) or {}).get("exchanges", 0) > 20, "the third takes part, in the midst of things"
        )
        other.send_signal(signal.SIGKILL)
        self.step_until(lambda: all(node.job(JOB)["neighbours"] == 1 for node in nodes[:2]), "its end is noticed")
        self.agree()
        self.converge(self.clients, self.train())
        attachments = self.clients[1].run.info().attachments
        for _ in range(3):
            self.train()
            begun = nodes[1].job(JOB)["exchanges"]
            self.step_until(lambda: nodes[1].job(JOB)["exchanges"] > begun + 10, "exchanges are under way")
            nodes[1].kill()
            nodes[1].start()
            attachments += 1
            self.step_until(
                lambda: self.clients[1].run.info().attachments == attachments and self.all_run(), "it is back"
            )
        self.wait_for_links(nodes)
        self.agree()
        self.converge(self.clients, self.train())

    def test_replicas_that_finish_agree(self) -> None:
        nodes = self.start_nodes(2)
        self.attach_all(nodes, ["lean", "lean"])
        self.train()
        ends: List[gossamer.Finish] = []
        threads = [threading.Thread(target=lambda c=c: ends.append(c.run.finish(PATIENCE_S))) for c in self.clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(all(end.agreed for end in ends), ends)
        self.assertEqual(sum(end.saver for end in ends), 1)
        self.assertLess(spread(self.clients), 1e-2)

    def test_a_second_client_is_refused_until_the_first_has_gone(self) -> None:
        (node,) = self.start_nodes(1)
        self.attach_all([node], ["lean"])
        second = self.attach(node, np.zeros(ELEMENTS), fragment_elements=FRAGMENT, memory="resident", wait=False)
        wait_until(lambda: "lean memory is for one client" in second.run.info().message, PATIENCE_S, "it is told why")
        self.assertIn("give both the memory resident", second.run.info().message)
        self.clients[0].run.close()
        self.step_until(lambda: second.run.info().attached, "it is taken", [second])

    def test_a_checkpoint_is_written_from_lean_memory_and_begun_with(self) -> None:
        (node,) = self.start_nodes(1, {"checkpoints": {"restore": "latest"}})
        values = np.arange(ELEMENTS, dtype=np.float32)
        first = self.attach(node, values, fragment_elements=FRAGMENT, memory="lean")
        tool = subprocess.Popen(
            [str(BUILD / "bin" / "gossamerctl"), "--socket", str(node.control_socket), "checkpoint", JOB],
            stdout=subprocess.DEVNULL,
        )
        self.addCleanup(tool.wait)
        self.addCleanup(tool.kill)
        self.step_until(lambda: tool.poll() is not None, "it is written")
        self.assertEqual(tool.returncode, 0)
        first.run.close()
        self.clients.remove(first)
        wait_until(lambda: node.job(JOB) is None, PATIENCE_S, "the job has ended")
        second = self.attach(node, np.zeros(ELEMENTS), fragment_elements=FRAGMENT, memory="lean")
        self.assertTrue(np.array_equal(second.array, values))

    def test_a_model_larger_than_a_third_of_memory_attaches(self) -> None:
        (node,) = self.start_nodes(1)
        available = next(
            int(line.split()[1]) << 10 for line in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable" in line
        )
        values = np.zeros(available // 2 // 4, np.float32)  # the kernel takes no memory for zeros that nobody writes
        client = self.attach(node, values)
        info = client.run.info()
        self.assertEqual(info.window_bytes, 8 * 12 << 20)
        self.assertIn("in lean memory: at most", node.log.read_text())
        for _ in range(100):
            client.step()
        self.assertLess(taken_bytes(node), info.window_bytes + (1 << 20))
        self.assertEqual(client.job()["elements"], len(values))


if __name__ == "__main__":
    unittest.main()

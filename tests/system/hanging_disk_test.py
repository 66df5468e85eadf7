"""A disk that really hangs: the file system with state and checkpoints is frozen, so that a process that writes to it
waits and cannot be killed. Training, gossip and answers go on; the daemon reports it, with what to do; and all goes on
by itself when the disk is back. Needs root and util-linux; without them it is skipped, and says so.
"""

import sys
import threading
import time
import unittest
from pathlib import Path
from typing import List

import numpy as np

from checkpoint_test import CheckpointTest
from support import BUILD, JOB, PATIENCE_S, Client, Node, gossamerctl, wait_until
from frozen_disk import DiskUnavailable, FrozenDisk

SKIPPED = 77  # CTest's status for "skipped"
# The daemon reports a disk that has not answered for ten seconds.
UNTIL_TOLD_S = 10.0 + PATIENCE_S


class Gap:
    """How long this process stood still at most, as a thread of it sees that sleeps for 20 ms at a time."""

    def __enter__(self) -> "Gap":
        self.longest_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        over = False
        last_s = time.monotonic()
        while not over:
            over = self._over.wait(0.02)
            now_s = time.monotonic()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s


class HangingDisk(CheckpointTest):
    def setUp(self) -> None:
        super().setUp()
        self.disk = FrozenDisk(self.folder / "disk.image", self.folder / "disk")
        self.addCleanup(self.disk.close)

    def start_on_disk(self) -> List[Node]:
        """The first node keeps everything on the disk that will hang."""
        first = self.cluster.start("on-disk", {"node": {"state_dir": str(self.disk.folder / "state")}})
        second = self.cluster.start("beside")
        self.wait_for_links([first, second])
        return [first, second]

    def written(self) -> List[Path]:
        return sorted((self.disk.folder / "state" / "checkpoints" / JOB).glob("*.safetensors"))

    def note(self, node: Node) -> str:
        job = node.job(JOB)
        return job["note"] if job else ""

    def in_time(self, node: Node) -> None:
        """gossamerctl gets an answer. The bound is for a busy machine; a loop that waits for the disk never answers. If
        all processes were held up meanwhile, this one too, that says nothing of the daemon, and it is asked again."""
        for _ in range(3):
            with Gap() as gap:
                begin = time.monotonic()
                status = gossamerctl(BUILD, "--socket", str(node.control_socket), "status").returncode
                took_s = time.monotonic() - begin
            if gap.longest_s < 1:
                break
        self.assertEqual(status, 0)
        self.assertLess(took_s, 5.0)

    def test_training_and_answers_go_on(self) -> None:
        nodes = self.start_on_disk()
        model = self.model()
        clients = [self.attach_big(node, model.copy(), wait=False) for node in nodes]
        self.step_until(lambda: all(client.run.ready for client in clients), "both run")
        self.tell(nodes[0], "checkpoint", JOB)
        self.disk.freeze()
        tool = self.begin(nodes[0], "checkpoint", JOB)

        def told() -> bool:
            self.in_time(nodes[0])
            return "has not answered for" in self.note(nodes[0])

        wait_until(lambda: self.stepped(clients) and told(), UNTIL_TOLD_S, "it is told of")
        log = nodes[0].log
        said = lambda: "look at the disk" in log.read_text()  # noqa: E731
        wait_until(lambda: self.stepped(clients) and said(), PATIENCE_S, "the log says so")
        self.assertIn("disk", [finding["rule"] for finding in nodes[0].status()["findings"]])
        self.assert_still_exchanges(clients)
        self.assertEqual(len(self.written()), 1)
        # A node comes whose address must be saved on that disk. A client goes, and one comes.
        newcomer = self.cluster.start("newcomer")
        wait_until(lambda: newcomer.status()["neighbours"] == 2, PATIENCE_S, "the newcomer is linked to both")
        clients.append(self.attach_big(newcomer, np.zeros_like(model), wait=False))
        self.step_until(lambda: clients[-1].run.ready, "the newcomer has the model")
        self.assert_still_exchanges(clients)
        # This is longer than the interval in which members' addresses are looked at.
        until = time.monotonic() + 6.0
        wait_until(lambda: self.stepped(clients) and time.monotonic() > until, PATIENCE_S, "time passes")
        self.in_time(nodes[0])

        self.disk.thaw()
        wait_until(lambda: self.stepped(clients) and tool.poll() is not None, PATIENCE_S, "the checkpoint is there")
        self.assertEqual(tool.returncode, 0)
        self.assertIn("Still waiting: the disk of", tool.stderr.read())
        self.assertEqual(len(self.written()), 2)
        wait_until(lambda: self.note(nodes[0]) == "", PATIENCE_S, "nothing is wrong any more")
        back = "no longer so: the disk of"
        wait_until(lambda: self.stepped(clients) and back in log.read_text(), 2 * PATIENCE_S, "the log says so")
        members = self.disk.folder / "state" / "members"
        wait_until(lambda: newcomer.address in members.read_text(), PATIENCE_S, "the newcomer is remembered")

    def stepped(self, clients: List[Client]) -> bool:
        for client in clients:
            client.step()
        return True

    def test_a_daemon_that_is_told_to_stop_does(self) -> None:
        """The process ends as far as the kernel lets it: nobody can end the thread that waits for the disk. The sockets
        are gone, its neighbours know, and the process ends when the disk answers."""
        nodes = self.start_on_disk()
        client = self.attach_big(nodes[0], self.model())
        client.step()
        self.disk.freeze()
        tool = self.begin(nodes[0], "checkpoint", JOB)
        wait_until(lambda: self.stepped([client]) and self.waits(nodes[0]), PATIENCE_S, "a thread waits for the disk")
        stopping = threading.Thread(target=nodes[0].stop, kwargs={"timeout_s": 4 * PATIENCE_S})
        stopping.start()
        self.addCleanup(stopping.join)
        self.addCleanup(self.disk.thaw)
        wait_until(lambda: nodes[1].status()["neighbours"] == 0, PATIENCE_S, "the neighbour knows")
        wait_until(lambda: not nodes[0].client_socket.exists(), PATIENCE_S, "its sockets are gone")
        ending = "does not answer: gossamerd ends"
        wait_until(lambda: ending in nodes[0].log.read_text(), PATIENCE_S, "it gives the disk up")
        self.disk.thaw()
        wait_until(lambda: not nodes[0].running(), PATIENCE_S, "it has ended")
        self.assertEqual(nodes[0].program.wait(), 0)
        self.assertNotEqual(tool.wait(PATIENCE_S), 0)
        # The next daemon finds its folder in order.
        nodes[0].start()
        self.wait_for_links(nodes)

    def waits(self, node: Node) -> bool:
        """Whether one of its threads is in a wait that cannot be interrupted."""
        for stat in Path(f"/proc/{node.program.pid}/task").glob("*/stat"):
            if stat.read_text().rsplit(")", 1)[1].split()[0] == "D":
                return True
        return False


del CheckpointTest  # these tests run in their own file


def why_not() -> str:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="g-") as folder:
        try:
            with FrozenDisk(Path(folder) / "image", Path(folder) / "disk") as disk:
                disk.freeze()
        except DiskUnavailable as error:
            return str(error)
    return ""


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"SKIPPED, no disk was made to hang: {reason}", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

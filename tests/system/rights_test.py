"""[rights]: which users of a machine may train which jobs, and steer them. Needs root, to be other users; without it is
skipped, and says so.
"""

import os
import subprocess
import sys
import unittest
from typing import Dict, List

import numpy as np

from support import BUILD, PATIENCE_S, Node, OperatedTest, start_program, wait_until

SKIPPED = 77  # CTest's status for "skipped"
# Users and groups need no names; nobody has these.
ANNA = 1234567
BERT = 1234568
VISION = 2345678

# The program trains until it is ended, and reports what becomes of its run.
TRAINER = """
import sys, time, numpy as np, gossamer
try:
    run = gossamer.attach({"w": np.zeros(1000, np.float32)}, job=sys.argv[1], timeout_s=20)
except gossamer.GossamerError as error:
    print(error)
    sys.exit()
print("trains", flush=True)
while True:
    run.step()
    time.sleep(0.01)
"""
AVERAGER = """
import sys, numpy as np, gossamer
run = gossamer.attach({"w": np.zeros(1000, np.float32)}, job=sys.argv[1], wait=False)
try:
    print(run.average(np.ones(10, np.float32), timeout_s=20).of)
except gossamer.GossamerError as error:
    print(error)
"""


def environment(node: Node) -> Dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(BUILD / "python"), "GOSSAMER_SOCKET": str(node.client_socket)}


class Rights(OperatedTest):
    def started(self, train: List[str], steer: List[str]) -> Node:
        """A node whose sockets everyone reaches."""
        node = self.start_nodes(1, {"rights": {"train": train, "steer": steer}})[0]
        for folder in (self.folder, node.folder, node.sockets):
            folder.chmod(0o755)
        for socket in node.sockets.glob("*.sock"):
            socket.chmod(0o666)
        return node

    def program(self, node: Node, arguments: List[str], user: int, groups: List[int]) -> subprocess.Popen:
        return start_program(
            self, arguments, user=user, group=user, extra_groups=groups, cwd="/", text=True,
            env=environment(node), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )

    def said(self, node: Node, script: str, job: str, user: int, *groups: int) -> str:
        """What the script's process says first."""
        program = self.program(node, [sys.executable, "-B", "-c", script, job], user, list(groups))
        assert program.stdout is not None
        line = program.stdout.readline()
        program.kill()
        return line

    def test_users_train_the_jobs_of_their_entries(self) -> None:
        node = self.started([f"{ANNA}: speech", f"@{VISION}: vision-*"], [])
        self.assertEqual(self.said(node, TRAINER, "speech", ANNA), "trains\n")
        self.assertEqual(self.said(node, TRAINER, "vision-1", BERT, VISION), "trains\n")
        for job, user in (("vision-1", ANNA), ("speech", BERT), ("vision-1", BERT)):
            refused = self.said(node, TRAINER, job, user)
            self.assertIn(f"user {user} may not train the job {job}", refused)
            self.assertIn("[rights] train", refused)
            self.assertIn(f"may not train the job {job}", self.said(node, AVERAGER, job, user))
        self.assertEqual(self.said(node, AVERAGER, "speech", ANNA), "1\n")
        # Root may do all.
        client = self.attach(node, np.zeros(1000))
        self.step_until(lambda: client.job()["state"] == "running", "root trains")

    def test_a_keeper_that_is_refused_says_so(self) -> None:
        node = self.started([f"{ANNA}: *"], [])
        self.attach(node, np.zeros(1000), job="speech")
        keep = [str(BUILD / "bin" / "gossamerctl"), "--socket", str(node.control_socket), "keep", "speech"]
        program = self.program(node, [*keep, "--client-socket", str(node.client_socket)], BERT, [])
        assert program.stdout is not None
        self.assertTrue(any("may not train the job speech" in line for line in iter(program.stdout.readline, "")))

    def test_rights_that_change_hold_at_once(self) -> None:
        node = self.started(["*: *"], [])
        program = self.program(node, [sys.executable, "-B", "-c", TRAINER, "speech"], ANNA, [])
        assert program.stdout is not None
        self.assertEqual(program.stdout.readline(), "trains\n")
        self.attach(node, np.zeros(1000), job="speech")

        def processes() -> int:
            return len((node.job("speech") or {"processes": []})["processes"])

        wait_until(lambda: processes() == 2, PATIENCE_S, "both train")
        node.options["rights"] = {"train": [f"{BERT}: *", "no-such-user: *"]}
        node.reload()
        self.step_until(lambda: processes() == 1, "the user's process is let go")
        self.assertIsNone(program.poll(), "it trains on, alone")
        self.assertIn("no-such-user", node.log.read_text())
        self.assertIn(f"user {ANNA} may not train the job speech", node.log.read_text())
        node.options["rights"] = {}
        node.reload()
        self.step_until(lambda: processes() == 2, "it is let in again")

    def test_steering_is_for_whom_an_entry_names(self) -> None:
        node = self.started(["*: *"], [f"{ANNA}: speech"])
        self.attach(node, np.zeros(1000), job="speech")
        self.attach(node, np.zeros(1000), job="vision")

        def tell(user: int, *arguments: str) -> subprocess.CompletedProcess:
            command = [str(BUILD / "bin" / "gossamerctl"), "--socket", str(node.control_socket), *arguments]
            return subprocess.run(command, user=user, group=user, extra_groups=[], text=True, capture_output=True)

        done = tell(ANNA, "job", "set", "speech", "codec=q4")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(tell(ANNA, "checkpoint", "speech").returncode, 0)
        for user, job in ((ANNA, "vision"), (BERT, "speech")):
            for arguments in (("job", "set", job, "codec=f32"), ("checkpoint", job)):
                refused = tell(user, *arguments)
                self.assertEqual(refused.returncode, 3)
                self.assertIn("[rights] steer", refused.stderr)
        self.assertEqual(tell(ANNA, "drain").returncode, 3)
        self.assertEqual(tell(BERT, "jobs").returncode, 0)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("SKIPPED, no other users were imitated: this needs root", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

"""gossamerctl cluster: three daemons on this machine are started, linked, healed, trained on and stopped, and what can
be in the way is said.
"""

import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List, Optional
from unittest import mock

import numpy as np

from support import BUILD, PATIENCE_S, gossamer, programs_naming, wait_until

JOB = "local"
START_TIMEOUT_S = 60
EXCHANGES = 10


class LocalCluster(unittest.TestCase):
    def setUp(self) -> None:
        parent = tempfile.TemporaryDirectory(prefix="gossamer-local-")
        self.addCleanup(parent.cleanup)
        self.parent = Path(parent.name)
        self.folder = self.parent / "a cluster"  # a user's folder may have a space, too
        self.tool = BUILD / "bin" / "gossamerctl"
        self.addCleanup(self.kill_all)

    def kill_all(self) -> None:
        for pid in programs_naming(self.parent):
            os.kill(pid, signal.SIGKILL)

    def ctl(self, *arguments: str, environment: Optional[Dict[str, str]] = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            [self.tool, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
            env={**os.environ, **(environment or {})},
        )

    def cluster(self, command: str, *arguments: str, status: int = 0) -> str:
        """What it says; its errors if it must fail."""
        done = self.ctl("cluster", command, "--folder", str(self.folder), *arguments)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr + self.logs())
        return done.stderr if status > 1 else done.stdout

    def logs(self) -> str:
        return "".join(f"--- {log}\n{log.read_text()[-2000:]}" for log in self.folder.glob("node-*/*.log"))

    def nodes(self) -> List[Dict[str, Any]]:
        done = self.ctl("cluster", "status", "--folder", str(self.folder), "--json")
        return json.loads(done.stdout)["nodes"]

    def kill(self, index: int) -> None:
        pid = self.nodes()[index]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.nodes()[index]["running"], PATIENCE_S, "the daemon is gone")

    def test_from_start_to_stop(self) -> None:
        said = self.cluster("start", "3")
        self.assertIn("3 nodes run and are linked", said)
        for name in ("node-1", "node-2", "node-3"):
            self.assertIn(f"export GOSSAMER_SOCKET='{self.folder}/{name}/client.sock'", said)
        self.check_rights()
        first = self.nodes()
        self.assertEqual([node["neighbours"] for node in first], [2, 2, 2])
        for node in first:
            # The daemons are not in the session of this program's terminal.
            self.assertEqual(os.getsid(node["pid"]), node["pid"])
            self.assertEqual(self.ctl("--socket", node["control_socket"], "status").returncode, 0)
        self.assertIn("runs already: 3 nodes", self.cluster("start"))
        self.assertEqual([node["pid"] for node in self.nodes()], [node["pid"] for node in first])

        self.kill(1)
        self.assertIn("'gossamerctl cluster start", self.cluster("status", status=1))
        self.assertIn("started node-2; 3 nodes run and are linked", self.cluster("start", "3"))
        self.train(self.nodes()[0], self.nodes()[1])
        self.assertIn("started node-4; 4 nodes", self.cluster("start", "4"))
        self.assertIn("has 4 nodes", self.cluster("start", "2", status=2))

        said = self.cluster("run", "--", "/bin/sh", "-c", 'echo "$GOSSAMER_LOCAL_RANK of $GOSSAMER_LOCAL_WORLD_SIZE at $GOSSAMER_SOCKET"')
        for index in range(4):
            self.assertIn(f"{index} of 4 at {self.folder}/node-{index + 1}/client.sock\n", said)

        keys = {path.read_text() for path in self.folder.glob("*/state/cluster.key")}
        self.assertEqual(len(keys), 1)
        self.assertIn("4 nodes have stopped", self.cluster("stop"))
        self.assertEqual(programs_naming(self.parent), [])
        self.assertEqual(list(self.folder.glob("*/*.sock")), [])
        self.assertIn("no node was running", self.cluster("stop"))
        self.assertIn("4 nodes run and are linked", self.cluster("start"))
        self.assertEqual({path.read_text() for path in self.folder.glob("*/state/cluster.key")}, keys)
        self.cluster("stop", "--remove")
        self.assertEqual((programs_naming(self.parent), self.folder.exists()), ([], False))

    def check_rights(self) -> None:
        for path in [self.folder, *self.folder.rglob("*")]:
            try:
                mode = stat.S_IMODE(path.stat().st_mode)
            except FileNotFoundError:  # a file being written has got its final name
                continue
            if path.suffix != ".sock":  # the sockets' folder lets nobody in
                self.assertEqual(mode & 0o077, 0, f"{path}: {mode:o}")

    def train(self, *nodes: Dict[str, Any]) -> None:
        arrays = [np.full(4000, float(index), np.float32) for index in range(len(nodes))]
        runs = [
            gossamer.attach({"w": array}, job=JOB, socket=node["client_socket"]) for array, node in zip(arrays, nodes)
        ]
        for run in runs:
            self.addCleanup(run.close)

        def exchanges(node: Dict[str, Any]) -> int:
            said = self.ctl("--socket", node["control_socket"], "--json", "jobs")
            return sum(job["exchanges"] for job in json.loads(said.stdout)["jobs"])

        def trained() -> bool:
            for _ in range(20):
                for run, array in zip(runs, arrays):
                    array += 0.001
                    run.step(samples=1)
            return all(exchanges(node) > EXCHANGES for node in nodes)

        wait_until(trained, PATIENCE_S, "the nodes have exchanged")

    def test_a_port_that_another_program_has_taken(self) -> None:
        self.cluster("start", "2")
        before = self.nodes()
        self.kill(0)
        taken = int(before[0]["address"].rsplit(":", 1)[1])
        with socket.create_server(("127.0.0.1", taken)):
            self.assertIn("started node-1; 2 nodes run and are linked", self.cluster("start"))
        after = self.nodes()
        self.assertNotEqual(after[0]["address"], before[0]["address"])
        self.assertEqual(after[1]["pid"], before[1]["pid"])

    def test_a_folder_that_cannot_be_used(self) -> None:
        for folder, status, word in (
            (self.parent / ("x" * 100), 2, "too long a path"),
            (self.parent, 2, "holds other files"),
            (Path("/dev/null/cluster"), 3, "cannot be made"),
        ):
            (self.parent / "mine").touch()
            done = self.ctl("cluster", "start", "3", "--folder", str(folder))
            self.assertEqual((done.returncode, done.stdout), (status, ""), done.stderr)
            self.assertIn(word, done.stderr)
            self.assertIn("--folder", done.stderr)
        for command in ("status", "stop"):
            done = self.ctl("cluster", command, "--folder", str(self.folder))
            self.assertEqual(done.returncode, 1)
            self.assertIn("gossamerctl cluster start 3", done.stderr)
        self.assertFalse(self.folder.exists())
        for count in ("0", "33", "-1", "many"):
            self.assertEqual(self.ctl("cluster", "start", count, "--folder", str(self.folder)).returncode, 2)

    def test_two_at_once(self) -> None:
        self.cluster("start", "1")
        with open(self.folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self.assertIn("another gossamerctl", self.cluster("start", status=3))
        self.cluster("stop")

    def test_a_daemon_that_is_not_there_or_ends_at_once(self) -> None:
        elsewhere = self.parent / "bin"
        elsewhere.mkdir()
        self.tool = Path(shutil.copy(self.tool, elsewhere))
        arguments = ("cluster", "start", "2", "--folder", str(self.folder))
        # The copy no longer finds its library by itself.
        changed = mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": str(BUILD / "lib")})
        changed.start()
        self.addCleanup(changed.stop)
        done = self.ctl(*arguments, environment={"PATH": "/nowhere"})
        self.assertEqual(done.returncode, 3)
        self.assertIn("there is no gossamerd", done.stderr)
        daemon = elsewhere / "gossamerd"
        daemon.write_text("#!/bin/sh\necho 'this one is broken'\nexit 1\n")
        daemon.chmod(0o755)
        done = self.ctl(*arguments)
        self.assertEqual(done.returncode, 3)
        self.assertIn("has ended; its log says:\n  this one is broken", done.stderr)
        # The failed start has left the folder usable.
        daemon.unlink()
        path = f"{BUILD / 'bin'}:{os.environ['PATH']}"
        self.assertEqual(self.ctl(*arguments, environment={"PATH": path}).returncode, 0)

    def test_what_a_killed_daemon_left_does_not_matter(self) -> None:
        self.cluster("start", "2")
        self.kill(0)
        self.kill(1)
        self.assertNotEqual(list(self.folder.glob("*/*.sock")), [])
        self.cluster("stop")
        self.assertEqual(list(self.folder.glob("*/*.sock")), [])
        self.cluster("start")


if __name__ == "__main__":
    unittest.main()

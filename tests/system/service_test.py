"""The systemd unit, run by a systemd of its own (systemd-nspawn, on this machine's /usr): the sandbox lets the daemon do
what it must, what dies is started again, what has left is not. Needs root and systemd-container; without them it is
skipped, and says so.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict

from support import BUILD, PATIENCE_S, REPOSITORY, wait_until
from machine import Machine, why_not

SKIPPED = 77  # what CTest takes for "skipped"
UNIT = REPOSITORY / "daemon" / "gossamerd.service.in"
INSTALLED = "/opt/gossamer"
CONTROL = "/run/gossamer/control.sock"
# Trains for ever, in the machine.
TRAINER = """
import numpy as np, gossamer, time
run = gossamer.attach({"w": np.zeros(1000, np.float32)}, job="kept", wait=False)
while True:
    run.step()
    time.sleep(0.01)
"""


class Service(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="g-")
        self.addCleanup(folder.cleanup)
        self.machine = Machine(
            Path("/"),
            Path(folder.name) / "machine.log",
            ["--volatile=yes", *(f"--bind-ro={BUILD / part}:{INSTALLED}/{part}" for part in ("bin", "lib", "python"))],
        )
        self.addCleanup(self.machine.halt)
        # Where systemd itself does not get up (in a container without rights over its cgroups, say), there is nothing to
        # test ours with.
        try:
            self.machine.boot()
        except TimeoutError as error:
            print(f"SKIPPED, systemd-nspawn does not boot here: {error}", file=sys.stderr)
            self.skipTest("systemd-nspawn does not boot here")
        self.inside("systemd-sysusers", "-", given=self.users())
        unit = UNIT.read_text().replace("@CMAKE_INSTALL_FULL_BINDIR@", f"{INSTALLED}/bin")
        self.inside("cp", "/dev/stdin", "/run/systemd/system/gossamerd.service", given=unit)
        # There is no network here to be waited for.
        self.inside("systemctl", "mask", "--runtime", "systemd-networkd-wait-online.service")
        self.inside("systemctl", "daemon-reload")

    def users(self) -> str:
        return (REPOSITORY / "daemon" / "gossamer.sysusers").read_text(encoding="utf-8")

    def inside(self, *command: str, given: str = "") -> str:
        result = self.machine.enter(*command, given=given)
        self.assertEqual(result.returncode, 0, f"{command}: {result.stderr}{self.journal()}")
        return result.stdout

    def journal(self) -> str:
        return self.machine.enter("journalctl", "--unit=gossamerd", "--no-pager", "--lines=30").stdout

    def shown(self) -> Dict[str, str]:
        properties = "--property=ActiveState,NRestarts,MainPID,Result,NFileDescriptorStore"
        lines = self.inside("systemctl", "show", "gossamerd", properties).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def asked(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return self.machine.enter(f"{INSTALLED}/bin/gossamerctl", "--socket", CONTROL, *command)

    def wait_until_it_answers(self) -> None:
        try:
            wait_until(lambda: self.asked("status").returncode == 0, 2 * PATIENCE_S, "it answers")
        except TimeoutError:
            self.fail(f"it does not answer\n{self.journal()}\n{self.inside('systemctl', 'list-jobs')}")

    def status(self) -> Dict[str, Any]:
        """Empty while it does not answer."""
        asked = self.asked("--json", "status")
        return json.loads(asked.stdout)["node"] if asked.returncode == 0 else {}

    def test_started_killed_reloaded_left(self) -> None:
        self.inside("systemctl", "start", "--no-block", "gossamerd")
        self.wait_until_it_answers()
        self.assertEqual(self.shown()["NRestarts"], "0", self.journal())
        self.inside("systemctl", "reload", "gossamerd")

        environment = [
            f"PYTHONPATH={INSTALLED}/python",
            f"GOSSAMER_LIBRARY={INSTALLED}/lib/libgossamer.so.1",
            # NumPy finds these through links in /etc, which is empty there.
            "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack",
        ]
        trainer = subprocess.Popen(self.machine.entered("env", *environment, "/usr/bin/python3", "-c", TRAINER))
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        wait_until(lambda: self.status().get("clients") == 1, PATIENCE_S, "the trainer is attached")
        self.assertEqual(self.shown()["NFileDescriptorStore"], "1", self.journal())

        self.inside("systemctl", "kill", "--signal=KILL", "gossamerd")
        wait_until(lambda: self.shown()["NRestarts"] == "1", PATIENCE_S, "it is started again")
        self.wait_until_it_answers()
        wait_until(lambda: self.status().get("clients") == 1, PATIENCE_S, "the trainer is attached again")
        self.assertEqual(self.status()["clients_awaited"], 0)

        # Both die: the next daemon knows that there was one.
        trainer.kill()
        self.inside("systemctl", "kill", "--signal=KILL", "gossamerd")
        wait_until(lambda: self.shown()["NRestarts"] == "2", PATIENCE_S, "it is started once more")
        wait_until(lambda: self.status().get("clients_awaited") == 1, PATIENCE_S, "the trainer is awaited")

        left = self.asked("leave", "--timeout", "1")
        self.assertEqual(left.returncode, 0, left.stderr)
        wait_until(lambda: self.shown()["ActiveState"] == "inactive", PATIENCE_S, "it has ended")
        shown = self.shown()
        self.assertEqual((shown["Result"], shown["MainPID"]), ("success", "0"), self.journal())


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"SKIPPED, the systemd unit was not tested: {reason}", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

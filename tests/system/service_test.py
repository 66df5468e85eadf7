"""The systemd unit, run by a systemd of its own (systemd-nspawn, on this machine's /usr): the sandbox lets the daemon
do its work, a daemon that dies is restarted, one that has left is not, the socket's group may attach and others are
told how to, and warnings are in the journal with their fields. Needs root and systemd-container; without them it is
skipped, and says so.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List

from support import BUILD, PATIENCE_S, REPOSITORY, processes_with, wait_until
from machine import Machine, why_not

SKIPPED = 77  # CTest's status for "skipped"
UNIT = REPOSITORY / "daemon" / "gossamerd.service.in"
KEEP_UNIT = REPOSITORY / "tools" / "ctl" / "gossamer-keep@.service.in"
GPU_DROP_IN = REPOSITORY / "daemon" / "gpu.conf"
# The greatest exposure that `systemd-analyze security` may find for the unit without GPUs.
MOST_EXPOSURE = 1.5
INSTALLED = "/opt/gossamer"
CONTROL = "/run/gossamer/control.sock"
# The program trains in the machine until it is ended.
TRAINER = """
import numpy as np, gossamer, time
run = gossamer.attach({"w": np.zeros(1000, np.float32)}, job="kept", wait=False)
while True:
    run.step()
    time.sleep(0.01)
"""


# The program prints "attached", or why it could not attach.
ATTACHER = """
import numpy as np, gossamer
try:
    gossamer.attach({"w": np.zeros(10, np.float32)}, job="shared", timeout_s=20).close()
    print("attached")
except gossamer.GossamerError as error:
    print(error)
"""
ENVIRONMENT = [
    f"PYTHONPATH={INSTALLED}/python",
    f"GOSSAMER_LIBRARY={INSTALLED}/lib/libgossamer.so.1",
    # NumPy finds these through links in /etc, which is empty there.
    "LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu/blas:/usr/lib/x86_64-linux-gnu/lapack",
]


class Service(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="g-")
        self.addCleanup(folder.cleanup)
        self.machine = Machine(
            Path("/"),
            Path(folder.name) / "machine.log",
            [
                "--volatile=yes",
                *(f"--bind-ro={BUILD / part}:{INSTALLED}/{part}" for part in ("bin", "lib", "python")),
                # Other services of this machine must not start.
                "systemd.unit=basic.target",
            ],
        )
        self.addCleanup(self.machine.halt)
        # If systemd itself does not get up (for instance in a container without rights over its cgroups), the unit
        # cannot be tested.
        try:
            self.machine.boot()
        except TimeoutError as error:
            print(f"SKIPPED, systemd-nspawn does not boot here: {error}", file=sys.stderr)
            self.skipTest("systemd-nspawn does not boot here")
        self.inside("systemd-sysusers", "-", given=self.users())
        unit = UNIT.read_text().replace("@CMAKE_INSTALL_FULL_BINDIR@", f"{INSTALLED}/bin")
        self.inside("cp", "/dev/stdin", "/run/systemd/system/gossamerd.service", given=unit)
        # There is no network here to wait for.
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

    def trainer(self) -> "subprocess.Popen[bytes]":
        trainer = subprocess.Popen(self.machine.entered("env", *ENVIRONMENT, "/usr/bin/python3", "-c", TRAINER))
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        return trainer

    def start(self) -> None:
        self.inside("systemctl", "start", "--no-block", "gossamerd")
        self.wait_until_it_answers()

    def configure(self, text: str) -> None:
        self.inside("install", "-D", "-m", "644", "/dev/stdin", "/etc/gossamer/gossamer.toml", given=text)

    def entries(self, *matches: str) -> List[Dict[str, Any]]:
        """Entries of the journal."""
        found = self.machine.enter("journalctl", "--output=json", "--no-pager", "--unit=gossamerd", *matches).stdout
        return [json.loads(line) for line in found.splitlines()]

    def status(self) -> Dict[str, Any]:
        """Empty while it does not answer."""
        asked = self.asked("--json", "status")
        return json.loads(asked.stdout)["node"] if asked.returncode == 0 else {}

    def test_started_killed_reloaded_left(self) -> None:
        self.start()
        self.assertEqual(self.shown()["NRestarts"], "0", self.journal())
        self.inside("systemctl", "reload", "gossamerd")

        trainer = self.trainer()
        wait_until(lambda: self.status().get("clients") == 1, PATIENCE_S, "the trainer is attached")
        self.assertEqual(self.shown()["NFileDescriptorStore"], "1", self.journal())

        self.inside("systemctl", "kill", "--signal=KILL", "gossamerd")
        wait_until(lambda: self.shown()["NRestarts"] == "1", PATIENCE_S, "it is started again")
        self.wait_until_it_answers()
        wait_until(lambda: self.status().get("clients") == 1, PATIENCE_S, "the trainer is attached again")
        self.assertEqual(self.status()["clients_awaited"], 0)

        # Daemon and trainer both die, and the next daemon knows that there was a client. The daemon is stopped first,
        # so that it does not notice the trainer's death.
        self.inside("systemctl", "kill", "--signal=STOP", "gossamerd")
        (in_machine,) = processes_with("status", f"PPid:\t{trainer.pid}\n")  # `trainer` is nsenter, which waits for it
        os.kill(in_machine, signal.SIGKILL)
        trainer.wait()
        self.inside("systemctl", "kill", "--signal=KILL", "gossamerd")
        wait_until(lambda: self.shown()["NRestarts"] == "2", PATIENCE_S, "it is started once more")
        wait_until(lambda: self.status().get("clients_awaited") == 1, PATIENCE_S, "the trainer is awaited")

        left = self.asked("leave", "--timeout", "1")
        self.assertEqual(left.returncode, 0, left.stderr)
        wait_until(lambda: self.shown()["ActiveState"] == "inactive", PATIENCE_S, "it has ended")
        shown = self.shown()
        self.assertEqual((shown["Result"], shown["MainPID"]), ("success", "0"), self.journal())

    def test_a_kept_job(self) -> None:
        unit = KEEP_UNIT.read_text().replace("@CMAKE_INSTALL_FULL_BINDIR@", f"{INSTALLED}/bin")
        self.inside("cp", "/dev/stdin", "/run/systemd/system/gossamer-keep@.service", given=unit)
        self.inside("systemctl", "daemon-reload")
        self.start()
        self.inside("systemctl", "start", "gossamer-keep@kept")  # it waits for a node that runs the job
        self.trainer()
        wait_until(lambda: self.status().get("clients") == 2, PATIENCE_S, "the trainer and the keeper are attached")
        clients = json.loads(self.asked("--json", "clients").stdout)["clients"]
        self.assertEqual([client["keeps"] for client in clients], [False, True])
        self.inside("systemctl", "stop", "gossamer-keep@kept")
        shown = self.inside("systemctl", "show", "gossamer-keep@kept", "--property=Result")
        self.assertEqual(shown.strip(), "Result=success")

    def exposure(self) -> float:
        found = self.inside("systemd-analyze", "security", "--no-pager", "gossamerd.service")
        figure = re.search(r"exposure level for gossamerd.service: ([0-9.]+)", found)
        assert figure is not None, found
        return float(figure[1])

    def test_the_sandbox_is_tight_and_a_drop_in_opens_it_for_gpus(self) -> None:
        self.assertLessEqual(self.exposure(), MOST_EXPOSURE)
        self.start()
        main = self.shown()["MainPID"]
        seen_by_it = [
            path
            for path in ("/proc/self/status", "/proc/meminfo")
            if self.machine.enter("nsenter", "-t", main, "-m", "test", "-e", path).returncode == 0
        ]
        self.assertEqual(seen_by_it, ["/proc/self/status"])

        folder = "/run/systemd/system/gossamerd.service.d"
        self.inside("mkdir", folder)
        self.inside("cp", "/dev/stdin", f"{folder}/gpu.conf", given=GPU_DROP_IN.read_text(encoding="utf-8"))
        self.inside("systemctl", "daemon-reload")
        said = self.machine.enter("systemd-analyze", "verify", "gossamerd.service")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        self.inside("systemctl", "restart", "gossamerd")
        self.wait_until_it_answers()
        shown = self.inside("systemctl", "show", "gossamerd", "--property=DeviceAllow,DevicePolicy,PrivateDevices")
        self.assertEqual(
            sorted(shown.split("\n")),
            ["", "DeviceAllow=char-nvidia* rw", "DeviceAllow=char-rtc r", "DevicePolicy=closed", "PrivateDevices=no"],
        )

    def test_the_group_of_the_socket_may_attach_and_others_are_told_how_to(self) -> None:
        self.inside("systemd-sysusers", "-", given="u alice -\nu bob -\nm alice gossamer\n")
        self.start()

        def as_user(user: str, *command: str) -> str:
            switched = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", *ENVIRONMENT, *command]
            ran = self.machine.enter(*switched)
            return ran.stdout + ran.stderr

        def attach(user: str) -> str:
            return as_user(user, "/usr/bin/python3", "-c", ATTACHER).strip()

        self.assertEqual(attach("alice"), "attached")
        refused = attach("bob")
        self.assertIn("group gossamer", refused)
        advice = re.search(r"usermod -aG gossamer bob", refused)
        assert advice is not None, refused
        asked = as_user("bob", f"{INSTALLED}/bin/gossamerctl", "status")
        self.assertIn(advice[0], asked)
        self.inside(*shlex.split(advice[0]))
        self.assertEqual(attach("bob"), "attached")
        self.assertIn("node", as_user("bob", f"{INSTALLED}/bin/gossamerctl", "status"))
        # Members of the group may not change the cluster.
        self.assertIn("root", as_user("bob", f"{INSTALLED}/bin/gossamerctl", "invite"))

    def test_warnings_are_in_the_journal_with_fields(self) -> None:
        # The unit does not let the daemon write to this folder.
        self.configure('[checkpoints]\nfolder = "/srv/checkpoints"\n')
        self.start()
        self.trainer()
        wait_until(
            lambda: "/srv/checkpoints" in self.asked("checkpoint", "kept").stderr, PATIENCE_S, "a checkpoint fails"
        )
        wait_until(lambda: self.entries("GOSSAMER_JOB=kept", "PRIORITY=4"), PATIENCE_S, "the warning is in the journal")
        entry = self.entries("GOSSAMER_JOB=kept", "PRIORITY=4")[0]
        self.assertEqual(entry["SYSLOG_IDENTIFIER"], "gossamerd")
        self.assertRegex(entry["MESSAGE"], "^job kept: no checkpoint was written, .*/srv/checkpoints")
        self.assertEqual(entry["_SYSTEMD_UNIT"], "gossamerd.service")
        started = [entry for entry in self.entries("PRIORITY=6") if "runs as node" in entry["MESSAGE"]]
        self.assertEqual(len(started), 1)
        self.assertNotIn("GOSSAMER_JOB", started[0])
        # The whole message of a wrong configuration is one entry.
        self.inside("systemctl", "stop", "gossamerd")
        self.configure("[overlay]\nlisten = 5\n")
        self.machine.enter("systemctl", "start", "gossamerd")
        wait_until(lambda: self.entries("PRIORITY=2"), PATIENCE_S, "what is wrong is in the journal")
        self.assertIn("listen", self.entries("PRIORITY=2")[0]["MESSAGE"])


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"SKIPPED, the systemd unit was not tested: {reason}", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

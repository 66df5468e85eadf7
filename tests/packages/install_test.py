"""The packages on a machine of their own: installed, used, upgraded under a running trainer, removed and purged.

    install_test.py --packages FOLDER --roots FOLDER [--release CODENAME]
"""

import shutil
import tempfile
import unittest
from pathlib import Path

import installed_machine
from installed_machine import InstalledMachine, a_later_version, base_root, chroot, packages, run_tests
from machine import PATIENCE_S
from processes import wait_until

STATE = "var/lib/gossamer"
CONFIG = "etc/gossamer/gossamer.toml"
# The trainer's program. It says "trained N attached A" after each second, where A counts attachments, and an error if a
# step fails. It ends when standard input does.
TRAINER = """
import select, sys, time
import numpy as np, gossamer
model = {"w": np.zeros(1000, np.float32)}
run = gossamer.attach(model, job="packages", timeout_s=30)
said = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    model["w"] += 1
    run.step(1)
    time.sleep(0.01)
    if time.monotonic() > said + 0.5:
        info = run.info()
        print("trained", info.steps, "attached", info.attachments, "now", int(info.attached), flush=True)
        said = time.monotonic()
run.close()
print("ended", flush=True)
"""
# The plug-in must load on a machine that has no driver.
LOAD_PLUG_IN = """
import ctypes, glob
for path in glob.glob("/usr/lib/*/gossamer/*.so"):
    print("loaded", ctypes.CDLL(path)._name)
"""


class Packages(unittest.TestCase):
    def setUp(self) -> None:
        # The folder is beside the base root, where a copy may cost nothing.
        folder = tempfile.TemporaryDirectory(prefix="machine-", dir=installed_machine.options.roots)
        self.addCleanup(folder.cleanup)
        self.machine = InstalledMachine(base_root(), Path(folder.name))
        self.addCleanup(self.machine.halt)
        self.machine.path("packages").mkdir()
        for package in packages():
            shutil.copy(package, self.machine.path("packages"))

    def install(self) -> None:
        chroot(self.machine.root, "apt-get", "-q", "update")
        names = [f"/packages/{package.name}" for package in packages()]
        chroot(self.machine.root, "apt-get", "-q", "install", "-y", "--no-install-recommends", *names)

    def status(self) -> str:
        return self.machine.enter("gossamerctl", "status").stdout

    def test_from_installation_to_purge(self) -> None:
        machine = self.machine
        self.install()
        machine.boot()
        wait_until(lambda: "up " in self.status(), PATIENCE_S, "the daemon runs after the first boot")
        self.assertEqual(machine.path(STATE).stat().st_mode & 0o777, 0o700)
        key = (machine.path(STATE) / "node.key").read_bytes()
        config = machine.path(CONFIG).read_text() + '\n# kept by the operator\n'
        machine.path(CONFIG).write_text(config)

        if any(package.name.startswith("gossamer-cuda_") for package in packages()):
            self.assertIn("loaded", machine.inside("python3", "-c", LOAD_PLUG_IN))

        machine.path("trainer.py").write_text(TRAINER)
        trainer = machine.start("python3", "/trainer.py")
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        assert trainer.stdout is not None and trainer.stdin is not None
        self.assertRegex(trainer.stdout.readline(), r"trained \d+ attached 1 now 1")

        for package in packages():
            shutil.move(str(a_later_version(package, machine.root.parent)), machine.path("packages"))
        later = [f"/packages/{package.name}" for package in machine.path("packages").glob("*+next*.deb")]
        machine.inside("dpkg", "--force-confold", "-i", *later)
        self.assertIn("+next", machine.inside("dpkg-query", "-W", "-f", "${Version}", "gossamer"))
        line = ""
        while "attached 2 now 1" not in line:
            line = trainer.stdout.readline()
            self.assertRegex(line, r"trained \d+ attached", "a step failed, or the trainer ended")
        self.assertEqual((machine.path(STATE) / "node.key").read_bytes(), key)
        self.assertEqual(machine.path(CONFIG).read_text(), config)
        trainer.stdin.close()
        self.assertIn("ended", trainer.stdout.read())
        trainer.stdout.close()

        machine.inside("dpkg", "--remove", "gossamer")
        self.assertEqual(machine.enter("systemctl", "is-active", "gossamerd").stdout.strip(), "inactive")
        self.assertTrue((machine.path(STATE) / "node.key").exists(), "removed, not purged")
        machine.inside("dpkg", "--purge", *(package.name.split("_")[0] for package in packages()))
        left = [
            str(path.relative_to(machine.root))
            for top in ("etc", "usr", "var/lib", "lib")
            for path in machine.path(top).rglob("*gossamer*")
        ]
        self.assertEqual(left, [])


if __name__ == "__main__":
    run_tests("The packages, installed, upgraded, removed and purged in a machine of their own.")

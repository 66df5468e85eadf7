"""The packages, in a machine of their own: installed, used, upgraded under a running trainer, removed and purged.

    install_test.py --packages FOLDER --roots FOLDER [--release CODENAME]

Makes a clean root of the release with debootstrap, once, and boots a copy of it with systemd-nspawn for each test.
Takes the packages' dependencies from the distribution's mirror. Needs root.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import List, Optional

DEBOOTSTRAP_TIMEOUT_S = 600
APT_TIMEOUT_S = 600
PATIENCE_S = 60.0
POLL_S = 0.1
STATE = "var/lib/gossamer"
CONFIG = "etc/gossamer/gossamer.toml"
# What the trainer runs: says "trained N attached A" after each second, A counting attachments, and an error if a step
# fails. It ends when standard input does.
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

options: argparse.Namespace


def this_release() -> str:
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    return next(line.split("=")[1] for line in text.splitlines() if line.startswith("VERSION_CODENAME="))


def base_root() -> Path:
    """Made once; whole or not there."""
    root = options.roots / options.release
    if not root.exists():
        options.roots.mkdir(parents=True, exist_ok=True)
        begun = options.roots / f"{options.release}.begun"
        shutil.rmtree(begun, ignore_errors=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=systemd,systemd-sysv", options.release, str(begun)],
            stdout=subprocess.DEVNULL,
            timeout=DEBOOTSTRAP_TIMEOUT_S,
            check=True,
        )
        begun.rename(root)
    return root


class Machine:
    """A copy of the root, not booted yet."""

    def __init__(self, folder: Path):
        self.root = folder / "root"
        subprocess.run(["cp", "-a", "--reflink=auto", str(base_root()), str(self.root)], check=True)
        self._boot: Optional[subprocess.Popen] = None

    def path(self, relative: str) -> Path:
        return self.root / relative

    def chroot(self, *command: str) -> str:
        """With the network of this machine, and nothing running."""
        ran = subprocess.run(
            ["systemd-nspawn", "--quiet", f"--directory={self.root}", "--register=no", "--keep-unit", "--pipe"]
            + ["--bind-ro=/etc/resolv.conf", "--setenv=DEBIAN_FRONTEND=noninteractive", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=APT_TIMEOUT_S,
            check=False,
        )
        if ran.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: status {ran.returncode}\n{ran.stdout[-3000:]}")
        return ran.stdout

    def boot(self) -> None:
        self._log = open(self.root.parent / "console", "ab")
        self._boot = subprocess.Popen(
            ["systemd-nspawn", f"--directory={self.root}", "--boot", "--register=no", "--keep-unit"]
            + ["--private-network", "--console=pipe"],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        wait_until(lambda: self.leader() and self._booted(), "the machine boots")

    def _booted(self) -> bool:
        return self.enter("systemctl", "is-system-running", check=False).strip() in ("running", "degraded")

    def leader(self) -> List[str]:
        assert self._boot is not None
        if self._boot.poll() is not None:
            raise AssertionError("the machine does not boot:\n" + (self.root.parent / "console").read_text())
        return Path(f"/proc/{self._boot.pid}/task/{self._boot.pid}/children").read_text().split()[:1]

    def _entered(self, *command: str) -> List[str]:
        return ["nsenter", "-t", self.leader()[0], "-m", "-u", "-i", "-n", "-p", "-C", *command]

    def enter(self, *command: str, check: bool = True) -> str:
        ran = subprocess.run(
            self._entered(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=APT_TIMEOUT_S,
            check=False,
        )
        if check and ran.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: status {ran.returncode}\n{ran.stdout[-3000:]}")
        return ran.stdout

    def start(self, *command: str) -> subprocess.Popen:
        return subprocess.Popen(
            self._entered(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def halt(self) -> None:
        if self._boot is None or self._boot.poll() is not None:
            return
        os.kill(int(self.leader()[0]), signal.SIGRTMIN + 3)
        try:
            self._boot.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._boot.kill()
            self._boot.wait()
        self._log.close()


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {PATIENCE_S:g} s in vain: {what}")
        time.sleep(POLL_S)


def a_later_version(package: Path, folder: Path) -> Path:
    """The same package with a higher version, as the next release would be."""
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "-R", str(package), str(tree)], check=True)
    control = tree / "DEBIAN" / "control"
    text = control.read_text(encoding="utf-8")
    version = next(line.split()[1] for line in text.splitlines() if line.startswith("Version:"))
    control.write_text(text.replace(version, version + "+next"), encoding="utf-8")
    result = folder / package.name.replace(version, version + "+next")
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", str(tree), str(result)], stdout=subprocess.DEVNULL, check=True
    )
    shutil.rmtree(tree)
    return result


class Packages(unittest.TestCase):
    def setUp(self) -> None:
        # Beside the base root, where a copy may cost nothing.
        folder = tempfile.TemporaryDirectory(prefix="machine-", dir=options.roots)
        self.addCleanup(folder.cleanup)
        self.machine = Machine(Path(folder.name))
        self.addCleanup(self.machine.halt)
        self.machine.path("packages").mkdir()
        for package in options.packages.glob("*.deb"):
            shutil.copy(package, self.machine.path("packages"))

    def install(self) -> None:
        self.machine.chroot("apt-get", "-q", "update")
        names = [f"/packages/{package.name}" for package in sorted(options.packages.glob("*.deb"))]
        self.machine.chroot("apt-get", "-q", "install", "-y", "--no-install-recommends", *names)

    def status(self) -> str:
        return self.machine.enter("gossamerctl", "status", check=False)

    def test_from_installation_to_purge(self) -> None:
        machine = self.machine
        self.install()
        machine.boot()
        wait_until(lambda: "uptime" in self.status() or "up " in self.status(), "the daemon runs after the first boot")
        self.assertEqual(machine.path(STATE).stat().st_mode & 0o777, 0o700)
        key = (machine.path(STATE) / "node.key").read_bytes()
        config = machine.path(CONFIG).read_text() + '\n# kept by the operator\n'
        machine.path(CONFIG).write_text(config)

        machine.path("trainer.py").write_text(TRAINER)
        trainer = machine.start("python3", "/trainer.py")
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        assert trainer.stdout is not None and trainer.stdin is not None
        self.assertRegex(trainer.stdout.readline(), r"trained \d+ attached 1 now 1")

        for package in sorted(options.packages.glob("*.deb")):
            shutil.move(str(a_later_version(package, machine.root.parent)), machine.path("packages"))
        later = [f"/packages/{package.name}" for package in machine.path("packages").glob("*+next*.deb")]
        machine.enter("dpkg", "--force-confold", "-i", *later)
        self.assertIn("+next", machine.enter("dpkg-query", "-W", "-f", "${Version}", "gossamer"))
        line = ""
        while "attached 2 now 1" not in line:
            line = trainer.stdout.readline()
            self.assertRegex(line, r"trained \d+ attached", "a step failed, or the trainer ended")
        self.assertEqual((machine.path(STATE) / "node.key").read_bytes(), key)
        self.assertEqual(machine.path(CONFIG).read_text(), config)
        trainer.stdin.close()
        self.assertIn("ended", trainer.stdout.read())
        trainer.stdout.close()

        machine.enter("dpkg", "--remove", "gossamer")
        self.assertEqual(machine.enter("systemctl", "is-active", "gossamerd", check=False).strip(), "inactive")
        self.assertTrue((machine.path(STATE) / "node.key").exists(), "removed, not purged")
        names = ["gossamer", "libgossamer1", "libgossamer-dev", "python3-gossamer"]
        machine.enter("dpkg", "--purge", *names)
        left = [
            str(path.relative_to(machine.root))
            for top in ("etc", "usr", "var/lib", "lib")
            for path in machine.path(top).rglob("*gossamer*")
        ]
        self.assertEqual(left, [])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--roots", type=Path, required=True)
    parser.add_argument("--release", default=this_release())
    options = parser.parse_args()
    options.roots = options.roots.resolve()
    if os.geteuid() != 0:
        sys.exit("install_test.py: only root can make and boot a machine")
    unittest.main(argv=sys.argv[:1], verbosity=2)

"""The packages, in a machine of their own: installed, used, upgraded under a running trainer, removed and purged.

    install_test.py --packages FOLDER --roots FOLDER [--release CODENAME]

Makes a clean root of the release with debootstrap, once, and boots a copy of it with systemd-nspawn for each test.
Takes the packages' dependencies from the distribution's mirror. Needs root.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "lib"))

from machine import PATIENCE_S, Machine, why_not  # noqa: E402
from processes import wait_until  # noqa: E402

DEBOOTSTRAP_TIMEOUT_S = 600
APT_TIMEOUT_S = 600
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


class InstalledMachine(Machine):
    """A copy of the base root, to install in and to boot."""

    def __init__(self, folder: Path):
        super().__init__(folder / "root", folder / "console")
        subprocess.run(["cp", "-a", "--reflink=auto", str(base_root()), str(self.root)], check=True)

    def path(self, relative: str) -> Path:
        return self.root / relative

    def chroot(self, *command: str) -> str:
        """With the network of this machine, and nothing running."""
        chrooted = ["systemd-nspawn", "--quiet", f"--directory={self.root}", "--register=no", "--keep-unit", "--pipe"]
        chrooted += ["--bind-ro=/etc/resolv.conf", "--setenv=DEBIAN_FRONTEND=noninteractive", *command]
        return succeeded(
            subprocess.run(
                chrooted, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=APT_TIMEOUT_S, check=False
            )
        )

    def inside(self, *command: str) -> str:
        return succeeded(self.enter(*command, timeout_s=APT_TIMEOUT_S))

    def start(self, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.entered(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


def succeeded(ran: "subprocess.CompletedProcess[str]") -> str:
    """What it printed."""
    if ran.returncode != 0:
        command = " ".join(map(str, ran.args))
        raise AssertionError(f"{command}: status {ran.returncode}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
    return ran.stdout


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
        self.machine = InstalledMachine(Path(folder.name))
        self.addCleanup(self.machine.halt)
        self.machine.path("packages").mkdir()
        for package in options.packages.glob("*.deb"):
            shutil.copy(package, self.machine.path("packages"))

    def install(self) -> None:
        self.machine.chroot("apt-get", "-q", "update")
        names = [f"/packages/{package.name}" for package in sorted(options.packages.glob("*.deb"))]
        self.machine.chroot("apt-get", "-q", "install", "-y", "--no-install-recommends", *names)

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

        machine.path("trainer.py").write_text(TRAINER)
        trainer = machine.start("python3", "/trainer.py")
        self.addCleanup(trainer.wait)
        self.addCleanup(trainer.kill)
        assert trainer.stdout is not None and trainer.stdin is not None
        self.assertRegex(trainer.stdout.readline(), r"trained \d+ attached 1 now 1")

        for package in sorted(options.packages.glob("*.deb")):
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
        names = ["gossamer", "libgossamer1", "libgossamer-dev", "python3-gossamer"]
        machine.inside("dpkg", "--purge", *names)
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
    if reason := why_not():
        sys.exit(f"install_test.py: a machine cannot be made and booted: {reason}")
    unittest.main(argv=sys.argv[:1], verbosity=2)

"""Machines on which packages are installed, for the tests of this folder.

A clean root of the release is made with debootstrap, once, and copied for each machine. Dependencies come from the
distribution's mirror. Needs root.
"""

import argparse
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from typing import List, Optional

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "lib"))

from machine import Machine, why_not  # noqa: E402

DEBOOTSTRAP_TIMEOUT_S = 600
APT_TIMEOUT_S = 600

options: argparse.Namespace


def this_release() -> str:
    text = Path("/etc/os-release").read_text(encoding="utf-8")
    return next(line.split("=")[1] for line in text.splitlines() if line.startswith("VERSION_CODENAME="))


def base_root(release: Optional[str] = None) -> Path:
    """The base root (of another release), which is made once; it is either whole or not there."""
    release = release or options.release
    root = options.roots / release
    if not root.exists():
        options.roots.mkdir(parents=True, exist_ok=True)
        begun = options.roots / f"{release}.begun"
        shutil.rmtree(begun, ignore_errors=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", "--include=systemd,systemd-sysv", release, str(begun)],
            stdout=subprocess.DEVNULL,
            timeout=DEBOOTSTRAP_TIMEOUT_S,
            check=True,
        )
        begun.rename(root)
    return root


def packages() -> List[Path]:
    return sorted(options.packages.glob("*.deb"))


def copied(root: Path, to: Path) -> Path:
    subprocess.run(["cp", "-a", "--reflink=auto", str(root), str(to)], check=True)
    return to


def chroot(root: Path, *command: str) -> str:
    """Runs a command in the root, with this machine's network and without services."""
    chrooted = ["systemd-nspawn", "--quiet", f"--directory={root}", "--register=no", "--keep-unit", "--pipe"]
    chrooted += ["--bind-ro=/etc/resolv.conf", "--setenv=DEBIAN_FRONTEND=noninteractive", *command]
    return succeeded(
        subprocess.run(
            chrooted, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=APT_TIMEOUT_S, check=False
        )
    )


class InstalledMachine(Machine):
    """A copy of a root, in `folder`, to install in and to boot; see Machine for the network."""

    def __init__(self, root: Path, folder: Path, hostname: str = "", network: Optional[str] = None):
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(copied(root, folder / "root"), folder / "console", hostname=hostname, network=network)
        if hostname:
            # debootstrap leaves this machine's name, which systemd would use.
            self.path("etc/hostname").write_text(f"{hostname}\n", encoding="utf-8")

    def path(self, relative: str) -> Path:
        return self.root / relative

    def inside(self, *command: str) -> str:
        return succeeded(self.enter(*command, timeout_s=APT_TIMEOUT_S))

    def start(self, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.entered(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )


def succeeded(ran: "subprocess.CompletedProcess[str]") -> str:
    """The command's output."""
    if ran.returncode != 0:
        command = " ".join(map(str, ran.args))
        raise AssertionError(f"{command}: status {ran.returncode}\n{ran.stdout[-2000:]}\n{ran.stderr[-2000:]}")
    return ran.stdout


def a_later_version(package: Path, folder: Path) -> Path:
    """The same package with a higher version, like the next release."""
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


def run_tests(description: str) -> None:
    """Runs the tests of a file: NAME --packages FOLDER --roots FOLDER [--release CODENAME]."""
    global options
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--packages", type=Path, required=True, help="folder with the packages")
    parser.add_argument("--roots", type=Path, required=True, help="folder that the clean roots are kept in")
    parser.add_argument("--release", default=this_release(), help="Debian's code name (default: this machine's)")
    options = parser.parse_args()
    options.roots = options.roots.resolve()
    if reason := why_not():
        sys.exit(f"{sys.argv[0]}: a machine cannot be made and booted: {reason}")
    unittest.main(module="__main__", argv=sys.argv[:1], verbosity=2)

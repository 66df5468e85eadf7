"""Three machines become a cluster, from packages to purge, by the commands of docs/how-to/start-a-cluster.md: the
blocks of its section "Three machines, step by step" are read and run, and each command is printed as it is.

    cluster_test.py --packages FOLDER --roots FOLDER [--release CODENAME]

What follows the language in a block's first line says what to do with it, in words of a shell:

    sh north south          run each line on these machines, by root, in /srv/packages; a line that fails ends the test
    prints=WORD             the last line of what it prints stands for WORD in later blocks
    shows=REGEX             the block is run again until what it prints matches, and may fail
    python north file=PATH  is a file there

The machines are booted by systemd-nspawn, on a network of their own.
"""

import re
import shlex
import shutil
import tempfile
import time
import unittest
from pathlib import Path
from typing import Dict, List, NamedTuple

import installed_machine
from installed_machine import APT_TIMEOUT_S, InstalledMachine, a_later_version, base_root, chroot, copied, packages
from network import Network

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "start-a-cluster.md"
SECTION = "Three machines, step by step"
MACHINES = ("north", "south", "west")
FOLDER = "srv/packages"
NEXT = "srv/packages-next"
SHOWN_TIMEOUT_S = 120.0
PAUSE_S = 1.0
# The document must have at least this many blocks; fewer mean that blocks have lost their marks.
LEAST_BLOCKS = 12


class Block(NamedTuple):
    language: str
    machines: List[str]
    options: Dict[str, str]
    lines: List[str]


def blocks(text: str) -> List[Block]:
    """The blocks of the section, in order."""
    section = re.search(rf"^## {re.escape(SECTION)}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError(f'no section "{SECTION}" in {DOCUMENT.name}')
    found = []
    for first, body in re.findall(r"^```(\S.*?)\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL):
        language, *words = shlex.split(first)
        machines = [word for word in words if "=" not in word]
        options = dict(word.split("=", 1) for word in words if "=" in word)
        if not machines or not set(machines) <= set(MACHINES) or not set(options) <= {"prints", "shows", "file"}:
            raise ValueError(f"this block does not say where it is to be run, or says what is not known: {first}")
        found.append(Block(language, machines, options, body.splitlines()))
    if len(found) < LEAST_BLOCKS:
        raise ValueError(f"only {len(found)} blocks")
    return found


class ThreeMachines(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory(prefix="cluster-", dir=installed_machine.options.roots)
        self.addCleanup(temporary.cleanup)
        folder = Path(temporary.name)
        root = self.root_with_packages(folder)
        network = Network()
        self.addCleanup(network.close)
        self.machines: Dict[str, InstalledMachine] = {}
        for name in MACHINES:
            machine = InstalledMachine(root, folder / name, hostname=name, network=network.add().path)
            self.machines[name] = machine
            self.addCleanup(machine.halt)
            machine.boot()
        shutil.rmtree(root)
        self.words: Dict[str, str] = {}

    def root_with_packages(self, folder: Path) -> Path:
        """A clean root with the packages and the next release's. Their dependencies are in apt's cache, because the
        machines reach no mirror."""
        root = copied(base_root(), folder / "root")
        for there in (FOLDER, NEXT):
            (root / there).mkdir(parents=True)
        for package in packages():
            shutil.copy(package, root / FOLDER)
            shutil.move(a_later_version(package, folder), root / NEXT)
        chroot(root, "apt-get", "-q", "update")
        names = [f"/{FOLDER}/{package.name}" for package in packages()]
        chroot(root, "apt-get", "-q", "install", "-y", "--no-install-recommends", "--download-only", *names)
        return root

    def test_the_document(self) -> None:
        for block in blocks(DOCUMENT.read_text(encoding="utf-8")):
            for name in block.machines:
                self.carry_out(block, name)

    def carry_out(self, block: Block, name: str) -> None:
        if "file" in block.options:
            print(f"{name}: {block.options['file']} is written", flush=True)
            path = self.machines[name].path(block.options["file"].lstrip("/"))
            path.write_text("\n".join(block.lines) + "\n", encoding="utf-8")
            return
        self.assertEqual(block.language, "sh")
        printed = self.run_lines(block, name)
        deadline = time.monotonic() + SHOWN_TIMEOUT_S
        while "shows" in block.options and re.search(block.options["shows"], printed) is None:
            self.assertLess(time.monotonic(), deadline, f"never shows {block.options['shows']}")
            time.sleep(PAUSE_S)
            printed = self.run_lines(block, name)
        if "prints" in block.options:
            self.words[block.options["prints"]] = printed.splitlines()[-1]

    def run_lines(self, block: Block, name: str) -> str:
        printed = ""
        for line in filter(None, block.lines):
            for word, value in self.words.items():
                line = re.sub(rf"\b{word}\b", value, line)
            print(f"root@{name}:/{FOLDER}# {line}", flush=True)
            environment = ["env", "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C.UTF-8", "TERM=dumb", "HOME=/root"]
            ran = self.machines[name].enter(
                *environment, "bash", "-c", f"cd /{FOLDER}; {line}", timeout_s=APT_TIMEOUT_S
            )
            print(ran.stdout, ran.stderr, sep="", flush=True)
            if "shows" not in block.options:
                self.assertEqual(ran.returncode, 0, f"{line}\n{ran.stderr[-2000:]}")
            printed += ran.stdout
        return printed


if __name__ == "__main__":
    installed_machine.run_tests(f'Three machines, by the commands of "{SECTION}" in {DOCUMENT.name}.')

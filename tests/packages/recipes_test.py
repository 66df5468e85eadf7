"""The recipes that use the packages (docs/how-to/recipes.md): a folder that apt installs from by two lines, and an OCI image.

    recipes_test.py --packages FOLDER --roots FOLDER [--release CODENAME]

The clean root of installed_machine.py is also the base of the image. The image needs buildah, and is skipped without
it.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import List

import installed_machine
from installed_machine import InstalledMachine, base_root, chroot, run_tests, succeeded
from processes import Program, end, wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = REPOSITORY / "tools" / "recipes"
ADDRESS = "http://packages.example/gossamer"  # the address in the document
BUILD_TIMEOUT_S = 900
PATIENCE_S = 60.0


def two_lines() -> str:
    """The lines that an operator types, from the document."""
    document = (REPOSITORY / "docs" / "how-to" / "recipes.md").read_text(encoding="utf-8")
    found = re.search(r"```sh\n(echo 'deb [^\n]*\n[^\n]*)\n```", document)
    assert found is not None, "docs/how-to/recipes.md has no two lines"
    return found[1]


class RecipeTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="recipes-", dir=installed_machine.options.roots)
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_here(self, *command: str) -> str:
        return succeeded(
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False
            )
        )


class TwoLines(RecipeTest):
    def test_installed_by_two_lines(self) -> None:
        machine = InstalledMachine(base_root(), self.folder)
        self.addCleanup(machine.halt)
        served = machine.path("srv/gossamer")
        self.run_here(str(RECIPES / "apt-folder"), str(installed_machine.options.packages), str(served))
        lines = two_lines()
        self.assertIn(ADDRESS, lines)
        chroot(machine.root, "sh", "-ec", lines.replace(ADDRESS, "file:/srv/gossamer").replace("sudo ", ""))
        machine.boot()
        runs = lambda: "up " in machine.enter("gossamerctl", "status").stdout  # noqa: E731
        wait_until(runs, PATIENCE_S, "the daemon runs after the first boot")
        machine.inside("python3", "-c", "import gossamer")

    def test_without_packages_it_says_so(self) -> None:
        empty = self.folder / "empty"
        empty.mkdir()
        command = [str(RECIPES / "apt-folder"), str(empty), str(self.folder / "out")]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("make them with tools/packages", ran.stderr)


class Image(RecipeTest):
    def setUp(self) -> None:
        if shutil.which("buildah") is None:
            print("SKIPPED, the image was not built: not installed: buildah", file=sys.stderr)
            self.skipTest("no buildah")
        super().setUp()
        store = ["--storage-driver=vfs", f"--root={self.folder}/images", f"--runroot={self.folder}/run"]
        self.buildah = ["buildah", *store]
        self.programs: List[Program] = []
        self.addCleanup(lambda: end(self.programs))

    def make(self, *command: str) -> str:
        return self.run_here(*self.buildah, *command).strip()

    def test_image(self) -> None:
        """Uses a base of ours, because the registry may be out of reach."""
        tar = self.folder / "base.tar"
        self.run_here("tar", "--one-file-system", "-C", str(base_root()), "-cf", str(tar), ".")
        base = self.make("from", "scratch")
        self.make("add", base, str(tar), "/")
        tar.unlink()
        self.make("commit", "--rm", base, "localhost/base")
        named = ["--build-arg", "BASE=localhost/base", "--pull-never", "--isolation=chroot"]
        file = ["--file", str(RECIPES / "Containerfile"), "--tag", "localhost/gossamer"]
        self.make("build", *named, *file, str(installed_machine.options.packages))
        container = self.make("from", "--pull-never", "localhost/gossamer")
        run = [*self.buildah, "run", "--isolation=chroot", "--user=64900:64900", container, "--"]
        daemon = Program([*run, "/usr/bin/gossamerd"], self.folder / "gossamerd.log")
        self.programs.append(daemon)

        def asked() -> str:
            self.assertTrue(daemon.running(), daemon.log_text())
            tool = [*run, "/usr/bin/gossamerctl", "status"]
            return subprocess.run(tool, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout

        wait_until(lambda: "up " in asked(), PATIENCE_S, "the daemon in the image answers")
        self.assertIn("/var/lib/gossamer", daemon.log_text())
        self.assertIn("/run/gossamer", daemon.log_text())


if __name__ == "__main__":
    run_tests("What the recipes make of the packages.")

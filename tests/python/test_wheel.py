"""pip makes a wheel of the checkout that works by itself, with the library inside. Skipped, and saying so, without pip
and setuptools. Needs no network.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

missing = [name for name in ("pip", "setuptools", "wheel") if importlib.util.find_spec(name) is None]
if missing:
    print(f"SKIPPED: this Python has no {', '.join(missing)}; Debian: apt install python3-pip", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

PACKAGE = Path(__file__).resolve().parents[2] / "sdk" / "python"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
WORKS_ALONE = """
import os, numpy, gossamer
from gossamer import _library
print(os.path.dirname(gossamer.__file__), _library.library()._name, gossamer.version())
run = gossamer.attach([numpy.zeros(3)], job="test", socket="/nowhere", wait=False)
run.step()
print(run.clock)
"""


def left_by_setuptools():
    return {path for path in [PACKAGE / "build", *PACKAGE.glob("*.egg-info")] if path.exists()}


class Wheel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="g-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        before = left_by_setuptools()
        self.addCleanup(lambda: [shutil.rmtree(path, ignore_errors=True) for path in left_by_setuptools() - before])

    def test_builds_installs_and_works(self):
        subprocess.run(
            [*PIP, "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(self.folder), str(PACKAGE)],
            check=True,
        )
        (wheel_file,) = self.folder.glob("*.whl")
        self.assertRegex(wheel_file.name, r"^gossamer_sgd-[0-9.]+-py3-none-linux_\w+\.whl$")
        target = self.folder / "installed"
        install = [*PIP, "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel_file)]
        subprocess.run(install, check=True)

        environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "GOSSAMER"))}
        environment["PYTHONPATH"] = str(target)
        result = subprocess.run(
            [sys.executable, "-c", WORKS_ALONE], env=environment, cwd=self.folder, capture_output=True, text=True, check=True
        )
        where, clock = result.stdout.splitlines()
        package, library, version = where.split()
        self.assertEqual(package, str(target / "gossamer"))
        self.assertEqual(library, str(target / "gossamer" / "libgossamer.so.1"))
        self.assertIn(f"-{version}-", wheel_file.name)
        self.assertEqual(clock, "1")
        self.assertTrue((target / "gossamer" / "py.typed").exists())
        # Commands in the wheel would be found before those of a Debian package.
        self.assertFalse((target / "bin").exists())


if __name__ == "__main__":
    unittest.main()

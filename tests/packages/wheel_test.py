"""The wheel in clean roots of this release and of later ones, as a user who is not root: installed without a network, three
nodes started and a model trained on them, all by the commands of docs/how-to/install.md.

    wheel_test.py --packages FOLDER --roots FOLDER [--release CODENAME]
"""

import shutil
import tempfile
import unittest
from pathlib import Path

import installed_machine
from installed_machine import base_root, chroot, copied, run_tests

# The oldest first. A wheel runs where the C library is as new as where it was made, or newer.
RELEASES = ["bookworm", "trixie"]
TRAINER = """
import os, time
import numpy as np, gossamer
model = {"w": np.full(1000, float(os.environ["GOSSAMER_LOCAL_RANK"]), np.float32)}
run = gossamer.attach(model, job="wheel", timeout_s=30)
for _ in range(100):
    model["w"] += 0.01
    run.step(1)
    time.sleep(0.01)
end = run.finish(timeout_s=30)
print("agreed", end.agreed, "members", end.members, flush=True)
"""
SIMULATION = """
import numpy as np, gossamer.sim
def train_step(model, node):
    model["w"] *= 0.9
    return 1
print(gossamer.sim.run(lambda node: {"w": np.ones(100)}, train_step, lambda model: float(abs(model["w"]).mean()),
                       nodes=3, seconds=2, step_ms=50))
print("simulated", flush=True)
"""
SCRIPT = """
set -e
python3 -m venv --system-site-packages ~/gossamer
. ~/gossamer/bin/activate
pip install --quiet --no-index /packages/*.whl
gossamerctl cluster start 3
gossamerctl cluster run -- python /packages/trainer.py
gossamerctl cluster stop
python /packages/simulation.py
"""


class Wheel(unittest.TestCase):
    def test_a_user_needs_nothing_else(self) -> None:
        first = RELEASES.index(installed_machine.options.release)
        for release in RELEASES[first:]:
            with self.subTest(release=release):
                self.use(base_root(release))

    def use(self, base: Path) -> None:
        [wheel] = installed_machine.options.packages.glob("gossamer_sgd-*.whl")
        folder = tempfile.TemporaryDirectory(prefix="wheel-", dir=installed_machine.options.roots)
        self.addCleanup(folder.cleanup)
        root = copied(base, Path(folder.name) / "root")
        chroot(root, "apt-get", "-q", "update")
        chroot(root, "apt-get", "-q", "install", "-y", "--no-install-recommends", "python3-venv", "python3-numpy")
        chroot(root, "useradd", "--create-home", "alice")
        packages = root / "packages"
        packages.mkdir()
        shutil.copy(wheel, packages)
        for name, text in (("trainer.py", TRAINER), ("simulation.py", SIMULATION), ("script", SCRIPT)):
            (packages / name).write_text(text, encoding="utf-8")
        said = chroot(root, "runuser", "-u", "alice", "--", "sh", "/packages/script")
        self.assertEqual(said.count("agreed True members 3"), 3, said)
        self.assertIn("simulated", said)


if __name__ == "__main__":
    run_tests(__doc__ or "")

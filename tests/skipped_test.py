"""The last lines of tools/test name every skipped test, also a single skipped case, and what would enable it."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools" / "lib"))
from skipped import skipped  # noqa: E402

LOG = """\
1/4 Testing: python: jax
SKIPPED: JAX cannot be imported (No module named 'jax'); tools/test --frameworks installs it
Test Failed.
2/4 Testing: system_recipes
test_a (__main__.Slurm.test_a) ... SKIPPED, __main__.Slurm.test_a: not installed: slurm-wlm
SKIPPED, __main__.Slurm.test_a: not installed: slurm-wlm
skipped 'not installed: slurm-wlm'
3/4 Testing: system_starting
test_b (__main__.Disk.test_b)
A file system without room. ... skipped "it can't be mounted"
test_c (__main__.Disk.test_c) ... ok
4/4 Testing: system_doctor
a skipped step, and SKIPPED in the middle of a line
"""


class Skipped(unittest.TestCase):
    def test_every_reason_with_its_tests(self) -> None:
        self.assertEqual(
            skipped(LOG),
            {
                "JAX cannot be imported (No module named 'jax'); tools/test --frameworks installs it": ["python: jax"],
                "not installed: slurm-wlm": ["system_recipes"],
                "it can't be mounted": ["system_starting"],
            },
        )

    def test_nothing(self) -> None:
        self.assertEqual(skipped("1/1 Testing: a\n... ok\n"), {})


if __name__ == "__main__":
    unittest.main()

"""The package's annotations are complete and hold, and users' programs see them. Skipped, and saying so, without mypy."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

if subprocess.run([sys.executable, "-m", "mypy", "--version"], capture_output=True).returncode != 0:
    print("SKIPPED: mypy is not installed; Debian: apt install python3-mypy", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

SDK = Path(__file__).resolve().parents[2] / "sdk" / "python"

USERS_PROGRAM = """
import gossamer

run = gossamer.attach({"w": object()}, job="typed", on_event=lambda event: print(event.kind.value))
run.step(samples=32)
share: float = run.stats.step_share
state: int = run.info().state
gossamer.attach({}, job="typed", codecs="q8")
gossamer.attach({}, job="typed", initial_clock="0")
gossamer.attach({})
"""

WRONG = (
    'program.py:7: error: Incompatible types in assignment (expression has type "State"',
    'program.py:8: error: Unexpected keyword argument "codecs" for "attach"',
    'program.py:9: error: Argument "initial_clock" to "attach" has incompatible type "str"',
    'program.py:10: error: Missing named argument "job" for "attach"',
)


def mypy(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", "/dev/null", *arguments]
    return subprocess.run(command, cwd=SDK, capture_output=True, text=True, timeout=220)


class Typing(unittest.TestCase):
    def test_annotations_hold(self) -> None:
        """A user's program is checked, too; its wrong lines are found, and no others."""
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "program.py"
            program.write_text(USERS_PROGRAM)
            result = mypy("gossamer", str(program))
        lines = [line for line in result.stdout.splitlines() if ": error:" in line]
        self.assertEqual(len(lines), len(WRONG), result.stdout + result.stderr)
        for line, wrong in zip(lines, WRONG):
            self.assertIn(wrong, line)


if __name__ == "__main__":
    unittest.main()

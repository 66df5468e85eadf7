"""The tutorials, as far as one machine goes. Of docs/tutorial/one-machine.md the program and all commands are read from
the page and run. Of docs/tutorial/two-machines.md the program is, and the commands of its section "On one machine, with
two daemons". Both end with one model, which knows what none could learn alone.
"""

import importlib.util
import os
import re
import shlex
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import List

from support import BUILD, PATIENCE_S, REPOSITORY, free_port, wait_until

from processes import Program, end  # isort: skip

PAGE = REPOSITORY / "docs" / "tutorial" / "two-machines.md"
FIRST_PAGE = REPOSITORY / "docs" / "tutorial" / "one-machine.md"
SECTION = "On one machine, with two daemons"
RUN_TIMEOUT_S = 150
# Alone a script could name half of the points.
LEAST_ACCURACY = 0.9


def blocks(text: str, language: str) -> List[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


class OneMachine(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="gossamer-tutorial-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        text = FIRST_PAGE.read_text(encoding="utf-8")
        (program,) = blocks(text, "python")
        (self.folder / "points.py").write_text(program, encoding="utf-8")
        self.find, self.begin, self.train, self.kill, self.heal, self.stop = blocks(text, "sh")
        self.find = self.find.replace("$PWD/build", shlex.quote(str(BUILD)))
        self.environment = {"XDG_STATE_HOME": str(self.folder), "OPENBLAS_NUM_THREADS": "1"}
        self.addCleanup(self.run_lines, "gossamerctl cluster stop || true")

    def script(self, lines: str) -> List[str]:
        return ["/bin/bash", "-euc", self.find + lines.replace("python3", "/usr/bin/python3")]

    def run_lines(self, lines: str) -> str:
        ran = subprocess.run(
            self.script(lines),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,  # the command ends first, and says what it waits for
            cwd=self.folder,
            env={**os.environ, **self.environment},
            check=False,
        )
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_three_nodes_of_which_one_dies(self) -> None:
        self.assertIn("3 nodes run and are linked", self.run_lines(self.begin))
        log = self.folder / "points.log"
        training = Program(self.script(self.train), log, self.environment, cwd=self.folder)
        self.addCleanup(end, [training])
        wait_until(lambda: "step 500" in log.read_text(encoding="utf-8"), RUN_TIMEOUT_S, "they train")
        self.run_lines(self.kill)
        self.assertIn("started node-2; 3 nodes run and are linked", self.run_lines(self.heal))
        wait_until(lambda: not training.running(), RUN_TIMEOUT_S, "all programs end")
        said = log.read_text(encoding="utf-8")
        self.assertEqual(training.process.returncode, 0, said)
        for node in range(3):
            (accuracy,) = re.findall(rf"\[{node}\] step 2000: accuracy on all kinds ([\d.]+)", said)
            self.assertGreaterEqual(float(accuracy), LEAST_ACCURACY, said)
        self.run_lines(self.stop)
        self.assertFalse((self.folder / "gossamer" / "cluster").exists())


@unittest.skipIf(importlib.util.find_spec("torch") is None, "PyTorch is not installed")
class Tutorial(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="gossamer-tutorial-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        text = PAGE.read_text(encoding="utf-8")
        (program,) = blocks(text, "python")
        (self.folder / "learn.py").write_text(program, encoding="utf-8")
        # The paths that the page names are elsewhere in this test.
        section = text[text.index(f"## {SECTION}") :]
        for here, there in (
            ("/tmp/two", str(self.folder / "two")),
            ("build/bin", shlex.quote(str(BUILD / "bin"))),  # a path may have a space in it
            ("build/python", shlex.quote(str(BUILD / "python"))),
            ("python3 learn.py", "/usr/bin/python3 learn.py"),
            ("26746", str(free_port())),
            ("26747", str(free_port())),
        ):
            self.assertIn(here, section)
            section = section.replace(here, there)
        self.commands = blocks(section, "sh")
        self.assertEqual(len(self.commands), 4, "the section has other steps than this test")

    def start(self, line: str, log: str) -> Program:
        environment = {"OMP_NUM_THREADS": "1"}  # the machine has other things to do
        program = Program(["/bin/bash", "-c", f"exec env {line}"], self.folder / log, environment, cwd=self.folder)
        self.addCleanup(end, [program])
        return program

    def run_line(self, line: str, stdin: str = "") -> str:
        command = ["/bin/bash", "-ec", line]
        ran = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S, cwd=self.folder, check=False
        )
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        return ran.stdout

    def test_two_daemons_on_one_machine(self) -> None:
        configurations, daemons, joining, training = self.commands
        self.run_line(configurations)
        for index, line in enumerate(daemons.splitlines()):
            self.start(line, f"daemon-{index}.log")
        sockets = [self.folder / "two" / name / "control.sock" for name in ("north", "south")]
        wait_until(lambda: all(path.exists() for path in sockets), PATIENCE_S, "both daemons listen")
        invite, join = joining.splitlines()
        self.run_line(join, self.run_line(invite))
        scripts = [self.start(line, f"script-{index}.log") for index, line in enumerate(training.splitlines())]
        wait_until(lambda: not any(script.running() for script in scripts), RUN_TIMEOUT_S, "both scripts end")
        ends = []
        for index, script in enumerate(scripts):
            said = (self.folder / f"script-{index}.log").read_text(encoding="utf-8")
            self.assertEqual(script.process.returncode, 0, said)
            last = re.search(r"all agree: (\w+), accuracy ([\d.]+), norm ([\d.]+)\n\Z", said)
            self.assertIsNotNone(last, said)
            self.assertIn("1 neighbours", said)
            self.assertEqual(last[1], "True", said)
            self.assertGreaterEqual(float(last[2]), LEAST_ACCURACY)
            ends.append(last[3])
        # The replicas agree to a ten-thousandth of the norm, so the last digit that is printed may differ.
        self.assertAlmostEqual(float(ends[0]), float(ends[1]), delta=0.002, msg="the norms of the two models")


if __name__ == "__main__":
    unittest.main()

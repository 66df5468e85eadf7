"""A short demonstration: its figures have the form that scripts rely on, and nothing of it is left behind."""

import json
import os
import re
import shlex
import signal
import subprocess
import unittest
from pathlib import Path
from xml.etree import ElementTree

from support import BUILD, PATIENCE_S, ToolTest, gossamerctl, wait_until

KEYS = {
    "nodes": int,
    "accuracy_mean": float,
    "accuracy_min": float,
    "accuracy_alone_mean": float,
    "accuracy_all_data": float,
    "exchanges": int,
    "unresolved": int,
    "bytes_sent_per_node": int,
    "wide_blocks_fraction": float,
    "killed": str,
    "joined": str,
    "join_seconds": float,
    "longest_step_ms": float,
    "longest_undisturbed_step_ms": float,
    "median_step_ms": float,
}
RUN_TIMEOUT_S = 120
# A step takes a millisecond. A step that waited for a dead neighbour would take a second or more, until the death is
# noticed. Time that a host takes from this machine does not count as a disturbance, and may be tens of milliseconds.
MOST_STEP_MS = 100.0


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


class Demo(ToolTest):
    TOOL = "demo"

    def test_whole_story(self) -> None:
        demo = self.start("--nodes", "2", "--seconds", "10", "--seed", "1", "--codec", "q4", "--json")
        output, _ = demo.communicate(timeout=RUN_TIMEOUT_S)
        self.assertEqual(demo.returncode, 0, output)
        figures = json.loads(output.splitlines()[-1])
        self.assertEqual({key: type(value) for key, value in figures.items()}, KEYS)
        self.assertEqual(figures["nodes"], 2)
        self.assertEqual((figures["killed"], figures["joined"]), ("node-1", "node-3"))
        self.assertGreater(figures["accuracy_mean"], figures["accuracy_alone_mean"])
        self.assertGreater(figures["exchanges"], 0)
        self.assertLess(figures["longest_undisturbed_step_ms"], MOST_STEP_MS)
        self.assert_drawn(output)
        self.assertNotIn("\x1b", output, "no control characters where nobody sees them")
        self.assert_nothing_left()

    def assert_drawn(self, output: str) -> None:
        """A curve for each line of the table and of the means: in the picture, and of the means on the terminal."""
        path = re.search(r"curve of each node: (.+)$", output, re.M)
        assert path is not None, output
        self.assertIn(BUILD.resolve(), Path(path[1]).resolve().parents)
        picture = ElementTree.parse(path[1])
        colours = [curve.get("stroke") for curve in picture.findall(".//{*}polyline")]
        named = [(text.text, text.get("fill")) for text in picture.findall(".//{*}text") if text.get("fill")]
        names = re.findall(r"^  (together|alone|all data) ", output, re.M) + sorted(set(re.findall(r"^node-\d", output, re.M)))
        self.assertEqual(names, ["together", "alone", "all data", "node-1", "node-2", "node-3"])
        self.assertEqual(named, list(zip(names, colours)))
        self.assertEqual(len(colours), len(names))
        plot = output[output.index("* together   o alone   + all data") :].splitlines()[1:]
        drawn = "".join(line.partition("|")[2] for line in plot)
        for mark in "*o+":
            self.assertGreater(drawn.count(mark), 10, output)

    def stopped_by(self, number: int) -> None:
        demo = self.start("--nodes", "2", "--seconds", "60")
        wait_until(lambda: len(self.programs_left()) >= 4, PATIENCE_S, "two daemons and two trainers run")
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=PATIENCE_S)
        self.assertEqual(demo.returncode, 128 + number, output)
        self.assert_nothing_left()

    def test_interrupted(self) -> None:
        self.stopped_by(signal.SIGINT)

    def test_terminated(self) -> None:
        self.stopped_by(signal.SIGTERM)

    def test_killed(self) -> None:
        """Even then nothing runs on; the folder stays."""
        demo = self.start("--nodes", "2", "--seconds", "60")
        wait_until(lambda: len(self.programs_left()) >= 4, PATIENCE_S, "two daemons and two trainers run")
        demo.kill()
        demo.wait()
        wait_until(lambda: not self.programs_left(), PATIENCE_S, "all are gone")

    def test_kept(self) -> None:
        demo = self.start("--nodes", "2", "--seconds", "10", "--keep")
        output, _ = demo.communicate(timeout=RUN_TIMEOUT_S)
        left = self.programs_left()
        try:
            self.assertEqual(demo.returncode, 0, output)
            self.assertEqual(len(left), 4, "two daemons and two trainers")
            for line in output.splitlines():
                if "gossamerctl" in line:
                    self.assertEqual(gossamerctl(BUILD, *shlex.split(line)[1:]).returncode, 0, line)
            end = next(line for line in output.splitlines() if line.strip().startswith("kill "))
            self.assertEqual(subprocess.run(["bash", "-c", end], timeout=PATIENCE_S, check=False).returncode, 0)
            wait_until(lambda: not self.programs_left(), PATIENCE_S, "the command it printed ends everything")
        finally:
            for pid in self.programs_left():
                os.kill(pid, signal.SIGKILL)
        self.assert_nothing_left()

    def test_a_program_that_does_not_get_on_is_named(self) -> None:
        """As on an overloaded machine: one trainer gets no more time."""
        demo = self.start("--nodes", "2", "--seconds", "10")
        seen = []
        for line in demo.stdout:
            seen.append(line)
            if "node-3 has pulled the model" in line:
                break
        (starved,) = [pid for pid in self.programs_left() if "trainer" in command(pid) and "node-3" in command(pid)]
        os.kill(starved, signal.SIGSTOP)
        output, _ = demo.communicate(timeout=RUN_TIMEOUT_S)
        output = "".join(seen) + output
        self.assertEqual(demo.returncode, 1, output)
        self.assertIn("error: node-3's trainer did not end within", output)
        self.assertNotIn("Traceback", output)
        self.assert_nothing_left()

    def test_wrong_options(self) -> None:
        for options in (["--nodes", "1"], ["--codec", "q2"], ["--seconds", "never"], ["--fly"]):
            demo = self.start(*options)
            output, _ = demo.communicate(timeout=PATIENCE_S)
            self.assertEqual(demo.returncode, 2, output)
            self.assertIn("usage: tools/demo", output)


if __name__ == "__main__":
    unittest.main()

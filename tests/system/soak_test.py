"""A short soak: its measurements and files, its clean end, and verdicts that can tell flat from growing."""

import csv
import json
import math
import os
import signal
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path
from random import Random
from typing import Callable, List, Tuple

from support import PATIENCE_S, ToolTest, wait_until
from soak.samples import Answer, Look
from soak.verdicts import of_answers, of_daemon, slope_of

RUN_TIMEOUT_S = 240
DAEMONS, CLIENTS = 4, 6
SHORT = ("--daemons", str(DAEMONS), "--clients", str(CLIENTS), "--parameters", "1e6", "--seed", "1", "--step-ms", "50")
# The verdicts on late answers are for machines that do nothing else.
ABOUT_TIME = ("gossamerctl: ", "gossamerctl becomes")


class Soak(ToolTest):
    TOOL = "soak"

    def setUp(self) -> None:
        super().setUp()
        output = tempfile.TemporaryDirectory(prefix="g-")
        self.addCleanup(output.cleanup)
        self.output = Path(output.name)

    def soak(self, *options: str) -> subprocess.Popen:
        return self.start("--output", str(self.output), *options)

    def test_short(self) -> None:
        soak = self.soak(*SHORT, "--minutes", "0.5", "--churn-every", "2", "3")
        output, _ = soak.communicate(timeout=RUN_TIMEOUT_S)
        figures = json.loads(output.splitlines()[-1])
        not_flat = [what for what in figures["not_flat"] if not what.startswith(ABOUT_TIME)]
        self.assertEqual(len(not_flat), 2, output)  # a short run gives one for each node that stays
        self.assertTrue(all("run for longer" in what for what in not_flat), output)
        self.assertEqual(soak.returncode, 1)
        self.assertEqual(set(figures["daemons"]), {"node-1", "node-2"}, "half of them stay")
        self.assertGreater(sum(figures["churn"].values()), 2, output)
        self.assertGreater(figures["steps"]["count"], 100, output)
        self.assertEqual(figures["control"]["wrong"], 0, output)
        for of in figures["daemons"].values():
            self.assertGreater(of["private_level"], 1e6)
            self.assertGreater(of["descriptors_level"], 10)
            self.assertLess(of["descriptors_peak"], 100)
        self.assertEqual(json.loads((self.output / "soak.json").read_text()), figures)
        with open(self.output / "daemons.csv", newline="", encoding="utf-8") as file:
            looked_at = {row["daemon"] for row in csv.DictReader(file)}
        self.assertLessEqual({f"node-{i + 1}" for i in range(DAEMONS)}, looked_at)
        drawn = xml.etree.ElementTree.parse(self.output / "soak.svg").getroot()
        self.assertGreater(len(drawn.findall(".//{http://www.w3.org/2000/svg}polyline")), 8)
        self.assert_nothing_left()

    def test_interrupted(self) -> None:
        soak = self.soak(*SHORT, "--minutes", "5")
        wait_until(lambda: len(self.programs_left()) >= DAEMONS + CLIENTS, PATIENCE_S, "daemons and clients run")
        soak.send_signal(signal.SIGINT)
        output, _ = soak.communicate(timeout=PATIENCE_S)
        self.assertEqual(soak.returncode, 128 + signal.SIGINT, output)
        self.assert_nothing_left()

    def test_what_ends_by_itself_is_told_of(self) -> None:
        soak = self.soak(*SHORT, "--minutes", "5", "--churn-every", "600", "600")
        wait_until(lambda: (self.output / "daemons.csv").exists(), RUN_TIMEOUT_S, "all take part")
        told = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in self.programs_left()}
        [victim] = [pid for pid, words in told.items() if b"gossamerd\0" in words and b"/node-1/" in words]
        os.kill(victim, signal.SIGABRT)
        output, _ = soak.communicate(timeout=PATIENCE_S)
        self.assertEqual(soak.returncode, 1, output)
        self.assertIn("node-1: gossamerd ended by itself with status -6", output)
        self.assert_nothing_left()

    def test_wrong_options(self) -> None:
        for options in (["--daemons", "1"], ["--minutes", "never"], ["--clients", "4", "--daemons", "8"], ["--fly"]):
            soak = self.soak(*options)
            output, _ = soak.communicate(timeout=PATIENCE_S)
            self.assertEqual(soak.returncode, 2, output)
            self.assertIn("usage: tools/soak", output)
        self.assert_nothing_left()


def looks(heap: Callable[[float], float], minutes: float = 30, descriptors: int = 30) -> List[Look]:
    """Looks at a daemon with this heap in bytes at each time in seconds; one look every two seconds."""
    return [
        Look(2.0 * i, "node", 1, 60_000_000, 0, int(heap(2.0 * i)), descriptors + i * 20 // int(30 * minutes), 5, 0.2)
        for i in range(int(30 * minutes))
    ]


def breath(random: Random) -> float:
    """The memory that comes and goes with the fragments under way: a few megabytes at most, and sometimes nothing."""
    return 4e6 * max(0.0, random.random() - 0.2)


class Verdicts(unittest.TestCase):
    def test_a_line_is_found_under_what_breathes(self) -> None:
        random = Random(7)
        times = [2.0 * i for i in range(900)]
        slope = slope_of(times, [1e7 + 5e6 / 3600 * t + breath(random) for t in times])
        self.assertAlmostEqual(slope.per_hour, 5e6, delta=2e5)
        self.assertLess(slope.least, slope.per_hour)
        self.assertGreater(slope.most, slope.per_hour)
        self.assertAlmostEqual(slope.level, 1e7 + 1.25e6, delta=2e5)

    def test_too_few_are_no_line(self) -> None:
        self.assertIsNone(slope_of([], []))
        self.assertIsNone(slope_of([0.0, 1.0, 2.0], [1.0, 1.0, 1.0]))

    def heap_verdicts(self, heap: Callable[[float], float]) -> List[str]:
        return [verdict.what for verdict in of_daemon(looks(heap))[1] if "in use" in verdict.what]

    def test_a_short_run_shows_nothing(self) -> None:
        [told] = [verdict.what for verdict in of_daemon(looks(lambda t: 1e7 + 1e6 * t, minutes=0.8, descriptors=2))[1]]
        self.assertEqual(told, "node: 46 s do not show what grows: run for longer")

    def test_a_leak_is_told_of_and_a_breath_is_not(self) -> None:
        random = Random(8)
        self.assertEqual(self.heap_verdicts(lambda _: 1e7 + breath(random)), [])
        self.assertEqual(self.heap_verdicts(lambda t: 1e7 + breath(random) + 3e6 * (1 - math.exp(-t / 20))), [], "settles")
        [told] = self.heap_verdicts(lambda t: 1e7 + breath(random) + 10e6 / 3600 * t)
        self.assertIn("its memory in use: +10.", told)

    def test_descriptors_that_stay_open_are_told_of(self) -> None:
        told = [verdict.what for verdict in of_daemon(looks(lambda _: 1e7))[1]]
        self.assertEqual(len(told), 1)
        self.assertIn("node: descriptors: +4", told[0])

    def answers(self, tool_ms: Callable[[int], float], nothing_ms: float = 1.0, status: int = 0) -> Tuple[dict, List[str]]:
        answers = [Answer(0.5 * i, "node", tool_ms(i), nothing_ms, status) for i in range(300)]
        figures, verdicts = of_answers(answers, looks(lambda _: 1e7))
        return figures, [verdict.what for verdict in verdicts]

    def test_answers(self) -> None:
        self.assertEqual(self.answers(lambda _: 4.0)[1], [])
        figures, [late] = self.answers(lambda i: 130.0 if i == 70 else 4.0)
        self.assertIn("1 answers took longer than 100 ms (node after 35 s: 130 ms)", late)
        self.assertEqual((figures["late"], figures["over_100_ms"]), (1, 1))
        # Where a program that does nothing is slow, too, no answer counts as late.
        figures, told = self.answers(lambda i: 130.0 if i == 70 else 40.0, nothing_ms=20.0)
        self.assertEqual((figures["late"], figures["over_100_ms"], told), (0, 1, []))
        [slower] = self.answers(lambda i: 4.0 + i / 20)[1]
        self.assertIn("becomes slower", slower)
        [wrong] = self.answers(lambda _: 4.0, status=3)[1]
        self.assertIn("300 times it got no answer", wrong)


if __name__ == "__main__":
    unittest.main()

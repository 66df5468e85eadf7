"""A short comparison: its figures have the form that scripts rely on, and nothing of it is left behind."""

import json
import signal
import unittest
from xml.etree import ElementTree

from support import PATIENCE_S, ToolTest, wait_until

RUN_TIMEOUT_S = 150
KEYS = {
    "method", "accuracy", "accuracy_least", "seconds_to_good", "steps", "longest_step_s", "mb_sent", "daemon_cpu_s",
    "trainer_cpu_s", "stuck", "errors", "curve",
}

# Each node draws the weight towards a place of its own, and the mean of these places is right. Getting there takes a
# second, so that a busy machine exchanges before.
SCRIPT = """
import numpy as np

class Quadratic:
    def __init__(self, seed, node, nodes):
        self.weights = {"w": np.zeros(1, np.float32)}
        self.target = node - (nodes - 1) / 2
    def step(self):
        self.weights["w"] -= np.float32(0.02) * (self.weights["w"] - np.float32(self.target))
    def accuracy(self):
        return max(0.0, 1 - 2 * abs(float(self.weights["w"][0])))

def make(seed, node, nodes):
    return Quadratic(seed, node, nodes)
"""


class Compare(ToolTest):
    TOOL = "compare"

    def test_methods_side_by_side(self) -> None:
        compare = self.start(
            *("--nodes", "3", "--seconds", "8", "--seed", "1", "--slow", "2", "--kill", "4"),
            *("--methods", "gossip,average,alone", "--json", "--plot", str(self.folder / "curves.svg")),
        )
        output, _ = compare.communicate(timeout=RUN_TIMEOUT_S)
        self.assertEqual(compare.returncode, 0, output)
        found = json.loads(output.splitlines()[-1])
        self.assertEqual((found["seed"], found["nodes"]), (1, 3))
        methods = {one["method"]: one for one in found["methods"]}
        self.assertEqual(list(methods), ["gossip", "average", "alone"])
        for one in methods.values():
            self.assertEqual(set(one), KEYS)
            self.assertEqual((one["errors"], len(one["curve"])), ([], 10), output)
            self.assertGreater(one["steps"], 10, output)
        self.assertEqual(methods["gossip"]["stuck"], 0, output)
        for method in ("gossip", "average"):
            self.assertGreater(methods[method]["accuracy"], methods["alone"]["accuracy"], output)
            self.assertGreater(methods[method]["mb_sent"], 0.1, output)
        # All nodes that average hold one model.
        self.assertAlmostEqual(methods["average"]["accuracy"], methods["average"]["accuracy_least"], delta=0.02)
        drawing = self.folder / "curves.svg"
        self.assertEqual(len(ElementTree.parse(drawing).findall(".//{*}polyline")), 3)
        drawing.unlink()
        self.assert_nothing_left()

    def test_a_script_of_the_users(self) -> None:
        script = self.folder / "quadratic.py"
        script.write_text(SCRIPT)
        compare = self.start(
            *("--nodes", "2", "--seconds", "4", "--seed", "1", "--methods", "average,server,alone", "--json"),
            *("--script", str(script)),
        )
        output, _ = compare.communicate(timeout=RUN_TIMEOUT_S)
        self.assertEqual(compare.returncode, 0, output)
        average, server, alone = json.loads(output.splitlines()[-1])["methods"]
        self.assertAlmostEqual(average["accuracy_least"], 1.0, delta=0.05, msg=output)
        self.assertGreater(server["accuracy_least"], 0.4, output)
        self.assertGreater(server["mb_sent"], 0.001, output)
        self.assertIsNone(alone["mb_sent"], output)
        # A step alone leaves 0.98 of the distance. A busy machine makes fewer steps.
        self.assertAlmostEqual(alone["accuracy"], 0.98 ** (alone["steps"] / 2), delta=0.05, msg=output)
        script.unlink()
        self.assert_nothing_left()

    def test_interrupted_and_wrong_options(self) -> None:
        compare = self.start("--nodes", "2", "--seconds", "60")
        wait_until(lambda: len(self.programs_left()) >= 2, PATIENCE_S, "two daemons run")
        compare.send_signal(signal.SIGINT)
        output, _ = compare.communicate(timeout=PATIENCE_S)
        self.assertEqual(compare.returncode, 128 + signal.SIGINT, output)
        self.assert_nothing_left()
        nothing = self.folder / "nothing.py"
        nothing.write_text("x = 1\n")
        for options in (["--methods", "magic"], ["--nodes", "1"], ["--slow", "0"], ["--script", str(nothing)]):
            compare = self.start(*options)
            output, _ = compare.communicate(timeout=PATIENCE_S)
            self.assertEqual(compare.returncode, 2, output)
        nothing.unlink()


if __name__ == "__main__":
    unittest.main()

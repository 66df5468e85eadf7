"""A short comparison: its figures have the form that scripts rely on, and nothing of it is left behind."""

import json
import signal
import unittest

from support import PATIENCE_S, ToolTest, wait_until

RUN_TIMEOUT_S = 150
KEYS = {
    "method", "accuracy", "accuracy_least", "seconds_to_good", "steps", "longest_step_s", "mb_sent", "daemon_cpu_s",
    "trainer_cpu_s", "stuck", "errors", "curve",
}


class Compare(ToolTest):
    TOOL = "compare"

    def test_methods_side_by_side(self) -> None:
        compare = self.start(
            *("--nodes", "3", "--seconds", "8", "--seed", "1", "--slow", "2", "--kill", "4"),
            *("--methods", "gossip,average,alone", "--json"),
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
        # All who average hold one model.
        self.assertAlmostEqual(methods["average"]["accuracy"], methods["average"]["accuracy_least"], delta=0.02)
        self.assert_nothing_left()

    def test_interrupted_and_wrong_options(self) -> None:
        compare = self.start("--nodes", "2", "--seconds", "60")
        wait_until(lambda: len(self.programs_left()) >= 2, PATIENCE_S, "two daemons run")
        compare.send_signal(signal.SIGINT)
        output, _ = compare.communicate(timeout=PATIENCE_S)
        self.assertEqual(compare.returncode, 128 + signal.SIGINT, output)
        self.assert_nothing_left()
        for options in (["--methods", "magic"], ["--nodes", "1"], ["--slow", "0"]):
            compare = self.start(*options)
            output, _ = compare.communicate(timeout=PATIENCE_S)
            self.assertEqual(compare.returncode, 2, output)


if __name__ == "__main__":
    unittest.main()

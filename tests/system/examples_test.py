"""The examples of sdk/examples in C++, NumPy, PyTorch, JAX, Flax and Keras: they learn, and they exchange."""

import os
import re
import subprocess
import unittest
from typing import Dict

from examples import EXAMPLES, ExampleTest
from support import BUILD, python_with


class Examples(ExampleTest):
    def test_digits_mlp(self) -> None:
        self.assertGreater(min(self.run_two("digits-mlp", str(BUILD / "bin" / "digits_mlp"), "10000")), 0.94)

    def test_digits_numpy(self) -> None:
        self.assertGreater(min(self.run_python("digits_numpy", 800, "numpy")), 0.93)

    def test_digits_torch(self) -> None:
        self.assertGreater(min(self.run_python("digits_torch", 600, "torch")), 0.95)

    def test_text_torch(self) -> None:
        self.assertLess(max(self.run_python("text_torch", 50, "torch")), 3.0)  # it is 4.6 before training

    def test_digits_keras(self) -> None:
        self.assertGreater(min(self.run_python("digits_keras", 800, "keras", "jax")), 0.93)

    def test_digits_jax(self) -> None:
        self.assertGreater(min(self.run_python("digits_jax", 1500, "jax")), 0.93)

    def simulated(self, name: str, steps: int, *options: str) -> Dict[str, float]:
        """The last figure but its deviation of each row that an example simulates, with few steps and without daemons."""
        command = [python_with("numpy"), str(EXAMPLES / f"{name}.py"), "--seeds", "1", "--steps", str(steps), *options]
        environment = {**os.environ, "PYTHONPATH": str(BUILD / "python"), "PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=200, check=True)
        rows = re.findall(r"^(\w.*?) +\S+ ± \S+ +(\S+) ±", done.stdout, re.M)
        return {row: float(figure) for row, figure in rows}

    def test_batches_sim(self) -> None:
        losses = self.simulated("batches_sim", 100)
        self.assertLess(losses["samples"], losses["equal"])

    def test_skew_sim(self) -> None:
        accuracy = self.simulated("skew_sim", 300)
        self.assertGreater(accuracy["gossip, moments shared"], accuracy["gossip"] + 0.1)

    def test_skew_sim_with_drift_corrected(self) -> None:
        accuracy = self.simulated("skew_sim", 600, "--every", "16", "--optimizer", "sgd", "--rate", "0.3")
        self.assertGreater(accuracy["gossip, drift corrected"], accuracy["gossip"] + 0.02)

    def test_digits_flax(self) -> None:
        """Two processes on each of two machines."""
        python = python_with("flax", "optax")
        command = [str(BUILD / "bin" / "gossamerctl"), "run", "--clients", "2", "--"]
        nodes = self.start_nodes(2)
        runs = [self.start_at(node, *command, python, str(EXAMPLES / "digits_flax.py"), "1500") for node in nodes]
        accuracies = self.figures(runs, "accuracy")
        self.assertEqual(len(accuracies), 4)
        self.assertGreater(min(accuracies), 0.93)


if __name__ == "__main__":
    unittest.main()

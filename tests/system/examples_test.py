"""The examples of sdk/examples, each in two processes at two daemons: they learn, and they exchange."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
import unittest
from typing import List

from support import BUILD, REPOSITORY, Node, SystemTest, start_program, wait_until

EXAMPLES = REPOSITORY / "sdk" / "examples"
RUN_TIMEOUT_S = 150


class Examples(SystemTest):
    def run_two(self, job: str, *command: str) -> List[float]:
        """The figure that each prints last."""
        nodes = self.start_nodes(2)
        python_path = [str(BUILD / "python"), *([str(BUILD / "frameworks")] if "jax" in job else [])]
        # One thread each, because the machine has other work.
        environment = {**os.environ, "PYTHONPATH": ":".join(python_path), "OMP_NUM_THREADS": "1"}
        runs = []
        for node in nodes:
            environment["GOSSAMER_SOCKET"] = str(node.client_socket)
            run = subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder
            )
            self.addCleanup(run.stdout.close)
            self.addCleanup(run.wait)
            self.addCleanup(run.kill)
            runs.append(run)
        self.begin_together(job, nodes, runs)
        exchanges = 0
        end = time.monotonic() + RUN_TIMEOUT_S
        while any(run.poll() is None for run in runs):
            self.assertLess(time.monotonic(), end, "the example does not end")
            exchanges = max([exchanges, *(known["exchanges"] for node in nodes if (known := node.job(job)))])
            time.sleep(0.05)
        figures = []
        for run in runs:
            output = run.stdout.read()
            self.assertEqual(run.returncode, 0, output)
            self.assertNotIn("alone", output)
            figures.append(float(re.search(r"(?:accuracy|loss) ([0-9.]+)\n\Z", output)[1]))
        self.assertGreater(exchanges, 5)
        return figures

    def begin_together(self, job: str, nodes: List[Node], runs: List[subprocess.Popen]) -> None:
        """An example may finish training before the other process has loaded its framework, so the first one is stopped
        until then."""

        def all_attached() -> bool:
            attached = [node.job(job) is not None for node in nodes]
            for run, is_attached in zip(runs, attached):
                if is_attached and not all(attached):
                    run.send_signal(signal.SIGSTOP)
            return all(attached) or any(run.poll() is not None for run in runs)

        wait_until(all_attached, RUN_TIMEOUT_S, "both have attached")
        for run in runs:
            run.send_signal(signal.SIGCONT)

    def run_python(self, name: str, framework: str, steps: int) -> List[float]:
        found = importlib.util.find_spec(framework) or (BUILD / "frameworks" / framework).exists()
        if not found:
            self.skipTest(f"{name}.py: no {framework} here (tools/test --frameworks installs it)")
        return self.run_two(name.replace("_", "-"), sys.executable, str(EXAMPLES / f"{name}.py"), str(steps))

    def test_parts_torch(self) -> None:
        """One model: whole, in two shards, and as a pipeline of two stages."""
        try:
            from torch.distributed.pipelining import PipelineStage  # noqa: F401
        except ImportError:
            self.skipTest("parts_torch.py: PyTorch has no distributed tensors (2.6 or later has)")
        nodes = self.start_nodes(3)
        script = [str(EXAMPLES / "parts_torch.py"), "300", "--others", "2", "--how"]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment = {**os.environ, "PYTHONPATH": str(BUILD / "python"), "OMP_NUM_THREADS": "1"}
        runs = []
        for node, how in zip(nodes, ("whole", "shards", "pipeline")):
            command = [sys.executable, *([] if how == "whole" else torchrun), *script, how]
            environment["GOSSAMER_SOCKET"] = str(node.client_socket)
            runs.append(
                start_program(
                    self, command, env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )
            )
        for run in runs:
            output = run.communicate(timeout=RUN_TIMEOUT_S)[0]
            self.assertEqual(run.returncode, 0, output)
            accuracies = [float(found) for found in re.findall("accuracy ([0-9.]+)", output)]
            self.assertGreater(min(accuracies), 0.95, output)

    def test_digits_mlp(self) -> None:
        self.assertGreater(min(self.run_two("digits-mlp", str(BUILD / "bin" / "digits_mlp"), "10000")), 0.94)

    def test_digits_numpy(self) -> None:
        self.assertGreater(min(self.run_python("digits_numpy", "numpy", 800)), 0.93)

    def test_digits_torch(self) -> None:
        self.assertGreater(min(self.run_python("digits_torch", "torch", 600)), 0.95)

    def test_text_torch(self) -> None:
        self.assertLess(max(self.run_python("text_torch", "torch", 50)), 3.0)  # it is 4.6 before training

    def test_digits_jax(self) -> None:
        self.assertGreater(min(self.run_python("digits_jax", "jax", 1500)), 0.93)


if __name__ == "__main__":
    unittest.main()

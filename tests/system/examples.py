"""The common part of the tests of sdk/examples: each in two processes at two daemons, so that they learn and exchange."""

import os
import re
import signal
import subprocess
import time
from typing import Dict, List

from support import BUILD, REPOSITORY, Node, SystemTest, python_with, start_program, wait_until

EXAMPLES = REPOSITORY / "sdk" / "examples"
RUN_TIMEOUT_S = 150
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


class ExampleTest(SystemTest):
    def start_at(self, node: Node, *command: str, **environment: str) -> "subprocess.Popen[str]":
        """With one thread, because the machine has other work."""
        environment = {
            **os.environ,
            "PYTHONPATH": str(BUILD / "python"),
            "OMP_NUM_THREADS": "1",
            "KERAS_BACKEND": "jax",
            "HF_HUB_OFFLINE": "1",
            "GOSSAMER_SOCKET": str(node.client_socket),
            **environment,
        }
        return start_program(
            self, command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder
        )

    def run_two(self, job: str, *command: str) -> List[float]:
        """The figure that each prints last."""
        nodes = self.start_nodes(2)
        runs = [self.start_at(node, *command) for node in nodes]
        self.begin_together(job, nodes, runs)
        exchanges = 0
        end = time.monotonic() + RUN_TIMEOUT_S
        while any(run.poll() is None for run in runs):
            self.assertLess(time.monotonic(), end, "the example does not end")
            exchanges = max([exchanges, *(known["exchanges"] for node in nodes if (known := node.job(job)))])
            time.sleep(0.05)
        figures = [float(re.search(r"(?:accuracy|loss) ([0-9.]+)\n\Z", self.output(run))[1]) for run in runs]
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

    def run_python(self, name: str, steps: int, *modules: str) -> List[float]:
        return self.run_two(name.replace("_", "-"), python_with(*modules), str(EXAMPLES / f"{name}.py"), str(steps))

    def output(self, run: "subprocess.Popen[str]") -> str:
        """Waits for its end, which must be good."""
        output = run.communicate(timeout=RUN_TIMEOUT_S)[0]
        # A thread of PyTorch's gloo that destroys the last collective (AsyncWork has a ThreadLocalState with a Python object)
        # may want Python's lock when the interpreter ends already, and aborts then: once in twenty runs on a busy machine.
        # By then the example has closed its run.
        aborted = re.search(r"^accuracy .*\nterminate called without an active exception$", output, re.MULTILINE)
        if TORCHRUN[1] not in run.args or aborted is None:
            self.assertEqual(run.returncode, 0, output)
        self.assertNotIn("alone", output)
        return output

    def figures(self, runs: List["subprocess.Popen[str]"], what: str) -> List[float]:
        """All that they print."""
        return [float(found) for run in runs for found in re.findall(f"{what} ([0-9.]+)", self.output(run))]

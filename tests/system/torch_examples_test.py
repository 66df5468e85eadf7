"""The examples of sdk/examples for what people use with PyTorch: torchrun, Accelerate, Lightning, TRL and Ray Train, models
in parts, and experts."""

import unittest
from pathlib import Path

from examples import EXAMPLES, TORCHRUN, ExampleTest
from support import BUILD, python_with


class TorchExamples(ExampleTest):
    def test_parts_torch(self) -> None:
        """One model: whole, in two shards, and as a pipeline of two stages."""
        python = python_with("torch.distributed.pipelining")
        script = [str(EXAMPLES / "parts_torch.py"), "300", "--others", "2", "--how"]
        runs = []
        for node, how in zip(self.start_nodes(3), ("whole", "shards", "pipeline")):
            runs.append(self.start_at(node, python, *([] if how == "whole" else TORCHRUN), *script, how))
        self.assertGreater(min(self.figures(runs, "accuracy")), 0.95)

    def test_experts_torch(self) -> None:
        """Three machines, each with two of three experts."""
        python = python_with("torch")
        script = [str(EXAMPLES / "experts_torch.py"), "--others", "2"]
        kinds = ["plain,mirrored", "mirrored,turned", "turned,plain"]
        runs = [self.start_at(node, python, *script, own, "400") for node, own in zip(self.start_nodes(3), kinds)]
        self.assertGreater(min(self.figures(runs, "accuracy")), 0.9)

    def test_digits_torchrun(self) -> None:
        """Two processes with DistributedDataParallel on each of two machines."""
        python = python_with("torch.distributed.pipelining")  # Debian 12's torchrun does not start workers
        nodes = self.start_nodes(2)
        runs = [self.start_at(node, python, *TORCHRUN, str(EXAMPLES / "digits_torchrun.py"), "600") for node in nodes]
        self.assertGreater(min(self.figures(runs, "accuracy")), 0.95)

    def test_digits_accelerate(self) -> None:
        self.assertGreater(min(self.run_python("digits_accelerate", 300, "accelerate")), 0.95)

    def test_digits_lightning(self) -> None:
        self.assertGreater(min(self.run_python("digits_lightning", 1500, "lightning")), 0.95)

    def test_digits_ray(self) -> None:
        """Two workers at one daemon, in a Ray that listens on loopback addresses."""
        program = (
            "import ray, runpy, sys; del sys.argv[0]\n"
            "ray.init(_node_ip_address='127.0.0.1', include_dashboard=False, num_cpus=2)\n"
            "runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        # Ray cannot start workers by a path with a space in it.
        prefix = self.folder / "prefix"
        prefix.symlink_to(Path(python_with("ray.train", "torch")).parent.parent)
        python = str(prefix / "bin" / "python")
        [node] = self.start_nodes(1)
        places = {name: str(self.folder) for name in ("HOME", "RAY_TMPDIR")}
        path = f"{BUILD / 'python'}:{EXAMPLES}"
        run = self.start_at(
            node, python, "-c", program, str(EXAMPLES / "digits_ray.py"), "600", "2",
            PYTHONPATH=path, RAY_AUTH_MODE="disabled", **places,
        )  # fmt: skip
        self.assertGreater(min(self.figures([run], "\\naccuracy")), 0.95)

    def test_text_trl(self) -> None:
        self.assertLess(max(self.run_python("text_trl", 30, "trl")), 4.0)  # it is 5.5 before training


if __name__ == "__main__":
    unittest.main()

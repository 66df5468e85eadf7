"""Replicas in parts: machines that cut one model in different ways train it together with one that does not."""

from __future__ import annotations

import os
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

import part as held
from checkpoint_test import read as read_safetensors
from support import BUILD, JOB, PATIENCE_S, QUICK, Node, SystemTest, gossamer, gossamerctl, start_program, wait_until

PART = Path(__file__).with_name("part.py")
# How far replicas that agree may differ, and how far the rounding of corrections may move their sum.
AGREEMENT, ROUNDING = 1e-3, 1e-3


class Parts(SystemTest):
    def setUp(self) -> None:
        super().setUp()
        self.processes: List[subprocess.Popen] = []

    def start_parts(self, node: Node, replica: str, parts: int, dimension: int) -> List[subprocess.Popen]:
        environment = {**os.environ, "PYTHONPATH": str(BUILD / "python")}
        started = [
            start_program(
                self,
                [sys.executable, "-B", str(PART), str(node.client_socket), replica, str(part), str(parts), str(dimension),
                 str(self.folder)],
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for part in range(parts)
        ]  # fmt: skip
        self.processes += started
        return started

    def are(self, state: str, replica: str, parts: int) -> bool:
        return all((self.folder / f"{replica}-{part}-{state}").exists() for part in range(parts))

    def model_of(self, replica: str, parts: int, dimension: int, when: str) -> np.ndarray:
        pieces = [dict(np.load(self.folder / f"{replica}-{part}-{when}.npz")) for part in range(parts)]
        matrix = np.concatenate([piece["matrix"] for piece in pieces], axis=dimension)
        self.assertEqual(matrix.shape, held.SHAPE)
        for piece in pieces[1:]:
            # Parts that hold the same tensor add to it in another order, because nothing makes them wait.
            if piece["vector"].size:
                np.testing.assert_allclose(piece["vector"], pieces[0]["vector"], atol=ROUNDING)
        return np.concatenate([matrix.ravel(), pieces[0]["vector"]])

    def serve_until(self, whole: Dict[str, Any], condition: Any, what: str) -> None:
        def step() -> bool:
            whole["run"].step()
            return bool(condition())

        wait_until(step, PATIENCE_S, what)

    def attach_whole(self, node: Node) -> Dict[str, Any]:
        arrays = {
            "matrix": np.random.default_rng(1).normal(size=held.SHAPE).astype(np.float32),
            "vector": np.arange(held.ELEMENTS, dtype=np.float32) / held.ELEMENTS,
        }
        run = gossamer.attach(
            arrays, job=JOB, socket=str(node.client_socket), fragment_elements=held.FRAGMENT_ELEMENTS
        )
        self.addCleanup(run.close)
        return {"arrays": arrays, "run": run, "model": lambda: np.concatenate([a.ravel() for a in arrays.values()])}

    def test_a_checkpoint_is_of_the_whole_model(self) -> None:
        nodes = self.start_nodes(2, {**QUICK, "checkpoints": {"keep": 1, "restore": "latest"}})
        whole = self.attach_whole(nodes[0])
        self.start_parts(nodes[1], "three", 3, 0)
        command = [str(BUILD / "bin" / "gossamerctl"), "--socket", str(nodes[1].control_socket), "checkpoint", JOB]
        self.serve_until(whole, lambda: self.are("ready", "three", 3), "three parts take part")
        tool = start_program(self, command, stdout=subprocess.PIPE, text=True)
        self.serve_until(whole, lambda: tool.poll() is not None, "the checkpoint is written")
        tensors, _ = read_safetensors(Path(tool.communicate()[0].strip()))
        for name, array in whole["arrays"].items():
            np.testing.assert_allclose(tensors[name], array, atol=AGREEMENT)
        # A cluster of this node alone continues with the whole model.
        whole["run"].close()
        nodes[0].stop()
        for process in self.processes:
            process.kill()
            process.wait()
        nodes[1].stop()
        nodes[1].start()
        again = {name: np.zeros_like(array) for name, array in whole["arrays"].items()}
        options = {"job": JOB, "socket": str(nodes[1].client_socket), "fragment_elements": held.FRAGMENT_ELEMENTS}
        with gossamer.attach(again, **options):
            for name, array in again.items():
                np.testing.assert_array_equal(array, tensors[name])

    def test_any_cut_meets_any_other(self) -> None:
        nodes = self.start_nodes(3, QUICK)
        whole = self.attach_whole(nodes[0])
        first = whole["model"]().astype(np.float64)
        cuts = [("rows", 3, 0), ("columns", 2, 1)]
        for node, (replica, parts, dimension) in zip(nodes[1:], cuts):
            self.start_parts(node, replica, parts, dimension)

        def serve_until(condition: Any, what: str) -> None:
            self.serve_until(whole, condition, what)

        serve_until(lambda: all(self.are("ready", name, parts) for name, parts, _ in cuts), "all parts take part")
        for name, parts, dimension in cuts:  # they have taken over the first model
            np.testing.assert_array_equal(self.model_of(name, parts, dimension, "begin"), first.astype(np.float32))
        for node, (name, parts, _) in zip(nodes[1:], cuts):
            processes = node.job(JOB)["processes"]
            self.assertEqual([process["parts"] for process in processes], [parts], name)
            self.assertIn(f"and {parts - 1} more", gossamerctl(BUILD, "--socket", str(node.control_socket), "clients").stdout)
        (self.folder / "train").touch()
        for _ in range(held.STEPS):
            for array in whole["arrays"].values():
                array += 1 / held.STEPS
            whole["run"].step()
        serve_until(lambda: all(self.are("trained", name, parts) for name, parts, _ in cuts), "all parts have trained")
        (self.folder / "end").touch()
        self.assertTrue(whole["run"].finish(timeout_s=PATIENCE_S).agreed)
        for process in self.processes:
            output = process.communicate(timeout=PATIENCE_S)[0]
            self.assertEqual(output.split()[:2], ["True", "3"], output)
        models = [whole["model"](), *(self.model_of(*cut, "end") for cut in cuts)]
        for model in models[1:]:
            self.assertLess(float(np.abs(model - models[0]).max()), AGREEMENT)
        # Each replica has added 1 to each element.
        self.assertLess(float(np.abs(np.mean(models, axis=0, dtype=np.float64) - (first + 1)).max()), ROUNDING)

    def test_a_replica_that_lacks_a_part_is_out_and_comes_back_cut_otherwise(self) -> None:
        nodes = self.start_nodes(2, QUICK)
        whole = self.attach_whole(nodes[0])
        parts = self.start_parts(nodes[1], "three", 3, 0)

        def serve_until(condition: Any, what: str) -> None:
            self.serve_until(whole, condition, what)

        serve_until(lambda: self.are("ready", "three", 3), "three parts take part")
        serve_until(lambda: nodes[0].job(JOB)["exchanges"] > 10, "they exchange")
        parts[1].kill()
        parts[1].wait()
        serve_until(lambda: nodes[1].job(JOB) is None, "the daemon has let go of what is left of the replica")
        self.assertEqual(nodes[0].job(JOB)["unresolved"], 0)
        for left in (0, 2):  # the others go on alone, and say why
            message = self.folder / f"three-{left}-message"
            serve_until(lambda: message.exists() and "part 1 of 3" in message.read_text(), f"part {left} says why")
        for process in (parts[0], parts[2]):
            self.assertIsNone(process.poll())
            process.kill()
            process.wait()
        self.start_parts(nodes[1], "two", 2, 1)
        serve_until(lambda: self.are("ready", "two", 2), "two parts take part")
        np.testing.assert_allclose(self.model_of("two", 2, 1, "begin"), whole["model"](), atol=AGREEMENT)
        before = nodes[0].job(JOB)["exchanges"]
        serve_until(lambda: nodes[0].job(JOB)["exchanges"] > before + 10, "they exchange")


if __name__ == "__main__":
    unittest.main()

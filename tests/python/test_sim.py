"""Simulated trainings of a user's own model: what it says, that one seed gives one run, and each mistake by its name."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import numpy

import gossamer.sim

ELEMENTS = 40


class Quadratic:
    """f(x) = |x - b|² / 2 with noise, where b is the node's own; their mean is 0."""

    def __init__(self, node: int):
        self.arrays = {"x": numpy.full(ELEMENTS, 5.0), "count": numpy.array(3)}
        self.model = self.arrays
        self.target = 1.0 if node % 2 == 0 else -1.0
        self.random = numpy.random.default_rng(node)

    def step(self) -> None:
        gradient = self.arrays["x"] - self.target + self.random.normal(size=ELEMENTS)
        self.arrays["x"] -= 0.05 * gradient


def train(replica: Quadratic, node: int) -> int:
    replica.step()
    return 2


def loss_of(replica: Quadratic) -> float:
    return float(numpy.square(replica.arrays["x"]).mean())


def simulate(**options) -> gossamer.sim.Result:
    return gossamer.sim.run(Quadratic, train, loss_of, **{"nodes": 4, "seconds": 20, **options})


class Simulated(unittest.TestCase):
    def torch(self):
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed (python3-torch)")
        return torch

    def test_gossip_learns_what_no_node_knows_alone(self):
        gossip, alone = simulate(), simulate(settings={"method": "alone"})
        self.assertLess(gossip.summary["worst_loss"], 0.5)
        self.assertGreater(alone.summary["worst_loss"], 0.8)
        last = gossip.records[-1]
        self.assertAlmostEqual(last["time_s"], 20, delta=0.1)
        self.assertGreater(last["bytes_per_node"], 1000)
        self.assertLess(last["consensus_rms"], alone.records[-1]["consensus_rms"] / 3)
        self.assertEqual(len(gossip.records), 21)
        self.assertEqual(last["samples"], sum(last["clocks"]))
        self.assertTrue(math.isnan(last["accuracy"]))
        self.assertEqual(alone.records[-1]["bytes_per_node"], 0)

    def test_one_seed_gives_one_run(self):
        first, again, other = simulate(), simulate(), simulate(seed=2)
        self.assertEqual(first.records[-1]["loss"], again.records[-1]["loss"])
        self.assertEqual(first.records[-1]["clocks"], again.records[-1]["clocks"])
        self.assertNotEqual(first.records[-1]["loss"], other.records[-1]["loss"])

    def test_exact_averages_wait_for_the_slowest(self):
        settings = {"method": "average", "average_steps": 4}
        even = simulate(settings=settings, step_jitter=0)
        slow = simulate(settings=settings, step_jitter=0, speeds=[0.25])
        self.assertEqual(even.records[-1]["consensus_rms"], 0)
        self.assertAlmostEqual(slow.records[-1]["samples"] / even.records[-1]["samples"], 0.25, delta=0.03)
        # A node sends 2 (n - 1) / n of the model's bytes after every four steps.
        rounds = even.records[-1]["clocks"][0] / (2 * 4)
        self.assertAlmostEqual(even.records[-1]["bytes_per_node"], rounds * 1.5 * 4 * ELEMENTS)
        gossip = simulate(step_jitter=0, speeds=[0.25])
        self.assertGreater(gossip.records[-1]["samples"], 2 * slow.records[-1]["samples"])

    def test_a_node_dies_and_comes_back(self):
        started = []

        def make(node: int) -> Quadratic:
            started.append(node)
            return Quadratic(node)

        faults = [{"at_s": 5, "what": "kill", "node": 1}, {"at_s": 10, "what": "start", "node": 1}]
        for settings in ({}, {"method": "average"}):
            started.clear()
            result = gossamer.sim.run(make, train, loss_of, nodes=4, seconds=20, faults=faults, settings=settings)
            self.assertEqual(started, [0, 0, 1, 2, 3, 1])  # the first replica is made for the evaluation
            clocks = [len(record["clocks"]) for record in result.records]
            self.assertIn(3, clocks)
            self.assertEqual(clocks[-1], 4)
            self.assertLess(result.summary["worst_loss"], 0.6)

    def test_other_faults(self):
        held = simulate(faults=[{"at_s": 2, "what": "pause", "node": 0}, {"at_s": 12, "what": "resume", "node": 0}])
        self.assertAlmostEqual(held.records[-1]["clocks"][0] / held.records[-1]["clocks"][1], 0.5, delta=0.05)
        slower = simulate(faults=[{"at_s": 0, "what": "speed", "node": 2, "speed": 0.5}])
        self.assertAlmostEqual(slower.records[-1]["clocks"][2] / slower.records[-1]["clocks"][1], 0.5, delta=0.05)
        apart = simulate(faults=[{"at_s": 0, "what": "cut", "node": 3}])
        self.assertGreater(apart.summary["worst_loss"], 0.8)
        mended = simulate(faults=[{"at_s": 0, "what": "cut", "node": 3}, {"at_s": 10, "what": "mend", "node": 3}])
        self.assertLess(mended.summary["worst_loss"], 0.6)

    def test_a_node_with_nan_is_left_to_itself(self):
        def spoils(replica: Quadratic, node: int) -> None:
            replica.step()
            if node == 1:
                replica.arrays["x"].fill(math.nan)

        result = gossamer.sim.run(Quadratic, spoils, loss_of, nodes=4, seconds=20)
        self.assertLess(result.records[-1]["loss"], 0.5)

        averaged = gossamer.sim.run(Quadratic, spoils, loss_of, nodes=4, seconds=20, settings={"method": "average"})
        self.assertLess(averaged.records[-1]["loss"], 0.5)

    def test_exact_averages_wait_for_their_members(self):
        faults = [{"at_s": 5, "what": "kill", "node": 1}, {"at_s": 15, "what": "start", "node": 1}]
        free, held = (
            simulate(settings={"method": "average", "average_members": members}, faults=faults) for members in (3, 4)
        )
        self.assertLess(held.records[-1]["samples"], 0.7 * free.records[-1]["samples"])

    def test_losses_reach_wherever_doubles_do(self):
        for last in (1e300, 1.7e308, 5e-324, -1e308, math.inf):
            losses = [1.0]

            def measure(replica: Quadratic) -> float:
                return losses.pop() if losses else last

            with self.subTest(last):
                result = gossamer.sim.run(Quadratic, train, measure, nodes=2, seconds=2)
                for svg in (result.svg, gossamer.sim.compare(result, result).svg):
                    self.assertNotRegex(svg, "nan|inf")

    def test_the_share_of_training_is_at_most_all(self):
        for settings in ({}, {"method": "average"}, {"method": "alone"}):
            result = simulate(nodes=2, seconds=1, settings=settings)  # the steps of this run are short
            self.assertLessEqual(result.summary["computing_share"], 1)

    def test_ctrl_c_that_a_function_keeps_ends_the_run(self):
        # A shell that runs this test in the background ignores SIGINT, and child processes inherit that.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        started = []
        popen = subprocess.Popen

        def begin(*arguments, **options):
            started.append(popen(*arguments, **options))
            return started[-1]

        def interrupted(replica: Quadratic, node: int) -> None:
            started[0].send_signal(signal.SIGINT)  # a terminal sends it to all programs in the foreground
            started[0].wait()

        with mock.patch("subprocess.Popen", begin), self.assertRaises(KeyboardInterrupt):
            gossamer.sim.run(Quadratic, interrupted, loss_of, nodes=2, seconds=1)

    def test_settings_and_the_network_are_followed(self):
        often, seldom = simulate(settings={"period_ms": numpy.int64(50)}, speeds=numpy.ones(2), step_ms=numpy.float32(100)), simulate(settings={"period_ms": 2000})
        self.assertGreater(often.records[-1]["bytes_per_node"], 2 * seldom.records[-1]["bytes_per_node"])
        scaled = simulate(model_scale=1000, network={"mbit": 10, "latency_ms": 10, "topology": "ring"})
        self.assertLess(scaled.records[-1]["bytes_per_node"], 0.6 * 20 * 10e6 / 8)  # half of the rate, and some room

    def test_models_by_functions_and_more_measures(self):
        class Functional:
            def __init__(self) -> None:
                self.weights = [numpy.ones(3, numpy.float32), numpy.zeros((2, 2), numpy.float32)]

            def get_arrays(self):
                return self.weights

            def set_arrays(self, arrays):
                self.weights = arrays

        def step(replica: Functional, node: int) -> None:
            replica.weights = [0.9 * array for array in replica.weights]

        def measure(replica: Functional):
            return {"loss": float(replica.weights[0].sum()), "accuracy": 0.5, "zeros": float((replica.weights[1] == 0).sum())}

        result = gossamer.sim.run(lambda node: Functional(), step, measure, nodes=2, samples=40, name="functional")
        self.assertLess(result.records[-1]["loss"], 1)
        self.assertEqual(result.records[-1]["zeros"], 4)
        self.assertEqual(result.records[-1]["accuracy"], 0.5)
        self.assertIn("functional", str(result))

    def test_results_are_saved_and_compared(self):
        result = simulate()
        other = simulate(settings={"codec": "q4"})
        both = gossamer.sim.compare(result, other)
        self.assertIn("codec=q4", str(both))
        with tempfile.TemporaryDirectory() as folder:
            result.save(Path(folder) / "result.json")
            result.save(Path(folder) / "result.svg")
            both.save(Path(folder) / "both.svg")
            self.assertEqual(json.loads((Path(folder) / "result.json").read_text())["records"][0]["samples"], 0)
            self.assertTrue((Path(folder) / "both.svg").read_text().startswith("<svg"))
            with self.assertRaisesRegex(ValueError, "must end with .svg or .json"):
                result.save(Path(folder) / "result.png")

    def test_mistakes_are_named(self):
        for options, text in (
            ({"settings": {"codecs": "q4"}}, "no such setting: codecs"),
            ({"settings": {"codec": "q5"}}, "codec"),
            ({"network": {"mbits": 3}}, "there is no mbits"),
            ({"network": {"topology": "rings"}}, "rings"),
            ({"network": {"loss": 2}}, "loss is 2"),
            ({"faults": [{"at_s": 1, "what": "die", "node": 1}]}, "unknown fault 'die'"),
            ({"faults": [{"at_s": 1, "what": "kill", "node": 9}]}, "there is no node 9"),
            ({"faults": [{"at_s": 1, "what": "start", "node": 1}]}, "node 1 is alive at 1 s"),
            ({"seconds": 0}, "say how long"),
            ({"seconds": -1}, "seconds is -1"),
            ({"nodes": 0}, "nodes is 0"),
            ({"seconds": math.inf}, "seconds is inf"),
            ({"settings": {"method": "average"}, "faults": [{"at_s": 1, "what": "kill", "node": n} for n in range(4)]}, "dead"),
            ({"speeds": [1, 1, 1, 1, 1]}, "more speeds than nodes"),
            *(({"nodes": wrong}, "nodes is .*, and must be a whole number from 1 to 4096") for wrong in (-1, 1.5, True, None)),
            *(({"evaluations": wrong}, f"evaluations is {wrong}.* whole number") for wrong in (-1, 0, 0.5, 1.5, 10**9)),
            *(({"samples": wrong}, f"samples is {wrong}.* whole number") for wrong in (-1, 1.5)),
            *(({"seed": wrong}, "seed is .* whole number") for wrong in (-1, 1.5, 2**64, True, "x", None)),
            *(({"faults": [{"at_s": 1, "what": "kill", "node": wrong}]}, "node is .* whole number") for wrong in (-1, 0.5)),
            ({"faults": [{"at_s": 1, "what": "kill"}]}, "a fault: it has no node"),
            ({"faults": [{"what": "kill", "node": 1}]}, "a fault: it has no at_s"),
            ({"faults": [{"at_s": 1, "node": 1}]}, "a fault: it has no what"),
            ({"faults": [{"at_s": 1, "what": "speed", "node": 1}]}, "a fault: it has no speed"),
            ({"faults": [{"at_s": 100, "what": "kill", "node": 1}]}, "kill of node 1 comes after the end"),
            *(
                (
                    {"faults": [{"at_s": 1, "what": "kill", "node": 1}, {"at_s": 2, "what": what, "node": 1, "speed": 1}],
                     "settings": settings},
                    "node 1 is dead at 2 s",
                )
                for what in ("kill", "pause", "resume", "cut", "mend", "speed")
                for settings in ({}, {"method": "average"})
            ),
            ({"faults": [{"at_s": math.nan, "what": "kill", "node": 1}]}, r"faults\[0\]: at_s is nan"),
            ({"speeds": [1, numpy.float32("nan")]}, r"speeds\[1\] is nan"),
            ({"network": {"mbit": math.inf}}, "network: mbit is inf"),
            ({"step_ms": 0}, "step_ms is at least 0.001"),
            ({"network": "fast"}, "network is no object with names"),
            ({"faults": {"at_s": 1}}, "a fault is no object with names"),
            ({"network": {"mbit": object()}}, "network: mbit cannot be"),
            ({"settings": {"method": "average", "outer_momentum": 0.9}}, "does not simulate outer_momentum with the method"),
            ({"settings": {"method": "average", "average_codec": "q8"}}, "does not simulate average_codec with the method"),
            ({"settings": {"method": "average", "average_members": 5}}, "average_members is larger than the number of nodes"),
            ({"settings": {"method": "average"}, "network": {"loss": 0.1}}, "does not simulate the network's loss"),
            ({"settings": {"method": "average"}, "network": {"jitter_ms": 1}}, "does not simulate the network's jitter_ms"),
            ({"seconds": 0, "samples": 100, "faults": [{"at_s": 1, "what": "kill", "node": n} for n in range(4)]}, "dead|nobody"),
        ):
            with self.subTest(text), self.assertRaisesRegex(ValueError, text):
                simulate(**options)

    def test_what_the_functions_raise_is_raised(self):
        def fails(replica: Quadratic, node: int) -> None:
            raise ZeroDivisionError("as programs do")

        with self.assertRaisesRegex(ZeroDivisionError, "as programs do"):
            gossamer.sim.run(Quadratic, fails, loss_of, nodes=2, seconds=1)
        for samples in (-3, 0.5, 2.7, math.nan, math.inf, 2**63):
            with self.assertRaisesRegex(ValueError, f"returns {samples} samples"):
                gossamer.sim.run(Quadratic, lambda replica, node: samples, loss_of, nodes=2, seconds=1)
        for name in ("samples", "time_s", "clocks", "bytes_per_node"):
            with self.assertRaisesRegex(ValueError, f"tells {name}, which each record has"):
                gossamer.sim.run(Quadratic, train, lambda replica: {"loss": 1, name: 2}, nodes=2, seconds=1)
        with self.assertRaisesRegex(TypeError, "no model is found"):
            gossamer.sim.run(lambda node: 7, train, loss_of, nodes=2, seconds=1)
        with self.assertRaisesRegex(TypeError, "no model is found"):
            gossamer.sim.run(lambda node: (), train, loss_of, nodes=2, seconds=1)
        for kind in ("int64", "complex64", "bool"):
            functional = mock.Mock(get_arrays=lambda: [numpy.ones(2, numpy.float32), numpy.ones(3, kind)])
            with self.assertRaisesRegex(ValueError, rf"get_arrays\(\)\[1\] is of {kind}: only"):
                gossamer.sim.run(lambda node: functional, train, loss_of, nodes=2, seconds=1)
        with self.assertRaisesRegex(ValueError, "the array w is of complex128"):
            gossamer.sim.run(lambda node: {"v": numpy.ones(2), "w": numpy.ones(2) * 1j}, train, loss_of, nodes=2, seconds=1)
        with self.assertRaisesRegex(ValueError, "another model"):
            gossamer.sim.run(lambda node: {"w": numpy.ones(2 + node)}, lambda r, n: 1, lambda r: 0.0, nodes=2, seconds=1)
        with self.assertRaisesRegex(ValueError, "no loss"):
            gossamer.sim.run(Quadratic, train, lambda replica: {"accuracy": 1}, nodes=2, seconds=1)
        with mock.patch.dict(os.environ, {"GOSSAMER_SIM": "/nowhere/gossamer-sim"}):
            with self.assertRaises(FileNotFoundError):
                simulate()

    def test_batch_norm_of_pytorch(self):
        torch = self.torch()

        def make(node: int):
            torch.manual_seed(node)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
            return model, torch.optim.SGD(model.parameters(), lr=0.05), torch.Generator().manual_seed(node)

        least = []

        def step(replica, node: int) -> int:
            model, optimizer, generator = replica
            inputs = torch.randn(16, 4, generator=generator)
            optimizer.zero_grad()
            (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            least.append(float(model[1].running_var.min()))
            return 16

        def evaluate(replica) -> float:
            replica[0].eval()
            with torch.no_grad():
                inputs = torch.ones(2, 4)
                return float((replica[0](inputs) - 4).square().mean())

        result = gossamer.sim.run(make, step, evaluate, nodes=3, seconds=20, step_ms=50, settings={"period_ms": 50})
        self.assertGreater(min(least), 0)
        self.assertLess(result.records[-1]["loss"], result.records[0]["loss"] / 10)

    def test_complex_tensors_of_pytorch_are_refused(self):
        torch = self.torch()
        module = torch.nn.Linear(2, 2)
        module.register_buffer("phases", torch.ones(2, dtype=torch.complex64))
        with self.assertRaisesRegex(ValueError, "phases is of torch.complex64"):
            gossamer.sim.run(lambda node: module, train, loss_of, nodes=2, seconds=1)

    def test_statistics_of_very_different_size(self):
        torch = self.torch()
        sizes = torch.tensor([0.01, 0.1, 1.0, 10.0, 100.0, 1000.0])

        def make(node: int):
            torch.manual_seed(1)
            model = torch.nn.Sequential(torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 4))
            return model, torch.optim.SGD(model.parameters(), lr=0.05), torch.Generator().manual_seed(node)

        worst = []

        def step(replica, node: int) -> int:
            model, optimizer, generator = replica
            optimizer.zero_grad()
            model(sizes * torch.randn(32, 6, generator=generator)).square().mean().backward()
            optimizer.step()
            worst.append(float((model[0].running_var / sizes**2).min()))
            return 32

        gossamer.sim.run(make, step, lambda replica: 0.0, nodes=3, seconds=20, step_ms=50, settings={"period_ms": 50})
        self.assertGreater(min(worst[len(worst) // 2 :]), 0.2)


if __name__ == "__main__":
    unittest.main()

"""The method "average" of PyTorch runs between real daemons: the same bits everywhere, whoever comes, leaves or dies."""

import math
import os
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
import warnings
from typing import Any, Callable, Dict, List, Optional

import numpy as np

from support import BUILD, JOB, PATIENCE_S, SystemTest, gossamerctl, start_program, wait_until
from training_thread import TrainingThread

try:
    import torch

    import gossamer.torch
    from gossamer import _torch_buckets
except ImportError:
    raise unittest.SkipTest("PyTorch is not installed") from None

STEPS = 200
SAMPLES = 96
GENERATOR = torch.Generator().manual_seed(1)
INPUTS = torch.randn(SAMPLES, 10, generator=GENERATOR)
TARGETS = torch.sin(INPUTS.sum(dim=1, keepdim=True))

# Each node has a process group of its own, and all of them share one mean.
PARALLEL = f"""
import sys; sys.path.insert(0, {str(BUILD / "python")!r})
import torch, torch.distributed, gossamer.torch
torch.distributed.init_process_group("gloo", init_method=f"file://{{sys.argv[2]}}", rank=0, world_size=1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
run = gossamer.torch.attach(model, job={JOB!r}, settings={{"method": "average", "average_members": 2}}, timeout_s=60)
ddp = torch.nn.parallel.DistributedDataParallel(model)
ddp.register_comm_hook(run, gossamer.torch.average_hook)
run.average(0.0, name="start", at_least=2)
optimizer = torch.optim.Adam(model.parameters())
torch.manual_seed(int(sys.argv[1]))
for _ in range(10):
    optimizer.zero_grad()
    ddp(torch.randn(8, 10)).square().sum().backward()
    optimizer.step()
run.average(0.0, name="end")
print([parameter.tolist() for parameter in model.parameters()])
"""


class Training(TrainingThread):
    """One process that trains, as a thread: a model, an optimizer, and a part of the data."""

    PAUSE_S = 0.001
    PATIENCE_S = PATIENCE_S

    def __init__(self, node: Any, part: slice, *, seed: int = 2, optimizer: Any = torch.optim.Adam, **options: Any):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(10, 32), torch.nn.BatchNorm1d(32, momentum=0.05), torch.nn.Tanh(), torch.nn.Linear(32, 1)
        )
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        self.optimizer = optimizer(self.model.parameters(), lr=0.01)
        self.part = part
        self.losses: List[float] = []
        self.statistics = False  # whether the batch-norm layer keeps batch statistics
        self.steps = 0
        self.round = 0
        self.told: List[str] = []  # warnings
        self.run: Any = None
        if node is not None:
            self.run = gossamer.torch.attach(
                self.model, self.optimizer, job=JOB, socket=str(node.client_socket), timeout_s=PATIENCE_S, **options
            )
            self._note_rounds()
            self._note_warnings()
        self.by_round: Dict[int, int] = {}  # a hash of model and optimizer after the step with this round's mean

    def step(self) -> None:
        self.model.eval()
        self.losses.append(float(torch.nn.functional.mse_loss(self.model(INPUTS), TARGETS)))
        self.model.train(self.statistics)
        self.optimizer.zero_grad()
        torch.nn.functional.mse_loss(self.model(INPUTS[self.part]), TARGETS[self.part]).backward()
        self.before_step()
        self.round = 0
        self.optimizer.step()
        if self.round:
            self.by_round[self.round] = hash(b"".join(array.tobytes() for array in self.state()))
        self.steps += 1

    def _note_warnings(self) -> None:
        warn = self.run._warn

        def noted(text: str, *rest: Any) -> None:
            self.told.append(text)
            warn(text, *rest)

        self.run._warn = noted

    def _note_rounds(self) -> None:
        average = self.run._average

        def noted(pointer: Any, size: int, options: Any, *rest: Any, **named: Any) -> Any:
            found = average(pointer, size, options, *rest, **named)
            if options.name == b"gradients":
                self.round = found.round
            return found

        self.run._average = noted

    def before_step(self) -> None:
        pass

    def leave(self) -> None:
        if self.run is not None and not self.run.closed:
            self.run._averages.leave(self.run)

    def state(self) -> List[np.ndarray]:
        states = [self.optimizer.state.get(parameter, {}) for parameter in self.model.parameters()]
        kept = [value for state in states for _, value in sorted(state.items())]
        tensors = [tensor for tensor in [*self.model.state_dict().values(), *kept] if tensor.is_floating_point()]
        # The counts of local batches differ, and are left out.
        return [tensor.detach().numpy().copy() for tensor in tensors]


class Method(SystemTest):
    def trainings(self, nodes: List[Any], **settings: Any) -> List[Training]:
        share = SAMPLES // len(nodes)
        made = []
        for index, node in enumerate(nodes):
            made.append(Training(node, slice(share * index, share * index + share), settings=settings))
            self.addCleanup(made[-1].stop)
        return made

    def stop_all(self, trainings: List[Training]) -> None:
        for training in trainings:
            training._stop.set()
        for training in trainings:
            training.stop()

    def at_once(self, *calls: Callable[[], None]) -> None:
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE_S)
            self.assertFalse(thread.is_alive(), "a step does not end")

    def steps_of_all(self, trainings: List[Training], count: int) -> None:
        """They take so many steps more, together."""

        def run(training: Training) -> None:
            try:
                for _ in range(count):
                    training.step()
            except BaseException as error:
                training.error = error

        self.at_once(*[lambda t=training: run(t) for training in trainings])
        for training in trainings:
            self.assertIsNone(training.error)

    def set(self, node: Any, *assignments: str) -> None:
        said = gossamerctl(BUILD, "--socket", str(node.control_socket), "job", "set", JOB, *assignments)
        self.assertEqual(said.returncode, 0, said.stderr)

    def assert_same_after_each_round(self, trainings: List[Training]) -> None:
        first = trainings[0].by_round
        for other in trainings[1:]:
            common = sorted(first.keys() & other.by_round.keys())
            self.assertGreater(len(common), 20)
            apart = [number for number in common if first[number] != other.by_round[number]]
            self.assertEqual(apart, [], f"of {len(common)} rounds from {common[0]}")

    def assert_same(self, trainings: List[Training], told: str = "") -> None:
        """To the bit; and of how they got there nothing was told, or only this."""
        for training in trainings:
            self.assertEqual([text for text in training.told if not told or told not in text], [])
        states = [training.state() for training in trainings]
        for state in states[1:]:
            self.assertEqual(len(state), len(states[0]))
            for mine, first in zip(state, states[0]):
                np.testing.assert_array_equal(mine, first)

    def test_gradients_are_averaged_as_if_one_process_had_all_data(self) -> None:
        trainings = self.trainings(self.start_nodes(3), method="average", average_members=3)
        self.steps_of_all(trainings, STEPS)
        self.assert_same(trainings)
        alone = Training(None, slice(None))
        for _ in range(STEPS):
            alone.step()
        for training in trainings:
            np.testing.assert_allclose(training.losses, alone.losses, rtol=2e-3)
        self.assertLess(alone.losses[-1], 0.5 * alone.losses[0])
        self.assertEqual(trainings[0].run.info().exchanges, 0)

    def test_parameters_are_frozen_and_unfrozen(self) -> None:
        trainings = self.trainings(self.start_nodes(3), method="average", average_members=3)
        alone = Training(None, slice(None))
        for frozen in (False, True, False, True):
            for training in [*trainings, alone]:
                for parameter in training.model[0].parameters():
                    parameter.requires_grad_(not frozen)
                    parameter.grad = None
            before = alone.model[0].weight.clone()
            self.steps_of_all(trainings, 30)
            for _ in range(30):
                alone.step()
            self.assertEqual(bool(torch.equal(before, alone.model[0].weight)), frozen)
            self.assert_same(trainings)
        for training in trainings:
            np.testing.assert_allclose(training.losses, alone.losses, rtol=2e-3)

    def test_one_process_alone_that_freezes_says_so(self) -> None:
        first, second = self.trainings(self.start_nodes(2), method="average", average_members=1)
        first.start()
        second.start()
        wait_until(lambda: len(first.by_round.keys() & second.by_round.keys()) > 20, PATIENCE_S, "both average together")

        step = first.step

        def freeze_and_step() -> None:
            for parameter in first.model[0].parameters():  # a program may freeze layers between two steps
                parameter.requires_grad_(False)
            step()

        first.step = freeze_and_step  # type: ignore[method-assign]
        wait_until(lambda: any("not at all of the other" in text for text in first.told), PATIENCE_S, "it says so")
        steps = first.steps, second.steps
        wait_until(lambda: first.steps > steps[0] and second.steps > steps[1], PATIENCE_S, "both train on")
        self.stop_all([first, second])

    def test_who_waits_for_a_program_that_has_stopped_is_told_soon(self) -> None:
        first, second = self.trainings(self.start_nodes(2), method="average", average_members=2)
        self.steps_of_all([first, second], 30)
        first.start()  # the other one's program has failed in a notebook, say: its process lives, and takes no step
        began = time.monotonic()
        wait_until(lambda: any("a step waits for other" in text for text in first.told), 20, "it is told")
        self.assertGreater(time.monotonic() - began, 5)
        second.start()
        self.stop_all([first, second])

    def test_the_end_changes_no_bit(self) -> None:
        nodes = self.start_nodes(3)
        trainings = self.trainings([*nodes, nodes[0]], method="average", average_members=4)
        self.steps_of_all(trainings, STEPS)
        before = trainings[0].state()
        ends: List[Any] = []
        self.at_once(*[lambda t=training: ends.append(t.run.finish(timeout_s=PATIENCE_S)) for training in trainings])
        self.assertEqual([(end.agreed, end.members) for end in ends], 4 * [(True, 3)])
        self.assertEqual(sum(end.saver for end in ends), 1)
        self.assert_same(trainings)
        for mine, was in zip(trainings[0].state(), before):
            np.testing.assert_array_equal(mine, was)

    def test_a_newcomer_gets_model_and_optimizer_to_the_bit(self) -> None:
        nodes = self.start_nodes(3)
        trainings = self.trainings(nodes[:2], method="average")
        for training in trainings:
            training.statistics = True
            training.start()
        wait_until(lambda: min(training.steps for training in trainings) > 50, PATIENCE_S, "two train")
        newcomer = Training(nodes[2], slice(64, 96), seed=3)
        self.addCleanup(newcomer.stop)
        newcomer.statistics = True
        newcomer.start()
        wait_until(lambda: newcomer.steps > 20, PATIENCE_S, "the third trains with them")
        self.stop_all([*trainings, newcomer])
        self.assert_same_after_each_round([*trainings, newcomer])
        self.assertGreater(min(newcomer.by_round), 50)

    def test_the_method_changes_while_the_job_runs(self) -> None:
        nodes = self.start_nodes(2)
        trainings = self.trainings(nodes, period_ms=20)
        for training in trainings:
            training.start()
        wait_until(lambda: all(t.run.info().exchanges > 10 for t in trainings), PATIENCE_S, "they gossip")
        self.set(nodes[0], "method=average", "average_members=2")
        wait_until(lambda: all(t.run.info().method == "average" for t in trainings), PATIENCE_S, "both are told")
        steps = [training.steps for training in trainings]
        wait_until(lambda: all(t.steps > s + 50 for t, s in zip(trainings, steps)), PATIENCE_S, "they average")
        exchanges = [t.run.info().exchanges for t in trainings]
        steps = [training.steps for training in trainings]
        wait_until(lambda: all(t.steps > s + 50 for t, s in zip(trainings, steps)), PATIENCE_S, "they average")
        self.assertEqual([t.run.info().exchanges for t in trainings], exchanges)
        self.set(nodes[1], "method=gossip")
        wait_until(
            lambda: all(t.run.info().exchanges > e + 10 for t, e in zip(trainings, exchanges)), PATIENCE_S, "they gossip"
        )
        self.set(nodes[1], "method=average")
        steps = [len(training.by_round) for training in trainings]
        wait_until(lambda: all(len(t.by_round) > s + 50 for t, s in zip(trainings, steps)), PATIENCE_S, "they average")
        self.set(nodes[1], "average_members=1")  # the process that stops last must not wait for the other
        self.stop_all(trainings)
        last = [max(training.by_round) for training in trainings]
        # Only the last rounds are compared, when each correction under way has had its round.
        for training in trainings:
            training.by_round = {k: v for k, v in training.by_round.items() if k > min(last) - 30}
        self.assert_same_after_each_round(trainings)

    def test_models_are_averaged_every_few_steps_with_an_outer_step(self) -> None:
        settings = {"method": "average", "average_members": 2, "average_steps": 4, "outer_momentum": 0.5}
        trainings = self.trainings(self.start_nodes(2), **settings)
        self.steps_of_all(trainings, 40)
        for mine, other in zip(*[list(training.model.state_dict().values()) for training in trainings]):
            np.testing.assert_array_equal(mine.numpy(), other.numpy())
        self.assertLess(trainings[0].losses[-1], 0.7 * trainings[0].losses[0])
        self.steps_of_all(trainings, 1)
        self.assertFalse(torch.equal(trainings[0].model[0].weight, trainings[1].model[0].weight))

    def test_nan_in_one_process_stays_there(self) -> None:
        trainings = self.trainings(self.start_nodes(3), method="average", average_members=3)
        self.steps_of_all(trainings, 20)

        def spoil() -> None:
            trainings[1].model[0].weight.grad.fill_(float("nan"))

        trainings[1].before_step = spoil  # type: ignore[method-assign]
        self.steps_of_all(trainings, 12)
        told = [sum("has held NaN" in text for text in training.told) for training in trainings]
        self.assertEqual(told, [0, 1, 0])
        trainings[1].told.clear()
        trainings[1].before_step = lambda: None  # type: ignore[method-assign]
        with torch.no_grad():
            trainings[2].model[0].bias.fill_(float("inf"))
        self.steps_of_all(trainings, 20)
        self.assert_same(trainings, told="different")
        self.assertTrue(np.isfinite(trainings[2].losses[-1]))

    def test_one_process_with_another_optimizer_says_so_and_the_others_train_on(self) -> None:
        nodes = self.start_nodes(3)
        trainings = self.trainings(nodes[:2], method="average")
        other = Training(nodes[2], slice(64, 96), optimizer=torch.optim.Adagrad)
        for training in [*trainings, other]:
            training.start()
        wait_until(lambda: other.error is not None, 3 * PATIENCE_S, "it is told")
        self.assertRegex(str(other.error), "different optimizers, or models; give all of them the same")
        other.run.close()
        steps = [training.steps for training in trainings]
        wait_until(lambda: all(t.steps > s + 30 for t, s in zip(trainings, steps)), PATIENCE_S, "the others train on")
        self.stop_all(trainings)

    def test_a_daemon_that_is_killed_leaves_the_others_going(self) -> None:
        nodes = self.start_nodes(3)
        trainings = self.trainings(nodes, method="average")
        for training in trainings:
            training.start()
        wait_until(lambda: min(training.steps for training in trainings) > 30, PATIENCE_S, "three train")
        nodes[2].kill()
        steps = [training.steps for training in trainings]
        wait_until(lambda: all(t.steps > s + 30 for t, s in zip(trainings, steps)), PATIENCE_S, "all train")
        nodes[2].start()
        wait_until(lambda: trainings[2].run.info().attached, PATIENCE_S, "it is back")
        rounds = len(trainings[2].by_round)
        wait_until(lambda: len(trainings[2].by_round) > rounds + 50, PATIENCE_S, "it trains with them")
        self.stop_all(trainings)
        self.assert_same_after_each_round(trainings[:2])
        last = max(trainings[2].by_round)
        for training in trainings:
            training.by_round = {k: v for k, v in training.by_round.items() if k > last - 30}
        self.assert_same_after_each_round(trainings)

    def test_gradients_may_be_averaged_before_they_are_clipped(self) -> None:
        trainings = self.trainings(self.start_nodes(2), method="average", average_members=2)
        norms: Dict[int, List[float]] = {0: [], 1: []}

        def clip(index: int) -> None:
            trainings[index].run.average_gradients()
            norms[index].append(float(torch.nn.utils.clip_grad_norm_(trainings[index].model.parameters(), 0.1)))

        for index, training in enumerate(trainings):
            training.before_step = lambda index=index: clip(index)  # type: ignore[method-assign]
        self.steps_of_all(trainings, 20)
        self.assertEqual(norms[0], norms[1])
        self.assert_same(trainings)

    def test_a_change_of_what_is_averaged_frees_who_waits(self) -> None:
        nodes = self.start_nodes(2)
        trainings = self.trainings(nodes, method="average", average_members=2)
        for training in trainings:
            training.start()
        for change in ("average_steps=5", "average_codec=q8", "average_steps=1", "average_members=1", "average_codec=f32"):
            self.set(nodes[0], change)
            steps = [training.steps for training in trainings]
            wait_until(lambda: all(t.steps > s + 30 for t, s in zip(trainings, steps)), PATIENCE_S, f"{change}: they train")
        self.stop_all(trainings)

    def test_a_skipped_step_and_other_values_are_mended(self) -> None:
        trainings = self.trainings(self.start_nodes(2), method="average", average_members=2)
        self.steps_of_all(trainings, 10)
        with torch.no_grad():
            trainings[0].model[0].weight[3] += 0.1
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.steps_of_all(trainings, 40)
        self.assertTrue(any("different" in str(warning.message) for warning in told))
        self.assert_same(trainings, told="different")

        def skip(training: Training) -> None:
            training.optimizer.zero_grad()
            torch.nn.functional.mse_loss(training.model(INPUTS), TARGETS).backward()
            training.run.average_gradients()

        step, trainings[1].step = trainings[1].step, lambda: skip(trainings[1])  # type: ignore[method-assign]
        self.at_once(trainings[0].step, trainings[1].step)
        trainings[1].step = step  # type: ignore[method-assign]
        trainings[1].before_step = trainings[1].run.average_gradients  # type: ignore[method-assign]
        self.steps_of_all(trainings, 3)
        self.assert_same(trainings, told="different")

    def test_batch_norms_own_statistics_are_no_difference(self) -> None:
        trainings = self.trainings(self.start_nodes(2), method="average", average_members=2)
        for training in trainings:
            training.statistics = True
        self.steps_of_all(trainings, 40)
        for training in trainings:
            self.assertEqual(training.told, [])
        parameters = [[p.tolist() for p in training.model.parameters()] for training in trainings]
        self.assertEqual(parameters[0], parameters[1])

    def test_a_mask_of_infinity_is_named(self) -> None:
        (node,) = self.start_nodes(1)
        training = Training(node, slice(0, SAMPLES), settings={"method": "average"})
        self.addCleanup(training.stop)
        training.step()
        training.run.close()
        training.model.register_buffer("mask", torch.full((4,), -math.inf))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = gossamer.torch.attach(
                training.model, training.optimizer, job="masked", socket=str(node.client_socket), timeout_s=PATIENCE_S,
                settings={"method": "average"},
            )  # fmt: skip
        with self.assertRaisesRegex(gossamer.torch.GossamerError, "'mask' holds infinity.*roles="):
            training.optimizer.step()
        again.close()

    def test_gradients_in_eight_bits(self) -> None:
        trainings = self.trainings(self.start_nodes(3), method="average", average_members=3, average_codec="q8")
        self.steps_of_all(trainings, STEPS)
        self.assert_same(trainings)
        self.assertLess(trainings[0].losses[-1], 0.5 * trainings[0].losses[0])

    def test_different_numbers_of_optimizers_are_told_and_each_step_is_made_with_the_mean(self) -> None:
        trainings = self.trainings(self.start_nodes(2), method="average", average_members=2)
        self.steps_of_all(trainings, 1)  # the first step finds that all are new
        own = [group for group in trainings[1].optimizer.param_groups]
        for group in own:
            group["lr"] *= 0.5
            group["betas"] = (0.5, 0.999)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.steps_of_all(trainings, 20)
        self.assertEqual(sum("lr is 0.005 here and 0.0075 in the mean" in str(one.message) for one in told), 1)
        self.assertEqual(sum("betas is 0.9 here and 0.7 in the mean" in str(one.message) for one in told), 1)
        self.assertFalse(any("models had become different" in str(one.message) for one in told))
        self.assert_same(trainings, told="the optimizers of the processes differ")
        # The program's own numbers are in their places between steps.
        self.assertEqual([(group["lr"], group["betas"]) for group in own], [(0.005, (0.5, 0.999))])

    def test_schedules_some_steps_apart_leave_the_models_the_same(self) -> None:
        trainings = self.trainings(self.start_nodes(3), method="average", average_members=3)
        for ahead, training in enumerate(trainings):

            def schedule(training: Training = training, ahead: int = ahead) -> None:
                training.optimizer.param_groups[0]["lr"] = 0.01 / (1 + 0.01 * (training.steps + ahead))

            training.before_step = schedule  # type: ignore[method-assign]
        self.steps_of_all(trainings, 50)
        self.assert_same(trainings)
        self.assertFalse(any("differ" in text for training in trainings for text in training.told))

    def test_parameters_in_another_order_are_the_same_parameters(self) -> None:
        trainings = self.trainings(self.start_nodes(2), method="average", average_members=2)
        group = trainings[1].optimizer.param_groups[0]
        group["params"] = group["params"][::-1]
        self.steps_of_all(trainings, 60)
        self.assert_same(trainings)
        self.assertLess(trainings[0].losses[-1], 0.7 * trainings[0].losses[0])

    def test_processes_with_other_groups_are_averaged_apart_and_told_so(self) -> None:
        trainings = self.trainings(self.start_nodes(3), method="average")
        optimizer = trainings[2].optimizer
        first, *others = optimizer.param_groups[0]["params"]
        optimizer.param_groups[0]["params"] = others
        optimizer.add_param_group({"params": [first]})
        for training in trainings:
            training.start()
        wait_until(
            lambda: any("are averaged apart" in text for text in trainings[2].told),
            PATIENCE_S,
            "it is told",
        )
        wait_until(
            lambda: any("are averaged apart" in text for training in trainings[:2] for text in training.told),
            PATIENCE_S,
            "the others are told",
        )
        self.stop_all(trainings)

    def test_gradients_that_another_optimizer_takes_are_told(self) -> None:
        trainings = self.trainings(self.start_nodes(2), method="average", average_members=2)
        for training in trainings:
            group = training.optimizer.param_groups[0]
            group["params"] = group["params"][2:]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            self.steps_of_all(trainings, 5)
        self.assertEqual(sum("such as '0.weight'" in str(warning.message) for warning in told), 2)

    def test_distributed_data_parallel_keeps_its_hooks(self) -> None:
        nodes = self.start_nodes(2)
        programs = []
        for index, node in enumerate(nodes):
            program = start_program(
                self,
                [sys.executable, "-c", PARALLEL, str(index), str(self.folder / f"store{index}")],
                env={**os.environ, "GOSSAMER_SOCKET": str(node.client_socket)}, stdout=subprocess.PIPE,
            )
            programs.append(program)
        models = [program.communicate(timeout=2 * PATIENCE_S)[0] for program in programs]
        self.assertGreater(len(models[0]), 100)
        self.assertEqual(models[0], models[1])

    def test_closures_and_parameters_without_gradients(self) -> None:
        nodes = self.start_nodes(2)
        models = [torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)]) for _ in nodes]
        models[1].load_state_dict(models[0].state_dict())
        unused = models[0][1].weight.detach().clone()
        settings = {"method": "average", "average_members": 2}

        def train(index: int) -> None:
            model = models[index]
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
            run = gossamer.torch.attach(
                model, optimizer, job=JOB, socket=str(nodes[index].client_socket), settings=settings
            )
            self.addCleanup(run.close)

            def closure() -> Any:
                optimizer.zero_grad()
                loss = (model[0](torch.ones(4)) * (index + 1)).sum()
                loss.backward()
                return loss

            for _ in range(10):
                optimizer.step(closure)

        self.at_once(lambda: train(0), lambda: train(1))
        self.assertTrue(torch.equal(models[0][0].weight, models[1][0].weight))
        self.assertTrue(torch.equal(models[0][1].weight, unused), "no gradient anywhere: no weight decay")


class MethodInBuckets(Method):
    """The same, with gradients in buckets of two tensors or so."""

    # These tests have no gradients, or gradients that are not in buckets.
    test_models_are_averaged_every_few_steps_with_an_outer_step = None  # type: ignore[assignment]
    test_distributed_data_parallel_keeps_its_hooks = None  # type: ignore[assignment]
    test_a_mask_of_infinity_is_named = None  # type: ignore[assignment]
    test_different_learning_rates_are_told = None  # type: ignore[assignment]
    test_batch_norms_own_statistics_are_no_difference = None  # type: ignore[assignment]
    test_one_process_alone_that_freezes_says_so = None  # type: ignore[assignment]
    test_the_end_changes_no_bit = None  # type: ignore[assignment]

    def setUp(self) -> None:
        super().setUp()
        for name, value in (("LEAST_NUMBERS", 30), ("CAREFUL_STEPS", 1)):
            self.enterContext(unittest.mock.patch.object(_torch_buckets, name, value))

    def begun_early(self, training: Training) -> List[bool]:
        """Whether buckets began before the step, in the order in which they began."""
        seen: List[bool] = []
        begin = _torch_buckets.Buckets._begin

        def noted(buckets: Any, run: Any, bucket: Any, early: bool = False) -> None:
            if run is training.run:
                seen.append(early)
            begin(buckets, run, bucket, early)

        self.enterContext(unittest.mock.patch.object(_torch_buckets.Buckets, "_begin", noted))
        return seen

    def test_buckets_begin_in_the_backward_pass(self) -> None:
        trainings = self.trainings(self.start_nodes(2), method="average", average_members=2)
        seen = self.begun_early(trainings[0])
        self.steps_of_all(trainings, 30)
        self.assertGreater(seen.count(True), 50)
        self.assertLess(seen.count(False), 8, "the first step of an epoch does not know how many gradients come")
        self.assert_same(trainings)

    def finish_of(self, training: Training, finish: Callable[..., None]) -> None:
        """Where this process waits for the means of its buckets, it calls `finish` with what waits, instead."""
        original = _torch_buckets.Buckets.finish

        def finish_or(buckets: Any, run: Any, *rest: Any) -> None:
            if run is training.run:
                finish(lambda: original(buckets, run, *rest))
            else:
                original(buckets, run, *rest)

        self.enterContext(unittest.mock.patch.object(_torch_buckets.Buckets, "finish", finish_or))

    def test_a_daemon_that_is_killed_between_a_round_and_its_last_bucket(self) -> None:
        nodes = self.start_nodes(3)
        trainings = self.trainings(nodes, method="average")
        killed = threading.Event()
        is_due = threading.Event()
        begin = _torch_buckets.Buckets._begin

        def begin_some(buckets: Any, run: Any, bucket: Any, early: bool = False) -> None:
            if run is trainings[2].run and is_due.is_set() and bucket is buckets._buckets[-1]:
                bucket.options, bucket.has_mean = gossamer._shared.average_options("never"), False
            else:
                begin(buckets, run, bucket, early)

        self.enterContext(unittest.mock.patch.object(_torch_buckets.Buckets, "_begin", begin_some))

        def die_before(finish: Callable[[], None]) -> None:
            if is_due.is_set() and not killed.is_set():
                nodes[2].kill()
                killed.set()
            finish()

        self.finish_of(trainings[2], die_before)
        for training in trainings:
            training.start()
        wait_until(lambda: min(training.steps for training in trainings) > 30, PATIENCE_S, "three train")
        is_due.set()
        self.assertTrue(killed.wait(PATIENCE_S))
        steps, began = [training.steps for training in trainings[:2]], time.monotonic()
        wait_until(lambda: all(t.steps > s for t, s in zip(trainings, steps)), PATIENCE_S, "both make their step")
        print(f"the step took {time.monotonic() - began:.1f} s")
        wait_until(lambda: all(t.steps > s + 30 for t, s in zip(trainings, steps)), PATIENCE_S, "both train on")
        self.stop_all(trainings)
        for training in trainings[:2]:
            self.assertEqual(len(training.by_round), training.steps, "each step had a round")
        self.assert_same_after_each_round(trainings[:2])

    def test_a_process_that_gives_up_a_bucket_which_others_have(self) -> None:
        trainings = self.trainings(self.start_nodes(3), method="average")
        gave_up: List[int] = []

        def give_up(finish: Callable[[], None]) -> None:
            if trainings[0].steps > 30 and not gave_up:
                gave_up.append(trainings[0].round)
                raise TimeoutError
            finish()

        self.finish_of(trainings[0], give_up)
        for training in trainings:
            training.start()
        wait_until(lambda: min(training.steps for training in trainings) > 80, 2 * PATIENCE_S, "they train on")
        self.stop_all(trainings)
        self.assertNotIn(gave_up[0], trainings[0].by_round)
        self.assert_same_after_each_round(trainings)

    def check_change(self, change: Callable[[Training], None]) -> None:
        """What is done to the gradients after the backward pass counts, and what was begun before is not used."""
        trainings = self.trainings(self.start_nodes(2), method="average", average_members=2)
        seen = self.begun_early(trainings[0])
        self.steps_of_all(trainings, 6)
        wanted: List[List[torch.Tensor]] = []
        means: List[List[torch.Tensor]] = []

        def changed(training: Training) -> None:
            change(training)
            wanted.append([p.grad.clone() for p in training.model.parameters()])
            training.run.average_gradients()
            means.append([p.grad.clone() for p in training.model.parameters()])

        for training in trainings:
            training.before_step = lambda training=training: changed(training)  # type: ignore[method-assign]
        early = seen.count(True)
        self.steps_of_all(trainings, 1)
        self.assertGreater(seen.count(True), early, "some had begun")
        for index, parts in enumerate(zip(*wanted)):
            for given in means:
                torch.testing.assert_close(given[index], sum(parts) / len(parts))
        self.steps_of_all(trainings, 4)
        self.assert_same(trainings)

    def test_gradients_that_are_clamped_through_their_data(self) -> None:
        def clamp(training: Training) -> None:
            for parameter in training.model.parameters():
                parameter.grad.data.clamp_(-1e-3, 1e-3)

        self.check_change(clamp)

    def test_gradients_that_are_clipped(self) -> None:
        def clip(training: Training) -> None:
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1e-4)

        self.check_change(clip)

    def test_a_backward_pass_more_than_before(self) -> None:
        def again(training: Training) -> None:
            torch.nn.functional.mse_loss(training.model(INPUTS[training.part]), TARGETS[training.part]).backward()

        self.check_change(again)

    def test_other_gradients(self) -> None:
        def other(training: Training) -> None:
            for parameter in training.model.parameters():
                parameter.grad = parameter.grad * 2

        self.check_change(other)


if __name__ == "__main__":
    unittest.main()

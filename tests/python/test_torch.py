"""gossamer.torch.attach() with a fake daemon. Skipped, and saying so, without PyTorch."""

import contextlib
import copy
import gc
import itertools
import math
import pickle
import random
import sys
import unittest
import unittest.mock
import warnings
from collections import OrderedDict, namedtuple
from unittest import mock

try:
    import torch
except ImportError as error:
    print(f"SKIPPED: PyTorch cannot be imported ({error}); Debian: apt install python3-torch", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

import numpy

import gossamer.torch as gossamer
import skewed
from contract_daemon import GLOBAL_CLOCK, NOWHERE, ContractDaemon
from gossamer._run import _open_runs
from gossamer._torch_experts import _options_of, _tokens_in, experts_of
from gossamer._torch_partition import linear_partition
from gossamer.sampling import ShuffledSampler


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def train(net, optimizer):
    optimizer.zero_grad()
    net(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()


def available_bytes():
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        return next(int(line.split()[1]) << 10 for line in meminfo if line.startswith("MemAvailable:"))


def alone(net, optimizer=None, **options):
    return gossamer.attach(net, optimizer, job="test", socket=NOWHERE, wait=False, **options)


ELEMENTS = 3 * 4 + 4 + 4 + 4 + 4 * 2 + 2 + 4 + 4  # with the running mean and variance


class Training(unittest.TestCase):
    def test_the_optimizers_step_adds_corrections(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        with ContractDaemon() as daemon, gossamer.attach(
            net, optimizer, job="test", socket=daemon.path, samples_per_step=8
        ) as run:
            self.assertTrue(run.ready)
            client = daemon.client()
            before = [p.detach().clone() for p in net.parameters()]
            client.make_due([0.5] * ELEMENTS)
            train(net, optimizer)
            for old, now in zip(before, net.parameters()):
                self.assertTrue(torch.equal(old + 0.5, now.detach()))
            self.assertEqual(client.publication(3), net[0].weight.detach().flatten()[:3].tolist())
            self.assertEqual((run.clock, run.info().steps), (8, 1))
            run.samples_per_step = 2
            train(net, optimizer)
            self.assertEqual(run.clock, 10)

    def test_a_model_larger_than_half_of_memory_trains(self):
        rows, width = available_bytes() // 8 * 5 // 4 // 64, 64
        # The kernel takes no memory for zeros that nobody writes, and only few rows are trained.
        weight = torch.from_numpy(numpy.zeros((rows, width), numpy.float32))
        net = torch.nn.Embedding(rows, width, sparse=True, _weight=weight)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        with ContractDaemon() as daemon, gossamer.attach(net, optimizer, job="test", socket=daemon.path) as run:
            self.assertEqual(run.info().window_bytes, 8 * 12 << 20)
            self.assertGreater(run.info().elements * 4, available_bytes() // 2)
            client = daemon.client()
            net(torch.tensor([0, 3])).sum().backward()
            client.make_due(None)
            optimizer.step()
            self.assertEqual(client.publication(2 * width), [-0.5] * width + [0.0] * width)
            client.make_due([0.25] * width)  # only for the published fragment; zeros for the rest
            optimizer.step()
            self.assertEqual(net.weight[0, 0].item(), -0.75)
            last = run.info().fragments - 1
            client.make_due([2.0] * width, fragment=last, replace=True)
            optimizer.zero_grad()
            optimizer.step()
            self.assertEqual(net.weight[last * (1 << 20) // width].tolist(), [2.0] * width)

    def test_a_schedule_goes_on_where_the_job_is(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        with ContractDaemon() as daemon:
            with gossamer.attach(net, optimizer, job="test", socket=daemon.path, samples_per_step=8) as run:
                daemon.client().set_u64(GLOBAL_CLOCK, 1000)
                schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5 ** (run.global_clock / 1000))
                self.assertEqual(optimizer.param_groups[0]["lr"], 0.5)
                train(net, optimizer)
                schedule.step()
                # other replicas have trained on more than these 8 samples
                self.assertEqual(optimizer.param_groups[0]["lr"], 0.5)
                daemon.client().set_u64(GLOBAL_CLOCK, 2000)
                schedule.step()
                self.assertEqual(optimizer.param_groups[0]["lr"], 0.25)

    def test_a_sampler_feeds_a_loader(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        run = alone(net, optimizer, samples_per_step=10)
        sampler = ShuffledSampler(100, run)
        loader = torch.utils.data.DataLoader(list(range(100)), batch_size=10, sampler=sampler)
        for epoch in range(2):
            self.assertEqual(sampler.epoch, epoch)
            seen = []
            for batch in loader:
                seen += batch.tolist()
                train(net, optimizer)
            self.assertEqual(sorted(seen), list(range(100)))
        self.assertEqual(run.cursor["sampler"]["epoch"], 2)
        self.assertEqual(sampler.epoch, 2)
        run.close()

    def test_batch_norm_statistics_are_averaged_and_counters_are_not(self):
        net = model()
        with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            self.assertEqual(run.info().elements, ELEMENTS)
            net(torch.randn(8, 3))
            mean, variance = net[1].running_mean.clone(), net[1].running_var.clone()
            count = int(net[1].num_batches_tracked)
            daemon.client().make_due([0.0] * (ELEMENTS - 8) + [1.0] * 8)
            run.step()
            # Each buffer moves from its snapshot (0 or 1) towards its target (1 or 2), and not beyond the target.
            self.assertTrue(torch.equal(net[1].running_mean, torch.minimum(mean + 1, mean.clamp(min=1))))
            self.assertTrue(torch.equal(net[1].running_var, torch.minimum(variance + 1, variance.clamp(min=2))))
            self.assertEqual(int(net[1].num_batches_tracked), count)

    def test_learning_rate_schedulers_work_before_and_after(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        before = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        with alone(net, optimizer) as run:
            after = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
            for _ in range(3):
                train(net, optimizer)
                before.step()
                after.step()
            self.assertEqual(run.info().steps, 3)

    def test_a_closure_and_its_result_pass_through(self):
        net = model()
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=1)

        def closure():
            optimizer.zero_grad()
            loss = net(torch.ones(4, 3)).square().mean()
            loss.backward()
            return loss

        with alone(net, optimizer) as run:
            self.assertIsNotNone(optimizer.step(closure))
            self.assertEqual(run.info().steps, 1)

    def test_an_optimizer_that_another_object_stands_for(self):
        class Prepared(torch.optim.Optimizer):  # like Accelerate's: it lacks what the base class sets up
            def __init__(self, optimizer):
                self.optimizer = optimizer
                self.due = False

            param_groups = property(lambda self: self.optimizer.param_groups)
            defaults = property(lambda self: self.optimizer.defaults)

            def zero_grad(self):
                self.optimizer.zero_grad()

            def step(self, closure=None):
                if self.due:
                    self.optimizer.step(closure)
                self.due = not self.due

        net = model()
        prepared = Prepared(Prepared(torch.optim.SGD(net.parameters(), lr=0.1)))
        prepared.due = True
        with alone(net, prepared) as run:
            for _ in range(4):
                train(net, prepared)
            self.assertEqual(run.info().steps, 1)

    def test_the_optimizer_works_on_after_closing(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        first = alone(net, optimizer)
        with self.assertRaisesRegex(gossamer.GossamerError, "already hooked"):
            first.hook(optimizer)
        first.close()
        train(net, optimizer)
        with alone(net, optimizer) as second:
            train(net, optimizer)
            self.assertEqual(second.info().steps, 1)
        train(net, optimizer)

    def test_a_cell_that_is_run_again_goes_on_with_one_run(self):
        """Each time, the optimizer's step does one step of the run and takes a correction once."""
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        with ContractDaemon() as daemon:
            for time in range(3):
                attach = lambda: gossamer.attach(net, optimizer, job="test", socket=daemon.path)  # noqa: E731
                if time == 0:
                    run = attach()
                else:
                    before = run
                    with self.assertWarnsRegex(gossamer.GossamerWarning, "before: that run was closed"):
                        run = attach()
                    self.assertTrue(before.closed)
                weight = net[0].weight.detach().clone()
                daemon.client(time).make_due([0.5] * ELEMENTS)
                train(net, optimizer)
                self.assertEqual(run.info().steps, 1)
                self.assertTrue(torch.equal(net[0].weight.detach(), weight + 0.5))
            with self.assertRaisesRegex(gossamer.GossamerError, "attached to the job 'test' already"):
                gossamer.attach(net, optimizer, job="other", socket=daemon.path)
            run.close()

    def test_a_run_that_is_dropped_is_closed_and_the_program_is_told(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with ContractDaemon() as daemon:
            run = gossamer.attach(net, optimizer, job="test", socket=daemon.path)
            connection = daemon.client().connection
            with self.assertWarnsRegex(gossamer.GossamerWarning, "keep what attach.. returns"):
                del run
            self.assertEqual(connection.recv(1), b"")
            train(net, optimizer)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                run = gossamer.attach(net, optimizer, job="other", socket=daemon.path)
                train(net, optimizer)
                self.assertEqual(run.info().steps, 1)
                del optimizer  # it ends before the run, as when a cell makes a new one
                del run
            self.assertEqual([str(one.message) for one in warned], [])

    def test_steps_of_other_optimizers_that_the_run_does_not_count_are_told(self):
        def told(attach_it, train_it):
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            with alone(net, optimizer if attach_it else None) as run, warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                train_it(net, optimizer, run)
            return [str(one.message) for one in warned if one.category is gossamer.GossamerWarning]

        def make_new(net, optimizer, _):
            new = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(300):
                train(net, new)

        def take_turns(net, optimizer, _):
            new = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(300):
                train(net, optimizer if step % 10 == 0 else new)

        def go_on(net, optimizer, run):
            for step in range(300):
                train(net, optimizer)
                if step % 10 == 0:
                    run.step()

        def forget_to_step(net, optimizer, _):
            for _ in range(300):
                train(net, optimizer)

        (message,) = told(True, make_new)
        self.assertRegex(message, "an optimizer that was not attached.*counts none of its steps")
        self.assertEqual(told(True, take_turns), [])
        self.assertEqual(told(False, go_on), [])
        self.assertRegex(told(False, forget_to_step)[0], "call run.step")

        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with alone(net, optimizer):
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            gc.collect()  # before PyTorch 2 the hook is part of a cycle
            with self.assertWarnsRegex(gossamer.GossamerWarning, "the optimizer that was attached is gone"):
                for _ in range(300):
                    train(net, optimizer)

    def test_a_model_that_is_trained_instead_of_the_attached_one_is_told_once(self):
        net, other = model(), model()
        optimizer, others = (torch.optim.SGD(one.parameters(), lr=0.1) for one in (net, other))
        with unittest.mock.patch("gossamer.torch._FOREIGN_S", 0.0), alone(net, optimizer) as run:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for step in range(600):  # the models take turns, as in adversarial training
                    train(*((net, optimizer) if step % 100 == 0 else (other, others)))
            with self.assertWarnsRegex(gossamer.GossamerWarning, "only other models are trained here"):
                for _ in range(200):
                    train(other, others)
            with warnings.catch_warnings():
                # On a slow machine the run may be told here that it has been alone for ten seconds.
                warnings.filterwarnings("error", message=".*only other models are trained")
                for _ in range(300):
                    train(other, others)
                run.finish()
        with alone(net, optimizer) as run:  # the warning comes at the end at the latest
            train(net, optimizer)
            for _ in range(200):
                train(other, others)
            with self.assertWarnsRegex(gossamer.GossamerWarning, "only other models are trained here"):
                run.finish()

    def test_steps_by_hand_that_the_hook_has_counted_already_are_told_once(self):
        def told(train_it):
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            with alone(net, optimizer, samples_per_step=8) as run, warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                train_it(net, optimizer, run)
            return [str(one.message) for one in warned if one.category is gossamer.GossamerWarning]

        def count_twice(net, optimizer, run):
            for _ in range(20):
                train(net, optimizer)
                run.step(8)

        def count_the_last_step_at_the_next(net, optimizer, run):
            for _ in range(20):
                run.step()
                train(net, optimizer)

        def train_with_both(net, optimizer, other, run):
            for _ in range(20):
                train(net, optimizer)
                train(net, other)
                run.step()

        def train_with_another_optimizer(net, optimizer, run):
            train_with_both(net, optimizer, torch.optim.SGD(net.parameters(), lr=0.1), run)

        def train_with_a_fused_optimizer(net, optimizer, run):
            try:
                other = torch.optim.Adam(net.parameters(), lr=0.1, fused=True)
            except (RuntimeError, TypeError):  # this version has none for CPUs
                other = torch.optim.Adam(net.parameters(), lr=0.1)
            train_with_both(net, optimizer, other, run)

        def train_without_an_optimizer(net, optimizer, run):
            for _ in range(20):
                train(net, optimizer)
                with torch.no_grad():
                    net[0].bias += 0.1
                run.step()

        def exchange_between_steps(net, optimizer, run):
            for _ in range(20):
                train(net, optimizer)
                run.step(0)

        for mistake in (count_twice, count_the_last_step_at_the_next):
            (message,) = told(mistake)
            self.assertRegex(message, "optimizer.step.. counts.*'test' already.*drop.*run.step")
        for legal in (
            train_with_another_optimizer,
            train_with_a_fused_optimizer,
            train_without_an_optimizer,
            exchange_between_steps,
        ):
            self.assertEqual(told(legal), [], legal.__name__)

    def test_two_models_of_a_program_need_two_names(self):
        generator, discriminator = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(discriminator.parameters(), lr=0.1)
        with alone(generator), self.assertRaisesRegex(gossamer.GossamerError, "another model.*ModuleList"):
            alone(discriminator, optimizer)
        with alone(torch.nn.ModuleList([generator, discriminator])) as run:
            self.assertEqual(run.info().elements, 21)

    def test_parameters_that_the_optimizer_gets_later_are_told(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with alone(net, optimizer) as run:
            train(net, optimizer)
            net[2] = torch.nn.Linear(4, 2)
            optimizer.add_param_group({"params": net[2].parameters()})
            with self.assertWarnsRegex(gossamer.GossamerWarning, r"tensors \(2\) that are not those attached.*\[2, 4\]"):
                train(net, optimizer)
            self.assertEqual(run.info().steps, 2)

    def test_parameters_that_the_model_gets_later_are_told_once(self):
        net = model()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with alone(net) as run:
                net[2] = torch.nn.Linear(4, 5)  # the program replaces the head
                optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                for _ in range(60):
                    train(net, optimizer)
                    run.step()
        (message,) = [str(one.message) for one in warned if one.category is gossamer.GossamerWarning]
        self.assertRegex(message, r"parameters \(2, the first is '2.weight'\) that are not those attached.*attach the changed")

    def test_an_optimizer_of_parameters_that_were_replaced_is_told(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with alone(net, optimizer) as run:
            train(net, optimizer)
            net[0].weight = torch.nn.Parameter(torch.ones(4, 3))  # as load_state_dict(assign=True) does
            train(net, optimizer)
            with self.assertWarnsRegex(gossamer.GossamerWarning, r"tensors \(1\) that are not those.*its present parameters"):
                train(net, optimizer)
            self.assertEqual(run.info().steps, 3)
        with alone(net, torch.optim.SGD(net.parameters(), lr=0.1)), warnings.catch_warnings():
            warnings.simplefilter("error")
            net[1].running_mean = torch.ones(4)  # buffers are not the optimizer's
            for _ in range(3):
                train(net, optimizer)

    def test_a_worker_of_a_loader_attaches_nothing(self):
        class Attaching(torch.utils.data.Dataset):
            def __len__(self):
                return 1

            def __getitem__(self, _):
                try:
                    alone(model())
                except gossamer.GossamerError as error:
                    return str(error)
                return "attached"

        for workers, pattern in ((0, "attached"), (1, "worker of a DataLoader")):
            with self.subTest(workers=workers):
                (said,) = torch.utils.data.DataLoader(Attaching(), num_workers=workers, timeout=60 * (workers > 0))
                self.assertRegex(said[0], pattern)

    def test_steps_that_change_nothing_are_told(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        with alone(net, optimizer), self.assertWarnsRegex(gossamer.GossamerWarning, "changed nothing.*that is trained"):
            for _ in range(60):
                train(net, optimizer)

    @unittest.skipUnless(hasattr(torch, "compile"), "SKIPPED: needs PyTorch 2")
    def test_a_step_that_is_compiled_gossips(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with alone(net, optimizer) as run:
            step = torch.compile(lambda: optimizer.step(), backend="eager")
            for _ in range(5):
                net(torch.randn(8, 3)).square().mean().backward()
                step()
            self.assertEqual(run.info().steps, 5)

    def test_wrong_arguments_say_how_it_is_called(self):
        with self.assertRaisesRegex(TypeError, "'job'"):
            gossamer.attach(model())
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for pattern, model_given, optimizer_given in (
            ("the model comes first", optimizer, net),
            ("the model is a generator", net.parameters(), optimizer),
            ("the model is a OrderedDict", net.state_dict(), optimizer),
            ("the model is a Linear", torch.nn.Linear, optimizer),
            ("the optimizer is a list", net, [optimizer]),
            ("the optimizer is a dict", net, optimizer.state_dict()),
            ("the optimizer is a StepLR", net, torch.optim.lr_scheduler.StepLR(optimizer, 1)),
            ("ScriptModule: attach the module that it was made of", torch.nn.Sequential(torch.jit.script(net)), None),
        ):
            with self.subTest(pattern), self.assertRaisesRegex(gossamer.GossamerError, pattern):
                alone(model_given, optimizer_given)
        for samples in (16.0, 0, -8, float("nan"), None, "16", 2**63):
            with self.assertRaisesRegex(gossamer.GossamerError, "samples_per_step must be a whole number from 1.*batch size"):
                alone(net, optimizer, samples_per_step=samples)
        with alone(net, optimizer, samples_per_step=numpy.int64(16)) as run:
            with self.assertRaisesRegex(gossamer.GossamerError, "not 0: give the batch size"):
                run.samples_per_step = 0
            self.assertEqual(run.samples_per_step, 16)
        alone(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.jit.script(torch.nn.ReLU()))).close()
        with self.assertRaisesRegex(TypeError, "the rest by name"):
            gossamer.attach(net, optimizer, "job", job="test")
        with alone(net) as run, self.assertRaisesRegex(gossamer.GossamerError, "the optimizer is a list"):
            run.hook([optimizer])
        with self.assertRaisesRegex(gossamer.GossamerError, "roles must be a mapping"):
            alone(net, roles=["0.weight"])

    def test_several_parameter_groups_and_an_optimizer_of_another_model(self):
        net = model()
        groups = [{"params": net[0].parameters(), "lr": 0.0}, {"params": net[2].parameters(), "lr": 0.1}]
        optimizer = torch.optim.AdamW(groups, lr=0.1)
        with ContractDaemon() as daemon, gossamer.attach(net, optimizer, job="test", socket=daemon.path) as run:
            before = [p.detach().clone() for p in net.parameters()]
            daemon.client().make_due([1.0] * ELEMENTS)
            train(net, optimizer)
            self.assertEqual(run.info().steps, 1)
            self.assertTrue(torch.equal(net[1].weight.detach(), before[2] + 1))  # this weight is in no parameter group
            self.assertFalse(torch.equal(net[2].weight.detach(), before[4] + 1))
        with self.assertRaisesRegex(gossamer.GossamerError, "updates none of the tensors.*masters="):
            alone(net, torch.optim.SGD(model().parameters(), lr=0.1))

    def test_accumulated_batches_count_at_the_optimizers_step(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with alone(net, optimizer, samples_per_step=3 * 8) as run:
            for batch in range(6):
                net(torch.randn(8, 3)).square().mean().backward()
                if batch % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
            self.assertEqual((run.clock, run.info().steps), (6 * 8, 2))

    def test_a_step_that_the_gradient_scaler_skips_counts_nothing(self):
        """Most optimizers are not called then; fused ones are called, and check themselves."""

        class Fused(torch.optim.Optimizer):
            def step(self, closure=None):
                pass

        net = model()
        optimizer = Fused(net.parameters(), {})
        with alone(net, optimizer, samples_per_step=8) as run:
            for found, clock in ((0.0, 8), (1.0, 8), (0.0, 16)):
                optimizer.found_inf = torch.tensor(found)  # as torch.cuda.amp.GradScaler does
                optimizer.step()
                del optimizer.found_inf
                self.assertEqual(run.clock, clock)

    @unittest.skipUnless(hasattr(getattr(torch, "amp", None), "GradScaler"), "PyTorch has no scaler for CPUs")
    def test_the_gradient_scaler_itself(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        with alone(net, optimizer, samples_per_step=8) as run:
            for factor, clock in ((1.0, 8), (float("inf"), 8), (1.0, 16)):
                optimizer.zero_grad()
                scaler.scale(net(torch.randn(8, 3)).square().mean() * factor).backward()
                scaler.step(optimizer)
                scaler.update()
                self.assertEqual(run.clock, clock)

    def test_autocast_trains_what_is_attached(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with ContractDaemon() as daemon, gossamer.attach(net, optimizer, job="test", socket=daemon.path):
            daemon.client().make_due([0.5] * ELEMENTS)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                train(net, optimizer)
            self.assertEqual(net[0].weight.dtype, torch.float32)
            self.assertEqual(daemon.client().publication(2), net[0].weight.detach().flatten()[:2].tolist())

    def test_state_dicts_are_what_they_are_without(self):
        net, bare = model(), model()
        optimizer, bare_optimizer = (torch.optim.Adam(n.parameters(), lr=0.1) for n in (net, bare))
        with alone(net, optimizer):
            for each, its in ((net, optimizer), (bare, bare_optimizer)):
                torch.manual_seed(2)
                train(each, its)
            self.assertEqual(str(net.state_dict()), str(bare.state_dict()))
            self.assertEqual(str(optimizer.state_dict()), str(bare_optimizer.state_dict()))

    def test_copies_of_what_is_attached_are_not_attached(self):
        """As for a moving average of the weights, or a checkpoint."""
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
        with alone(net, optimizer) as run:
            train(net, optimizer)
            average = torch.optim.swa_utils.AveragedModel(net)
            average.update_parameters(net)
            copies = copy.deepcopy(net), copy.deepcopy(optimizer)
            both = copy.deepcopy({"net": net, "optimizer": optimizer})
            pickled = pickle.loads(pickle.dumps((net, optimizer)))
            copy.deepcopy(schedule)
            for one, its in (copies, (both["net"], both["optimizer"]), pickled):
                train(one, its)
                self.assertEqual(run.info().steps, 1)
            train(net, optimizer)
            self.assertEqual(run.info().steps, 2)
            self.assertFalse(torch.equal(copies[0][0].weight, net[0].weight))

    def test_warnings_point_at_the_users_line(self):
        with self.assertWarnsRegex(gossamer.GossamerWarning, "alone") as caught:
            gossamer.attach(model(), job="test", socket=NOWHERE, timeout_s=0.01).close()
        self.assertEqual(caught.filename, __file__)


class SecondMoments(unittest.TestCase):
    """What Adam knows of the gradients' squares is averaged, as roots, behind the model's own tensors."""

    def adam(self, **options):
        net = torch.nn.Linear(3, 2)
        return net, torch.optim.Adam(net.parameters(), lr=0.1, **options)

    def roots(self, optimizer, net):
        states = [optimizer.state[parameter] for parameter in net.parameters()]
        return [(state["exp_avg_sq"] / (1 - 0.999 ** float(state["step"]))).sqrt().flatten() for state in states]

    def test_corrections_of_the_roots_reach_the_optimizer(self):
        net, optimizer = self.adam()
        with ContractDaemon() as daemon, gossamer.attach(
            net, optimizer, job="test", socket=daemon.path, share_second_moments=True
        ) as run:
            self.assertTrue(run.ready)
            client = daemon.client()
            net(torch.ones(1, 3)).sum().backward()
            client.make_due(None)
            optimizer.step()
            before = torch.cat(self.roots(optimizer, net))
            self.assertTrue(bool((before > 0.9).all()))
            client.make_due([0.0] * 8 + [0.5] * 8)
            optimizer.step()
            published = torch.tensor(client.publication(16))
            after = torch.cat(self.roots(optimizer, net))
            torch.testing.assert_close(published[8:], after, rtol=1e-4, atol=0.0)
            torch.testing.assert_close(after, before + 0.5, rtol=1e-4, atol=0.0)
            # A correction that the codec has made too large does not bring a root near 0.
            client.make_due([0.0] * 8 + [-10.0] * 8)
            optimizer.step()
            self.assertTrue(bool((torch.cat(self.roots(optimizer, net)) > 0.4 * after).all()))

    def test_they_are_learned_from_another_node_at_first(self):
        """As where a model is taken over before the first step."""
        net, optimizer = self.adam()
        with alone(net, optimizer, share_second_moments=True) as run:
            for _, root in run._moments.named:
                root.fill_(5.0)
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            for root in self.roots(optimizer, net):
                torch.testing.assert_close(root, torch.full_like(root, 5.0), rtol=1e-4, atol=0.0)
            # The optimizer's own gradients replace no more of them than they do at a node that has trained for long.
            for _ in range(20):
                optimizer.step()
            for root in self.roots(optimizer, net):
                torch.testing.assert_close(root, torch.full_like(root, 5.0), rtol=0.02, atol=0.0)

    def test_what_others_know_nothing_of_is_known_as_after_a_first_step(self):
        net, optimizer = self.adam()
        with alone(net, optimizer, share_second_moments=True) as run:
            for _, root in run._moments.named:
                root.view(-1)[0] = 5.0
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            for root in self.roots(optimizer, net):
                torch.testing.assert_close(root, torch.tensor([5.0] + [1.0] * (len(root) - 1)), rtol=1e-4, atol=0.0)

    def test_parameters_that_are_added_later_are_told(self):
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        optimizer = torch.optim.Adam(net[0].parameters(), lr=0.1)
        with alone(net, optimizer, share_second_moments=True):
            optimizer.add_param_group({"params": list(net[1].parameters())})
            net(torch.ones(1, 3)).sum().backward()
            with self.assertWarnsRegex(gossamer.GossamerWarning, "second moments of parameters that were added"):
                optimizer.step()

    def test_actions_may_compute_gradients(self):
        net, optimizer = self.adam()
        enabled = []
        with alone(net, optimizer, share_second_moments=True) as run:
            run.every(0.0, lambda: enabled.append(torch.is_grad_enabled()))
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        self.assertEqual(set(enabled), {True})

    def test_parameters_without_gradients_have_none(self):
        net, optimizer = self.adam()
        net.bias.requires_grad = False
        with alone(net, optimizer, share_second_moments=True) as run:
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            self.assertEqual([float(root.sum()) > 0 for _, root in run._moments.named], [True, False])

    def test_masters_in_another_type(self):
        net = torch.nn.Linear(3, 2).bfloat16()
        masters = [parameter.detach().float() for parameter in net.parameters()]
        optimizer = torch.optim.AdamW(masters, lr=0.1)
        with ContractDaemon() as daemon, gossamer.attach(
            net, optimizer, job="test", socket=daemon.path, masters=masters, share_second_moments=True
        ) as run:
            self.assertTrue(run.ready)
            for master in masters:
                master.grad = torch.ones_like(master)
            daemon.client().make_due(None)
            optimizer.step()
            daemon.client().make_due([1.0] * 8 + [0.5] * 8)
            optimizer.step()
            for parameter, master in zip(net.parameters(), masters):
                self.assertTrue(torch.equal(parameter, master.bfloat16()))
            for master in masters:
                self.assertGreater(float(optimizer.state[master]["exp_avg_sq"].min()), 1.5 * 0.002)

    def test_optimizers_without_them_are_refused(self):
        net = torch.nn.Linear(3, 2)
        for optimizer, why in (
            (torch.optim.SGD(net.parameters(), lr=0.1), "not for SGD"),
            (torch.optim.Adamax(net.parameters()), "not for Adamax"),
            (torch.optim.SparseAdam(net.parameters()), "goes without SparseAdam"),
            (torch.optim.Adam(net.parameters(), amsgrad=True), "amsgrad"),
            (None, "needs the optimizer"),
        ):
            with self.assertRaisesRegex(gossamer.GossamerError, why):
                alone(net, optimizer, share_second_moments=True)


class DriftCorrection(unittest.TestCase):
    """Steps leave out what corrections lead back again and again."""

    def still(self):
        """A model that its optimizer does not move."""
        net = torch.nn.Linear(3, 2)
        return net, torch.optim.SGD(net.parameters(), lr=1e-30)

    def step(self, net, optimizer):
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    def test_later_steps_add_a_share_of_the_corrections(self):
        net, optimizer = self.still()
        with ContractDaemon() as daemon, gossamer.attach(
            net, optimizer, job="test", socket=daemon.path, correct_drift=True
        ) as run:
            self.assertTrue(run.ready)
            first = net.weight.detach().clone()
            daemon.client().make_due(None)
            self.step(net, optimizer)
            self.step(net, optimizer)
            torch.testing.assert_close(net.weight.detach(), first)
            daemon.client().make_due([1.0] * 6 + [-1.0] * 2)
            self.step(net, optimizer)
            torch.testing.assert_close(net.weight.detach(), first + 1)
            bias = net.bias.detach().clone()
            # One correction in three steps, of which 0.98 count, and this one: a fifth of it in as many steps.
            self.step(net, optimizer)
            torch.testing.assert_close(net.weight.detach(), first + 1 + 0.2 / 3.94)
            torch.testing.assert_close(net.bias.detach(), bias - 0.2 / 3.94)
            # A call that trains nothing adds nothing.
            run.step(0)
            torch.testing.assert_close(net.weight.detach(), first + 1 + 0.2 / 3.94)

    def test_masters_take_the_model_along(self):
        net = torch.nn.Linear(3, 2).bfloat16()
        masters = [parameter.detach().float() for parameter in net.parameters()]
        optimizer = torch.optim.SGD(masters, lr=1e-30)
        with ContractDaemon() as daemon, gossamer.attach(
            net, optimizer, job="test", socket=daemon.path, masters=masters, correct_drift=True
        ) as run:
            self.assertTrue(run.ready)
            daemon.client().make_due([1.0] * 8)
            optimizer.step()
            before = masters[0].clone()
            optimizer.step()
            torch.testing.assert_close(masters[0], before + 0.2 / 1.98)
            for parameter, master in zip(net.parameters(), masters):
                self.assertTrue(torch.equal(parameter, master.bfloat16()))

    def test_whoever_does_not_has_another_layout(self):
        layouts = set()
        for correct_drift in (False, True):
            with alone(torch.nn.Linear(3, 2), correct_drift=correct_drift) as run:
                layouts.add(run.info().layout_hash)
                self.assertEqual(run.info().elements, 8)
        self.assertEqual(len(layouts), 2)

    def test_small_types_are_refused(self):
        with self.assertRaisesRegex(gossamer.GossamerError, "correct_drift adds too little .*bfloat16.*masters="):
            alone(torch.nn.Linear(3, 2).bfloat16(), correct_drift=True)

    def test_nodes_that_see_different_data_come_to_the_optimum_of_all(self):
        @contextlib.contextmanager
        def node(inputs, outputs, options):
            net = torch.nn.Linear(skewed.INPUTS, 1, bias=False)
            torch.nn.init.zeros_(net.weight)
            optimizer = torch.optim.SGD(net.parameters(), lr=skewed.RATE)

            def step():
                optimizer.zero_grad()
                torch.nn.functional.mse_loss(net(torch.tensor(inputs)), torch.tensor(outputs)).backward()
                optimizer.step()

            with gossamer.attach(net, optimizer, **options):
                yield step

        skewed.check(self, node)


class Bfloat16(unittest.TestCase):
    def test_is_averaged_beside_float32(self):
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1).bfloat16())
        with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            client = daemon.client()
            torch.nn.init.constant_(net[1].weight, 0.5)  # changed in place after attaching
            before = net[0].bias.detach().clone()
            client.make_due([0.0] * 6 + [1.0] * 2 + [0.25, 0.5, 2.0])
            net[1].bias.data = torch.ones(1, dtype=torch.bfloat16)  # and moved in memory
            run.step()
            self.assertTrue(torch.equal(net[0].bias, before + 1))
            self.assertEqual(net[1].weight.dtype, torch.bfloat16)
            self.assertEqual(net[1].weight.float().tolist(), [[0.75, 1.0]])
            self.assertEqual(net[1].bias.float().tolist(), [3.0])
            self.assertEqual(client.publication(11)[8:], [0.75, 1.0, 3.0])
            net[1].bias.data = torch.ones(1)
            with self.assertRaisesRegex(gossamer.GossamerError, "'1.bias' has changed its dtype"):
                run.step()
            net[1].bias.data = torch.ones(1, dtype=torch.bfloat16)

    def test_corrections_are_right_in_the_mean(self):
        """Each correction is a hundredth of the distance between two neighbours, and would be lost by rounding to the
        nearest."""
        net = torch.nn.Module()
        net.w = torch.nn.Parameter(torch.ones(20000, dtype=torch.bfloat16))
        spacing = 2.0**-7
        with ContractDaemon() as daemon, gossamer.attach(
            net, job="test", socket=daemon.path, fragment_elements=1 << 15
        ) as run:
            client = daemon.client()
            for _ in range(10):
                client.make_due([spacing / 100] * 20000)
                run.step()
            mean = float(net.w.detach().float().mean())
            # Standard deviation of the mean: sqrt(0.1 * 0.9 / 20000) * spacing = 0.0021 * spacing.
            self.assertAlmostEqual((mean - 1) / spacing, 0.1, delta=6 * 0.0021)


class Masters(unittest.TestCase):
    """A model in bfloat16, whose optimizer works on copies in float32."""

    def test_masters_are_averaged_and_copied_into_the_model(self):
        net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).bfloat16()
        masters = [p.detach().float().requires_grad_() for p in net.parameters()]
        optimizer = torch.optim.SGD(masters, lr=0.0)
        with self.assertRaisesRegex(gossamer.GossamerError, "masters="):
            alone(net, optimizer)
        with ContractDaemon() as daemon, gossamer.attach(
            net, optimizer, masters=masters, job="test", socket=daemon.path
        ) as run:
            before = [m.detach().clone() for m in masters]
            daemon.client().make_due([0.001] * (6 + 2 + 2 + 2 + 2 + 2))
            for master in masters:
                master.grad = torch.zeros_like(master)
            optimizer.step()
            self.assertEqual(run.info().steps, 1)
            for parameter, master, old in zip(net.parameters(), masters, before):
                self.assertTrue(torch.equal(master.detach(), old + torch.tensor(0.001)))
                self.assertTrue(torch.equal(parameter.detach(), master.detach().bfloat16()))

    def test_masters_of_another_model_are_refused_by_name(self):
        net = torch.nn.Linear(3, 2).bfloat16()
        for masters, pattern in (
            ([torch.zeros(2, 3)], "1 masters for 2 parameters"),
            ([torch.zeros(2), torch.zeros(2, 3)], r"'weight' has a master of torch.float32 and shape \[2\].*\[2, 3\]"),
            ([torch.zeros(2, 3).bfloat16(), torch.zeros(2)], "'weight' has a master of torch.bfloat16"),
        ):
            with self.assertRaisesRegex(gossamer.GossamerError, pattern):
                alone(net, masters=masters)


class Tensors(unittest.TestCase):
    def check_refused(self, pattern, net):
        with self.assertRaisesRegex(gossamer.GossamerError, pattern):
            alone(net)

    def test_tensors_that_cannot_be_averaged_are_named(self):
        self.check_refused("'0.weight'.*float16.*float32", model().half())
        integers = model()
        integers[2].codes = torch.nn.Parameter(torch.zeros(3, dtype=torch.int32), requires_grad=False)
        self.check_refused("'2.codes'.*int32.*local", integers)
        complex_model = torch.nn.Module()
        complex_model.z = torch.nn.Parameter(torch.zeros(3, dtype=torch.complex64))
        self.check_refused("'z'.*complex64", complex_model)

    def test_tensors_in_the_wrong_place_are_named(self):
        elsewhere = torch.nn.Module()
        elsewhere.w = torch.nn.Parameter(torch.empty(3, device="meta"))
        self.check_refused("'w' is on meta, where it has no values", elsewhere)
        strided = torch.nn.Module()
        strided.w = torch.nn.Parameter(torch.zeros(4, 6).t())
        self.check_refused("'w' is not contiguous", strided)
        self.check_refused("'0.weight'.*no shape yet", torch.nn.Sequential(torch.nn.LazyLinear(3)))

    def test_tied_parameters_are_registered_once(self):
        net = torch.nn.Module()
        net.encoder = torch.nn.Linear(3, 4, bias=False)
        net.decoder = torch.nn.Linear(3, 4, bias=False)
        net.decoder.weight = net.encoder.weight
        with alone(net) as run:
            self.assertEqual(run.info().elements, 12)

    def test_parameters_that_are_tied_later_are_named_before_they_are_corrected_twice(self):
        net = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
        with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            net[1].weight.data = net[0].weight.data
            run.step(1)
            before = net[0].weight.detach().clone()
            daemon.client().make_due([1.0] * 32)
            with self.assertRaisesRegex(gossamer.GossamerError, "share memory, so corrections would be added twice"):
                run.step(1)
            self.assertTrue(torch.equal(net[0].weight, before))
            net[1].weight.data = before.clone()
            run.step(1)
            self.assertTrue(torch.equal(net[1].weight, before + 1))

    def test_frozen_parameters_are_averaged_unless_they_are_local(self):
        net = model()
        net[0].requires_grad_(False)
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
        with alone(net, optimizer) as run:
            self.assertEqual(run.info().elements, ELEMENTS)
        with alone(net, optimizer, roles={"0.weight": "local", "0.bias": "local"}) as run:
            self.assertEqual(run.info().elements, ELEMENTS - 16)
            train(net, optimizer)
        with self.assertRaisesRegex(gossamer.GossamerError, "tensors that do not exist: 0.weigth"):
            alone(net, roles={"0.weigth": "local"})

    def test_wrapped_models_have_the_names_of_the_bare_one(self):
        def layout(net):
            with alone(net) as run:
                return run.info().layout_hash

        compiled = torch.nn.Module()  # wraps the model as torch.compile() does
        compiled._orig_mod = model()
        self.assertEqual(layout(model()), layout(compiled))
        self.assertEqual(layout(model()), layout(torch.nn.DataParallel(model())))

    def test_replaced_tensors_are_followed(self):
        net = model()
        with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            net[0].weight.data = torch.full((4, 3), 7.0)  # the parameter's memory moves
            net[1].running_mean = torch.full((4,), -3.0)  # the buffer is another tensor
            daemon.client().make_due([1.0] * ELEMENTS)
            run.step()
            self.assertTrue(torch.equal(net[0].weight.detach(), torch.full((4, 3), 8.0)))
            self.assertTrue(torch.equal(net[1].running_mean, torch.full((4,), -2.0)))

    def test_tensors_are_looked_at_only_when_they_are_about_to_be_read(self):
        """It takes a tenth of a microsecond for each, so for large models it is much at each step."""
        net = model()
        with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            client = daemon.client()
            run._stillness = run._overwriting = None  # these check the first steps only
            run.step()
            with mock.patch.object(run, "_follow_tensors", wraps=run._follow_tensors) as looks:
                run.step()
                net[0].weight.data = torch.full((4, 3), 7.0)
                for _ in range(3):
                    net[0].weight.data += 1
                    run.step()
                looks.assert_not_called()
                client.make_due([1.0] * ELEMENTS)
                run.step()
                looks.assert_called_once()
            self.assertTrue(torch.equal(net[0].weight.detach(), torch.full((4, 3), 11.0)))
            self.assertEqual(run.info().steps, 6)

    def test_the_same_memory_in_another_order_or_length_is_refused(self):
        net = torch.nn.Linear(4, 4, bias=False)
        for other, pattern in (
            (net.weight.data.t(), "not contiguous"),
            (net.weight.data[:2], "changed its dtype or shape"),
        ):
            before = net.weight.data
            with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
                run.step()
                net.weight.data = other
                daemon.client().make_due([1.0] * 16)
                with self.assertRaisesRegex(gossamer.GossamerError, pattern):
                    run.step()
                net.weight.data = before
                run.step()

    def test_buffers_that_averaging_spoils_are_named(self):
        net = model()
        net.register_buffer("mask", torch.full((2, 2), -math.inf))
        with self.assertWarnsRegex(gossamer.GossamerWarning, "the buffer 'mask' holds infinity.*'local'"):
            alone(net).close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            alone(net, roles={"mask": "local"}).close()
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4, momentum=None))
        with self.assertWarnsRegex(gossamer.GossamerWarning, "the batch norm '1' has momentum=None"):
            alone(net).close()

    def test_lbfgs_is_warned_of(self):
        net = model()
        with self.assertWarnsRegex(gossamer.GossamerWarning, "LBFGS"):
            alone(net, torch.optim.LBFGS(net.parameters())).close()

    def test_an_attach_that_is_refused_leaves_no_run_behind(self):
        net = model()
        try:
            gossamer.attach(net, torch.optim.SGD(model().parameters(), lr=0.1), job="resent", socket=NOWHERE)
        except gossamer.GossamerError as error:
            kept = error  # an exception keeps its frames alive
        self.assertIn("updates none", str(kept))
        gossamer.attach(net, job="resnet", socket=NOWHERE, wait=False).close()

    def test_a_run_whose_tensors_have_changed_their_type_closes(self):
        model = torch.nn.Linear(3, 2)
        run = gossamer.attach(model, job="test", socket=NOWHERE, wait=False)
        model.double()
        with self.assertRaisesRegex(gossamer.GossamerError, "changed its dtype"):
            run.close()
        self.assertTrue(run.closed)
        gossamer.attach(model, job="other", socket=NOWHERE, wait=False).close()

    def test_tensors_that_change_their_type_are_refused(self):
        net = model()
        with alone(net) as run:
            net[0].weight.data = torch.zeros(5, 3)
            with self.assertRaisesRegex(gossamer.GossamerError, "'0.weight'.*shape"):
                run.step()
            net[0].weight.data = torch.zeros(4, 3)

    def test_loading_a_checkpoint_in_place_keeps_the_run(self):
        net, other = model(), model()
        torch.nn.init.constant_(other[0].weight, 2.5)
        with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            net.load_state_dict(other.state_dict())
            daemon.client().make_due([0.0] * ELEMENTS)
            run.step()
            self.assertEqual(daemon.client().publication(2), [2.5, 2.5])


class Partitioning(unittest.TestCase):
    """Stages of a pipeline."""

    def test_the_cut_is_the_best_of_all(self):
        generator = random.Random(1)
        for _ in range(300):
            count = generator.randint(1, 9)
            stages = generator.randint(1, count)
            costs = [generator.choice([0, 1, 1, generator.random()]) for _ in range(count)]

            def largest(begins):
                return max(sum(costs[first:end]) for first, end in zip(begins, [*begins[1:], count]))

            cuts = itertools.combinations(range(1, count), stages - 1)
            found = linear_partition(costs, stages)
            self.assertEqual(found, sorted(set(found)))
            self.assertEqual((found[0], len(found)), (0, stages))
            self.assertAlmostEqual(largest(found), min(largest([0, *cut]) for cut in cuts))

    def test_layers_are_cut_by_what_they_take(self):
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # on a busy machine, two threads that wait for each other take a hundred times as long
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 1024), torch.nn.BatchNorm1d(1024), torch.nn.Linear(1024, 1024), torch.nn.Linear(1024, 2)
        )
        before = copy.deepcopy(net.state_dict())
        state = torch.get_rng_state()
        for prefer in ("speed", "memory"):
            cut = gossamer.partition(net, torch.randn(64, 8), stages=3, prefer=prefer)
            self.assertIn(("2",), cut.stages, prefer)
            self.assertEqual(max(cut.costs), cut.costs[cut.stages.index(("2",))])
            self.assertEqual([name for stage in cut.stages for name in stage], ["0", "1", "2", "3"])
        names = [name for stage in range(3) for name in cut.module(stage).state_dict()]
        self.assertEqual(names, list(before))  # the uncut model's names, so that both kinds of replicas meet
        values = torch.randn(64, 8)
        torch.set_rng_state(state)
        net.eval()
        whole = net(values)
        for stage in range(3):
            values = cut.module(stage)(values)
        self.assertTrue(torch.equal(values, whole))
        for name, value in net.state_dict().items():
            self.assertTrue(torch.equal(value, before[name]), name)
        self.assertTrue(all(parameter.grad is None for parameter in net.parameters()))
        memory = gossamer.partition(net, torch.randn(64, 8), stages=1, prefer="memory").costs[0]
        parameters = sum(4 * parameter.numel() for parameter in net.parameters())
        self.assertGreater(memory, 4 * parameters)
        self.assertLess(memory, 4 * parameters + 64 * 4 * 8 * 1024)

    def test_lists_of_layers_are_cut_within(self):
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first = torch.nn.Linear(4, 4)
                self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

            def forward(self, x, y):
                x = self.first(x) + y
                for layer in self.layers:
                    x = x + layer(x)
                return x

        cut = gossamer.partition(Net(), (torch.randn(2, 4), torch.randn(2, 4)), stages=4)
        self.assertEqual(cut.stages, (("first",), ("layers.0",), ("layers.1",), ("layers.2",)))
        with self.assertRaisesRegex(gossamer.GossamerError, "no torch.nn.Sequential"):
            cut.module(0)

    def test_what_cannot_be_cut(self):
        layer = torch.nn.Linear(4, 4)
        net = torch.nn.Sequential(layer, torch.nn.Linear(4, 4))
        for options, why in (
            ({"stages": 3}, "from 1 to the number of the model's layers, 2"),
            ({"stages": 0}, "from 1"),
            ({"stages": 1, "prefer": "beauty"}, "prefer must be"),
        ):
            with self.assertRaisesRegex(gossamer.GossamerError, why):
                gossamer.partition(net, torch.randn(2, 4), **options)

        class Twice(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def forward(self, x):
                return self.layer(self.layer(x))

        with self.assertRaisesRegex(gossamer.GossamerError, "'layer' is called several times.*order of stages$"):
            gossamer.partition(Twice(), torch.randn(2, 4), stages=1)
        act = torch.nn.ReLU()
        with self.assertRaisesRegex(gossamer.GossamerError, "'1' is called several times.*its own for each place"):
            gossamer.partition(torch.nn.Sequential(layer, act, torch.nn.Linear(4, 4), act), torch.randn(2, 4), stages=2)

    def test_layers_may_work_in_place(self):
        net = torch.nn.Sequential(
            torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 4), torch.nn.Dropout(inplace=True), torch.nn.Linear(4, 4)
        )
        sample = torch.randn(8, 4)
        before = sample.clone()
        for prefer in ("speed", "memory"):
            cut = gossamer.partition(net, sample, stages=4, prefer=prefer)
            self.assertEqual(cut.stages, (("0",), ("1",), ("2",), ("3",)))
        self.assertTrue(torch.equal(sample, before))

    def test_a_stage_of_nested_layers_keeps_their_names(self):
        def block():
            return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.ReLU())

        net = torch.nn.Sequential(OrderedDict(head=block(), body=block(), last=torch.nn.Linear(4, 2)))
        for stages in range(1, 8):  # the cuts are also within blocks
            cut = gossamer.partition(net, torch.randn(8, 4), stages=stages)
            modules = [cut.module(stage) for stage in range(stages)]
            self.assertEqual([name for module in modules for name in module.state_dict()], list(net.state_dict()))
            values = torch.randn(8, 4)
            whole = net.eval()(values)
            for module in modules:
                values = module(values)
            self.assertTrue(torch.equal(values, whole))

    def test_a_sequential_with_a_forward_of_its_own_has_no_modules(self):
        class Residual(torch.nn.Sequential):
            def forward(self, x):
                return x + super().forward(x)

        inner = Residual(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        for net in (inner, torch.nn.Sequential(torch.nn.Linear(4, 4), inner)):
            cut = gossamer.partition(net, torch.randn(2, 4), stages=2)
            with self.assertRaisesRegex(gossamer.GossamerError, "Residual is .* forward.. of its own: give split_spec"):
                cut.module(0)

    def test_a_partition_that_fails_changes_nothing(self):
        class Fails(torch.nn.Module):
            def forward(self, x):
                raise KeyboardInterrupt

        unused = torch.nn.Module()
        unused.norm, unused.other = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4)
        unused.forward = unused.norm.forward
        fails = torch.nn.Sequential(torch.nn.BatchNorm1d(4), Fails())
        for net, stages in ((fails, 2), (fails, 99), (fails, "2"), (unused, 2)):
            before = copy.deepcopy(net.state_dict())
            with self.assertRaises(KeyboardInterrupt if (net, stages) == (fails, 2) else gossamer.GossamerError):
                gossamer.partition(net, torch.randn(8, 4), stages=stages)
            for name, value in net.state_dict().items():
                self.assertTrue(torch.equal(value, before[name]), (stages, name))
        calls = []
        fails[0].register_forward_hook(lambda *_: calls.append(1))
        for stages, prefer in ((99, "speed"), ("2", "speed"), (0, "memory"), (2, "beauty")):
            with self.assertRaises(gossamer.GossamerError):
                gossamer.partition(fails, torch.randn(8, 4), stages=stages, prefer=prefer)
        self.assertEqual(calls, [])  # what is wrong with the options is said before anything runs

    def test_buffers_that_a_pass_makes_or_resizes_are_put_back(self):
        class Cache(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("empty", None)
                self.register_buffer("replaced", torch.ones(2))
                self.register_buffer("resized", torch.ones(3))
                self.register_buffer("deleted", torch.ones(1))

            def forward(self, x):
                self.register_buffer("made", torch.zeros(4))
                self.empty = x.detach()
                self.replaced = x.detach()
                self.resized.resize_(5).zero_()
                self._buffers.pop("deleted", None)
                return x

        net = torch.nn.Sequential(Cache(), torch.nn.Linear(4, 4))
        before = dict(net[0]._buffers)
        for prefer in ("speed", "memory"):
            gossamer.partition(net, torch.randn(2, 4), stages=2, prefer=prefer)
            self.assertEqual(list(net[0]._buffers), list(before))
            self.assertTrue(all(net[0]._buffers[name] is buffer for name, buffer in before.items()))
            self.assertEqual(net[0].replaced.tolist(), [1, 1])
            self.assertEqual(net[0].resized.tolist(), [1, 1, 1])

    def test_named_tuples_and_dictionaries_go_between_layers(self):
        Pair = namedtuple("Pair", "x y")

        class Attributes(dict):
            """As the outputs of Hugging Face models."""

            __getattr__ = dict.__getitem__

        class First(torch.nn.Module):
            def forward(self, x):
                return Pair(x, [x, Attributes(x=x)])

        class Second(torch.nn.Module):
            def forward(self, pair):
                return pair.x + pair.y[1].x

        for prefer in ("speed", "memory"):
            cut = gossamer.partition(torch.nn.Sequential(First(), Second()), torch.randn(2, 4), stages=2, prefer=prefer)
            self.assertEqual(cut.stages, (("0",), ("1",)))

    def test_the_backward_pass_is_measured_also_where_gradients_are_off(self):
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
        sample = torch.randn(8, 4)
        expected = gossamer.partition(net, sample, stages=3, prefer="memory").costs
        for off in (torch.no_grad, torch.inference_mode):
            with off():
                self.assertEqual(gossamer.partition(net, sample.clone(), stages=3, prefer="memory").costs, expected)
        backward = []

        def watch(_, inputs, output):
            if output.requires_grad:
                output.register_hook(lambda _: backward.append(1))

        net[0].register_forward_hook(watch)
        with torch.no_grad():
            gossamer.partition(net, sample, stages=3)
            self.assertFalse(torch.is_grad_enabled())
        self.assertNotEqual(backward, [])


class Mixture(torch.nn.Module):
    """Two experts of two layers each. A batch goes to one of them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = torch.nn.Linear(3, 4)
        self.a = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)])
        self.b = torch.nn.Linear(4, 4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, values, expert):
        hidden = self.first(values)
        for layer in self.a if expert == "a" else [self.b]:
            hidden = layer(hidden)
        return self.last(hidden)


class Experts(unittest.TestCase):
    def attached(self, net=None, **options):
        self.net = net or Mixture()
        self.optimizer = torch.optim.Adam(self.net.parameters())
        given = {"a": self.net.a, "b": self.net.b}
        run = alone(self.net, self.optimizer, **{"samples_per_step": 8, "experts": given, **options})
        self.addCleanup(run.close)
        return run

    def train(self, expert, rows=8):
        self.optimizer.zero_grad(set_to_none=True)
        self.net(torch.randn(rows, 3), expert).square().mean().backward()
        self.optimizer.step()

    def names(self, run):
        return [spec.name for spec in run._specs]

    def test_each_expert_is_a_run_of_its_own_and_counts_its_tokens(self):
        run = self.attached()
        self.assertEqual(self.names(run), ["first.weight", "first.bias", "last.weight", "last.bias"])
        self.assertEqual(self.names(run.experts["a"])[:3], ["0.weight", "0.bias", "1.weight"])
        self.assertEqual(self.names(run.experts["b"]), ["weight", "bias"])
        for rows, expert in ((5, "a"), (7, "b"), (2, "b")):
            self.train(expert, rows)
        with torch.no_grad():
            self.net(torch.randn(50, 3), "a")
        self.net.eval()(torch.randn(50, 3), "a")
        self.net.train()
        run.experts["b"].count_tokens(100)
        self.train("b", 1)
        self.assertEqual((run.clock, run.experts["a"].clock, run.experts["b"].clock), (32, 2 * 5, 110))

    def test_all_end_together(self):
        run = self.attached()
        self.train("a")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            end = run.finish(timeout_s=0.1)
        self.assertEqual(list(end.experts), ["a", "b"])
        run.close()
        self.assertTrue(all(expert.closed for expert in run.experts.values()))
        self.train("a")  # nothing of the run is left in the model

    def test_a_model_that_is_attached_again_closes_all_of_its_former_run(self):
        former = self.attached()
        with self.assertWarns(gossamer.GossamerWarning):
            again = alone(self.net, self.optimizer, experts={"a": self.net.a, "b": self.net.b})
        self.addCleanup(again.close)
        self.assertTrue(former.closed and former.experts["b"].closed)
        self.assertFalse(again.experts["b"].closed)

    def test_roles_name_the_models_tensors(self):
        run = self.attached(roles={"a.1.running_mean": "local", "last.bias": "local"})
        roles = {spec.name: spec.role for spec in run.experts["a"]._specs}
        self.assertEqual((roles["1.running_mean"], roles["1.running_var"]), ("local", "buffer"))
        self.assertEqual(run._specs[3].role, "local")
        run.close()
        for wrong in ("a.1.mean", "b.a", "first.a"):
            with self.subTest(wrong), self.assertRaisesRegex(gossamer.GossamerError, f"do not exist: {wrong}"):
                self.attached(roles={wrong: "local"})

    def test_what_is_no_experts_own_is_refused(self):
        net = Mixture()
        tied = Mixture()
        tied.last.weight = torch.nn.Parameter(torch.zeros(2, 4))
        tied.b.weight = tied.a[0].weight
        used = Mixture()
        used.other = torch.nn.Linear(4, 4)
        used.other.weight = used.b.weight
        for words, model, experts in (
            ("a mapping", net, [net.a]),
            ("'x' has a Linear that is no module within", net, {"x": torch.nn.Linear(1, 1)}),
            ("'x' has a Mixture", net, {"x": net}),
            ("'x' has a str", net, {"x": ["a"]}),
            ("'x' has no tensors", net, {"x": []}),
            ("'b' shares tensors", net, {"a": net.a, "b": net.a[0]}),
            ("'b' shares tensors", tied, {"a": tied.a, "b": tied.b}),
            ("'other.weight' is an expert's", used, {"b": used.b}),
            ("called 'x/y'", net, {"x/y": net.b}),
            ("called ''", net, {"": net.b}),
            ("called 0", net, {0: net.b}),
            ("'x+' would be the job".replace("x+", "x" * 60), net, {"x" * 60: net.b}),
            ("'x' has a NoneType", net, {"x": None}),
            ("'x' has a module twice", net, {"x": [net.b, net.b]}),
        ):
            with self.subTest(words), self.assertRaisesRegex(gossamer.GossamerError, words):
                self.attached(model, experts=experts)
        self.assertEqual([run for run in _open_runs if not run.closed], [])

    def test_an_expert_whose_calls_are_not_seen_is_told_of(self):
        run = self.attached()
        self.train("b")  # an earlier call
        seen = run.experts["b"].clock
        with self.assertWarnsRegex(gossamer.GossamerWarning, "expert 'b': it is trained, and no call"):
            for _ in range(110):
                hidden = torch.nn.functional.linear(self.net.first(torch.randn(8, 3)), self.net.b.weight)
                self.optimizer.zero_grad()
                self.net.last(hidden).square().mean().backward()
                self.optimizer.step()
        self.assertEqual(run.experts["b"].clock, seen)

    def test_an_idle_expert_that_only_decays_is_not_told_of(self):
        net = Mixture()
        run = self.attached(net)
        self.optimizer.param_groups[0]["weight_decay"] = 0.1
        self.train("b")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(110):
                self.optimizer.zero_grad(set_to_none=False)
                net(torch.randn(8, 3), "a").square().mean().backward()
                self.optimizer.step()
        self.assertEqual(run.experts["b"].clock, 8)

    def test_a_model_with_experts_is_copied_and_pickled_like_any_other(self):
        run = self.attached()
        copied = copy.deepcopy(self.net)
        copied(torch.randn(50, 3), "a")
        self.train("a", 5)
        again = pickle.loads(pickle.dumps(self.net))
        again(torch.randn(50, 3), "a")
        self.train("a", 5)
        self.assertEqual(run.experts["a"].clock, 2 * 10)

    def test_optimizers_may_share_the_work(self):
        net = Mixture()
        experts = torch.optim.SGD(net.b.parameters(), lr=0.1)
        with alone(net, experts, experts={"b": net.b}) as run:
            net(torch.randn(8, 3), "b").square().mean().backward()
            experts.step()
            self.assertEqual((run.clock, run.experts["b"].clock), (1, 8))
            run.experts["b"].close()
            experts.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.assertEqual(run.finish(timeout_s=0.1).experts, {})

    def test_tokens_are_the_rows_of_what_is_returned(self):
        rows = torch.zeros(3, 4, 5)
        for output in (rows, (rows, None), {"out": rows}, [(rows,)]):
            self.assertEqual(_tokens_in(output), 12)
        self.assertEqual(_tokens_in(None), 1)

    def test_the_jobs_settings_are_the_experts_but_for_exact_averages(self):
        net = Mixture()
        [expert] = experts_of(net, {"b": net.b}, "j")
        for given, expected in (
            (None, {"weights": "samples"}),
            ({"codec": "q4", "weights": "equal"}, {"codec": "q4", "weights": "equal"}),
            ({"method": "average", "average_steps": 4, "codec": "q4"}, {"codec": "q4", "weights": "samples"}),
        ):
            own = _options_of(expert, {"job": "j", "settings": given})
            self.assertEqual((own["job"], own["settings"]), ("j.b", expected))


if __name__ == "__main__":
    unittest.main()

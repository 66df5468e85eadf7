"""gossamer.torch.attach(), against a daemon played through the contract. Skipped, and saying so, without PyTorch."""

import sys
import unittest

try:
    import torch
except ImportError as error:
    print(f"SKIPPED: PyTorch cannot be imported ({error}); Debian: apt install python3-torch", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

import gossamer.torch as gossamer
from contract_daemon import NOWHERE, ContractDaemon


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def train(net, optimizer):
    optimizer.zero_grad()
    net(torch.randn(8, 3)).square().mean().backward()
    optimizer.step()


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

    def test_batch_norm_statistics_are_averaged_and_counters_are_not(self):
        net = model()
        with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            self.assertEqual(run.info().elements, ELEMENTS)
            net(torch.randn(8, 3))
            mean, variance = net[1].running_mean.clone(), net[1].running_var.clone()
            count = int(net[1].num_batches_tracked)
            daemon.client().make_due([0.0] * (ELEMENTS - 8) + [1.0] * 8)
            run.step()
            self.assertTrue(torch.equal(net[1].running_mean, mean + 1))
            self.assertTrue(torch.equal(net[1].running_var, variance + 1))
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


    def test_warnings_point_at_the_users_line(self):
        with self.assertWarnsRegex(gossamer.GossamerWarning, "alone") as caught:
            gossamer.attach(model(), job="test", socket=NOWHERE, timeout_s=0.01).close()
        self.assertEqual(caught.filename, __file__)


class Tensors(unittest.TestCase):
    def check_refused(self, pattern, net):
        with self.assertRaisesRegex(gossamer.GossamerError, pattern):
            alone(net)

    def test_tensors_that_cannot_be_averaged_are_named(self):
        self.check_refused("'0.weight'.*bfloat16.*float32", model().bfloat16())
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
        self.check_refused("'w' is on meta.*cpu", elsewhere)
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

    def test_replaced_tensors_are_followed(self):
        net = model()
        with ContractDaemon() as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            net[0].weight.data = torch.full((4, 3), 7.0)  # the parameter's memory moves
            net[1].running_mean = torch.full((4,), 3.0)  # the buffer is another tensor
            daemon.client().make_due([1.0] * ELEMENTS)
            run.step()
            self.assertTrue(torch.equal(net[0].weight.detach(), torch.full((4, 3), 8.0)))
            self.assertTrue(torch.equal(net[1].running_mean, torch.full((4,), 4.0)))

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


if __name__ == "__main__":
    unittest.main()

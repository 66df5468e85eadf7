"""gossamer.torch.attach() for a model on a GPU, without a GPU: PyTorch's tensors are in CPU memory and said to be on a
GPU. The C library is replaced at the border to C, or works with a fake plug-in. Skipped, and saying so, without
PyTorch.
"""

import contextlib
import os
import sys
import unittest
import warnings
from pathlib import Path
from unittest import mock

try:
    import torch
except ImportError as error:
    print(f"SKIPPED: PyTorch cannot be imported ({error}); Debian: apt install python3-torch", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

import gossamer.torch as gossamer
from contract_daemon import NOWHERE, ContractDaemon, eventually
from gossamer import _library, _torch_cuda
from fake_gpu import FakeGpu

FAKE_PLUGIN = os.environ.get("GOSSAMER_FAKE_CLIENT_PLUGIN")
if not FAKE_PLUGIN:
    built = Path(_library.library()._name).parent / "libfake_client_plugin.so"
    FAKE_PLUGIN = str(built) if built.exists() else None
    if FAKE_PLUGIN is None:
        print(f"SKIPPED: what needs the fake plug-in: {built} is not built", file=sys.stderr)
ELEMENTS = 3 * 4 + 4 + 4 * 2 + 2
GPU = torch.device("cuda", 0)


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))


def alone(net, optimizer=None, **options):
    return gossamer.attach(net, optimizer, job="test", socket=NOWHERE, wait=False, **options)


class FakeMachine:
    """A GPU that holds all tensors except those in `elsewhere` (data pointer -> device), and its current stream."""

    def __init__(self):
        self.elsewhere = {}
        self.stream = 0x10
        self.capturing = False
        self.ordered = []  # (GPU, earlier stream) of each call of order()

    @contextlib.contextmanager
    def patched(self):
        with mock.patch.multiple(
            _torch_cuda,
            device_of=lambda tensor: self.elsewhere.get(tensor.data_ptr(), GPU),
            raw_stream=lambda index: self.stream,
            is_capturing=lambda: self.capturing,
            order=lambda index, before: self.ordered.append((index, before)),
        ):
            yield self


class FakeLibrary:
    """A fake C library with a plug-in: it takes models on a GPU, and records its calls."""

    def __init__(self, path="device"):
        self._real = _library.library()
        self._path = _library.PATHS.index(path)
        self.opened = []  # (device, stream) of each run
        self.streams = []  # the arguments of set_stream()

    def __getattr__(self, name):
        return getattr(self._real, name)

    def gossamer_open(self, options, *rest):
        c_options = options._obj
        self.opened.append((c_options.device, c_options.stream))
        c_options.device, c_options.stream = _library.HOST, None
        return self._real.gossamer_open(options, *rest)

    def gossamer_set_stream(self, run, stream):
        self.streams.append(stream)
        return _library.OK

    def gossamer_info(self, run, info):
        status = self._real.gossamer_info(run, info)
        info._obj.path = self._path
        return status


class CudaTest(unittest.TestCase):
    def setUp(self):
        self.machine = self.enterContext(FakeMachine().patched())

    def play_library(self, path="device"):
        library = FakeLibrary(path)
        self.enterContext(mock.patch.object(_library, "library", lambda: library))
        return library


class OnTheGpu(CudaTest):
    def test_the_run_is_opened_on_the_current_stream(self):
        library = self.play_library()
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        with ContractDaemon() as daemon, warnings.catch_warnings():
            warnings.simplefilter("error")
            with gossamer.attach(net, optimizer, job="test", socket=daemon.path) as run:
                self.assertEqual(library.opened, [(_library.CUDA, 0x10)])
                self.assertEqual(run.info().path, "device")
                before = net[0].bias.detach().clone()
                daemon.client().make_due([0.5] * ELEMENTS)
                net(torch.ones(1, 3)).sum().backward()
                optimizer.step()
                self.assertTrue(torch.equal(net[0].bias.detach(), before + 0.5))
        self.assertEqual((library.streams, self.machine.ordered), ([], []))

    def test_the_default_stream_is_no_pointer(self):
        library = self.play_library()
        self.machine.stream = 0
        alone(model()).close()
        self.assertEqual(library.opened, [(_library.CUDA, None)])

    def test_the_programs_stream_is_followed_and_ordered_after_the_one_before(self):
        library = self.play_library()
        with ContractDaemon() as daemon, gossamer.attach(model(), job="test", socket=daemon.path) as run:
            run.step()
            self.assertEqual(library.streams, [])
            self.machine.stream = 0x20
            run.step()
            run.step()
            self.assertEqual((library.streams, self.machine.ordered), ([0x20], [(0, 0x10)]))
            self.machine.stream = 0
            run.wait()
            self.assertEqual((library.streams, self.machine.ordered[1:]), ([0x20, 0], [(0, 0x20)]))
            self.machine.stream = 0x30
            run.finish(timeout_s=0)
            self.machine.stream = 0x40
        self.assertEqual(library.streams[2:], [0x30, 0x40])  # the run was also closed on that stream

    def test_a_step_inside_a_graph_is_refused(self):
        self.play_library()
        with alone(model()) as run:
            self.machine.capturing = True
            with self.assertRaisesRegex(gossamer.GossamerError, r"CUDA graph.*after each graph\.replay\(\)"):
                run.step()
            self.machine.capturing = False
            run.step()
            self.assertEqual(run.info().steps, 1)

    def test_a_fused_optimizer_is_not_asked_what_it_found_on_the_gpu(self):
        class Found:
            """A tensor on a GPU, where reading it means waiting."""

            data_ptr = staticmethod(lambda: 0)

            def __bool__(self):
                raise AssertionError("waited for the GPU")

        class Fused(torch.optim.Optimizer):
            def step(self, closure=None):
                pass

        self.play_library()
        net = model()
        optimizer = Fused(net.parameters(), {})
        with alone(net, optimizer) as run:
            optimizer.found_inf = Found()
            optimizer.step()
            self.assertEqual(run.info().steps, 1)

    def test_masters_come_to_the_model_when_something_was_published(self):
        self.play_library()
        net = torch.nn.Linear(3, 2).bfloat16()
        masters = [p.detach().float().requires_grad_() for p in net.parameters()]
        with ContractDaemon() as daemon, gossamer.attach(net, masters=masters, job="test", socket=daemon.path) as run:
            before = [p.detach().clone() for p in net.parameters()]
            with torch.no_grad():
                masters[0] += 1
            run.step()  # nothing is due, and the optimizer may do anything with its masters
            self.assertTrue(torch.equal(net.weight.detach(), before[0]))
            daemon.client().make_due([0.25] * 8)
            run.step()
            for parameter, master in zip(net.parameters(), masters):
                self.assertTrue(torch.equal(parameter.detach(), master.detach().bfloat16()))
            self.assertFalse(torch.equal(net.bias.detach(), before[1]))
            daemon.client().make_due([4.0] * 8, replace=True)
        self.assertEqual(net.bias.tolist(), [4.0, 4.0])  # also the values that close() has taken

    def test_the_pinned_path_is_told_once(self):
        self.play_library("pinned")
        with ContractDaemon() as daemon:
            with self.assertWarnsRegex(gossamer.GossamerWarning, "pinned host memory.*docs/how-to/gpu.md") as caught:
                run = gossamer.attach(model(), job="test", socket=daemon.path)
            self.assertEqual(caught.filename, __file__)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                run.wait()
            run.close()


@unittest.skipUnless(FAKE_PLUGIN, "the fake plug-in is not built")
class WithAFakeGpu(CudaTest):
    """The real C library, with the fake plug-in."""

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, GOSSAMER_CLIENT_CUDA_PLUGIN=FAKE_PLUGIN))
        self.gpu = FakeGpu(FAKE_PLUGIN)
        self.train_on(self.gpu.stream)

    def train_on(self, stream):
        self.machine.stream = self.gpu.stream = stream

    def on_gpu(self, net):
        tensors = [p.detach() for p in net.parameters()]
        self.gpu.adopt(tensors)
        self.addCleanup(self.gpu.disown, tensors)
        return net

    def test_a_step_launches_and_does_not_wait(self):
        net = self.on_gpu(model())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        with ContractDaemon(gpu=True) as daemon, gossamer.attach(
            net, optimizer, job="test", socket=daemon.path
        ) as run:
            self.assertEqual(run.info().path, "device")
            client = daemon.client()
            before = [p.detach().clone() for p in net.parameters()]
            launches = self.gpu.launches()
            client.make_due([0.5] * ELEMENTS)
            self.gpu.hold(self.machine.stream)
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()  # hooked: the GPU does nothing yet
            run.step()
            self.assertTrue(client.is_due())
            self.assertEqual(self.gpu.launches(), launches + 1)
            self.assertTrue(torch.equal(net[0].weight.detach(), before[0]))
            self.gpu.release(self.machine.stream)
            self.gpu.synchronize()
            self.assertFalse(client.is_due())
            for now, then in zip(net.parameters(), before):
                self.assertTrue(torch.equal(now.detach(), then + 0.5))
            self.assertEqual(client.publication(12), net[0].weight.detach().flatten().tolist())

    def test_the_launch_is_on_the_stream_that_trains_now(self):
        net = self.on_gpu(model())
        with ContractDaemon(gpu=True) as daemon, gossamer.attach(net, job="test", socket=daemon.path) as run:
            client = daemon.client()
            before = self.gpu.stream
            self.gpu.hold(before)
            self.train_on(self.gpu.new_stream())
            client.make_due([1.0] * ELEMENTS)
            run.step()
            self.gpu.synchronize()
            self.assertFalse(client.is_due())
            self.gpu.release(before)
        self.assertEqual(self.machine.ordered, [(0, before)])

    def test_without_a_daemon_that_shares_the_gpu_memory_is_pinned(self):
        net = self.on_gpu(model())
        with ContractDaemon() as daemon:
            with self.assertWarnsRegex(gossamer.GossamerWarning, "pinned host memory"):
                run = gossamer.attach(net, job="test", socket=daemon.path)
            with run:
                self.assertEqual(run.info().path, "pinned")
                client = daemon.client()
                client.make_due([2.0] * ELEMENTS, replace=True)
                run.step()
                self.gpu.synchronize()
                self.assertEqual(net[1].bias.tolist(), [2.0, 2.0])
                self.assertEqual(client.publication(12), [2.0] * 12)

    def test_masters_follow_on_the_gpu(self):
        net = torch.nn.Linear(3, 2).bfloat16()
        masters = [p.detach().float() for p in net.parameters()]
        self.gpu.adopt(masters)
        self.addCleanup(self.gpu.disown, masters)
        with ContractDaemon(gpu=True) as daemon, gossamer.attach(
            net, masters=masters, job="test", socket=daemon.path
        ) as run:
            client = daemon.client()
            client.make_due([3.0] * 8, replace=True)
            with mock.patch.object(run, "_copy_masters", wraps=run._copy_masters) as copied:
                run.step()
                self.assertEqual(copied.call_count, 1)  # launched after the pass
            # Here nothing orders PyTorch's copy after the pass, so the next copy has what the pass has written.
            self.gpu.synchronize()
            self.assertTrue(eventually(lambda: not client.is_due()))
            run.wait()
            self.assertEqual(net.bias.tolist(), [3.0, 3.0])

    def test_the_drift_is_corrected_there(self):
        net = self.on_gpu(model())
        before = [p.detach().clone() for p in net.parameters()]
        with ContractDaemon(gpu=True) as daemon, gossamer.attach(
            net, job="test", socket=daemon.path, correct_drift=True
        ) as run:
            take = run._drift.take

            def after_the_pass(*arguments):  # the stream would order it so
                self.gpu.synchronize()
                take(*arguments)

            with mock.patch.object(run._drift, "take", after_the_pass):
                daemon.client().make_due([0.5] * ELEMENTS)
                run.step()
            run.step()
        for now, then in zip(net.parameters(), before):
            torch.testing.assert_close(now.detach(), then + 0.5 * (1 + 0.2 / 1.98))

    def test_a_model_that_is_not_all_there_is_refused_by_name(self):
        net = model()
        tensors = [net[0].weight.detach()]
        self.gpu.adopt(tensors)
        self.addCleanup(self.gpu.disown, tensors)
        with self.assertRaisesRegex(gossamer.GossamerError, "0.bias"):
            alone(net)


class Order(unittest.TestCase):
    def test_the_default_stream_is_waited_for_like_others(self):
        """PyTorch would make a new stream of the pointer 0."""
        with mock.patch.multiple(
            torch.cuda, default_stream=mock.DEFAULT, ExternalStream=mock.DEFAULT, current_stream=mock.DEFAULT
        ) as parts:
            _torch_cuda.order(1, 0)
            parts["current_stream"].return_value.wait_stream.assert_called_with(parts["default_stream"].return_value)
            _torch_cuda.order(1, 0x20)
            parts["ExternalStream"].assert_called_once_with(0x20, device=1)
            parts["current_stream"].return_value.wait_stream.assert_called_with(parts["ExternalStream"].return_value)


class Places(CudaTest):
    def check_refused(self, pattern, net, **options):
        with self.assertRaisesRegex(gossamer.GossamerError, pattern):
            alone(net, **options)

    def test_several_gpus_are_several_processes(self):
        net = model()
        self.machine.elsewhere[net[1].weight.data_ptr()] = torch.device("cuda", 1)
        self.check_refused(r"'1.weight' is on cuda:1, but '0.weight' is on cuda:0.*gossamerctl run", net)

    def test_a_part_in_cpu_memory_is_named(self):
        net = model()
        self.machine.elsewhere[net[1].bias.data_ptr()] = torch.device("cpu")
        self.check_refused(r"'1.bias' is on cpu, but '0.weight' is on cuda:0.*model.to\('cuda:0'\).*role local", net)
        self.play_library()
        with alone(net, roles={"1.bias": "local"}) as run:
            self.assertEqual(run.info().elements, ELEMENTS - 2)

    def test_tensors_that_cannot_be_averaged_are_named_there_too(self):
        self.check_refused("'0.weight'.*float16.*float32", model().half())

    def test_a_tensor_that_moves_away_is_refused(self):
        self.play_library()
        net = model()
        with alone(net) as run:
            whole = net[0].weight.data
            net[0].weight.data = torch.zeros(4, 3)
            self.machine.elsewhere[net[0].weight.data_ptr()] = torch.device("cuda", 1)
            with self.assertRaisesRegex(gossamer.GossamerError, "'0.weight' has moved to cuda:1.*attach again"):
                run.step()
            net[0].weight.data = whole


class WithoutThePlugin(CudaTest):
    """The C library refuses the GPU and gets copies in host memory."""

    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(os.environ, GOSSAMER_CLIENT_CUDA_PLUGIN="/nonexistent/plugin.so"))

    def attach(self, net, optimizer=None, **options):
        with self.assertWarnsRegex(gossamer.GossamerWarning, "copies in host memory.*gossamer-cuda") as caught:
            run = gossamer.attach(net, optimizer, job="test", **options)
        self.assertEqual(caught.filename, __file__)
        return run

    def test_trains_through_copies_and_says_so(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with ContractDaemon() as daemon, self.attach(net, optimizer, socket=daemon.path) as run:
            self.assertEqual(run.info().path, "host")
            client = daemon.client()
            net(torch.ones(2, 3)).sum().backward()
            expected = [p.detach() - 0.1 * p.grad + 0.5 for p in net.parameters()]
            client.make_due([0.5] * ELEMENTS)
            optimizer.step()
            for now, then in zip(net.parameters(), expected):
                self.assertTrue(torch.allclose(now.detach(), then, rtol=0, atol=1e-6))
            self.assertEqual(client.publication(12), net[0].weight.detach().flatten().tolist())
            self.machine.stream = 0x20  # copies are waited for, on any stream
            client.make_due([2.0] * ELEMENTS, replace=True)
            run.step()
            self.assertEqual(net[1].bias.tolist(), [2.0, 2.0])

    def test_replaced_tensors_are_followed(self):
        net = model()
        with ContractDaemon() as daemon, self.attach(net, socket=daemon.path) as run:
            net[0].weight.data = torch.full((4, 3), 7.0)
            daemon.client().make_due([1.0] * ELEMENTS)
            run.step()
            self.assertEqual(net[0].weight.tolist(), [[8.0] * 3] * 4)
            self.assertEqual(daemon.client().publication(12), [8.0] * 12)

    def test_takes_over_a_model_in_bfloat16_with_masters(self):
        net = torch.nn.Linear(3, 2).bfloat16()
        masters = [p.detach().float() for p in net.parameters()]
        with ContractDaemon() as daemon, self.attach(net, masters=masters, socket=daemon.path) as run:
            daemon.client().make_due([1.5] * 8, replace=True)
            run.step()
            self.assertEqual(masters[0].tolist(), [[1.5] * 3] * 2)
            self.assertEqual(net.bias.tolist(), [1.5, 1.5])

    def test_other_refusals_are_errors(self):
        with self.assertRaisesRegex(gossamer.GossamerError, "job"):
            gossamer.attach(model(), job="no job has spaces", socket=NOWHERE, wait=False)


if __name__ == "__main__":
    unittest.main()

"""gossamer.torch.attach() for a model on a device that is neither a processor nor NVIDIA's GPU, such as XPU or MPS: a
device of our own, through PyTorch's PrivateUse1. Skipped, and saying so, where PyTorch has no such devices in Python.
"""

import sys
import unittest
import warnings

try:
    import torch
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as set_up_device
except ImportError as error:
    print(f"SKIPPED: PyTorch has no devices in Python ({error}); tools/test --frameworks installs one", file=sys.stderr)
    sys.exit(77)  # CTest: skipped

import gossamer.torch as gossamer
from contract_daemon import NOWHERE, ContractDaemon

# The data of the fake device's tensors are in host memory. A parameter is another object than the tensor it is made of,
# with the same storage.
set_up_device("fake")
fallback = torch.library.Library("_", "IMPL")
hosts = {}


def key_of(tensor):
    return tensor.untyped_storage()._cdata


def on_host(value):
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return hosts[key_of(value)] if isinstance(value, torch.Tensor) and value.device.type == "fake" else value


def on_device(value, inputs):
    if not isinstance(value, torch.Tensor):
        return value
    for given in inputs:  # an operation in place returns one of its inputs
        if on_host(given) is value:
            return given
    result = torch._C._acc.create_empty_tensor(value.shape, value.dtype)
    hosts[key_of(result)] = value
    return result


def compute(operation, *arguments, **options):
    leaves, structure = torch.utils._pytree.tree_flatten((arguments, options))
    arguments, options = torch.utils._pytree.tree_unflatten([on_host(leaf) for leaf in leaves], structure)
    if operation is torch.ops.aten._copy_from.default:
        arguments[1].copy_(arguments[0])
        return leaves[1]
    results = operation(*arguments, **options)
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return torch.utils._pytree.tree_map(lambda result: on_device(result, given), results)


fallback.fallback(compute, "PrivateUse1")


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).to("fake")


ELEMENTS = 3 * 4 + 4 + 4 * 2 + 2


def train(net, optimizer):
    optimizer.zero_grad()
    net(torch.ones(8, 3).to("fake")).square().mean().backward()
    optimizer.step()


class OtherDevice(unittest.TestCase):
    def test_a_model_on_it_is_averaged_through_host_memory(self):
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        with ContractDaemon() as daemon:
            with self.assertWarnsRegex(gossamer.GossamerWarning, "copies in host memory.*model is on fake:0"):
                run = gossamer.attach(net, optimizer, job="test", socket=daemon.path, samples_per_step=8)
            train(net, optimizer)
            before = net[0].weight.detach().cpu()
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            daemon.client().make_due([0.5] * ELEMENTS)
            train(net, optimizer)
            after = net[0].weight.detach().cpu()
            self.assertTrue(torch.equal(after, before + 0.5))
            self.assertEqual(daemon.client().publication(3), after.flatten()[:3].tolist())
            self.assertEqual((run.clock, run.info().steps), (16, 2))
            run.close()
        self.assertEqual(net[0].weight.device.type, "fake")

    def test_second_moments_on_it_are_shared_through_host_memory(self):
        net = model()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1, foreach=False)
        with ContractDaemon() as daemon, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = gossamer.attach(net, optimizer, job="test", socket=daemon.path, share_second_moments=True)
            daemon.client().make_due(None)
            train(net, optimizer)
            daemon.client().make_due([0.0] * ELEMENTS + [0.5] * ELEMENTS)
            train(net, optimizer)
            square = optimizer.state[net[0].weight]["exp_avg_sq"].cpu()
            published = torch.tensor(daemon.client().publication(ELEMENTS + 12))[ELEMENTS:]
            run.close()
        self.assertGreater(float(published.min()), 0.49)
        torch.testing.assert_close((square / (1 - 0.999**2)).sqrt().flatten(), published, rtol=1e-4, atol=0.0)

    def test_what_is_apart_is_refused(self):
        net = model()
        net[2].to("cpu")
        with self.assertRaisesRegex(gossamer.GossamerError, "'2.weight' is on cpu, but '0.weight' is on fake:0"):
            gossamer.attach(net, job="test", socket=NOWHERE, wait=False)
        with self.assertRaisesRegex(gossamer.GossamerError, "'0.weight' is on meta.*has no values"):
            gossamer.attach(model().to("meta"), job="test", socket=NOWHERE, wait=False)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    unittest.main()

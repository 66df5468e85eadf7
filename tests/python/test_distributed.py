"""gossamer.torch.attach() in programs of several processes, as docs/how-to/train-in-python.md shows them: data parallel inside a node,
and models in shards. Real process groups (gloo) of two, and a fake daemon. Skipped, and saying so, without PyTorch; the
shards also without its distributed tensors.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from collections import OrderedDict

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"SKIPPED: PyTorch cannot be imported ({error}); Debian: apt install python3-torch", file=sys.stderr)
    sys.exit(77)  # CTest: skipped
try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError:
    fully_shard = None

import gossamer.torch as gossamer
from contract_daemon import JOB, ContractDaemon, eventually

RANKS = 2
LOADING_S = 100  # for all ranks; PyTorch is slow to load on a busy machine
BROADCAST_EVERY = 4


def wait_for_correction(rank, folder):
    """Tells the test that this rank is attached, and waits until the test has made a correction due."""
    open(f"{folder}/attached{rank}", "x").close()
    eventually(lambda: os.path.exists(f"{folder}/due"))


def data_parallel(rank, socket, folder):
    """Rank 0 gossips, and the others get its model every few steps. A correction of 1 is due at the first step."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if rank == 0:
        run = gossamer.attach(model, optimizer, job="test", socket=socket, samples_per_step=RANKS * 8)
        wait_for_correction(rank, folder)
    replica = torch.nn.parallel.DistributedDataParallel(model)  # gives rank 0's model to all
    for step in range(BROADCAST_EVERY):
        optimizer.zero_grad()
        replica(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
    apart = model.weight.detach().clone()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    moved = (model.weight.detach() - apart).mean()
    print(f"{float(moved):.3f}", model.weight.detach().flatten().tolist())
    if rank == 0:
        run.close()


def shards(rank, socket, folder):
    """Each rank attaches its shard as a job of its own. A correction of 1 + rank is due at the first step."""
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 4, bias=False)
    before = model.weight.detach().clone()
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = gossamer.attach(model, optimizer, job=f"test-shard{rank}", socket=socket, samples_per_step=8)
    wait_for_correction(rank, folder)
    for _ in range(2):
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    added = model.weight.full_tensor().detach() - before
    print([round(x, 3) for x in added.mean(1).tolist()], run.clock)


def parts(rank, socket, folder):
    """The shards of a model are one replica in parts. A correction of 1 is due at the first step."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))  # one group of shards
    fully_shard(model, mesh=init_device_mesh("cpu", (RANKS,)))
    before = model[0].weight.full_tensor().detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = gossamer.attach(model, optimizer, job="test", socket=socket, samples_per_step=8)
    wait_for_correction(rank, folder)
    dist.barrier()
    for _ in range(3):
        model(torch.randn(8, 3)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.barrier()
    with torch.no_grad():  # FSDP leaves parameters whole after an evaluation
        model.eval()(torch.randn(8, 3))
    run.step(0)
    model.reshard()
    added = model[0].weight.full_tensor().detach() - before
    info = run.info()
    print([round(x, 3) for x in added.mean(1).tolist()], run.clock, info.parts, info.part == rank, info.elements)


def stages(rank, socket, folder):
    """Each rank has a layer of a model. A correction of 1 is due at the first step."""
    model = torch.nn.Sequential(OrderedDict([(str(rank), torch.nn.Linear(3, 3, bias=False))]))
    before = model[0].weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    run = gossamer.attach(model, optimizer, job="test", socket=socket, group=dist.group.WORLD)
    wait_for_correction(rank, folder)
    dist.barrier()
    for _ in range(3):
        run.step(1)
        dist.barrier()
    print(round(float((model[0].weight.detach() - before).mean()), 3), run.clock, run.info().elements)


class Distributed(unittest.TestCase):
    def run_ranks(self, what, attached, make_due):
        """Returns the lines that the ranks print. `make_due` is called with the daemon once this many ranks are
        `attached`."""
        with tempfile.TemporaryDirectory() as folder, ContractDaemon() as daemon:
            arguments = [sys.executable, "-B", __file__, what, daemon.path, folder]
            ranks = [subprocess.Popen([*arguments, str(rank)], stdout=subprocess.PIPE, text=True) for rank in range(RANKS)]
            try:
                ready = [f"{folder}/attached{rank}" for rank in range(attached)]
                self.assertTrue(eventually(lambda: all(map(os.path.exists, ready)), LOADING_S))
                make_due(daemon)
                open(f"{folder}/due", "x").close()
                lines = [rank.communicate(timeout=LOADING_S)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
        self.assertEqual([rank.returncode for rank in ranks], [0] * RANKS)
        return [line.strip() for line in lines]

    def test_data_parallel_inside_a_node(self):
        lines = self.run_ranks("data_parallel", 1, lambda daemon: daemon.client().make_due([1.0] * 8))
        moved, models = zip(*(line.split(" ", 1) for line in lines))
        self.assertEqual(models[0], models[1])
        # Only the correction was missing elsewhere: the ranks had the same gradients.
        self.assertEqual(moved, ("0.000", "1.000"))

    @unittest.skipUnless(fully_shard, "PyTorch has no distributed tensors (2.4 or later has)")
    def test_shards_are_jobs_of_their_own(self):
        def make_due(daemon):
            for index in range(RANKS):
                client = daemon.client(index)
                job = client.memory[JOB : JOB + 64].rstrip(b"\0").decode()
                client.make_due([1.0 + int(job[len("test-shard") :])] * 6)

        lines = self.run_ranks("shards", RANKS, make_due)
        self.assertEqual(lines, ["[1.0, 1.0, 2.0, 2.0] 16"] * RANKS)

    @unittest.skipUnless(fully_shard, "PyTorch has no distributed tensors (2.4 or later has)")
    def test_shards_that_give_one_job_are_one_replica(self):
        elements = 3 * 5 + 5 + 4 * 5  # with the batch norm's statistics
        lines = self.run_ranks("parts", RANKS, lambda daemon: daemon.client().make_due([1.0] * elements))
        self.assertEqual(lines, [f"[1.0, 1.0, 1.0, 1.0, 1.0] 48 2 True {elements}"] * RANKS)

    def test_stages_of_a_pipeline_are_one_replica(self):
        lines = self.run_ranks("stages", RANKS, lambda daemon: daemon.client().make_due([1.0] * 18))
        self.assertEqual(lines, ["1.0 6 18"] * RANKS)


def main(what, socket, folder, rank):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=int(rank), world_size=RANKS)
    {"data_parallel": data_parallel, "shards": shards, "parts": parts, "stages": stages}[what](int(rank), socket, folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) == 5:
        main(*sys.argv[1:])
    else:
        unittest.main()

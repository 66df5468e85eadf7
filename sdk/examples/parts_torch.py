"""One model on handwritten digits, held in different ways by different machines: whole, in shards (FSDP2), in
tensor-parallel parts, or as stages of a pipeline. All of them train it together. Start it with torchrun in as many
processes as the model is to have parts on this machine; what Gossamer adds is marked. Needs PyTorch 2.6.
torchrun --standalone --nproc-per-node 3 parts_torch.py --how shards|tensor|pipeline [STEPS]
python3 parts_torch.py [STEPS]
"""

import argparse
import os
import time
from collections import OrderedDict

import torch
import torch.distributed as dist
from torch import nn

import digits
import gossamer.torch as gossamer  # <- Gossamer

BATCH = 48

parser = argparse.ArgumentParser(description="One model in parts, which each machine cuts as it likes.")
parser.add_argument("steps", type=int, nargs="?", default=600)
parser.add_argument("--how", choices=["whole", "shards", "tensor", "pipeline"], default="whole")
parser.add_argument("--others", type=int, default=0, help="begin when so many other machines take part")
options = parser.parse_args()
parts = int(os.environ.get("WORLD_SIZE", 1))
if (parts == 1) != (options.how == "whole"):
    parser.error("a model that is whole is in one process, and one in parts is started by torchrun in several")

images, labels, test_images, test_labels = (torch.from_numpy(array) for array in digits.load())
torch.manual_seed(0)  # the parts begin with one model
model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))
loss_of = nn.functional.cross_entropy
rank, group, schedule = 0, None, None

if parts > 1:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (parts,))
if options.how == "shards":
    from torch.distributed.fsdp import fully_shard

    for layer in (model[0], model[2], model[4], model):
        fully_shard(layer, mesh=mesh)
elif options.how == "tensor":
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
elif options.how == "pipeline":
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    # The first process cuts the model. Each stage has its layers under the names that they have in the whole.
    cut = [gossamer.partition(model, images[: BATCH // 4], stages=parts).stages if rank == 0 else None]  # <- Gossamer
    dist.broadcast_object_list(cut, 0)
    layers = cut[0][rank]
    model = nn.Sequential(OrderedDict((name, model[int(name)]) for name in layers))
    stage = PipelineStage(model, rank, parts, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
    group = dist.group.WORLD

optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# In shards each process has a batch of its own. Otherwise all processes work on the same batch, and each counts its
# share.
samples = BATCH if options.how in ("whole", "shards") else BATCH // parts
run = gossamer.attach(model, optimizer, job="parts-torch", samples_per_step=samples, group=group)  # <- Gossamer

while run.info().neighbours < options.others:
    run.step(0)
    time.sleep(0.01)
if parts > 1:
    dist.barrier()
draw = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "little"))
if options.how in ("tensor", "pipeline"):  # the same numbers in all parts
    state = draw.get_state()
    dist.broadcast(state, 0)
    draw.set_state(state)
for step in range(options.steps):
    batch = torch.randint(len(images), (BATCH,), generator=draw)
    optimizer.zero_grad()
    if schedule is None:
        loss_of(model(images[batch]), labels[batch]).backward()
    elif rank == 0:
        schedule.step(images[batch])
    else:
        schedule.step(target=labels[batch]) if rank == parts - 1 else schedule.step()
    optimizer.step()

run.finish()  # <- Gossamer
with torch.no_grad():
    if schedule is None:
        scores = model(test_images)
        accuracy = (scores.argmax(dim=1) == test_labels).float().mean()
    else:  # stage by stage
        values = test_images
        if rank > 0:
            shape = [None]
            dist.recv_object_list(shape, rank - 1)
            values = torch.empty(shape[0])
            dist.recv(values, rank - 1)
        values = model(values)
        if rank < parts - 1:
            dist.send_object_list([tuple(values.shape)], rank + 1)
            dist.send(values, rank + 1)
        accuracy = (values.argmax(dim=1) == test_labels).float().mean() if rank == parts - 1 else None
run.close()  # <- Gossamer
if accuracy is not None:
    print(f"accuracy {accuracy:.4f}")
if parts > 1:
    dist.destroy_process_group()

"""A multi-layer perceptron on handwritten digits with PyTorch's DistributedDataParallel inside each machine and gossip
between machines. Start it on each: torchrun --standalone --nproc-per-node 2 digits_torchrun.py [STEPS]; what Gossamer
adds is marked.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

import digits
import gossamer.torch as gossamer  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
on_gpus = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpus else "gloo")
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
images, labels, test_images, test_labels = (torch.from_numpy(array).to(device) for array in digits.load())

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
run = gossamer.attach(  # <- Gossamer: on every rank, before the model is wrapped, with the samples of all ranks
    model, optimizer, job="digits-torchrun", samples_per_step=dist.get_world_size() * 32
)
replica = nn.parallel.DistributedDataParallel(model, device_ids=[device] if on_gpus else None)

for step in range(steps):
    batch = torch.randint(len(images), (32,), device=device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(replica(images[batch]), labels[batch]).backward()
    optimizer.step()

run.close()  # <- Gossamer
with torch.no_grad():
    accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean()
if dist.get_rank() == 0:
    print(f"accuracy {accuracy:.4f}")
dist.destroy_process_group()

"""A small convolutional network on handwritten digits in PyTorch, on the processor or a GPU. Start it on as many machines
as there are, or with `gossamerctl run` on each GPU of one; what Gossamer adds is marked.
digits_torch.py [STEPS] [--device auto|cpu|cuda|cuda:INDEX]
"""

import argparse
import os

import torch
from torch import nn

import digits
import gossamer.torch as gossamer  # <- Gossamer

parser = argparse.ArgumentParser(description="A small convolutional network on handwritten digits.")
parser.add_argument("steps", type=int, nargs="?", default=1000)
parser.add_argument("--device", default="auto", help="auto (the default): a GPU if there is one; cpu, cuda or cuda:INDEX")
options = parser.parse_args()
if options.device == "auto":
    options.device = "cuda" if torch.cuda.is_available() else "cpu"
if options.device.startswith("cuda") and not torch.cuda.is_available():
    parser.error("PyTorch sees no CUDA GPU here: use --device cpu")
device = torch.device(options.device)
if device.type == "cuda":
    # `gossamerctl run` shows each process only its own GPU. `torchrun` shows all of them, and its rank tells which one
    # is a process's own.
    if device.index is None:
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())
    torch.cuda.set_device(device)

images, labels, test_images, test_labels = (torch.from_numpy(array).to(device) for array in digits.load())

model = nn.Sequential(
    nn.Unflatten(1, (1, 8, 8)),
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 4 * 4, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

run = gossamer.attach(model, optimizer, job="digits-torch", samples_per_step=32)  # <- Gossamer

for step in range(options.steps):
    batch = torch.randint(len(images), (32,), device=device)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()

run.close()  # <- Gossamer
model.eval()
with torch.no_grad():
    accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean()
print(f"accuracy {accuracy:.4f}")

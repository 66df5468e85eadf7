"""The network of digits_torch.py with Hugging Face Accelerate, one process on each machine; what Gossamer adds is marked.
digits_accelerate.py [STEPS]
"""

import sys

import torch
from accelerate import Accelerator
from torch import nn

import digits
import gossamer.torch as gossamer  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
images, labels, test_images, test_labels = (torch.from_numpy(array) for array in digits.load())
data = torch.utils.data.TensorDataset(images, labels)

accelerator = Accelerator(gradient_accumulation_steps=2)
model = nn.Sequential(
    nn.Unflatten(1, (1, 8, 8)),
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(16 * 4 * 4, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
sampler = torch.utils.data.RandomSampler(data, replacement=True, num_samples=16 * 2 * steps)
model, optimizer, batches = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, 16, sampler=sampler))

run = gossamer.attach(model, optimizer, job="digits-accelerate", samples_per_step=32)  # <- Gossamer

for inputs, targets in batches:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        optimizer.zero_grad()

run.close()  # <- Gossamer
model.eval()
with torch.no_grad():
    accuracy = (model(test_images.to(accelerator.device)).argmax(dim=1).cpu() == test_labels).float().mean()
print(f"accuracy {accuracy:.4f}")

"""A small convolutional network on handwritten digits in PyTorch. Start it on as many machines as there are; what
Gossamer adds is marked. digits_torch.py [STEPS]
"""

import sys

import torch
from torch import nn

import digits
import gossamer.torch as gossamer  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
images, labels, test_images, test_labels = (torch.from_numpy(array) for array in digits.load())

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
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

run = gossamer.attach(model, optimizer, job="digits-torch", samples_per_step=32)  # <- Gossamer

for step in range(steps):
    batch = torch.randint(len(images), (32,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()

run.close()  # <- Gossamer
model.eval()
with torch.no_grad():
    accuracy = (model(test_images).argmax(dim=1) == test_labels).float().mean()
print(f"accuracy {accuracy:.4f}")

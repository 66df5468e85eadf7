"""A character language model in PyTorch: a GRU on the licences in /usr/share/common-licenses. Start it on as many
machines as there are; what Gossamer adds is marked. text_torch.py [STEPS]
"""

import sys
from pathlib import Path

import torch
from torch import nn

import gossamer.torch as gossamer  # <- Gossamer

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
text = b"\n".join(Path("/usr/share/common-licenses", name).read_bytes() for name in ("GPL-3", "LGPL-2.1", "GFDL-1.3"))
symbols = sorted(set(text))
data = torch.tensor([symbols.index(byte) for byte in text])
held_out, data = data[:8000], data[8000:]
LENGTH = 32


class Characters(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.embedding = nn.Embedding(count, 32)
        self.memory = nn.GRU(32, 128, batch_first=True)
        self.next = nn.Linear(128, count)

    def forward(self, x):
        return self.next(self.memory(self.embedding(x))[0])


def loss(windows):
    predicted = model(windows[:, :-1])
    return nn.functional.cross_entropy(predicted.flatten(0, 1), windows[:, 1:].flatten())


model = Characters(len(symbols))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

run = gossamer.attach(model, optimizer, job="text-torch", samples_per_step=16)  # <- Gossamer

for step in range(steps):
    starts = torch.randint(len(data) - LENGTH, (16,))
    optimizer.zero_grad()
    loss(torch.stack([data[start : start + LENGTH + 1] for start in starts])).backward()
    optimizer.step()

run.close()  # <- Gossamer
with torch.no_grad():
    print(f"loss {loss(held_out[: 100 * 80].reshape(100, 80)):.4f}")

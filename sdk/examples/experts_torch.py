"""A mixture of experts on handwritten digits, of which each machine holds some. The digits come in three kinds: as they are,
mirrored, and on their side. A machine has the kinds that it is given, and an expert for each; the layers around the
experts are common to all. What Gossamer adds is marked. Needs PyTorch.
python3 experts_torch.py KIND,... [STEPS]        with KIND of plain, mirrored, turned
"""

import argparse
import time

import torch
from torch import nn

import digits
import gossamer.torch as gossamer  # <- Gossamer

BATCH = 48
CHANGES = {"plain": lambda image: image, "mirrored": lambda image: image.flip(2), "turned": lambda image: image.rot90(1, (1, 2))}


class Mixture(nn.Module):
    """Which expert a digit goes to is known: by its kind."""

    def __init__(self, kinds):
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.experts = nn.ModuleDict({k: nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96)) for k in kinds})
        self.last = nn.Linear(96, 10)

    def forward(self, images, kinds):
        hidden = self.first(images).relu()
        result = torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts.values()):
            chosen = (kinds == number).nonzero().squeeze(1)
            if len(chosen) > 0:
                result = result.index_add(0, chosen, expert(hidden[chosen]))
        return self.last(hidden + result)


parser = argparse.ArgumentParser(description="Experts that live on some machines only.")
parser.add_argument("kinds", type=lambda text: text.split(","))
parser.add_argument("steps", type=int, nargs="?", default=600)
parser.add_argument("--others", type=int, default=0, help="begin when so many other machines take part")
options = parser.parse_args()
if not set(options.kinds) <= set(CHANGES):
    parser.error(f"the kinds are {', '.join(CHANGES)}")


def of_kind(images, kind):
    return CHANGES[kind](images.view(-1, 8, 8)).reshape(-1, 64)


images, labels, test_images, test_labels = (torch.from_numpy(array) for array in digits.load())
torch.manual_seed(0)
model = Mixture(options.kinds)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
run = gossamer.attach(  # <- Gossamer
    model, optimizer, job="experts-torch", samples_per_step=BATCH, experts=dict(model.experts.items())
)
while run.info().neighbours < options.others:
    run.step(0)
    time.sleep(0.01)

own = torch.stack([of_kind(images, kind) for kind in options.kinds])
draw = torch.Generator()
draw.seed()  # other batches on each machine
for step in range(options.steps):
    batch = torch.randint(len(images), (BATCH,), generator=draw)
    kinds = torch.randint(len(options.kinds), (BATCH,), generator=draw)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(own[kinds, batch], kinds), labels[batch]).backward()
    optimizer.step()

end = run.finish()  # <- Gossamer
for name, expert in end.experts.items():  # <- Gossamer
    print(f"expert {name}: {run.experts[name].clock} tokens here, {expert.members} machines hold it")
with torch.no_grad():
    right = [
        (model(of_kind(test_images, kind), torch.full((len(test_images),), number)).argmax(dim=1) == test_labels).float().mean()
        for number, kind in enumerate(options.kinds)
    ]
run.close()  # <- Gossamer
print(f"accuracy {min(right):.4f}")

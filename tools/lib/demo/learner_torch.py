"""The same network as in learner_numpy.py, in PyTorch: attached with one line, gossip happens in optimizer.step()."""

from __future__ import annotations

from typing import Any, Optional

import torch

from .data import Digits
from .learner_numpy import WIDTHS


class Learner:
    def __init__(self, seed: int):
        torch.set_num_threads(1)  # several trainers share this machine's cores
        torch.manual_seed(seed)
        layers = []
        for inputs, outputs in zip(WIDTHS, WIDTHS[1:]):
            layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
        self.model = torch.nn.Sequential(*layers[:-1])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run: Optional[Any] = None

    def attach(self, job: str) -> Any:
        import gossamer.torch

        self.run = gossamer.torch.attach(self.model, self.optimizer, job=job)
        return self.run

    def step(self, batch: Digits, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        if self.run is not None:
            self.run.samples_per_step = len(batch)
        self.optimizer.zero_grad()
        logits = self.model(torch.from_numpy(batch.images))
        torch.nn.functional.cross_entropy(logits, torch.from_numpy(batch.labels)).backward()
        self.optimizer.step()

    def accuracy(self, digits: Digits) -> float:
        with torch.no_grad():
            guesses = self.model(torch.from_numpy(digits.images)).argmax(dim=1)
        return float((guesses == torch.from_numpy(digits.labels)).float().mean())

"""A small neural network in plain NumPy, and how it joins others. A user of the Python SDK writes code like this.

64 pixels -> 128 -> 64 -> 10 digits, 17,226 parameters, stochastic gradient descent on the cross entropy.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .data import CLASSES, PIXELS, Digits

WIDTHS = (PIXELS, 128, 64, CLASSES)


class Learner:
    """One replica. `run` is None while it trains alone."""

    def __init__(self, seed: int):
        random = np.random.default_rng([seed, 2])
        self.weights = {}
        for layer, (inputs, outputs) in enumerate(zip(WIDTHS, WIDTHS[1:])):
            scale = np.sqrt(2 / inputs)
            self.weights[f"w{layer}"] = (scale * random.standard_normal((inputs, outputs))).astype(np.float32)
            self.weights[f"b{layer}"] = np.zeros(outputs, np.float32)
        self.layers = len(WIDTHS) - 1
        self.run: Optional[Any] = None

    def attach(self, job: str) -> Any:
        import gossamer

        self.run = gossamer.attach(self.weights, job=job)
        return self.run

    def step(self, batch: Digits, learning_rate: float) -> None:
        activations = self._forward(batch.images)
        logits = activations[-1]
        probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        probabilities[np.arange(len(batch)), batch.labels] -= 1
        gradient = probabilities / np.float32(len(batch))
        rate = np.float32(learning_rate)
        for layer in reversed(range(self.layers)):
            below = activations[layer]
            weights, bias = self.weights[f"w{layer}"], self.weights[f"b{layer}"]
            down = gradient @ weights.T * (below > 0) if layer else None
            weights -= rate * (below.T @ gradient)  # in place: corrections are added to the same memory
            bias -= rate * gradient.sum(axis=0)
            gradient = down
        if self.run is not None:
            self.run.step(samples=len(batch))

    def accuracy(self, digits: Digits) -> float:
        return float((self._forward(digits.images)[-1].argmax(axis=1) == digits.labels).mean())

    def _forward(self, images: np.ndarray) -> list:
        """The input of each layer, and the output of the last one."""
        values = [images]
        for layer in range(self.layers):
            output = values[-1] @ self.weights[f"w{layer}"] + self.weights[f"b{layer}"]
            values.append(output if layer == self.layers - 1 else np.maximum(output, 0))
        return values

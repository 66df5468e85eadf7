"""The accuracy of the trainers without gossip: each alone with its own images, and one with all of them.

The same network, learning rates, batch size and number of steps; no daemon. It runs after the training, so that it
takes no time from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

import numpy as np

from . import data, plan
from .learner import make_learner


POINTS = 100  # points of a curve, evenly spread over the run, and one more before the first step
Curve = List[float]


@dataclass(frozen=True)
class Baselines:
    """Accuracies."""

    alone: List[Curve]  # one curve for each founder
    all_data: Curve


def _train(orders: plan.Plan, images: data.Digits, held_out: data.Digits, steps: int) -> Curve:
    learner = make_learner(orders.seed, orders.torch)
    random = np.random.default_rng([orders.seed, 4])
    curve = [learner.accuracy(held_out)]
    for step in range(steps):
        batch = images.of(random.integers(len(images), size=plan.BATCH))
        learner.step(batch, orders.learning_rate(orders.planned_samples * step / steps))
        if due := (step + 1) * POINTS // steps - step * POINTS // steps:
            curve += due * [learner.accuracy(held_out)]
    return curve


def measure(orders: plan.Plan, fast_steps: int) -> Baselines:
    """`fast_steps` is the number of steps of a trainer at full speed in the whole run."""
    split = data.split(orders.seed, orders.nodes)
    alone = []
    for node in range(orders.nodes):
        steps = round(fast_steps * orders.steps_per_s(node) / plan.STEPS_PER_S)
        alone.append(_train(orders, split.shards[node], split.held_out, steps))
    return Baselines(alone, _train(orders, split.training, split.held_out, fast_steps))

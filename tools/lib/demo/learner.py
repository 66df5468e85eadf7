"""Chooses the learner. Both kinds have attach(job), step(batch, learning_rate), accuracy(digits) and `run`."""

from __future__ import annotations

from typing import Any


def make_learner(seed: int, torch: bool) -> Any:
    # Imported here because PyTorch is optional, and slow to import.
    if torch:
        from .learner_torch import Learner
    else:
        from .learner_numpy import Learner
    return Learner(seed)

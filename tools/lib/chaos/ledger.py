"""Measures how much of the training is in the model. With each step a trainer adds one to a number that is part of the
model, its entry in the ledger. The entry is averaged, lost or counted twice in the same way as the model.

While the replicas stay the same, the sum of the entries grows by every step that ended in the model. A replica that
dies takes its entry out of the sum, and a replica that joins brings a copy of another's entry. Neither is training. So
an entry that goes or comes counts as the mean of the others. When a replica dies, the part of its entry that the others
had not yet received is lost. If it had fallen behind, the others are ahead of the former mean, and the loss is
negative.
"""

from __future__ import annotations

from typing import Dict

Entries = Dict[str, float]  # the entry of each present replica, by its node's name


def _mean(entries: Entries) -> float:
    return sum(entries.values()) / len(entries)


class Ledger:
    def __init__(self) -> None:
        self._of_those_gone = 0.0

    def went(self, name: str, entries: Entries) -> float:
        """This replica, which is still among the entries, has died. Returns the steps that are lost with it."""
        self._of_those_gone += _mean(entries)
        return entries[name] - _mean(entries)

    def came(self, name: str, entries: Entries, steps: float) -> None:
        """This replica, which is now among the entries, has joined and done this many steps since, as the others will
        have."""
        others = {other: entry for other, entry in entries.items() if other != name}
        self._of_those_gone -= _mean(others) - steps

    def steps(self, entries: Entries) -> float:
        """The number of steps in the model, up to a constant."""
        return sum(entries.values()) + self._of_those_gone

"""How much of the training is in the model. With each step a trainer adds one to a number that is part of the model, its
entry in the ledger. What is averaged with the model, lost with it, or counted twice, is so there, too.

With as many replicas as before, the entries' sum grows by every step that ended in the model. A replica that dies takes
its entry out of the sum, and one that joins brings a copy of another's. Neither is training. So what the replicas have
on average takes the place of an entry that goes or comes: of a replica that dies, that is lost which the others had not
yet of it. One that had fallen behind leaves them ahead of what they were together: its share in the loss is negative.
"""

from __future__ import annotations

from typing import Dict

Entries = Dict[str, float]  # by name, of all replicas that are there


def _mean(entries: Entries) -> float:
    return sum(entries.values()) / len(entries)


class Ledger:
    def __init__(self) -> None:
        self._of_those_gone = 0.0

    def went(self, name: str, entries: Entries) -> float:
        """This replica, still among the entries, has died. Returns the steps that are lost with it."""
        self._of_those_gone += _mean(entries)
        return entries[name] - _mean(entries)

    def came(self, name: str, entries: Entries, steps: float) -> None:
        """This replica, now among the entries, has joined and done so many steps since, as each of the others will have."""
        others = {other: entry for other, entry in entries.items() if other != name}
        self._of_those_gone -= _mean(others) - steps

    def steps(self, entries: Entries) -> float:
        """How many steps are in the model, up to a constant."""
        return sum(entries.values()) + self._of_those_gone

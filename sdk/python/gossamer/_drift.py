"""Corrects the drift of replicas that see different data (correct_drift of attach()), for the arrays of any framework.

Where nodes see different data, each node's steps lead away from the others in a direction that stays the same for long, and
exchanges lead it back again and again. What they lead back is what the next steps may leave out: with S the sum of an
element's corrections, each step also adds SHARE / H times S, where H is how many steps there are for one correction. The
corrections of the two partners of an exchange have the sum 0, and so have all of the sums, so the mean of the models is not
moved; and a node that stands at what is best for all stays there, which it does not without. These are the control variates
of SCAFFOLD (Karimireddy et al. 2020) and ProxSkip (Mishchenko et al. 2022), for exchanges of pairs at any time. The same
holds where the models of all are averaged after a number of steps.

The sums fade, so that those of a node that has died, which are missing in the others', are forgotten.
"""

from __future__ import annotations

from typing import Any, Callable, List, Sequence

from . import _library

# An empty tensor of this name is in the layout. So nodes exchange only if all of them correct their drift: the sums of a
# partner that does not would be missing, and both would be led to where that one drifts.
MARK = "gossamer.correct_drift"
SHARE = 0.2  # of what the corrections lead back, so much more is left out by the steps until the next one
FADES = 0.01  # at each correction
REMEMBERS = 0.98  # of the counts of steps and corrections, at each correction
_RUNNING = 2  # State.RUNNING
_GOSSIP, _AVERAGE = (_library.METHODS.index(method) for method in ("gossip", "average"))


def add_each(values: List[Any], sums: List[Any], rate: float) -> List[Any]:
    """In place where the arrays can be changed."""
    for index, total in enumerate(sums):
        values[index] += rate * total
    return values


class DriftCorrection:
    """Of the parameters of a run. The arrays that it is given are without gradients, always in the same order."""

    def __init__(
        self,
        values: Sequence[Any],
        framework: Any,
        add: Callable[[List[Any], List[Any], float], List[Any]] = add_each,
    ):
        """`framework`: numpy, torch, jax.numpy or keras.ops. `add` does what add_each() does, for instance faster."""
        self._framework = framework
        self._add = add
        self._sums = [framework.zeros_like(value) for value in values]
        self._before: List[Any] = []  # the values before corrections
        self._seen = _library.Info()
        self._rests = False
        # Steps, and corrections of the whole model, lately. Their ratio is H.
        self._steps = 0.0
        self._corrections = 0.0

    def follow(self, info: _library.Info) -> None:
        """Before each step: how the run is."""
        self._seen = info
        self._rests = not _takes_part(info)
        if self._rests and self._corrections > 0:
            self._steps = self._corrections = 0.0
            self._sums = [self._framework.zeros_like(total) for total in self._sums]

    def step(self, values: List[Any], trained: bool = True) -> bool:
        """After a step of the optimizer, before corrections may come. Whether the values were changed: then they are in the
        list, which may have new arrays."""
        self._steps += trained
        if not trained or self._corrections == 0:
            return False
        values[:] = self._add(values, self._sums, SHARE * self._corrections / self._steps)
        return True

    def hold(self, values: List[Any]) -> None:
        """Before take(): the values without the corrections."""
        self._before = [] if self._rests else [value + 0 for value in values]  # copies

    def corrections_since(self, info: _library.Info) -> float:
        """How often the whole model has been corrected since follow()."""
        # Values that replace the model are no corrections. They come before the run takes part.
        counts = _takes_part(info) and self._seen.attachments == info.attachments
        return float((info.corrections - self._seen.corrections) / info.fragments) if counts else 0.0

    def take(self, values: List[Any], corrections: float = 1.0) -> None:
        """The values have been corrected so often since hold()."""
        before, self._before = self._before, []
        if corrections == 0 or self._rests:
            return
        where, isfinite, zeros_like = self._framework.where, self._framework.isfinite, self._framework.zeros_like
        for index, (then, now) in enumerate(zip(before, values)):
            change = now - then
            change = where(isfinite(change), change, zeros_like(change))
            self._sums[index] = self._sums[index] * (1 - FADES * corrections) + change
        kept = REMEMBERS**corrections
        self._steps *= kept
        self._corrections = self._corrections * kept + corrections


def _takes_part(info: _library.Info) -> bool:
    """Whether all corrections of a round have the sum 0. An owner's values and outer steps hold the progress of all."""
    among_equals = info.method == _GOSSIP or averages_models(info)
    return bool(info.state == _RUNNING and among_equals and info.outer_momentum == 0)


def averages_models(info: _library.Info) -> bool:
    return bool(info.method == _AVERAGE and info.average_steps > 1)

"""Corrects the drift of replicas that see different data (correct_drift of gossamer.torch.attach()).

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

from typing import Dict, List

import torch

from . import _library
from ._run import State, _bad_argument

# An empty tensor of this name is in the layout. So nodes exchange only if all of them correct their drift: the sums of a
# partner that does not would be missing, and both would be led to where that one drifts.
MARK = "gossamer.correct_drift"
SHARE = 0.2  # of what the corrections lead back, so much more is left out by the steps until the next one
FADES = 0.01  # at each correction
REMEMBERS = 0.98  # of the counts of steps and corrections, at each correction
_GOSSIP, _AVERAGE = (_library.METHODS.index(method) for method in ("gossip", "average"))


class DriftCorrection:
    """Of the parameters of a run. All calls are made without gradients."""

    def __init__(self, named: Dict[str, torch.Tensor]):
        for name, tensor in named.items():
            if tensor.dtype not in (torch.float32, torch.float64):
                raise _bad_argument(
                    f"correct_drift adds too little at each step for {tensor.dtype} ('{name}'): train float32 parameters, or "
                    "give the optimizer's float32 copies as masters="
                )
        self._sums = [torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in named.values()]
        self._before = [torch.zeros_like(total) for total in self._sums]  # the values before the exchange's corrections
        self._seen = _library.Info()
        # Steps, and corrections of the whole model, lately. Their ratio is H.
        self._steps = 0.0
        self._corrections = 0.0

    def step(self, tensors: List[torch.Tensor], info: _library.Info, trained: bool) -> bool:
        """After a step of the optimizer, before corrections may come. Whether the tensors were changed."""
        self._seen = info
        if not _takes_part(info):
            self._forget()
        self._steps += trained
        adds = trained and self._corrections > 0
        if adds:
            torch._foreach_add_(tensors, self._sums, alpha=SHARE * self._corrections / self._steps)
        for before, tensor in zip(self._before, tensors):
            before.copy_(tensor)
        return adds

    def take(self, tensors: List[torch.Tensor], info: _library.Info) -> None:
        """After that, if corrections may have come."""
        seen = self._seen
        corrections = (info.corrections - seen.corrections) / info.fragments
        # Values that replace the model are no corrections. They come before the run takes part.
        if _takes_part(info) and seen.attachments == info.attachments:
            self._take(tensors, corrections)

    def take_mean(self, tensors: List[torch.Tensor]) -> None:
        """The same, if the tensors were replaced by their exact mean over processes of which this was one."""
        self._take(tensors, 1.0)

    def _take(self, tensors: List[torch.Tensor], corrections: float) -> None:
        if corrections == 0 or not _takes_part(self._seen):
            return
        for total, before, tensor in zip(self._sums, self._before, tensors):
            correction = torch.sub(tensor, before, out=before)
            total.mul_(1 - FADES * corrections).add_(torch.nan_to_num_(correction, 0.0, 0.0, 0.0))
        kept = REMEMBERS**corrections
        self._steps *= kept
        self._corrections = self._corrections * kept + corrections

    def _forget(self) -> None:
        if self._corrections > 0:
            self._steps = self._corrections = 0.0
            for total in self._sums:
                total.zero_()


def _takes_part(info: _library.Info) -> bool:
    """Whether all corrections of a round have the sum 0. An owner's values and outer steps hold the progress of all."""
    among_equals = info.method == _GOSSIP or (info.method == _AVERAGE and info.average_steps > 1)
    return bool(info.state == State.RUNNING.value and among_equals and info.outer_momentum == 0)

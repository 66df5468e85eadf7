"""Adam's second moments as a part of the model (share_second_moments of gossamer.torch.attach()).

Adam divides each step by the root of what it knows of a gradient's square (Kingma & Ba 2015, algorithm 1). Where nodes see
different data, each knows another square, and the steps of all do not add up to what the mean gradient asks for: averaging
the models does not mend that, however often it is done. So the roots are averaged, too, as buffers of the layout.

The roots, and not the squares: their mean keeps a parameter that only some nodes have gradients for, and the codec's
steps, which follow the largest difference of a block, are finer for the small ones among them.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Iterator, List, Sequence, Tuple

import torch

from ._run import _bad_argument
from ._torch_flat import local_part

SUFFIX = ".root_second_moment"
# How much of a moment that was taken over is known. The optimizer then counts as many steps as its own would take for that.
KNOWN = 0.99


class SecondMoments:
    """Of the parameters that an optimizer trains. All calls are made without gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer, named: Sequence[Tuple[str, torch.Tensor]]):
        """`named`: the parameters that are attached, under their names in the layout."""
        if isinstance(optimizer, torch.optim.SparseAdam):
            raise _bad_argument("share_second_moments goes without SparseAdam, which knows the moments of some rows only")
        if "betas" not in optimizer.defaults or isinstance(optimizer, torch.optim.Adamax):
            raise _bad_argument(
                f"share_second_moments is for optimizers that keep exp_avg_sq, such as Adam and AdamW, not for "
                f"{type(optimizer).__name__}"
            )
        if any(group.get("amsgrad") for group in optimizer.param_groups):
            raise _bad_argument("share_second_moments goes without amsgrad, which divides by the largest moment ever seen")
        trained = set(_parameters(optimizer))
        self._roots: Dict[torch.Tensor, torch.Tensor] = {}  # in float32, by the parameters that the optimizer has
        self._without = {parameter for _, parameter in named} - trained
        self.named: List[Tuple[str, torch.Tensor]] = []  # the roots, under their names in the layout
        self._begun = False
        for name, parameter in named:
            if parameter not in trained:
                continue
            like = local_part(parameter).detach()
            root = torch.zeros_like(like, dtype=torch.float32, memory_format=torch.contiguous_format)
            self._roots[parameter] = root
            self.named.append((name + SUFFIX, root))

    def _each(self, optimizer: torch.optim.Optimizer) -> Iterator[Tuple[torch.Tensor, Dict[str, Any], float]]:
        """Root, what the optimizer keeps of the parameter, and beta2."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                root, state = self._roots.get(parameter), optimizer.state.get(parameter)
                if root is not None and state:  # it has none before its first gradient
                    yield root, state, group["betas"][1]

    def lacks(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer has been given parameters that are attached, and that it did not have then."""
        return not self._without.isdisjoint(_parameters(optimizer))

    def publish(self, optimizer: torch.optim.Optimizer) -> None:
        """After optimizer.step(), before run.step(): the roots are those that the optimizer has now."""
        if not self._begun:
            self._begin(optimizer)
        for root, state, beta in self._each(optimizer):
            root.copy_(state["exp_avg_sq"]).div_(_known(state, beta)).sqrt_()

    def _begin(self, optimizer: torch.optim.Optimizer) -> None:
        """After the first step: a model that was taken over from another node came with its roots. An optimizer that has made
        one step would replace half of a moment in the second, and a third in the third, so it counts more steps."""
        self._begun = True
        for root, state, beta in self._each(optimizer):
            if not bool(root.any()):
                continue
            known, step = _known(state, beta), state["step"]
            least = math.ceil(math.log(1 - KNOWN) / math.log(beta))
            if isinstance(step, torch.Tensor):
                step.clamp_(min=least)
            else:
                state["step"] = max(step, least)
            now_known, square = _known(state, beta), state["exp_avg_sq"]
            square.copy_(torch.where(root > 0, root.square() * now_known, square * (now_known / known)))

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """After run.step(), if exchanges may have changed the roots: the optimizer gets them. The mean of two roots is at
        least half of either, so what is smaller comes of the codec's steps, and would make the next steps too long."""
        for root, state, beta in self._each(optimizer):
            square, known = state["exp_avg_sq"], _known(state, beta)
            least = (square.float() / known).sqrt_().div_(2)
            torch.maximum(root, least, out=root)
            square.copy_(root.square().mul_(known))


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _known(state: Dict[str, Any], beta: float) -> Any:
    """1 - beta2^t, by which a second moment is too small (ibid., section 3)."""
    return 1 - beta ** state["step"]

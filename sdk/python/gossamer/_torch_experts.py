"""Experts of a mixture (gossamer.torch.attach(experts=...)). Each expert is a job of its own, so that it is exchanged only
among the processes that hold it. A step of an expert has as many samples as it has seen tokens.
"""

from __future__ import annotations

import re
import typing
import weakref
from collections.abc import Iterable, Mapping
from typing import Any, Dict, List, Optional, Set, Union

import torch

from ._library import GossamerError
from ._options import AttachOptions
from ._run import _bad_argument
from ._torch_parts import MAX_NAME
from .torch import TorchRun, _never_compiled

Experts = typing.Mapping[str, Union[torch.nn.Module, typing.Iterable[torch.nn.Module]]]

# The program is told once if an expert has gradients and in so many steps no call of its modules was seen.
_UNSEEN_STEPS = 100


class _Counter:
    """Counts the tokens of a module's calls. A copy of the module, and one that is read from a file, counts nothing."""

    def __init__(self, run: "Optional[weakref.ref[ExpertRun]]" = None):
        self._run = run

    def _count(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        run = None if self._run is None else self._run()
        if run is not None and module.training and torch.is_grad_enabled():
            run.count_tokens(_tokens_in(output))

    __call__ = _never_compiled(_count)

    def __reduce__(self) -> Any:
        return _Counter, ()


class Expert:
    """An expert's modules. `paths`: where each of them is in the model."""

    def __init__(self, name: str, modules: List[torch.nn.Module], paths: List[str]):
        self.name = name
        self.modules = modules
        self._prefixes = [f"{path}." for path in paths]
        # The same on all machines, whatever place the expert has in their models.
        self.module = modules[0] if len(modules) == 1 else torch.nn.ModuleList(modules)
        self.tensors: Set[int] = {id(t) for t in (*self.module.parameters(), *self.module.buffers())}

    def name_of(self, name: str) -> Optional[str]:
        """The expert's name for what state_dict() of the model calls so; None: that is in none of its modules."""
        for number, prefix in enumerate(self._prefixes):
            if name.startswith(prefix):
                return ("" if len(self.modules) == 1 else f"{number}.") + name[len(prefix) :]
        return None


def experts_of(model: torch.nn.Module, experts: Experts, job: str) -> List[Expert]:
    """In the order of their names, in which all processes go through them."""
    if not isinstance(experts, Mapping):
        raise _bad_argument(
            f"experts must be a mapping of names to modules, not a {type(experts).__name__}: "
            "experts={'expert-3': model.experts[3]}"
        )
    paths = {id(module): path for path, module in model.named_modules()}
    found: List[Expert] = []
    taken: Set[int] = set()
    for name in experts:
        if not isinstance(name, str) or not re.fullmatch("[A-Za-z0-9_-][A-Za-z0-9_.-]*", name):
            raise _bad_argument(f"an expert is called {name!r}: use letters, digits, '_', '-' and '.', not first")
        if len(job) + 1 + len(name) > MAX_NAME:
            raise _bad_argument(f"the expert '{name}' would be the job '{job}.{name}', whose name may have {MAX_NAME} characters")
    for name, given in sorted(experts.items()):
        alone = isinstance(given, torch.nn.Module) and not isinstance(given, torch.nn.ModuleList)
        modules = [given] if alone or not isinstance(given, Iterable) else list(given)
        for module in modules:
            if not isinstance(module, torch.nn.Module) or id(module) not in paths or module is model:
                raise _bad_argument(
                    f"the expert '{name}' has a {type(module).__name__} that is no module within the model: give one of the "
                    "model's modules, or a list of them, one for each layer"
                )
        if len({id(module) for module in modules}) < len(modules):
            raise _bad_argument(f"the expert '{name}' has a module twice")
        expert = Expert(name, modules, [paths[id(module)] for module in modules])
        if not expert.tensors:
            raise _bad_argument(f"the expert '{name}' has no tensors")
        if not taken.isdisjoint(expert.tensors):
            raise _bad_argument(f"the expert '{name}' shares tensors with another one: what experts share is no expert's own")
        taken |= expert.tensors
        found.append(expert)
    modules_of_experts = {id(module) for expert in found for one in expert.modules for module in one.modules()}
    for path, module in model.named_modules():
        if id(module) in modules_of_experts:
            continue
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) in taken:
                raise _bad_argument(f"the tensor '{path}.{key}' is an expert's, and the rest of the model uses it, too")
    return found


def _options_of(expert: Expert, options: AttachOptions) -> AttachOptions:
    own = options.copy()
    own["job"] = f"{options['job']}.{expert.name}"
    settings = dict(options.get("settings") or {})
    if settings.get("method") == "average":  # exact averages are of what all have
        settings = {name: value for name, value in settings.items() if name != "method" and not name.startswith("average_")}
    own["settings"] = {"weights": "samples", **settings}
    named = {expert.name_of(name): role for name, role in (options.get("roles") or {}).items()}
    own["roles"] = {name: role for name, role in named.items() if name is not None}
    own.pop("correct_drift", None)  # corrections by weights have no sum of 0
    return own


class ExpertRun(TorchRun):
    """The run of one expert, in `run.experts`. Its clock counts tokens, as its steps do, and it is averaged with weights by
    them."""

    def __init__(self, expert: Expert, options: AttachOptions):
        self._expert = expert
        self._tokens = 0
        self._without_tokens: Optional[int] = 0  # steps in a row; None: the program was told
        self._told_of_method = False
        super().__init__(expert.module, _options_of(expert, options), 1)
        self._counters = [module.register_forward_hook(_Counter(weakref.ref(self))) for module in expert.modules]

    @property
    def name(self) -> str:
        """As attach() was given it."""
        return self._expert.name

    def count_tokens(self, tokens: int) -> None:
        """Adds tokens that the expert is trained on in the present step. Calls of its modules are counted by themselves, as the
        rows of what they return; only a program that computes with an expert's weights otherwise calls this."""
        self._tokens += int(tokens)

    def _follow_step(self, trained: bool) -> None:
        """The run of the common layers has made a step; `trained`: with samples."""
        tokens = 0
        if trained:
            tokens, self._tokens = self._tokens, 0
        self._count_step(tokens)
        if not trained or self._without_tokens is None or self.closed:
            return
        self._without_tokens = 0 if tokens > 0 else self._without_tokens + 1
        if self._without_tokens < _UNSEEN_STEPS:
            return
        has_gradients = any(p.grad is not None and bool(p.grad.any()) for p in self._expert.module.parameters())
        self._without_tokens = None if has_gradients else 0
        if has_gradients:
            self._warn(
                f"it is trained, and no call of its modules was seen in {_UNSEEN_STEPS} steps, so it counts for nothing: call "
                f"run.experts['{self._expert.name}'].count_tokens(n) before each step"
            )

    def _warn(self, message: str) -> None:
        super()._warn(f"expert '{self._expert.name}': {message}")

    def _look_for_events(self) -> None:
        super()._look_for_events()
        if self._seen.method == "average" and not self._told_of_method:
            self._told_of_method = True
            self._warn(
                f"its job has got the method average, so it is not exchanged any more: gossamerctl job set {self._job} "
                "method=gossip"
            )

    def _check_method(self) -> None:
        if self.info().method == "average":
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"the job '{self._job}' has the method average, and an expert is exchanged in the background: "
                f"gossamerctl job set {self._job} method=gossip",
            )

    def _end_hooks(self) -> None:
        super()._end_hooks()
        for counter in self._counters:
            counter.remove()


def _tokens_in(output: Any) -> int:
    """The product of all dimensions but the last one of the first tensor."""
    while isinstance(output, (tuple, list, Mapping)) and output:
        output = next(iter(output.values() if isinstance(output, Mapping) else output))
    if not isinstance(output, torch.Tensor) or output.dim() == 0:
        return 1
    return int(output.numel() // max(1, output.shape[-1]))

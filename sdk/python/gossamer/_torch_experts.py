"""Experts of a mixture (gossamer.torch.attach(experts=...)). Each expert is a job of its own, so that it is exchanged only
among the processes that hold it. A step of an expert has as many samples as it has seen tokens.
"""

from __future__ import annotations

import weakref
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple, Union

import torch

from ._library import GossamerError
from ._options import AttachOptions
from ._run import _bad_argument
from .torch import TorchRun, _never_compiled

Experts = Mapping[str, Union[torch.nn.Module, Iterable[torch.nn.Module]]]

# The program is told once if an expert has changed in so many steps and no call of its modules was seen.
_UNSEEN_STEPS = 100


class Expert:
    """An expert's modules, and the names of their tensors in the model."""

    def __init__(self, name: str, modules: List[torch.nn.Module]):
        self.name = name
        self.modules = modules
        # The same on all machines, whatever place the expert has in their models.
        self.module = modules[0] if len(modules) == 1 else torch.nn.ModuleList(modules)
        self.tensors: Set[int] = {id(t) for t in (*self.module.parameters(), *self.module.buffers())}

    def roles(self, roles: Mapping[str, str], model: torch.nn.Module) -> Dict[str, str]:
        """Those of `roles` that are about this expert, whose keys are names in the model, under the expert's names."""
        paths = {id(module): path for path, module in model.named_modules()}
        found = {}
        for number, module in enumerate(self.modules):
            prefix = f"{paths[id(module)]}."
            own = "" if len(self.modules) == 1 else f"{number}."
            found.update({own + key[len(prefix) :]: role for key, role in roles.items() if key.startswith(prefix)})
        return found

    def holds(self, name: str, model: torch.nn.Module) -> bool:
        """Whether this name of the model's state_dict() is in one of the expert's modules."""
        inside = {id(module) for module in self.modules}
        return any(id(module) in inside and name.startswith(f"{path}.") for path, module in model.named_modules())


def experts_of(model: torch.nn.Module, experts: Experts) -> List[Expert]:
    """In the order of their names, in which all processes go through them."""
    if not isinstance(experts, Mapping):
        raise _bad_argument(
            f"experts must be a mapping of names to modules, not a {type(experts).__name__}: "
            "experts={'expert-3': model.experts[3]}"
        )
    inside = {id(module) for module in model.modules()}
    found: List[Expert] = []
    taken: Set[int] = set()
    for name, given in sorted(experts.items()):
        modules = [given] if isinstance(given, torch.nn.Module) and not isinstance(given, torch.nn.ModuleList) else list(given)
        for module in modules:
            if not isinstance(module, torch.nn.Module) or id(module) not in inside or module is model:
                raise _bad_argument(
                    f"the expert '{name}' has a {type(module).__name__} that is no module within the model: give one of the "
                    "model's modules, or a list of them, one for each layer"
                )
        expert = Expert(name, modules)
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


def _options_of(expert: Expert, model: torch.nn.Module, options: AttachOptions) -> AttachOptions:
    own = options.copy()
    own["job"] = f"{options['job']}.{expert.name}"
    settings = dict(options.get("settings") or {})
    if settings.get("method") == "average":  # exact averages are of what all have
        settings = {name: value for name, value in settings.items() if name != "method" and not name.startswith("average_")}
    own["settings"] = {"weights": "samples", **settings}
    roles = options.get("roles")
    if roles:
        own["roles"] = expert.roles(roles, model)
    return own


class ExpertRun(TorchRun):
    """The run of one expert, in `run.experts`. Its clock counts tokens, as its steps do, and it is averaged with weights by
    them."""

    def __init__(self, expert: Expert, model: torch.nn.Module, options: AttachOptions):
        self._expert = expert
        self._tokens = 0
        self._seen_tokens = False
        self._unseen = 0
        self._version_then: Optional[int] = None
        super().__init__(expert.module, _options_of(expert, model, options), 1)
        own = weakref.ref(self)

        def count(module: torch.nn.Module, _: Any, output: Any) -> None:
            run = own()
            if run is not None and module.training and torch.is_grad_enabled():
                run.count_tokens(_tokens_in(output))

        self._counters = [module.register_forward_hook(_never_compiled(count)) for module in expert.modules]

    def count_tokens(self, tokens: int) -> None:
        """Adds tokens that the expert is trained on in the present step. Calls of its modules are counted by themselves, as the
        rows of what they return; only a program that computes with an expert's weights otherwise calls this."""
        self._tokens += int(tokens)

    def _expert_step(self) -> None:
        """After a step of the optimizer."""
        tokens, self._tokens = self._tokens, 0
        self._count_step(tokens)
        self._seen_tokens = self._seen_tokens or tokens > 0
        if not self._seen_tokens and not self.closed:
            self._look_whether_unseen()

    def _look_whether_unseen(self) -> None:
        version = self._version()
        self._unseen += self._version_then not in (None, version)
        self._version_then = version
        if self._unseen == _UNSEEN_STEPS:
            self._warn(
                f"the expert '{self._expert.name}' has been trained in {_UNSEEN_STEPS} steps, and no call of its modules was "
                f"seen, so it counts for nothing: call run.experts['{self._expert.name}'].count_tokens(n) before each step"
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
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, torch.Tensor) or output.dim() == 0:
        return 1
    return int(output.numel() // max(1, output.shape[-1]))

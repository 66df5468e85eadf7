"""Attaching a PyTorch model:

    import gossamer.torch as gossamer
    run = gossamer.attach(model, optimizer, job="resnet")

From then on optimizer.step() also does run.step(). Parameters are averaged with the other replicas, and so are
floating-point buffers (batch-norm statistics); integer buffers stay here. bfloat16 is averaged in float32, and rounded
at random so that its mean is kept. Processes of a machine that hold a model together (FSDP2, tensor parallelism, stages
of a pipeline) are one replica of it, whose shards meet those of replicas that are cut otherwise, or not at all.

A model on a CUDA GPU stays there: step() launches at most one kernel on the current stream, after the program's
launches, and waits for nothing. Without the package gossamer-cuda the model goes through copies in host memory.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import time
import types
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, Container, Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

import torch
import torch.distributed

from . import _library, _torch_cuda, _torch_parts
from ._drift import DriftCorrection
from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._options import AttachOptions, check_options
from ._run import (
    MAX_COUNT, Run, RunInfo, RunStats, State, TensorSpec, Transfer, _bad_argument, _open_runs, _warn, check_roles,
    check_samples_per_step, roles_of,
)
from ._shared import Finish, finish_together, limit_of
from ._torch_average import ExactAverages
from ._torch_ddp import DdpAverages
from ._torch_flat import local_part
from ._torch_moments import SecondMoments
from ._torch_partition import Partition, partition

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._torch_experts import ExpertRun, Experts

__all__ = [
    "attach", "average_hook", "partition", "Partition", "TorchRun", "Event", "EventKind", "GossamerError", "GossamerWarning",
    "Run", "RunInfo", "RunStats", "State", "version",
]

_DTYPES = {
    torch.float32: _library.F32,
    torch.float64: _library.F64,
    torch.float16: _library.F16,
    torch.bfloat16: _library.BF16,
    torch.int8: _library.I8,
    torch.int16: _library.I16,
    torch.int32: _library.I32,
    torch.int64: _library.I64,
    torch.uint8: _library.U8,
    torch.bool: _library.BOOL,
}


# A tensor that is watched: its index, the lookup in its module, its key there, the object that the last look found, and
# the pointer and length of its memory.
_Watched = Tuple[int, Callable[[str], Any], str, Any, int, int]

_ATTACH_AGAIN = "close the run, then attach again"


class _Place(NamedTuple):
    """The place where a module keeps a tensor. It is looked up at each step, because modules and users replace
    tensors."""

    name: str
    role: str
    holder: Dict[str, Any]  # a module's _parameters or _buffers
    key: str
    copy: Optional["_Place"] = None  # the model's own copy of this master, in another type

    def tensor(self) -> torch.Tensor:
        tensor = self.holder.get(self.key)
        if tensor is None:
            raise _refuse(self.name, f"has been taken out of the model since the run was attached: {_ATTACH_AGAIN}")
        return local_part(tensor)


def _unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The module that DistributedDataParallel or torch.compile() wraps, so that names are the same on nodes that do not
    wrap."""
    while True:
        if isinstance(model, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def _reshard(model: torch.nn.Module) -> None:
    """Modules that FSDP2 has not sharded again after a forward pass without a backward pass, as the outermost in an
    evaluation: only shards are averaged, and last."""
    for module in model.modules():
        if isinstance(reshard := getattr(module, "reshard", None), types.MethodType):
            reshard()


def _refuse(name: str, reason: str) -> GossamerError:
    return GossamerError("GOSSAMER_UNSUPPORTED", f"tensor '{name}' {reason}")


def _places(model: torch.nn.Module, roles: Mapping[str, str], left_out: Container[int] = ()) -> List[_Place]:
    """All parameters, then all buffers, each tensor once, under the names that state_dict() gives them."""
    places = []
    seen: Set[int] = set()
    for kind in ("_parameters", "_buffers"):
        for prefix, module in model.named_modules():
            for key, tensor in getattr(module, kind).items():
                if tensor is None or id(tensor) in seen or id(tensor) in left_out:
                    continue
                seen.add(id(tensor))
                name = f"{prefix}.{key}" if prefix else key
                if torch.nn.parameter.is_lazy(tensor):
                    raise _refuse(name, "has no shape yet: run one batch through the model before attaching it")
                role = "param" if kind == "_parameters" else "buffer" if tensor.is_floating_point() else "local"
                places.append(_Place(name, roles.get(name, role), getattr(module, kind), key))
    check_roles(roles, [place.name for place in places], "tensors")
    return places


def _with_masters(places: List[_Place], parameters: int, masters: Iterable[torch.Tensor]) -> List[_Place]:
    """The same places, with the optimizer's copies of the parameters in place of the parameters."""
    masters = list(masters)
    if len(masters) != parameters:
        raise GossamerError(
            "GOSSAMER_BAD_ARGUMENT",
            f"{len(masters)} masters for {parameters} parameters: give one for each, in the order of model.parameters()",
        )
    result = []
    for place, master in zip(places, masters):
        if master.shape != place.tensor().shape or master.dtype not in (torch.float32, torch.float64):
            raise _refuse(
                place.name,
                f"has a master of {master.dtype} and shape {list(master.shape)}: it must be float32 and "
                f"{list(place.tensor().shape)}, in the order of model.parameters()",
            )
        result.append(_Place(place.name, place.role, {"master": master}, "master", copy=place))
    return result + places[parameters:]


def _spec(place: _Place) -> TensorSpec:
    tensor = place.tensor()
    if tensor.dtype not in _DTYPES:
        raise _refuse(place.name, f"has the dtype {tensor.dtype}, which cannot be averaged: use torch.float32")
    if place.role != "local":
        if tensor.layout != torch.strided or not tensor.is_contiguous():
            raise _refuse(place.name, "is not contiguous: attach a model whose tensors are dense and row-major")
    pointer = 0 if place.role == "local" else tensor.data_ptr()
    # The alias keeps the memory alive even if the model drops it.
    return TensorSpec(place.name, _DTYPES[tensor.dtype], place.role, tuple(tensor.shape), pointer, tensor.detach())


def _copy_into_model(place: _Place, piece: slice) -> None:
    """If the model computes with a copy of this tensor, the copy is updated."""
    if place.copy is not None:
        place.copy.tensor().detach().view(-1)[piece] = place.tensor().detach().view(-1)[piece]


class _ModelCopies(Transfer):
    """For models that compute with copies of the tensors that are averaged: updates these copies."""

    def __init__(self, places: List[_Place]):
        super().__init__()
        self._places = places

    def load(self, tensor: int, first: int, count: int) -> None:
        pass

    def store(self, tensor: int, first: int, count: int) -> None:
        _copy_into_model(self._places[tensor], slice(first, first + count))


class _HostCopies(Transfer):
    """For a device that the C library cannot work on: gives it copies in host memory, and waits for each copy."""

    def __init__(self, places: List[_Place], specs: List[TensorSpec]):
        super().__init__()
        self._places = places
        self._copies: Dict[int, torch.Tensor] = {}
        self.specs = []  # the C library gets these
        for index, (place, spec) in enumerate(zip(places, specs)):
            if place.role != "local":
                self._copies[index] = copy = place.tensor().detach().reshape(-1).to("cpu", copy=True)
                spec = replace(spec, pointer=copy.data_ptr(), owner=copy)
            self.specs.append(spec)

    def load(self, tensor: int, first: int, count: int) -> None:
        piece = slice(first, first + count)
        self._copies[tensor][piece] = self._places[tensor].tensor().detach().view(-1)[piece]

    def store(self, tensor: int, first: int, count: int) -> None:
        piece = slice(first, first + count)
        self._places[tensor].tensor().detach().view(-1)[piece] = self._copies[tensor][piece]
        _copy_into_model(self._places[tensor], piece)


def _add_each(values: List[torch.Tensor], sums: List[torch.Tensor], rate: float) -> List[torch.Tensor]:
    torch._foreach_add_(values, sums, alpha=rate)
    return values


class TorchRun(Run):
    """A run of a PyTorch model."""

    _ADVICE = "attach the model that is trained, and the optimizer that trains it"

    def __init__(
        self,
        model: torch.nn.Module,
        options: AttachOptions,
        samples_per_step: int,
        masters: Optional[Iterable[torch.Tensor]] = None,
        group: Optional[torch.distributed.ProcessGroup] = None,
        left_out: Container[int] = (),
        moments_of: Optional[torch.optim.Optimizer] = None,
    ):
        """`left_out` has the ids of tensors that belong to experts. The second moments of the optimizer `moments_of` are
        shared."""
        check_options(options)
        model = _unwrapped(model)
        self.experts: Dict[str, "ExpertRun"] = {}  # by name, in the order of the names: those of attach()
        self._module = weakref.ref(model)
        self._next_look_at_model = 1  # steps
        _reshard(model)
        try:
            self._places = _places(model, roles_of(options), left_out)
        except GossamerError as error:
            _torch_parts.tell_failure(error, group)
            raise
        if masters is not None:
            self._places = _with_masters(self._places, len(list(model.parameters())), masters)
        parts = _torch_parts.parts_of(self._places, options["job"], group)
        if parts is not None:
            if masters is not None:
                raise _bad_argument("masters are for a model that one process holds")
            self._places = parts.places
            options = options.copy()
            options["part"], options["replica"] = (parts.part, parts.parts), parts.replica
        self._trained = [place for place in self._places if place.role == "param"]
        self._moments: Optional[SecondMoments] = None
        if moments_of is not None:
            if parts is not None:
                raise _bad_argument("share_second_moments is for a model that one process holds")
            self._moments = SecondMoments(
                _innermost(moments_of), [(place.name, place.holder[place.key]) for place in self._trained]
            )
            self._places += [_Place(name, "buffer", {"root": root}, "root") for name, root in self._moments.named]
        # Indices of distributed tensors. FSDP may replace one by the whole tensor for some time.
        self._distributed = {
            index for index, place in enumerate(self._places) if _torch_parts.is_distributed(place.holder.get(place.key))
        }
        self._specs = [_spec(place) for place in self._places]
        for spec in self._specs:
            spec.whole = None if parts is None else parts.wholes.get(spec.name)
        # Each tensor's dtype and shape when it was attached. They must not change.
        self._kinds = [(place.tensor().dtype, place.tensor().shape) for place in self._places]
        # The tensors that are averaged, by index.
        self._watched = {index: self._watch(index) for index, place in enumerate(self._places) if place.role != "local"}
        self._stream: Optional[_torch_cuda.TrainingStream] = None  # set if the C library works on the model's GPU
        self._host_copies = False
        self._told_of_path = False
        self._device_masters: List[_Place] = []  # the masters, if the C library works on the model's GPU
        self._followed_publications = 0
        self._averages = ExactAverages()
        self._ddp = DdpAverages()
        self._optimizer: Optional[weakref.ref[torch.optim.Optimizer]] = None  # whose gradients may be averaged
        self._uncounted_steps = 0  # steps of other optimizers since the last step that this run has counted
        self._foreign_steps = 0  # steps of other models' optimizers since then
        self._foreign_since_s = 0.0
        self._told_of_foreign = False
        self._counted_twice = 0  # steps in a row that the hook has counted, and then the program by hand
        # _version() after the hook's last step. None: the program has never called step() by hand. -1: not known.
        self._hooked_version: Optional[int] = None
        self._optimized = 0  # tensors that the optimizer had when it was last looked at
        device = _torch_cuda.common_device((p.name, p.tensor()) for p in self._places if p.role != "local")
        if device is not None and device.type == "cuda":
            self._open_on_gpu(device.index, options, parts is not None)
        elif device is not None and device.type != "cpu":
            self._open_with_copies(options, f"the model is on {device}, and Gossamer computes on processors and NVIDIA's GPUs")
        else:
            super().__init__(self._specs, options, None if masters is None else _ModelCopies(self._places))
        self.samples_per_step = samples_per_step
        self._unhook: Optional[Callable[[], None]] = None
        with self._closed_unless_done():  # warnings may be errors
            self._look_at_buffers(model)

    def _look_at_buffers(self, model: torch.nn.Module) -> None:
        """Warns of buffers that averaging makes something else of."""
        with torch.no_grad():
            if infinite := self._infinite_buffers():
                self._warn(
                    f"the buffer '{infinite[0]}' holds infinity{_and_more(infinite)}: replicas with infinity keep out of "
                    f"exchanges. If it is a constant, such as a mask, leave it out: roles={{'{infinite[0]}': 'local'}}"
                )
        counting = [
            name
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.momentum is None
            and module.running_mean is not None
        ]  # fmt: skip
        if counting:
            self._warn(
                f"the batch norm '{counting[0]}'{_and_more(counting)} has momentum=None: its statistics are means over all "
                "batches that this process has counted, and a process that takes over a model begins to count anew. Use a "
                "momentum, such as 0.01"
            )

    def _infinite_buffers(self) -> List[str]:
        return [
            place.name for place in self._places if place.role == "buffer" and bool(torch.isinf(place.tensor()).any())
        ]

    def _model(self) -> Set[int]:  # the model's own tensors, even if the C library works on copies
        return {spec.pointer for spec in self._specs if spec.role != "local" and 0 not in spec.shape}

    def _open_on_gpu(self, index: int, options: AttachOptions, in_parts: bool) -> None:
        stream = _torch_cuda.TrainingStream(index)
        if in_parts:
            self._open_with_copies(options, "a model in parts does not go through the GPU's memory yet")
            return
        try:
            super().__init__(self._specs, options, cuda_stream=stream.pointer)
        except GossamerError as error:
            if error.status != _torch_cuda.NO_DEVICE:
                raise
            self._open_with_copies(options, str(error))
            return
        self._stream = stream
        self._device_masters = [place for place in self._places if place.copy is not None]

    def _open_with_copies(self, options: AttachOptions, why: str) -> None:
        copies = _HostCopies(self._places, self._specs)
        super().__init__(copies.specs, options, copies)
        self._host_copies = True
        with self._closed_unless_done():  # warnings may be errors
            self._warn(
                f"job '{self._job}' goes through copies in host memory, and steps that exchange wait for the device: {why}"
            )

    @property
    def samples_per_step(self) -> int:
        """Each optimizer.step() adds this to the clock. It may be changed at any time, with the size of the batch."""
        return self._samples_per_step

    @samples_per_step.setter
    def samples_per_step(self, samples: int) -> None:
        self._samples_per_step = check_samples_per_step(samples)

    def step(self, samples: Optional[int] = None) -> None:
        """Call after each optimiser step, unless attach() was given the optimizer: optimizer.step() then counts it. It never
        waits for the network, nor for a GPU that the model is on."""
        if self._unhook is not None and samples != 0:
            self._look_whether_counted_twice()
        self._count_step(self._samples_per_step if samples is None else samples)

    def _count_step(self, samples: int) -> None:
        self._follow_stream()
        # The looks at the first steps read tensors even if nothing is due.
        if self._stillness is not None and self._still_rest <= 1:
            self._follow_tensors()
        elif self._overwriting is not None and self._sampled in self._watched:
            self._follow_tensors([self._watched[self._sampled]])
        self._uncounted_steps = 0
        if samples:
            self._foreign_steps = 0
        super().step(samples)
        # An action of every() may have closed it.
        if (self._device_masters or self._moments is not None) and not self.closed:
            self._follow_publications()
        for expert in self._open_experts():
            expert._follow_step(trained=samples > 0)

    def wait(self, timeout_s: Optional[float] = None) -> bool:
        self._follow_program()
        end_s = time.monotonic() + limit_of(timeout_s)
        ready = super().wait(timeout_s)
        self._copy_masters()
        self._tell_of_path()
        for expert in self._open_experts():
            # Where one has waited in vain, the others have had as much time.
            ready = expert.wait(max(0.0, end_s - time.monotonic()) if ready else 0.0) and ready
        return ready

    def _open_experts(self) -> "List[ExpertRun]":
        return [expert for expert in self.experts.values() if not expert.closed]

    def _hooked_optimizer(self) -> Optional[torch.optim.Optimizer]:
        return None if self._optimizer is None else self._optimizer()

    def average_gradients(self) -> None:
        """If the job's method is "average" and gradients are averaged at each step, do that now instead of in
        optimizer.step(): for programs that clip gradients, or look at them, in between. With a gradient scaler, after its
        unscale_()."""
        optimizer = self._hooked_optimizer()
        if optimizer is None:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "give attach() the optimizer whose gradients are to be averaged")
        with torch.no_grad():
            self._averages.average_gradients(self, optimizer)

    def _averaged_tensors(self, role: Optional[str] = None) -> List[torch.Tensor]:
        """The parameters and buffers that take part, or those with this role."""
        places = [place for place in self._places if place.role != "local" and role in (None, place.role)]
        return [place.tensor().detach() for place in places]

    def _tensors_changed(self) -> None:
        """After the program has set other values to the tensors that take part: copies of them follow."""
        for place in self._places:
            _copy_into_model(place, slice(None))
        self._take_moments()

    def finish(self, timeout_s: Optional[float] = 60.0) -> Finish:
        experts = self._open_experts()
        runs: List[TorchRun] = [self, *experts]
        for run in runs:
            run._averages.leave(run)
            run._ddp.leave(run)
            run._tell_of_foreign_steps(0.0)
            run._follow_program()
        ends = finish_together(runs, timeout_s)
        for run, end in zip(runs, ends):
            run._has_finished(end)
            run._copy_masters()
        return replace(ends[0], experts={expert.name: end for expert, end in zip(experts, ends[1:])}) if experts else ends[0]

    def hook(self, optimizer: torch.optim.Optimizer) -> None:
        """Makes optimizer.step() call step() afterwards, until the run is closed or nobody refers to it any more."""
        if self._unhook is not None:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "this run is already hooked to an optimizer")
        self.check_updated_by(optimizer)
        optimizer = _innermost(optimizer)
        if isinstance(optimizer, torch.optim.LBFGS):
            self._warn(
                "LBFGS learns from the differences between its own steps, which corrections from other nodes spoil: it may "
                "diverge with others, though it does not alone. Use SGD or Adam"
            )
        own = weakref.ref(self)  # an old optimizer that a scheduler still holds must not keep the run

        trained = self._optimizer = weakref.ref(optimizer)
        self._look_at_optimizer(optimizer)

        def before() -> None:
            run, optimizer = own(), trained()
            if run is not None and optimizer is not None and not run.closed:
                with torch.no_grad():
                    run._averages.before_step(run, optimizer)

        def after() -> None:
            run, optimizer = own(), trained()
            if run is None or optimizer is None or run.closed:
                return
            run._look_at_optimizer(optimizer)
            if run._moments is not None:
                with torch.no_grad():
                    run._moments.publish(optimizer)
            run._count_step(run._samples_per_step)
            if run.closed:  # an action of every() may have closed it
                return
            with torch.no_grad():
                run._averages.after_step(run, optimizer)
            if run._hooked_version is not None:
                run._hooked_version = run._version()

        remove = _around_step(optimizer, before, after)
        _hooked_optimizers.add(optimizer)

        def unhook() -> None:
            remove()
            if (hooked := trained()) is not None:
                _hooked_optimizers.discard(hooked)

        dropped = weakref.finalize(self, _end_hook, weakref.ref(optimizer), unhook, self._job)
        dropped.atexit = False

        def end() -> None:
            dropped.detach()
            unhook()

        self._unhook = end

    def _look_at_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Warns of tensors that the optimizer has been given since, for instance those of another last layer."""
        optimized = sum(len(group["params"]) for group in optimizer.param_groups)
        if optimized == self._optimized:
            return
        before, self._optimized = self._optimized, optimized
        attached = self._attached()
        new = [tensor for group in optimizer.param_groups for tensor in group["params"] if id(tensor) not in attached]
        if before and new:
            self._warn(
                f"the optimizer updates tensors ({len(new)}) that are not those attached to the job '{self._job}' (the first of "
                f"shape {list(new[0].shape)}), so they are not averaged: attach the changed model again, on all nodes, with an "
                "optimizer of its present parameters"
            )
        if before and self._moments is not None and self._moments.lacks(optimizer):
            self._warn(
                f"job '{self._job}': the second moments of parameters that were added to the optimizer later are not shared: "
                "attach the model again, on all nodes, with an optimizer that has them all"
            )

    def _attached(self) -> Set[int]:
        """Ids of the tensors in the model's places, of the masters, and of the experts' tensors."""
        places = self._places + [place.copy for place in self._places if place.copy is not None]
        own = {id(place.holder.get(place.key)) for place in places}
        return own.union(*(expert._attached() for expert in self.experts.values()))

    def _look_for_events(self) -> None:
        super()._look_for_events()
        model = self._module()
        if model is None or self.closed or self._seen.steps < self._next_look_at_model:
            return
        self._next_look_at_model = 2 * self._seen.steps  # seldom: it takes a millisecond for a thousand modules
        attached = self._attached()
        new = [name for name, parameter in model.named_parameters() if id(parameter) not in attached]
        if new:
            self._next_look_at_model = MAX_COUNT  # the program is told only once
            self._warn(
                f"the model has parameters ({len(new)}, the first is '{new[0]}') that are not those attached to the job "
                f"'{self._job}', so they are not averaged: attach the changed model again, on all nodes"
            )

    def _version(self) -> int:
        """It is another one when something has trained the parameters, except a fused optimizer. Corrections do not count."""
        return sum(getattr(place.holder.get(place.key), "_version", 0) for place in self._places if place.role == "param")

    def _look_whether_counted_twice(self) -> None:
        """The program calls step() by hand: warns if nothing has trained since the hook's step, each time."""
        if self._counted_twice == _MOST_COUNTED_TWICE:
            return
        self._counted_twice = self._counted_twice + 1 if self._hooked_version == self._version() else 0
        self._hooked_version = -1
        if self._counted_twice == _MOST_COUNTED_TWICE:
            self._hooked_version = None
            self._warn(
                f"optimizer.step() counts the steps of the job '{self._job}' already, so run.step() counts them twice: drop the "
                "calls of run.step(), or attach the model without the optimizer"
            )

    def _saw_step_of(self, optimizer: torch.optim.Optimizer) -> None:
        """Another optimizer has made a step. Warns if this goes on and the run counts none."""
        if self._hooked_version is not None and self._is_updated_by(optimizer):
            self._hooked_version = -1
        hooked = self._hooked_optimizer()
        if self._uncounted_steps > _MOST_UNCOUNTED_STEPS or optimizer is hooked:
            return
        if hooked is None and self._optimizer is not None:
            what = "the optimizer that was attached is gone, and another one makes steps"
        elif self._is_updated_by(optimizer):
            what = "an optimizer that was not attached trains the model"
        else:
            if self._foreign_steps == 0:
                self._foreign_since_s = time.monotonic()
            self._foreign_steps += 1
            self._tell_of_foreign_steps(_FOREIGN_S)
            return
        self._uncounted_steps += 1
        if self._uncounted_steps > _MOST_UNCOUNTED_STEPS:
            self._warn(
                f"job '{self._job}': {what}, and the run counts none of its steps: attach the model with that optimizer, or "
                "call run.step() after each step"
            )

    def _tell_of_foreign_steps(self, least_s: float) -> None:
        """Once, if there have been many in so long."""
        if self._told_of_foreign or self._foreign_steps < _MOST_FOREIGN_STEPS:
            return
        if time.monotonic() - self._foreign_since_s >= least_s and self.info().steps != self._finished_at:
            self._told_of_foreign = True
            self._warn(
                f"job '{self._job}': only other models are trained here now: if one of them is meant, for instance because a "
                "notebook's cell has made the model anew, attach it"
            )

    def check_updated_by(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuses an optimizer that updates none of the model's tensors, for instance because it updates masters that
        were not given."""
        _check_optimizer(optimizer)
        if not self._is_updated_by(optimizer):
            raise GossamerError(
                "GOSSAMER_BAD_ARGUMENT",
                "the optimizer updates none of the tensors that were attached: make it of model.parameters(), or, if it "
                "updates float32 copies of them, give those as masters=",
            )

    def _is_updated_by(self, optimizer: torch.optim.Optimizer) -> bool:
        updated = {id(tensor) for group in optimizer.param_groups for tensor in group["params"]}
        return any(id(place.holder.get(place.key)) in updated for place in self._places) or any(
            expert._is_updated_by(optimizer) for expert in self.experts.values()
        )

    def _end_hooks(self) -> None:
        if self._unhook is not None:
            self._unhook()
            self._unhook = None

    def _let_go(self) -> None:
        self._end_hooks()
        super()._let_go()
        for expert in self.experts.values():
            expert._let_go()

    def close(self) -> None:
        self._end_hooks()
        with contextlib.ExitStack() as others:
            for expert in self.experts.values():
                others.callback(expert.close)
            if self.closed:
                super().close()
                return
            try:
                self._follow_program()
            finally:  # also if the model cannot be followed any more
                super().close()
            self._copy_masters()

    def _follow_program(self) -> None:
        self._follow_tensors()
        self._follow_stream()

    def _follow_stream(self) -> None:
        if self._stream is not None and self._stream.moved():
            self._check(self._lib.gossamer_set_stream(self._open_handle(), self._stream.pointer))

    def _follow_tensors(self, watched: Optional[Iterable[_Watched]] = None) -> None:
        """`watched`: only these. It takes a fifth of a microsecond for each."""
        for index, get, key, seen, pointer, count in self._watched.values() if watched is None else watched:
            tensor = get(key)
            if (
                tensor is not seen
                or tensor.data_ptr() != pointer
                or tensor.numel() != count  # another part of the same memory
                or not tensor.is_contiguous()  # or its elements are in another order
            ):
                self._follow(index)

    def _copy_masters(self) -> None:
        """On a GPU nobody tells which elements have changed, so all of them are copied, on the current stream."""
        with torch.no_grad():
            for place in self._device_masters:
                assert place.copy is not None
                place.copy.tensor().copy_(place.tensor())

    def _drift_correction(self) -> DriftCorrection:
        return DriftCorrection(self._parameters(), torch, _add_each)

    def _correct_drift(self, drift: DriftCorrection, trained: bool) -> None:
        self._follow_tensors()
        super()._correct_drift(drift, trained)

    def _parameters(self) -> List[torch.Tensor]:
        return [place.tensor().detach() for place in self._trained]

    def _set_parameters(self, values: List[torch.Tensor]) -> None:
        with torch.no_grad():
            for place in self._trained:
                _copy_into_model(place, slice(None))

    def _models_averaged(self) -> None:
        """The model was a part of the exact mean that it is now."""
        if self._drift is not None:
            self._drift.take(self._parameters())

    def _follow_publications(self) -> None:
        """Corrections come with publications: what is made of the corrected tensors follows them."""
        info = self._c_info()
        if info.publications != self._followed_publications:
            self._followed_publications = info.publications
            self._copy_masters()
            self._take_moments()

    def _take_moments(self) -> None:
        optimizer = self._hooked_optimizer()
        if self._moments is not None and optimizer is not None:
            with torch.no_grad():
                self._moments.take(optimizer)

    def _tell_of_path(self) -> None:
        if self._stream is None or self._told_of_path:
            return
        info = self.info()
        if info.attached and info.path == "pinned":
            self._told_of_path = True
            self._warn(
                f"job '{self._job}' exchanges through pinned host memory, and its averages are computed on the processor, "
                "since the daemon cannot share this GPU's memory: its log says why, docs/how-to/gpu.md what it needs"
            )

    def _watch(self, index: int) -> _Watched:
        place = self._places[index]
        found: Any = place.holder.get(place.key)
        return index, place.holder.get, place.key, found, self._specs[index].pointer, found.numel()

    def _follow(self, index: int) -> None:
        place = self._places[index]
        model = self._module()
        if index in self._distributed and model is not None and not _torch_parts.is_distributed(place.holder.get(place.key)):
            _reshard(model)
        tensor = place.tensor()
        if place.role == "param" and place.holder.get(place.key) is not self._watched[index][3]:
            self._optimized = -1  # the optimizer may still have the former one
        seen = self._specs[index]
        if tensor.data_ptr() != seen.pointer or tensor.shape != seen.owner.shape or not tensor.is_contiguous():
            if (tensor.dtype, tensor.shape) != self._kinds[index]:
                raise _refuse(place.name, f"has changed its dtype or shape since the run was attached: {_ATTACH_AGAIN}")
            device = _torch_cuda.device_of(tensor)
            if device != _torch_cuda.device_of(self._specs[index].owner):
                raise _refuse(place.name, f"has moved to {device} since the run was attached: {_ATTACH_AGAIN}")
            now = _spec(place)
            if not self._host_copies:
                self._move_tensor(index, now.pointer, now.owner)
            self._specs[index] = now
        self._watched[index] = self._watch(index)


def _and_more(names: List[str]) -> str:
    return "" if len(names) == 1 else f" (and {len(names) - 1} more)"


def _is_skipped(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this step does nothing because gradients were infinite. A gradient scaler calls only optimizers that check
    this themselves (fused ones), and leaves its result with them during the call. If the result is on a GPU, reading it
    would wait, so the step counts."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and _torch_cuda.device_of(found).type == "cpu" and bool(found)


def _end_hook(optimizer: "weakref.ref[torch.optim.Optimizer]", unhook: Callable[[], None], job: str) -> None:
    """Called when the run has been collected."""
    if optimizer() is not None:
        gc.collect()  # the optimizer may only be waiting for the garbage collector
    if optimizer() is None:
        return
    unhook()
    _warn(
        f"nothing refers to the run of the job '{job}' any more, so it is closed, and optimizer.step() gossips no longer: keep "
        "what attach() returns for as long as the model trains"
    )


# The program is told once this many calls of run.step() in a row have each followed a step of the hook.
_MOST_COUNTED_TWICE = 5
# This many steps of other optimizers may pass between two steps of a run's own, because a program may train in turns.
_MOST_UNCOUNTED_STEPS = 100


# The program is told if the attached model is not trained for this long while other optimizers make this many steps.
_FOREIGN_S = 20.0
_MOST_FOREIGN_STEPS = 200


# The optimizers whose steps a run counts, so that these steps need not look for the run.
_hooked_optimizers: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()


def _after_any_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if len(_open_runs) == 0 or optimizer in _hooked_optimizers:
        return
    for run in list(_open_runs):
        if isinstance(run, TorchRun) and not run.closed and run._pid == os.getpid():
            run._saw_step_of(optimizer)


def _never_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile() would look into the hooks of a step that it compiles, and find there what it cannot guard."""
    disable = getattr(torch, "_disable_dynamo", None)  # torch.compiler.disable() takes seconds until it is needed
    return function if disable is None else disable(function)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=None)
def _watch_all_optimizers() -> None:
    """Called for the first run of the process."""
    try:
        from torch.optim.optimizer import register_optimizer_step_post_hook
    except ImportError:  # before PyTorch 2.1 only the call for the profiler can be replaced
        tell_profiler = getattr(torch.optim.Optimizer, "_optimizer_step_code", lambda _: None)

        def tell(optimizer: torch.optim.Optimizer) -> None:
            tell_profiler(optimizer)
            _after_any_step(optimizer)

        setattr(torch.optim.Optimizer, "_optimizer_step_code", tell)
        return
    register_optimizer_step_post_hook(_never_compiled(_after_any_step))


def _around_step(
    optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]
) -> Callable[[], None]:
    """Calls `before` and `after` around each optimizer.step() that is not skipped; returns what undoes that."""
    own = weakref.ref(optimizer)

    def unless_skipped(action: Callable[[], None]) -> None:
        optimizer = own()
        if optimizer is not None and not _is_skipped(optimizer):
            action()

    def with_gradients(at: int, args: Any, kwargs: Any) -> Any:
        """The arguments of step(). A closure among them, at this place, computes the gradients inside step()."""
        closure = kwargs.get("closure", args[at] if len(args) > at else None)
        if closure is None:
            unless_skipped(before)
            return args, kwargs

        def computed() -> Any:
            result = closure()
            unless_skipped(before)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": computed}
        return (*args[:at], computed, *args[at + 1 :]), kwargs

    if hasattr(optimizer, "register_step_post_hook"):  # PyTorch 2
        first = optimizer.register_step_pre_hook(_never_compiled(lambda _, args, kwargs: with_gradients(1, args, kwargs)))
        last = optimizer.register_step_post_hook(_never_compiled(lambda *_: unless_skipped(after)))

        def remove() -> None:
            first.remove()
            last.remove()

        return remove

    original = optimizer.step
    function = getattr(original, "__func__", None)  # a bound method would keep the optimizer alive
    unbound = original if function is None else None

    # Learning-rate schedulers need a bound method that they can wrap, and look at its attributes.
    @functools.wraps(original)
    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = with_gradients(0, args, kwargs)
        result = original(*args, **kwargs)
        unless_skipped(after)
        return result

    optimizer.step = types.MethodType(step, optimizer)
    ours = weakref.ref(step)

    def undo() -> None:
        hooked = own()
        # A later wrapper of the method still calls ours, which does nothing once the run is closed.
        if hooked is None or getattr(hooked.step, "__func__", None) is not ours():
            return
        hooked.step = unbound if function is None else types.MethodType(function, hooked)

    return undo


def average_hook(run: TorchRun, bucket: Any) -> "torch.futures.Future[torch.Tensor]":
    """For programs that keep DistributedDataParallel: ddp.register_comm_hook(run, gossamer.torch.average_hook), after
    attach(model, ...) without the optimizer. The gradients are then averaged exactly over all processes of the job, on
    all nodes, in place of DDP's all-reduce within its group. Give the job the setting method=average, so that the model is
    not exchanged as well.

    Each bucket is on its way while the backward pass computes the next ones, and backward() returns when all processes have
    the same means, to the bit. If one dies meanwhile, those that are left average without it; a newcomer is let in between
    two steps. NaN and infinity are in the means, as they are with DDP. The gradients are averaged in float32, and must be
    dense. With average_codec=q8 those of larger models travel in 8 bits.

    backward() raises GossamerError if no daemon is there for ten seconds (GOSSAMER_NO_DAEMON), if the job gets another method,
    and if this process was left out of steps of the others, so that its model is another one (GOSSAMER_UNSUPPORTED). The
    gradients are then those of this process, and DDP may be used again. Ctrl-C ends a backward pass that waits, on the
    processor.
    """
    with torch.no_grad():
        return run._ddp.average(run, bucket)


average_hook.__annotations__.clear()  # DDP refuses annotations that are strings


def _innermost(optimizer: Any) -> Any:
    """The optimizer that makes the steps, where another object stands for it, as Accelerate's does: that one steps less
    often, and does not have what PyTorch gives every optimizer."""
    while "defaults" not in vars(optimizer) and hasattr(getattr(optimizer, "optimizer", None), "param_groups"):
        optimizer = optimizer.optimizer
    return optimizer


def _check_optimizer(optimizer: Any) -> None:
    if not hasattr(optimizer, "param_groups"):
        raise _bad_argument(
            f"the optimizer is a {type(optimizer).__name__}: give one torch.optim.Optimizer, of several the one that steps last"
        )


def _check_arguments(model: Any, optimizer: Any) -> None:
    """Raises what says how attach() is called."""
    if isinstance(model, torch.optim.Optimizer) and isinstance(optimizer, torch.nn.Module):
        raise _bad_argument("the model comes first: attach(model, optimizer, job=...)")
    if not isinstance(model, torch.nn.Module):
        what = model.__name__ if isinstance(model, type) else type(model).__name__
        raise _bad_argument(f"the model is a {what}, not a torch.nn.Module: attach(model, optimizer, job=...)")
    scripted = [module for module in model.modules() if isinstance(module, torch.jit.ScriptModule)]
    if any(list(module.parameters()) or list(module.buffers()) for module in scripted):
        raise _bad_argument("the model has a ScriptModule: attach the module that it was made of, which has the same tensors")
    if torch.utils.data.get_worker_info() is not None:
        raise _bad_argument("this process is a worker of a DataLoader, and trains nothing: attach in the process that trains")
    if optimizer is not None:
        _check_optimizer(optimizer)


def attach(
    model: torch.nn.Module,
    optimizer: Optional[torch.optim.Optimizer] = None,
    *wrong: Any,
    samples_per_step: int = 1,
    masters: Optional[Iterable[torch.Tensor]] = None,
    group: Optional[torch.distributed.ProcessGroup] = None,
    experts: Optional["Experts"] = None,
    share_second_moments: bool = False,
    **options: Unpack[AttachOptions],
) -> TorchRun:
    """Attaches a model to the daemon of this machine; if the job is already running elsewhere, takes over its model.

    model: its parameters in float32, float64 or bfloat16, all in CPU memory or all on one device; wrapped or not. Of a
        model on another device than NVIDIA's GPUs what is due is copied, and the step waits for that.
    optimizer: optimizer.step() then also does run.step(); without it, call run.step() yourself. Of several, the one
        that steps last.
    job: the name that all replicas of this model share. If the processes that hold a model in shards give one name, they
        are one replica in parts; if each gives another, a shard is a job of its own, and meets shards that are cut alike.
    samples_per_step: what each optimizer.step() adds to the clock: the batch size, times the batches whose gradients
        are accumulated.
    settings: of the job, if it begins with this run (docs/how-to/average-exactly.md). With {"method": "average"} the
        gradients are averaged exactly before each optimizer.step(), which then waits for the other processes; with
        average_steps, the models are after so many steps.
    roles: name -> "param", "buffer" or "local" (stays here), where the default is not wanted; named as in state_dict().
    masters: the float32 copies of the parameters, if the optimizer updates these, in the order of model.parameters().
        They are averaged, and changes are copied into the model (on a GPU: all values, after each step that has
        published something).
    group: the processes that hold this model together, as stages of a pipeline for instance, each of which attaches what
        it has; in the order of their ranks their tensors are those of the uncut model. For distributed tensors (FSDP2,
        tensor parallelism) it is found out: the processes of their mesh. All of them call attach() together, and must
        be on one machine (docs/how-to/train-a-model-in-parts.md).
    experts: name -> a module of the model, or a list of them, which only some processes have. Each is exchanged, as a job of
        its own (`JOB.NAME`), with those that hold the same, weighted by the tokens that it has seen. `experts` of the run has
        its run, with its own info().
    share_second_moments: for Adam, AdamW and others that keep exp_avg_sq, where nodes see different data: what the optimizer
        knows of the gradients' squares is averaged, too. The same on all nodes. It doubles the bytes and takes another
        4 bytes a parameter (docs/how-to/migrate.md).
    The other options are those of gossamer.attach(). correct_drift does not hold for experts.
    """
    if wrong:
        raise TypeError("attach() takes the model and the optimizer, and the rest by name: attach(model, optimizer, job=...)")
    _check_arguments(model, optimizer)
    samples = check_samples_per_step(samples_per_step)
    if share_second_moments and optimizer is None:
        raise _bad_argument("share_second_moments needs the optimizer: attach(model, optimizer, job=...)")
    moments_of = optimizer if share_second_moments else None
    if experts is None:
        run = TorchRun(model, options, samples, masters, group, moments_of=moments_of)
    else:
        run = _with_experts(model, options, samples, masters, group, experts, moments_of)
    _watch_all_optimizers()
    with contextlib.ExitStack() as unless_done:
        for one in (run, *run.experts.values()):
            unless_done.enter_context(one._closed_unless_done())
        if optimizer is not None:
            run.check_updated_by(optimizer)
        run._wait_if_asked(options, averages=optimizer is not None)
        for expert in run.experts.values():
            expert._check_method()
        if optimizer is not None:
            run.hook(optimizer)
    return run


def _with_experts(
    model: torch.nn.Module,
    options: AttachOptions,
    samples_per_step: int,
    masters: Optional[Iterable[torch.Tensor]],
    group: Optional[torch.distributed.ProcessGroup],
    experts: "Experts",
    moments_of: Optional[torch.optim.Optimizer],
) -> TorchRun:
    from ._torch_experts import ExpertRun, experts_of

    if masters is not None:
        raise _bad_argument("masters are for a model without experts")
    check_options(options)
    model = _unwrapped(model)
    found = experts_of(model, experts, options["job"])
    own = options.copy()
    if roles := options.get("roles"):
        check_roles(roles_of(options), [place.name for place in _places(model, {})], "tensors")
        own["roles"] = {name: role for name, role in roles.items() if all(one.name_of(name) is None for one in found)}
    left_out = set().union(*(one.tensors for one in found))
    run = TorchRun(model, own, samples_per_step, group=group, left_out=left_out, moments_of=moments_of)
    with contextlib.ExitStack() as unless_done:
        unless_done.enter_context(run._closed_unless_done())
        for one in found:
            run.experts[one.name] = expert = ExpertRun(one, options)
            unless_done.enter_context(expert._closed_unless_done())
    return run

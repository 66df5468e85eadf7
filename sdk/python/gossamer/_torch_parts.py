"""Finds out how the processes of a group hold a PyTorch model together: as shards, tensor-parallel parts, or stages of a
pipeline. Each tells the others what it holds, and lists what they hold besides.
"""

from __future__ import annotations

import math
import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

import torch
import torch.distributed as dist

from ._library import GossamerError
from ._torch_flat import local_part

if TYPE_CHECKING:
    from .torch import _Place

PATIENCE_S = 60
# A job's name may have 63 characters, and so may a replica's.
MAX_NAME = 63


class _Held(NamedTuple):
    """A tensor of the whole model, and what one process holds of it."""

    name: str
    role: str
    dtype: torch.dtype
    shape: Tuple[int, ...]  # the whole's
    offset: Tuple[int, ...]  # where this process's slice begins


class _Process(NamedTuple):
    """What a process tells the others."""

    error: Optional[Tuple[str, str]]  # status and message: why it cannot take part
    job: str
    machine: str
    replica: str
    held: List[_Held]


class Parts(NamedTuple):
    """One process's part of a replica."""

    part: int
    parts: int
    replica: str
    # All tensors of the model, in the same order in all processes. Tensors that only other processes hold are empty
    # here.
    places: "List[_Place]"
    wholes: Dict[str, Tuple[Sequence[int], Sequence[int]]]  # name -> shape of the whole, and offset in it


def _unsupported(message: str) -> GossamerError:
    return GossamerError("GOSSAMER_UNSUPPORTED", message)


def tell_failure(error: GossamerError, group: Optional[dist.ProcessGroup]) -> None:
    """Instead of parts_of(): this process cannot take part, and the others need not wait for it."""
    if group is not None and (asked := _gloo_group([], group)) is not None:
        _ask_all(_Process((error.status, str(error)), "", "", "", []), asked)


def is_distributed(tensor: Any) -> bool:
    return hasattr(tensor, "to_local") and hasattr(tensor, "placements")


def _offset(name: str, tensor: Any) -> Tuple[int, ...]:
    """Where the local part of a distributed tensor begins."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise _unsupported(f"tensor '{name}' is a partial sum, of which no process has values: attach before it is made")
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        raise _unsupported("a model in parts needs PyTorch 2.5 or later") from None
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if tuple(shape) != tuple(local_part(tensor).shape):
        raise _unsupported(f"tensor '{name}' is sharded in a way that is not known here: {tensor.placements}")
    return tuple(offset)


def _held(place: "_Place") -> _Held:
    tensor = place.holder[place.key]
    if is_distributed(tensor):
        return _Held(place.name, place.role, tensor.dtype, tuple(tensor.shape), _offset(place.name, tensor))
    return _Held(place.name, place.role, tensor.dtype, tuple(tensor.shape), (0,) * tensor.dim())


def _mesh_ranks(places: "List[_Place]") -> List[int]:
    """The processes of the largest mesh that a tensor is distributed over."""
    meshes = [place.holder[place.key].device_mesh for place in places if is_distributed(place.holder.get(place.key))]
    ranks: List[int] = max((mesh.mesh.flatten().tolist() for mesh in meshes), key=len, default=[])
    return ranks


def _machine() -> str:
    """The same for all processes that can meet: abstract sockets are those of a network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}-{Path('/proc/self/ns/net').stat().st_ino}"


def _ask_all(own: _Process, group: Any) -> List[_Process]:
    found: List[Any] = [None] * dist.get_world_size(group)
    try:
        dist.monitored_barrier(group, timeout=timedelta(seconds=PATIENCE_S), wait_all_ranks=True)
        dist.all_gather_object(found, own, group=group)
    except RuntimeError as error:
        raise GossamerError(
            "GOSSAMER_TIMEOUT",
            f"not all processes that hold this model have called attach() within {PATIENCE_S} s, or one has ended: {error}",
        ) from None
    return found


def _gloo_group(places: "List[_Place]", group: Optional[dist.ProcessGroup]) -> Any:
    """A group over which objects travel, whatever the tensors travel over; None: the model is in one process."""
    if group is not None and dist.get_backend(group) == "gloo":
        return group
    ranks = _mesh_ranks(places) if group is None else dist.get_process_group_ranks(group)
    if len(ranks) < 2:
        return None
    if sorted(ranks) == list(range(dist.get_world_size())) and dist.get_backend() == "gloo":
        return dist.group.WORLD
    return dist.new_group(ranks, backend="gloo", use_local_synchronization=True)


def _check(processes: List[_Process]) -> None:
    for part, process in enumerate(processes):
        if process.error is not None:
            status, message = process.error
            raise GossamerError(status, f"part {part} of {len(processes)}: {message}")
    if len({process.job for process in processes}) > 1:
        raise GossamerError(
            "GOSSAMER_BAD_ARGUMENT",
            "the processes of this model attach it to several jobs, and some to the same: give one job for the whole model, or "
            "each shard a job of its own",
        )
    if len({process.machine for process in processes}) > 1:
        raise _unsupported(
            "the processes that hold this model are on several machines (or in several network namespaces), and those of a "
            "replica must be on one: shard it within a machine, or give each shard a job of its own"
        )
    wholes: Dict[str, _Held] = {}
    for process in processes:
        for held in process.held:
            first = wholes.setdefault(held.name, held)
            if (held.role, held.shape) != (first.role, first.shape):
                raise GossamerError(
                    "GOSSAMER_BAD_ARGUMENT",
                    f"tensor '{held.name}' is a {held.role} of shape {list(held.shape)} in one process, and a {first.role} of "
                    f"shape {list(first.shape)} in another: a model's stages need names of their own",
                )


def parts_of(places: "List[_Place]", job: str, group: Optional[dist.ProcessGroup]) -> Optional[Parts]:
    """The part of a replica that this process holds; None: it holds a model of its own, or attaches a shard as a job of
    its own. All processes of the group, or of the mesh of distributed tensors, call it together."""
    asked = _gloo_group(places, group)
    if asked is None or dist.get_world_size(asked) < 2:
        return None
    held: List[_Held] = []
    error = None
    try:
        held = [_held(place) for place in places]
    except GossamerError as problem:  # this process tells the others, because they wait for it
        error = (problem.status, str(problem))
    own = _Process(error, job, _machine(), f"{job[: MAX_NAME - 33]}-{uuid.uuid4().hex}", held)
    processes = _ask_all(own, asked)
    if asked is not group and asked is not dist.group.WORLD:
        dist.destroy_process_group(asked)
    if len({process.job for process in processes}) == len(processes) and error is None:
        return None
    _check(processes)
    all_places, wholes = _whole(places, processes, {one.name: one for one in held})
    part = [process.replica for process in processes].index(own.replica)
    return Parts(part, len(processes), processes[0].replica, all_places, wholes)


def _whole(
    places: "List[_Place]", processes: List[_Process], own: Dict[str, _Held]
) -> "Tuple[List[_Place], Dict[str, Tuple[Sequence[int], Sequence[int]]]]":
    """The model's tensors as an uncut model has them: all parameters, then all buffers, by the order of the processes."""
    here = {place.name: place for place in places}
    result = []
    wholes: Dict[str, Tuple[Sequence[int], Sequence[int]]] = {}
    device = next((place.tensor().device for place in places), torch.device("cpu"))
    seen: Set[str] = set()
    is_param = {one.name: one.role == "param" for process in processes for one in process.held}
    for params in (True, False):
        for process in processes:
            for one in process.held:
                if is_param[one.name] is not params or one.name in seen:
                    continue
                seen.add(one.name)
                place = here.get(one.name)
                if place is None:
                    place = _absent(one, device)
                    wholes[one.name] = (one.shape, (0,) * len(one.shape))
                elif math.prod(one.shape) > 0:
                    wholes[one.name] = (own[one.name].shape, own[one.name].offset)
                result.append(place)
    return result, wholes


def _absent(held: _Held, device: torch.device) -> "_Place":
    from .torch import _Place

    # An absent tensor has lengths of 0, which a scalar cannot have.
    if not held.shape and held.role != "local":
        raise _unsupported(f"tensor '{held.name}' is a scalar that not all processes of the model hold")
    return _Place(held.name, held.role, {"": torch.empty((0,) * len(held.shape), dtype=held.dtype, device=device)}, "")

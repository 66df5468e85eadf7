"""Attaching a model that is a pytree of JAX arrays:

    import gossamer.jax as gossamer
    run = gossamer.attach(params, job="mlp")
    params = run.params                     # the cluster's, if others were already training
    for batch in batches:
        params, state = update(params, state, batch)
        params = run.step(params, samples=len(batch))

JAX's arrays cannot be changed: step() returns new ones for those leaves that have got a correction, and the same
objects for all others. Between exchanges it copies nothing.

step() waits for no device. A model on a GPU goes to the daemon through host memory, in two steps. When a fragment is due
at step k, the copy of its values x_k to the host is only begun, after the computation that makes them, and the fragment
stays due. At a later step k + m, when the copy is there, the C library publishes s = x_k + c, with the correction c that
was due, and c is added on the device to the values of that step: x_{k+m} + c = s + (x_{k+m} - x_k). The training in
between is thus part of the model and not of the publication, like all training after a publication: nothing is lost or
counted twice. The publication carries the clock of step k + m, a few steps more than its values have been trained on.
Leaves that are spread over several devices are copied at once, and the copy is waited for.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import jax
import numpy as np

from . import _library
from ._drift import DriftCorrection, add_each
from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._options import AttachOptions
from ._run import HostCopies, Run, RunInfo, RunStats, State, TensorSpec, check_roles, roles_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "attach", "JaxRun", "Event", "EventKind", "GossamerError", "GossamerWarning", "Run", "RunInfo", "RunStats",
    "State", "version",
]

_LOCAL_DTYPES = {
    "int8": _library.I8,
    "int16": _library.I16,
    "int32": _library.I32,
    "int64": _library.I64,
    "uint8": _library.U8,
    "bool": _library.BOOL,
}
# A step publishes at most this much, as in gossamer.h, and at most this much is on its way at once.
DEFAULT_BUDGET_BYTES = 16 << 20
# To see whether the program trains on with what step() returns, this many corrections are looked at, in groups, and in
# each leaf this many elements.
CORRECTIONS_LOOKED_AT = 64
CORRECTIONS_IN_A_GROUP = 16
# A correction counts only if it comes this many steps after the last one. If one comes at each step, training may undo
# each of them.
STEPS_BETWEEN_LOOKS = 8
ELEMENTS_LOOKED_AT = 4096
MOST_SAME_STEPS = 50  # a program may count steps of something else, but not so many in a row
# bfloat16 is averaged in float32, and rounded at random so that its mean is kept.
_DTYPES = {"float32": _library.F32, "float64": _library.F64, "bfloat16": _library.BF16}


class _Leaf(NamedTuple):
    """A leaf as it was when the run was attached. It must not change."""

    name: str
    shape: Tuple[int, ...]
    dtype: Any  # JAX's object, not its name: comparing names at each step would take a microsecond
    host: Any  # np.ndarray, one-dimensional; None: the leaf stays here


def _refuse(name: str, reason: str) -> GossamerError:
    return GossamerError("GOSSAMER_UNSUPPORTED", f"leaf '{name}' {reason}")


def _name(path: Any) -> str:
    """The name of a leaf: {"dense": [w]} has the leaf "dense.0"."""
    parts = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path]
    return ".".join(str(part) for part in parts) or "params"


def _leaf(name: str, value: Any, role: str) -> _Leaf:
    if not isinstance(value, jax.Array):
        raise _refuse(name, f"is a {type(value).__name__}, not a JAX array: convert it with jax.numpy.asarray()")
    if role == "local":
        return _Leaf(name, value.shape, value.dtype, None)
    if str(value.dtype) not in _DTYPES:
        raise _refuse(name, f"has the dtype {value.dtype}, which cannot be averaged: use float32 or bfloat16, or the role local")
    if not value.is_fully_addressable and not value.is_fully_replicated:
        raise _refuse(name, "is spread over several processes: attach each process's shard as a job of its own")
    return _Leaf(name, value.shape, value.dtype, np.array(value).reshape(-1))


def _spec(leaf: _Leaf, role: str) -> TensorSpec:
    if leaf.host is None:
        # For a type unknown to Gossamer, for instance a random key, only the shape is compared with other replicas.
        return TensorSpec(leaf.name, _LOCAL_DTYPES.get(str(leaf.dtype), _library.U8), role, leaf.shape, 0, None)
    return TensorSpec(leaf.name, _DTYPES[str(leaf.dtype)], role, leaf.shape, leaf.host.ctypes.data, leaf.host)


def _is_on_cpu(value: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in value.devices())


def _is_on_one_device(value: jax.Array) -> bool:
    """Whether it is on one device that is not the processor."""
    return len(value.devices()) == 1 and not _is_on_cpu(value)


def _is_copied_whole(value: jax.Array) -> bool:
    """Whether parts of it would not be cheaper, or would be computed by all processes that have it."""
    return _is_on_cpu(value) or not value.is_fully_addressable


def _like(value: jax.Array, array: Any) -> jax.Array:
    """The array on the same devices, of those that this process has. Where processes have replicas of one array, each
    gets its own values: they differ by corrections that have not come to all yet."""
    if value.is_fully_addressable:
        return jax.device_put(array, value.sharding)
    return jax.make_array_from_callback(value.shape, value.sharding, lambda index: array[index])


def _is_ready(value: jax.Array) -> bool:
    """Whether it has been computed; never waits."""
    ready: bool = value.is_ready()
    return ready


def _to_host(value: jax.Array) -> Any:
    """Waits until the value is computed and copied."""
    return np.asarray(value)


def _sliced(value: jax.Array, first: int, size: int) -> jax.Array:
    return jax.lax.dynamic_slice(value.reshape(-1), (first,), (size,))


def _added(value: jax.Array, difference: jax.Array, first: int) -> jax.Array:
    """Adds in the difference's type, which is float32 for bfloat16."""
    flat = value.reshape(-1)
    piece = jax.lax.dynamic_slice(flat, (first,), difference.shape)
    corrected = (piece.astype(difference.dtype) + difference).astype(value.dtype)
    return jax.lax.dynamic_update_slice(flat, corrected, (first,)).reshape(value.shape)


# These are dispatched like the program's own computations, after those that make the values.
_slice: Any = jax.jit(_sliced, static_argnames="size")
_add: Any = jax.jit(_added)
_add_each: Any = jax.jit(add_each)


class _Piece(NamedTuple):
    """The elements of a tensor that are in one fragment."""

    tensor: int
    first: int
    size: int


class _Layout:
    """Which elements of which tensors are in which fragment. The replica is all tensors in turn, except local ones."""

    def __init__(self, sizes: Sequence[int], fragment_elements: int):
        self._fragment_elements = fragment_elements
        self._begins = [0]
        for size in sizes:
            self._begins.append(self._begins[-1] + size)
        self._pieces: Dict[int, List[_Piece]] = {}

    def fragment(self, tensor: int, first: int) -> int:
        return (self._begins[tensor] + first) // self._fragment_elements

    def begins_fragment(self, tensor: int, first: int) -> bool:
        return (self._begins[tensor] + first) % self._fragment_elements == 0

    def pieces(self, fragment: int) -> List[_Piece]:
        if fragment not in self._pieces:
            self._pieces[fragment] = self._pieces_between(
                fragment * self._fragment_elements, (fragment + 1) * self._fragment_elements
            )
        return self._pieces[fragment]

    def _pieces_between(self, begin: int, end: int) -> List[_Piece]:
        pieces = []
        end = min(end, self._begins[-1])
        tensor = bisect.bisect_right(self._begins, begin) - 1
        while begin < end:
            size = min(end, self._begins[tensor + 1]) - begin
            if size > 0:
                pieces.append(_Piece(tensor, begin - self._begins[tensor], size))
            begin, tensor = begin + size, tensor + 1
        return pieces


class _Corrected(NamedTuple):
    """Some elements of a leaf before and after a correction."""

    tensor: int
    first: int
    before: Any  # np.ndarray, as `after`
    after: Any


class _Snapshot:
    """The values of a fragment at one step, on their way to the host."""

    def __init__(self, pieces: Sequence[_Piece], values: Sequence[Any]):
        self._parts = [(piece, _slice(values[piece.tensor], piece.first, size=piece.size)) for piece in pieces]
        self._computed = False
        for _, part in self._parts:
            part.copy_to_host_async()

    def has_come(self) -> bool:
        """A snapshot that was computed at the last look has since had the time of a step to be copied."""
        if self._computed:
            return True
        self._computed = all(_is_ready(part) for _, part in self._parts)
        return False

    def take(self) -> List[Tuple[_Piece, Any]]:
        return [(piece, _to_host(part)) for piece, part in self._parts]


class _Snapshots:
    """The snapshots of fragments that are due on a device. They are taken in the order of the first requests, so that
    none waits for ever, and as many at once as the limit allows, but always one."""

    def __init__(self, layout: _Layout, bound_bytes: int):
        self.layout = layout
        self._bound_bytes = bound_bytes
        self._wanted: "OrderedDict[int, None]" = OrderedDict()  # wanted fragments, in the order of the first requests
        self._taken: Dict[int, _Snapshot] = {}
        self._brought: Dict[_Piece, Any] = {}  # values given to the C library, until the step ends

    def bring(self, fragment: int) -> Optional[List[Tuple[_Piece, Any]]]:
        """The fragment's values, if a snapshot of them has come. Otherwise one will be taken."""
        snapshot = self._taken.get(fragment)
        if snapshot is None:
            self._wanted[fragment] = None
            return None
        if not snapshot.has_come():
            return None
        parts = snapshot.take()
        del self._taken[fragment]
        self._brought.update(parts)
        return parts

    def forget(self, fragment: int) -> None:
        """The fragment was served with its present values, or other values have replaced them."""
        self._wanted.pop(fragment, None)
        self._taken.pop(fragment, None)

    def was_brought(self, piece: _Piece) -> bool:
        return piece in self._brought

    def taken_back(self, piece: _Piece) -> Any:
        return self._brought.pop(piece)

    def end_step(self, values: Sequence[Any]) -> None:
        """Begins to copy the wanted fragments."""
        if self._brought:
            self._brought.clear()  # these values were published without a correction
        while self._wanted and (not self._taken or self._bytes(self._taken) < self._bound_bytes):
            fragment = next(iter(self._wanted))
            self._taken[fragment] = _Snapshot(self.layout.pieces(fragment), values)
            del self._wanted[fragment]

    def _bytes(self, fragments: Dict[int, _Snapshot]) -> int:
        return sum(4 * piece.size for fragment in fragments for piece in self.layout.pieces(fragment))


class _HostCopies(HostCopies):
    """The transfer between the leaves and the host memory that the C library reads and writes."""

    def __init__(self, leaves: List[_Leaf], values: List[Any]):
        super().__init__()
        self._leaves = leaves
        self.values = values  # the leaves' present arrays
        self.snapshots: Optional[_Snapshots] = None  # set once the run is open
        self.may_wait = True  # whether it may wait for a device, which a step may not
        self._differences: List[Tuple[_Piece, Any]] = []  # differences to be added on the device
        # Values before and after the latest corrections, for leaves in host memory. None: these are not looked at any
        # more.
        self.corrected: Optional[List[_Corrected]] = []

    def load(self, tensor: int, first: int, count: int) -> Optional[bool]:
        if self.is_ahead(tensor, first, count):
            return True
        if self.snapshots is None:
            self._load_now(tensor, first, count)
            return True
        snapshots, layout = self.snapshots, self.snapshots.layout
        if snapshots.was_brought(_Piece(tensor, first, count)):
            return True  # the piece was brought together with the first piece of its fragment
        fragment = layout.fragment(tensor, first)
        if layout.begins_fragment(tensor, first):
            pieces = layout.pieces(fragment)
            if not self.may_wait and all(_is_on_one_device(self.values[piece.tensor]) for piece in pieces):
                return self._load_snapshot(fragment)
            snapshots.forget(fragment)
        self._load_now(tensor, first, count)
        return True

    def _load_snapshot(self, fragment: int) -> bool:
        assert self.snapshots is not None
        parts = self.snapshots.bring(fragment)
        if parts is None:
            return False
        for piece, values in parts:
            self._leaves[piece.tensor].host[piece.first : piece.first + piece.size] = values
        return True

    def store(self, tensor: int, first: int, count: int) -> None:
        piece = _Piece(tensor, first, count)
        if self.snapshots is None or not self.snapshots.was_brought(piece):
            if self.snapshots is not None:
                self.snapshots.forget(self.snapshots.layout.fragment(tensor, first))
            super().store(tensor, first, count)
            return
        before, after = self.snapshots.taken_back(piece), self._leaves[tensor].host[first : first + count]
        wide = np.promote_types(np.float32, before.dtype)
        with np.errstate(invalid="ignore"):
            difference = after.astype(wide) - before.astype(wide)
        # Where the snapshot is NaN or infinite, the fragment is quarantined, and the correction must not make the model
        # worse.
        self._differences.append((piece, np.where(np.isfinite(difference), difference, 0)))

    def _load_now(self, tensor: int, first: int, count: int) -> None:
        value, host = self.values[tensor], self._leaves[tensor].host
        if count == value.size or _is_copied_whole(value):
            piece = np.asarray(value).reshape(-1)[first : first + count]
        else:
            piece = np.asarray(jax.lax.dynamic_slice(value.reshape(-1), (first,), (count,)))
        host[first : first + count] = piece

    def take_changes(self) -> None:
        """Replaces the arrays of leaves that have changed."""
        changed = self.taken_changes()
        differences, self._differences = self._differences, []
        for tensor, pieces in changed.items():
            self.values[tensor] = self._changed_array(tensor, pieces)
        for piece, difference in differences:
            self.values[piece.tensor] = _add(self.values[piece.tensor], difference, piece.first)

    def _changed_array(self, tensor: int, pieces: List[Tuple[int, int]]) -> jax.Array:
        value, leaf = self.values[tensor], self._leaves[tensor]
        if sum(count for _, count in pieces) >= value.size or _is_copied_whole(value):
            flat = np.array(value).reshape(-1)  # a copy, because JAX may keep it as the new array's memory
            begin = pieces[0][0]
            look = slice(begin, begin + min(pieces[0][1], ELEMENTS_LOOKED_AT))
            before = flat[look].astype(np.float64)
            for first, count in pieces:
                flat[first : first + count] = leaf.host[first : first + count]
            if _is_on_cpu(value) and self.corrected is not None:
                self.corrected.append(_Corrected(tensor, begin, before, flat[look].astype(np.float64)))
            return _like(value, flat.reshape(leaf.shape))
        flat = value.reshape(-1)
        for first, count in pieces:
            flat = jax.lax.dynamic_update_slice(flat, leaf.host[first : first + count].copy(), (first,))
        return jax.device_put(flat.reshape(leaf.shape), value.sharding)


class JaxRun(Run):
    """A run of a pytree of JAX arrays."""

    def __init__(self, params: Any, options: AttachOptions):
        roles = roles_of(options)
        paths, self._structure = jax.tree_util.tree_flatten_with_path(params)
        named = {_name(path): value for path, value in paths}
        if len(named) != len(paths):
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "two leaves of the pytree have the same name: rename a key")
        check_roles(roles, named, "leaves")

        def role_of(name: str, value: Any) -> str:
            floating = jax.numpy.issubdtype(getattr(value, "dtype", np.float32), np.floating)
            return roles.get(name, "param" if floating else "local")

        role_list = [role_of(name, value) for name, value in named.items()]
        self._leaves = [_leaf(name, value, role) for (name, value), role in zip(named.items(), role_list)]
        self._copies = _HostCopies(self._leaves, list(named.values()))
        specs = [_spec(leaf, role) for leaf, role in zip(self._leaves, role_list)]
        self._trained = [index for index, role in enumerate(role_list) if role == "param"]
        if options.get("correct_drift", False) and not all(value.is_fully_addressable for value in self._parameters()):
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "correct_drift is for a model that one process holds")
        super().__init__(specs, options, self._copies)
        with self._closed_unless_done():
            sizes = [0 if leaf.host is None else leaf.host.size for leaf in self._leaves]
            self._looked_at = 0  # corrections so far
            self._steps_without = 0  # since the last correction
            self._undone = self._corrected = 0.0  # in a group: how much was undone, and the squares of the corrections
            self._same_steps = 0  # steps in a row that were given the model of the step before
            bound_bytes = options.get("step_budget_bytes") or DEFAULT_BUDGET_BYTES
            self._snapshots = _Snapshots(_Layout(sizes, self.info().fragment_elements), bound_bytes)
            self._copies.snapshots = self._snapshots

    @property
    def params(self) -> Any:
        """The model as of the last step(), with the corrections since then."""
        self._copies.take_changes()
        return jax.tree_util.tree_unflatten(self._structure, self._copies.values)

    def step(self, params: Any, samples: int = 1) -> Any:  # type: ignore[override]
        """Call after each optimiser step, with the model and the number of samples that the step trained on. Returns
        the model to train on with. Never waits for the network, nor for a device."""
        values, structure = jax.tree_util.tree_flatten(params)
        if structure != self._structure:
            raise GossamerError(
                "GOSSAMER_BAD_ARGUMENT",
                "the pytree has another structure than the one that was attached: close the run, then attach again",
            )
        if values and isinstance(values[0], jax.core.Tracer):  # a compiled function would not call the run again
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "run.step() is inside a function that JAX traces: call it outside")
        trained = False
        for leaf, value, before in zip(self._leaves, values, self._copies.values):
            if value is before:
                continue
            trained = True
            if not isinstance(value, jax.Array):
                raise _refuse(leaf.name, f"is a {type(value).__name__} now, not a JAX array: convert it with jax.numpy.asarray()")
            if (value.shape, value.dtype) != (leaf.shape, leaf.dtype):
                raise _refuse(
                    leaf.name,
                    f"is {value.dtype}{list(value.shape)}, but {leaf.dtype}{list(leaf.shape)} was attached: close the run, then "
                    "attach again",
                )
        self._count_same(trained, samples)
        if self._drift is None:
            self._look_whether_used(values)
        self._copies.values = list(values)
        self._copies.take_changes()  # changes from wait(), which nobody has asked for yet
        self._copies.may_wait = False
        try:
            super().step(samples)
        finally:
            self._copies.may_wait, self._copies.put_off = True, False
        self._copies.take_changes()
        self._snapshots.end_step(self._copies.values)
        changed = any(value is not given for value, given in zip(self._copies.values, values))
        return self.params if changed else params

    def _drift_correction(self) -> DriftCorrection:
        return DriftCorrection(self._parameters(), jax.numpy, _add_each)

    def _correct_drift(self, drift: DriftCorrection, trained: bool) -> None:
        super()._correct_drift(drift, trained)
        # Only now, because training alone may undo more than the corrections that a corrected drift leaves.
        self._look_whether_used(self._copies.values)

    def _parameters(self) -> List[Any]:
        self._copies.take_changes()
        return [self._copies.values[index] for index in self._trained]

    def _set_parameters(self, values: List[Any]) -> None:
        for index, value in zip(self._trained, values):
            self._copies.values[index] = value

    def _look_whether_used(self, values: List[Any]) -> None:
        """Warns if the values that are given do not have the corrections that step() returned with the former ones. Training
        may undo a part of each; a program that drops what step() returns undoes all."""
        corrected = self._copies.corrected
        self._steps_without += 1
        if not corrected:
            return
        self._copies.corrected = [] if self._looked_at + 1 < CORRECTIONS_LOOKED_AT else None
        steps, self._steps_without = self._steps_without, 0
        if steps < STEPS_BETWEEN_LOOKS:
            return
        for leaf, first, before, after in corrected:
            correction = after - before
            now = np.asarray(values[leaf]).reshape(-1)[first : first + len(correction)].astype(np.float64)
            undone, square = float((after - now) @ correction), float(correction @ correction)
            if np.isfinite(undone) and np.isfinite(square):
                self._undone += undone
                self._corrected += square
        self._looked_at += 1
        if self._looked_at % CORRECTIONS_IN_A_GROUP != 0:
            return
        if self._undone > 0.75 * self._corrected > 0:
            self._copies.corrected = None
            self._warn(
                f"the model that run.step() is given has none of the corrections of the job '{self._job}', so this process trains "
                "alone: train on with what run.step() returns (params = run.step(params))"
            )
        self._undone = self._corrected = 0.0

    def _count_same(self, trained: bool, samples: int) -> None:
        self._same_steps = 0 if trained else self._same_steps + (samples > 0)
        if self._same_steps == MOST_SAME_STEPS:
            self._warn(
                f"{MOST_SAME_STEPS} steps of the job '{self._job}' were given the model of the step before: give run.step() the "
                "trained one, and train on with what it returns"
            )


def attach(params: Any, **options: Unpack[AttachOptions]) -> JaxRun:
    """Attaches a model to the daemon of this machine; if the job is already running elsewhere, takes over its model:
    go on with `run.params`.

    params: a pytree of JAX arrays. float32, float64 and bfloat16 leaves are averaged, others stay here.
    roles: leaf -> "param", "buffer" or "local", where the default is not wanted; leaves are named "dense.0.kernel".
    The other options are those of gossamer.attach().
    """
    run = JaxRun(params, options)
    run._wait_if_asked(options)
    return run

"""Attaching a model that is a pytree of JAX arrays:

    import gossamer.jax as gossamer
    run = gossamer.attach(params, job="mlp")
    params = run.params                     # the cluster's, if others were already training
    for batch in batches:
        params, state = update(params, state, batch)
        params = run.step(params, samples=len(batch))

JAX's arrays cannot be changed: step() returns new ones for those leaves that have got a correction, and the same
objects for all others. Between exchanges it copies nothing and waits for no device.
"""

from __future__ import annotations

from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Tuple

import jax
import numpy as np

from . import _library
from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._run import HostCopies, Run, RunInfo, RunOptions, RunStats, State, TensorSpec, check_roles

__all__ = [
    "attach",
    "JaxRun",
    "Event",
    "EventKind",
    "GossamerError",
    "GossamerWarning",
    "Run",
    "RunInfo",
    "RunStats",
    "State",
    "version",
]

_LOCAL_DTYPES = {
    "int8": _library.I8,
    "int16": _library.I16,
    "int32": _library.I32,
    "int64": _library.I64,
    "uint8": _library.U8,
    "bool": _library.BOOL,
}
# bfloat16 is averaged in float32, and rounded at random so that its mean stays.
_DTYPES = {"float32": _library.F32, "float64": _library.F64, "bfloat16": _library.BF16}


class _Leaf(NamedTuple):
    """What a leaf was when the run was attached, and must stay."""

    name: str
    shape: Tuple[int, ...]
    dtype: Any  # as JAX has it: compared at each step, which its name would take a microsecond for
    host: Any  # np.ndarray, one-dimensional; None: it stays here


def _refuse(name: str, reason: str) -> GossamerError:
    return GossamerError("GOSSAMER_UNSUPPORTED", f"leaf '{name}' {reason}")


def _name(path: Any) -> str:
    """{"dense": [w]} has the leaf "dense.0"."""
    parts = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", key))) for key in path]
    return ".".join(str(part) for part in parts) or "params"


def _leaf(name: str, value: Any, role: str) -> _Leaf:
    if not isinstance(value, jax.Array):
        raise _refuse(name, f"is a {type(value).__name__}, not a JAX array: convert it with jax.numpy.asarray()")
    if role == "local":
        return _Leaf(name, value.shape, value.dtype, None)
    if str(value.dtype) not in _DTYPES:
        raise _refuse(name, f"has the dtype {value.dtype}, which cannot be averaged: use float32 or bfloat16, or the role local")
    if not value.is_fully_addressable:
        raise _refuse(name, "is spread over several processes: attach each process's shard as a job of its own")
    return _Leaf(name, value.shape, value.dtype, np.array(value).reshape(-1))


def _spec(leaf: _Leaf, role: str) -> TensorSpec:
    if leaf.host is None:
        # Of a type unknown to Gossamer (a random key, say) only the shape is compared with other replicas.
        return TensorSpec(leaf.name, _LOCAL_DTYPES.get(str(leaf.dtype), _library.U8), role, leaf.shape, 0, None)
    return TensorSpec(leaf.name, _DTYPES[str(leaf.dtype)], role, leaf.shape, leaf.host.ctypes.data, leaf.host)


def _is_on_cpu(value: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in value.devices())


class _HostCopies(HostCopies):
    """Between the leaves and the host memory that the C library reads and writes."""

    def __init__(self, leaves: List[_Leaf], values: List[Any]):
        super().__init__()
        self._leaves = leaves
        self.values = values  # the leaves' present arrays

    def load(self, tensor: int, first: int, count: int) -> None:
        value, host = self.values[tensor], self._leaves[tensor].host
        if count == value.size or _is_on_cpu(value):
            piece = np.asarray(value).reshape(-1)[first : first + count]
        else:
            piece = np.asarray(jax.lax.dynamic_slice(value.reshape(-1), (first,), (count,)))
        host[first : first + count] = piece

    def take_changes(self) -> bool:
        """Replaces the arrays of leaves that have changed; whether there were any."""
        changed = self.taken_changes()
        for tensor, pieces in changed.items():
            self.values[tensor] = self._changed_array(tensor, pieces)
        return bool(changed)

    def _changed_array(self, tensor: int, pieces: List[Tuple[int, int]]) -> jax.Array:
        value, leaf = self.values[tensor], self._leaves[tensor]
        if sum(count for _, count in pieces) >= value.size or _is_on_cpu(value):
            flat = np.array(value).reshape(-1)  # a copy of our own: JAX may keep it as the new array's memory
            for first, count in pieces:
                flat[first : first + count] = leaf.host[first : first + count]
            return jax.device_put(flat.reshape(leaf.shape), value.sharding)
        flat = value.reshape(-1)
        for first, count in pieces:
            flat = jax.lax.dynamic_update_slice(flat, leaf.host[first : first + count].copy(), (first,))
        return jax.device_put(flat.reshape(leaf.shape), value.sharding)


class JaxRun(Run):
    """A run of a pytree of JAX arrays."""

    def __init__(self, params: Any, options: RunOptions, roles: Mapping[str, str]):
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
        super().__init__(specs, options, self._copies)

    @property
    def params(self) -> Any:
        """The model as it is now: as of the last step(), with what has been corrected since."""
        self._copies.take_changes()
        return jax.tree_util.tree_unflatten(self._structure, self._copies.values)

    def step(self, params: Any, samples: int = 1) -> Any:  # type: ignore[override]
        """Call after each optimiser step, with the model and the number of samples that the step trained on. Returns
        the model to train on with. Never waits for the network."""
        values, structure = jax.tree_util.tree_flatten(params)
        if structure != self._structure:
            raise GossamerError(
                "GOSSAMER_BAD_ARGUMENT", "the pytree has another structure than the one that was attached: attach again"
            )
        for leaf, value, before in zip(self._leaves, values, self._copies.values):
            if value is not before and (value.shape, value.dtype) != (leaf.shape, leaf.dtype):
                raise _refuse(
                    leaf.name,
                    f"is {value.dtype}{list(value.shape)}, but {leaf.dtype}{list(leaf.shape)} was attached: attach again",
                )
        self._copies.values = values
        changed = self._copies.take_changes()  # while wait() pulled a model, and nobody has asked for it
        super().step(samples)
        changed = self._copies.take_changes() or changed
        return self.params if changed else params


def attach(
    params: Any,
    *,
    job: str,
    roles: Optional[Mapping[str, str]] = None,
    wait: bool = True,
    timeout_s: Optional[float] = None,
    socket: Optional[str] = None,
    fragment_elements: int = 0,
    step_budget_bytes: int = 0,
    initial_clock: int = 0,
    memory: str = "auto",
    on_event: Optional[Callable[[Event], None]] = None,
    progress: Optional[bool] = None,
) -> JaxRun:
    """Attaches a model to the daemon of this machine; if the job is already running elsewhere, takes over its model:
    go on with `run.params`.

    params: a pytree of JAX arrays. float32, float64 and bfloat16 leaves are averaged, others stay here.
    roles: leaf -> "param", "buffer" or "local", where that is not wanted; leaves are named "dense.0.kernel".
    The rest is as in gossamer.attach().
    """
    options = RunOptions(job, socket, fragment_elements, step_budget_bytes, initial_clock, memory, on_event, progress)
    run = JaxRun(params, options, dict(roles or {}))
    if wait:
        run.wait(timeout_s)
    return run

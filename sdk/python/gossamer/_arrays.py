"""Attaching a model that is a set of arrays: NumPy's, or anything that has its array interface."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Union

from . import _library
from ._library import GossamerError
from ._options import AttachOptions
from ._run import Run, TensorSpec, check_roles

if TYPE_CHECKING:
    from typing_extensions import Unpack

# NumPy's type strings without the byte order.
_DTYPES = {
    "f4": _library.F32,
    "f8": _library.F64,
    "f2": _library.F16,
    "i1": _library.I8,
    "i2": _library.I16,
    "i4": _library.I32,
    "i8": _library.I64,
    "u1": _library.U8,
    "b1": _library.BOOL,
}
_NATIVE_ORDER = "<" if sys.byteorder == "little" else ">"


def _refuse(name: str, reason: str) -> GossamerError:
    return GossamerError("GOSSAMER_UNSUPPORTED", f"array '{name}' {reason}")


def _spec(name: str, array: Any, role: str) -> TensorSpec:
    interface = getattr(array, "__array_interface__", None)
    if interface is None:
        raise _refuse(name, f"is a {type(array).__name__}, not a NumPy array (for PyTorch use gossamer.torch.attach)")
    order, dtype = interface["typestr"][0], interface["typestr"][1:]
    if dtype not in _DTYPES:
        raise _refuse(name, f"has the dtype {interface['typestr']}, which cannot be averaged: use float32 or float64")
    pointer, read_only = interface["data"]
    if role != "local":
        if order not in ("|", _NATIVE_ORDER):
            raise _refuse(name, "is in the other byte order: convert it with array.astype(array.dtype.newbyteorder('='))")
        if interface.get("strides") is not None:
            raise _refuse(name, "is not C-contiguous: train on numpy.ascontiguousarray(array) instead")
        if read_only:
            raise _refuse(name, "is read-only, but corrections are added in place: train on array.copy() instead")
    return TensorSpec(name, _DTYPES[dtype], role, interface["shape"], pointer, array)


def attach(
    arrays: Union[Mapping[str, Any], Iterable[Any]],
    **options: Unpack[AttachOptions],
) -> Run:
    """Attaches a model to the daemon of this machine; if the job is already running elsewhere, takes over its model.

    arrays: name -> array, or just arrays (or one), which are then called "0", "1", ... They must be C-contiguous, in
        float32 or float64, and the training loop must update them in place (w -= ..., not w = w - ...).
    job: the name that all replicas of this model share.
    roles: name -> "param" (the default: averaged), "buffer" (averaged, but no parameter) or "local" (stays here).
    wait: wait until the run takes part in the training; timeout_s bounds that (see Run.wait).
    socket: the daemon's socket; by default $GOSSAMER_SOCKET or where gossamerd puts it.
    fragment_elements, step_budget_bytes, initial_clock: see gossamer_options in gossamer.h; 0 is the default.
    memory: the memory shared with the daemon: "resident" (three times the model's size in float32), "lean" (64 MiB or
        8 fragments, whichever is more; steps and exchanges take longer), or "auto": lean if resident does not fit.
    settings: how the job is averaged, if it begins with this run, by the names that `gossamerctl job set` takes: for
        instance {"codec": "q4", "period_ms": 1000}. A job that runs already keeps its own.
    on_event: called when something happens to the run (see Run.on_event).
    progress: shows on standard error how far joining is; by default on a terminal.
    """
    if hasattr(arrays, "__array_interface__"):
        arrays = [arrays]
    if not isinstance(arrays, (Mapping, Iterable)):
        raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"a model is arrays or a mapping of names to them, not {arrays!r}")
    named = dict(arrays) if isinstance(arrays, Mapping) else {str(i): array for i, array in enumerate(arrays)}
    roles = dict(options.get("roles") or {})
    check_roles(roles, named, "arrays")
    specs = [_spec(name, array, roles.get(name, "param")) for name, array in named.items()]
    run = Run(specs, options)
    run._wait_if_asked(options)
    return run

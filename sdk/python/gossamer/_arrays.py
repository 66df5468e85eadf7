"""Attaching a model that is a set of arrays: NumPy's, or anything that has its array interface."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, Sequence, Union

from . import _library
from ._drift import DriftCorrection
from ._library import GossamerError
from ._options import AttachOptions
from ._run import Run, TensorSpec, check_roles, roles_of, slices_of
from ._shared import Finish

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


def _other_framework(value: Any) -> str:
    """What to use for a model or an array that is not NumPy's; empty: it is of no framework that is known here."""
    package = type(value).__module__.partition(".")[0]
    if package == "torch" or hasattr(value, "named_modules"):
        return "use gossamer.torch.attach() (import gossamer.torch)"
    if package in ("jax", "jaxlib"):
        return "use gossamer.jax.attach() (import gossamer.jax)"
    return "use gossamer.keras.GossamerCallback (import gossamer.keras)" if package in ("keras", "tensorflow") else ""


def _spec(name: str, array: Any, role: str) -> TensorSpec:
    interface = getattr(array, "__array_interface__", None)
    if isinstance(array, Mapping):
        raise _refuse(name, f"is a {type(array).__name__}: give its arrays names of their own, such as '{name}.w'")
    if interface is None:
        remedy = _other_framework(array) or "if it has arrays in it, give them names of their own"
        raise _refuse(name, f"is a {type(array).__name__}, not a NumPy array: {remedy}")
    if not hasattr(array, "__setitem__"):  # a scalar: its interface describes a temporary copy
        raise _refuse(name, f"is a {type(array).__name__}, which cannot be changed in place: use numpy.array(...)")
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


class ArraysRun(Run):
    """A run of a model whose arrays are those of a mapping or a sequence: an array that the program puts in the place of
    another is followed."""

    def __init__(self, arrays: Union[Mapping[str, Any], Sequence[Any]], named: Dict[str, Any], options: AttachOptions):
        roles = roles_of(options)
        check_roles(roles, named, "arrays")
        self._arrays = arrays
        self._roles = [roles.get(name, "param") for name in named]
        self._names = list(named)
        self._keys: List[Any] = list(named) if isinstance(arrays, Mapping) else list(range(len(named)))
        self._told_of_new = False
        specs = [_spec(name, array, role) for (name, array), role in zip(named.items(), self._roles)]
        slices = slices_of(options, named)
        for spec in specs:
            spec.whole = slices.get(spec.name)
        self._kinds = [(spec.dtype, tuple(spec.shape)) for spec in specs]
        super().__init__(specs, options)

    def step(self, samples: int = 1) -> None:
        self._follow_program()
        super().step(samples)

    def wait(self, timeout_s: Optional[float] = None) -> bool:
        self._follow_program()
        return super().wait(timeout_s)

    def finish(self, timeout_s: Optional[float] = 60.0) -> Finish:
        self._follow_program()
        return super().finish(timeout_s)

    def _follow_program(self) -> None:
        with self._lib.lock:  # another thread may close the run
            if self.closed:
                return
            for index, key in enumerate(self._keys):
                try:
                    array = self._arrays[key]
                except LookupError:
                    raise _refuse(self._names[index], "has been taken out of the model since the run was attached") from None
                if array is not self._owners[index]:
                    self._follow(index, array)
        if len(self._arrays) > len(self._keys) and not self._told_of_new:
            self._tell_of_new()

    def _drift_correction(self) -> DriftCorrection:
        import numpy

        return DriftCorrection(self._parameters(), numpy)

    def _parameters(self) -> List[Any]:
        import numpy

        return [numpy.asarray(array) for array, role in zip(self._owners, self._roles) if role == "param"]

    def _tell_of_new(self) -> None:
        self._told_of_new = True
        keys = self._arrays if isinstance(self._arrays, Mapping) else range(len(self._arrays))
        new = next(key for key in keys if key not in self._keys)
        self._warn(
            f"the array '{new}' has been put into the model since it was attached to the job '{self._job}', so it is not "
            "averaged: attach the model again"
        )

    def _follow(self, index: int, array: Any) -> None:
        name, role = self._names[index], self._roles[index]
        spec = _spec(name, array, role)
        if (spec.dtype, tuple(spec.shape)) != self._kinds[index]:
            raise _refuse(
                name, "has changed its dtype or shape since the run was attached: close the run (run.close()), then attach again"
            )
        if role == "local" or 0 in spec.shape:
            self._owners[index] = array
        else:
            self._move_tensor(index, spec.pointer, array)


def attach(
    arrays: Union[Mapping[str, Any], Iterable[Any]],
    *wrong: Any,
    **options: Unpack[AttachOptions],
) -> Run:
    """Attaches a model to the daemon of this machine; if the job is already running elsewhere, takes over its model.

    arrays: name -> array, or just arrays (or one), which are then called "0", "1", ... They must be C-contiguous, in
        float32 or float64. The training loop updates them in place (w -= ...), or puts a new array in the place of the
        old one in this mapping or list (model["w"] = model["w"] - ...). What only has the old one's name (w = w - ...)
        is not seen.
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
    part, replica, slices: for a replica that several processes of this machine hold together, each a part of it: the
        index of this process and their number, such as (0, 2); a name that these processes share and no others; and
        for arrays that are a slice of the whole, name -> (shape of the whole, offset of the slice in it). All processes
        name all arrays; one that holds nothing of an array gives one with a length of 0. They step together. Other
        nodes may cut the model otherwise, or not at all (docs/how-to/train-a-model-in-parts.md).
    correct_drift: where nodes see different data: each step leaves out what exchanges have led back again and again, as
        SCAFFOLD does (Karimireddy et al. 2020; docs/explanation/learning.md, 14). The same on all nodes: one that does not
        has another layout, and is kept apart. It takes no bytes on the network, another 8 or 16 bytes a parameter (in
        float32 or float64), and one pass over the parameters in each step. It rests with the method "server" and with
        outer momentum. Parameters in bfloat16 are an error, and so is `part`.
    """
    remedy = _other_framework(arrays)
    if remedy:
        raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"this is a {type(arrays).__name__}, and no NumPy arrays: {remedy}")
    if wrong:
        raise TypeError("attach() takes the model, and the rest by name: attach(arrays, job=...)")
    if hasattr(arrays, "__array_interface__"):
        arrays = [arrays]
    if isinstance(arrays, (str, bytes)) or not isinstance(arrays, Iterable):
        raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"a model is arrays or a mapping of names to them, not {arrays!r}")
    if not isinstance(arrays, (Mapping, Sequence)):
        arrays = list(arrays)
    named = dict(arrays) if isinstance(arrays, Mapping) else {str(i): array for i, array in enumerate(arrays)}
    run = ArraysRun(arrays, named, options)
    run._wait_if_asked(options)
    return run

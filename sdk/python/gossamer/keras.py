"""Attaching a Keras 3 model (tf.keras is one, from TensorFlow 2.16), on any of its backends:

    import gossamer.keras
    model.fit(x, y, batch_size=32, callbacks=[gossamer.keras.GossamerCallback(job="mlp", samples_per_step=32)])

Variables are copied to host memory and assigned from there, and only those with a due fragment.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Mapping, Optional, Set

import keras
import numpy as np

from . import _library
from ._drift import DriftCorrection
from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._options import AttachOptions, check_options
from ._run import (
    HostCopies, Run, RunInfo, RunStats, State, TensorSpec, _close_trainer_runs, _trainer_runs, check_roles,
    check_samples_per_step, roles_of,
)  # fmt: skip
from ._shared import Finish

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "GossamerCallback", "Event", "EventKind", "GossamerError", "GossamerWarning", "Run", "RunInfo", "RunStats",
    "State", "version",
]

_DTYPES = {
    "float32": _library.F32,
    "float64": _library.F64,
    "bfloat16": _library.BF16,  # averaged in float32, and rounded at random so that its mean is kept
    "int8": _library.I8,
    "int16": _library.I16,
    "int32": _library.I32,
    "int64": _library.I64,
    "uint8": _library.U8,
    "bool": _library.BOOL,
}


def _name(index: int, variable: Any) -> str:
    """Keras numbers layers as the process makes them ("dense_3"), which may differ from replica to replica."""
    return f"{index}.{variable.name}"


def _default_role(variable: Any) -> str:
    if not str(variable.dtype).startswith(("float", "bfloat")):
        return "local"
    return "param" if variable.trainable else "buffer"


def _spec(name: str, variable: Any, role: str) -> TensorSpec:
    dtype, shape = str(variable.dtype), tuple(variable.shape)
    if role == "local":
        return TensorSpec(name, _DTYPES.get(dtype, _library.U8), role, shape, 0, None)
    if dtype not in ("float32", "float64", "bfloat16"):
        raise GossamerError(
            "GOSSAMER_UNSUPPORTED",
            f"variable '{name}' ({variable.path}) has the dtype {dtype}, which cannot be averaged: use float32 (the policy "
            "mixed_float16 does), or the role local",
        )
    host = np.array(keras.ops.convert_to_numpy(variable.value)).reshape(-1)
    return TensorSpec(name, _DTYPES[dtype], role, shape, host.ctypes.data, host)


class _HostCopies(HostCopies):
    """The transfer between the variables and the host memory that the C library reads and writes. `variables()` gives
    the present ones: with JAX, training keeps their values elsewhere until somebody asks."""

    def __init__(self, variables: Callable[[], List[Any]], specs: List[TensorSpec]):
        super().__init__()
        self.variables = variables
        self._specs = specs

    def load(self, tensor: int, first: int, count: int) -> None:
        if self.is_ahead(tensor, first, count):
            return
        host = self._specs[tensor].owner
        value = self.variables()[tensor].value
        if count < host.size:  # so that only a part is copied to the host
            value = keras.ops.reshape(value, (-1,))[first : first + count]
        host[first : first + count] = keras.ops.convert_to_numpy(value).reshape(-1)

    def assign_changes(self) -> None:
        changed = self.taken_changes()
        variables = self.variables() if changed else []
        for tensor, pieces in changed.items():
            host, variable = self._specs[tensor].owner, variables[tensor]
            value = np.array(keras.ops.convert_to_numpy(variable.value)).reshape(-1)
            for first, count in pieces:
                value[first : first + count] = host[first : first + count]
            variable.assign(value.reshape(variable.shape))


class _KerasRun(Run):
    """A run of a model's variables."""

    def __init__(self, variables: List[Any], specs: List[TensorSpec], options: AttachOptions, copies: _HostCopies):
        self._variables = variables
        self._copies = copies
        self._trained = [index for index, spec in enumerate(specs) if spec.role == "param"]
        super().__init__(specs, options, copies)

    def wait(self, timeout_s: Optional[float] = None) -> bool:
        with self._assigning():
            return super().wait(timeout_s)

    def finish(self, timeout_s: Optional[float] = 60.0) -> Finish:
        with self._assigning():
            return super().finish(timeout_s)

    def close(self) -> None:
        with self._assigning():
            super().close()

    @contextlib.contextmanager
    def _assigning(self) -> Iterator[None]:
        """The variables get what the call has changed."""
        yield
        self._copies.assign_changes()

    def _drift_correction(self) -> DriftCorrection:
        return DriftCorrection(self._parameters(), keras.ops)

    def _parameters(self) -> List[Any]:
        self._copies.assign_changes()
        variables = self._copies.variables()
        # Without gradients, which PyTorch would follow through the sums.
        return [keras.ops.stop_gradient(keras.ops.convert_to_tensor(variables[index])) for index in self._trained]

    def _set_parameters(self, values: List[Any]) -> None:
        variables = self._copies.variables()
        for index, value in zip(self._trained, values):
            variables[index].assign(value)

    def _model(self) -> Set[int]:
        return {id(variable) for variable in self._variables}


class GossamerCallback(keras.callbacks.Callback):
    """For model.fit(callbacks=[...]): attaches the model when training begins, steps after each batch, and closes the
    run at the end. `run` is the gossamer.Run in between.

    job: the name that all replicas of this model share.
    samples_per_step: what each batch adds to the clock, normally the batch size.
    roles: name -> "param", "buffer" or "local", where the default is not wanted; variables are named by their place in
        model.weights, "0.kernel".
    The other options are those of gossamer.attach().
    """

    def __init__(self, *, samples_per_step: int = 1, **options: Unpack[AttachOptions]):
        super().__init__()
        check_options(options)
        self.samples_per_step = check_samples_per_step(samples_per_step)
        self.run: Optional[Run] = None
        self._options = options
        self._next_batch = 0

    def on_train_begin(self, logs: Optional[Mapping[str, Any]] = None) -> None:
        weights = self.model.weights
        if not weights:
            raise GossamerError(
                "GOSSAMER_BAD_ARGUMENT", "the model has no variables yet: give it an Input, or call it on a batch, before fit()"
            )
        named = {_name(index, variable): variable for index, variable in enumerate(weights)}
        roles = roles_of(self._options)
        check_roles(roles, named, "variables")
        specs = [_spec(name, value, roles.get(name, _default_role(value))) for name, value in named.items()]
        self._copies = _HostCopies(lambda: list(self.model.weights), specs)
        _close_trainer_runs(self._options["job"])
        self.run = _KerasRun(weights, specs, self._options, self._copies)
        _trainer_runs[self.run] = threading.get_ident()
        self.run._wait_if_asked(self._options)
        self._copies.assign_changes()

    def on_epoch_begin(self, epoch: int, logs: Optional[Mapping[str, Any]] = None) -> None:
        self._next_batch = 0

    def on_train_batch_end(self, batch: int, logs: Optional[Mapping[str, Any]] = None) -> None:
        # With steps_per_execution, `batch` is the last of several.
        batches, self._next_batch = batch + 1 - self._next_batch, batch + 1
        if self.run is not None and not self.run.closed:
            self.run.step(batches * self.samples_per_step)
            self._copies.assign_changes()

    def on_train_end(self, logs: Optional[Mapping[str, Any]] = None) -> None:
        if self.run is not None and not self.run.closed:
            self._options["initial_clock"] = self.run.clock  # the next fit() goes on from this clock
            self.run.close()

"""Simulating a training before machines are rented: your own model and your own step on as many nodes as you like, under
virtual time, with the daemon's own decisions and arithmetic.

    import gossamer.sim

    result = gossamer.sim.run(make_replica, train_step, evaluate, nodes=40, seconds=600, step_ms=120,
                              speeds=[0.25, 0.25], network={"mbit": 100, "latency_ms": 20},
                              faults=[{"at_s": 60, "what": "kill", "node": 7}])
    print(result)                # loss, bytes, consensus
    result.save("result.svg")    # and their curves

All replicas are in this process, and take turns, so that hundreds of nodes of a small model run on one machine. One seed
gives one run, as far as the functions given draw from seeds of their own. Needs the program gossamer-sim, of the same
package as the daemon.
"""

from __future__ import annotations

import json
import math
import mmap
import operator
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy

__all__ = ["Result", "compare", "run"]

Measured = Union[float, Tuple[float, float], Mapping[str, float]]

_VARIABLE = "GOSSAMER_SIM"  # the path of the program, if it is not in a usual place
_MOST_NODES = 4096  # the program's own limit
_MOST_SAMPLES = 2**40  # in a step
_RECORDED = ("time_s", "samples", "bytes_per_node", "consensus_rms", "behind", "clocks")  # what the program records


class Result:
    """What was simulated.

    - `records`: a dictionary for each evaluation: `time_s` (virtual), `samples` (of all nodes), `bytes_per_node` (sent),
      `loss`, `accuracy` (NaN if evaluate() tells none) and what else it tells, `consensus_rms` (distance of a node's
      elements from the mean's), `behind` (samples between the most and the least advanced node), `clocks` (of each node).
    - `summary`: the end, and counters of exchanges.
    - `table`, `svg`: for people.
    """

    def __init__(self, name: str, records: List[Dict[str, Any]], summary: Dict[str, Any], table: str, svg: str):
        self.name = name
        self.records = records
        self.summary = summary
        self.table = table
        self.svg = svg

    def __str__(self) -> str:
        return self.table

    def json(self) -> str:
        records = [_without_nan(record) for record in self.records]
        return json.dumps({"name": self.name, "records": records, "summary": _without_nan(self.summary)}, allow_nan=False)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the curves (a path that ends with .svg) or all figures (.json)."""
        _save(Path(path), {".svg": self.svg, ".json": self.json()})


class _Model(NamedTuple):
    """A replica's tensors, in the order of all replicas."""

    shapes: List[Tuple[str, Tuple[int, ...]]]  # names and shapes
    buffers: List[Tuple[int, int]]  # [first, last): elements that follow the data (batch norm's statistics)
    load: Callable[[numpy.ndarray], None]  # from a flat array of float32
    store: Callable[[numpy.ndarray], None]  # to it

    @property
    def elements(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes)


def _cut(flat: numpy.ndarray, shapes: Iterable[Tuple[str, Tuple[int, ...]]]) -> List[numpy.ndarray]:
    pieces, first = [], 0
    for _, shape in shapes:
        count = math.prod(shape)
        pieces.append(flat[first : first + count].reshape(shape))
        first += count
    return pieces


def _model_of(replica: Any) -> _Model:
    if hasattr(replica, "get_arrays") and hasattr(replica, "set_arrays"):
        return _of_functions(replica)
    torch = sys.modules.get("torch")
    first = replica[0] if isinstance(replica, (tuple, list)) and replica else None
    for candidate in (replica, getattr(replica, "model", None), first):
        if torch is not None and isinstance(candidate, torch.nn.Module):
            return _of_module(candidate)
        if isinstance(candidate, Mapping) and candidate and all(isinstance(a, numpy.ndarray) for a in candidate.values()):
            return _of_arrays(candidate)
    raise TypeError(
        f"make_replica() gives a {type(replica).__name__}, in which no model is found: give a torch.nn.Module, a dictionary "
        "of NumPy arrays, a tuple that begins with one, an object that has one as .model, or an object with get_arrays() "
        "(a list of arrays) and set_arrays(arrays)"
    )


def _refuse_type(name: str, kind: Any) -> None:
    raise ValueError(f"{name} is of {kind}: only elements of floating point can be averaged")


def _of_module(module: Any) -> _Model:
    import torch

    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_complex() or (isinstance(tensor, torch.nn.Parameter) and not tensor.is_floating_point()):
            _refuse_type(name, tensor.dtype)
    parameters = [(name, tensor) for name, tensor in module.named_parameters()]
    buffers = [(name, tensor) for name, tensor in module.named_buffers() if tensor.is_floating_point()]
    tensors = [*parameters, *buffers]
    shapes = [(name, tuple(tensor.shape)) for name, tensor in tensors]
    first = sum(tensor.numel() for _, tensor in parameters)
    last = first + sum(tensor.numel() for _, tensor in buffers)

    def load(flat: numpy.ndarray) -> None:
        with torch.no_grad():
            for (_, tensor), piece in zip(tensors, _cut(flat, shapes)):
                tensor.copy_(torch.from_numpy(piece))

    def store(flat: numpy.ndarray) -> None:
        with torch.no_grad():
            for (_, tensor), piece in zip(tensors, _cut(flat, shapes)):
                torch.from_numpy(piece).copy_(tensor)

    return _Model(shapes, [(first, last)] if last > first else [], load, store)


def _of_arrays(arrays: Mapping[str, numpy.ndarray]) -> _Model:
    for name, array in arrays.items():
        if numpy.iscomplexobj(array):
            _refuse_type(f"the array {name}", array.dtype)
    shapes = [(name, array.shape) for name, array in arrays.items() if numpy.issubdtype(array.dtype, numpy.floating)]

    def load(flat: numpy.ndarray) -> None:
        for (name, _), piece in zip(shapes, _cut(flat, shapes)):
            arrays[name][...] = piece

    def store(flat: numpy.ndarray) -> None:
        for (name, _), piece in zip(shapes, _cut(flat, shapes)):
            piece[...] = arrays[name]

    return _Model(shapes, [], load, store)


def _of_functions(replica: Any) -> _Model:
    shapes = []
    for index, array in enumerate(replica.get_arrays()):
        array = numpy.asarray(array)
        if array.dtype.kind not in "fV":  # V: bfloat16 and its like
            _refuse_type(f"get_arrays()[{index}]", array.dtype)
        shapes.append((str(index), array.shape))

    def load(flat: numpy.ndarray) -> None:
        replica.set_arrays([piece.copy() for piece in _cut(flat, shapes)])

    def store(flat: numpy.ndarray) -> None:
        for piece, array in zip(_cut(flat, shapes), replica.get_arrays()):
            piece[...] = numpy.asarray(array)

    return _Model(shapes, [], load, store)


def _measures(told: Measured) -> Dict[str, float]:
    if isinstance(told, Mapping):
        measures = {str(name): float(value) for name, value in told.items()}
        if "loss" not in measures:
            raise ValueError(f"evaluate() tells {', '.join(measures)}, and no loss")
        for name in _RECORDED:
            if name in measures:
                raise ValueError(f"evaluate() tells {name}, which each record has already: give it another name")
        return measures
    if isinstance(told, (tuple, list)):
        if len(told) != 2:
            raise ValueError("evaluate() tells a loss, a loss and an accuracy, or a dictionary with a loss")
        return {"loss": float(told[0]), "accuracy": float(told[1])}
    return {"loss": float(told)}


class _Nodes:
    """Answers what the simulator asks (tools/sim/drive/program.hpp)."""

    def __init__(
        self,
        make_replica: Callable[[int], Any],
        train_step: Callable[[Any, int], Optional[int]],
        evaluate: Callable[[Any], Measured],
        nodes: int,
    ):
        self._make_replica = make_replica
        self._train_step = train_step
        self._evaluate = evaluate
        self._replicas: Dict[int, Tuple[Any, _Model]] = {}
        self.measured: List[Dict[str, float]] = []
        self._judged = make_replica(0)  # the model of this replica is the one that is evaluated
        self._judged_model = _model_of(self._judged)
        self.elements = self._judged_model.elements
        if self.elements == 0:
            raise ValueError("the model has no elements of floating point")
        self.buffers = self._judged_model.buffers
        self.memory = os.memfd_create("gossamer-sim")
        try:
            os.ftruncate(self.memory, 4 * (nodes + 1) * self.elements)
            self._mapped = mmap.mmap(self.memory, 0)
        except BaseException:
            os.close(self.memory)
            raise
        self._places = numpy.frombuffer(self._mapped, dtype=numpy.float32).reshape(nodes + 1, self.elements)

    def close(self) -> None:
        del self._places
        os.close(self.memory)

    def answer(self, question: str) -> str:
        what, *rest = question.split()
        if what == "evaluate":
            self._judged_model.load(self._places[-1])
            measures = _measures(self._evaluate(self._judged))
            self.measured.append(measures)
            return f"{measures['loss']!r} {measures.get('accuracy', math.nan)!r}"
        node = int(rest[0])
        if what == "start":
            return self._start(node)
        if what == "stop":
            del self._replicas[node]
            return "ok"
        replica, model = self._replicas[node]
        model.load(self._places[node])
        samples = self._train_step(replica, node)
        model.store(self._places[node])
        samples = 1 if samples is None else samples
        if not (0 <= samples <= _MOST_SAMPLES and samples == int(samples)):
            raise ValueError(f"train_step() returns {samples} samples: return how many it has used, or None for 1")
        return str(int(samples))

    def _start(self, node: int) -> str:
        replica = self._make_replica(node)
        model = _model_of(replica)
        if model.shapes != self._judged_model.shapes:
            raise ValueError(f"make_replica({node}) gives another model than make_replica(0)")
        self._replicas[node] = replica, model
        model.store(self._places[node])
        return "ok"


def _program() -> str:
    given = os.environ.get(_VARIABLE)
    here = Path(__file__).resolve()
    beside = [parent / "bin" / "gossamer-sim" for parent in (here.parent, here.parents[2])]  # a wheel, a build folder
    found = given or next((str(program) for program in beside if program.exists()), shutil.which("gossamer-sim"))
    if not found:
        raise FileNotFoundError(
            f"the program gossamer-sim is not found: install the package gossamer, or name it in {_VARIABLE}"
        )
    return found


def _run_program(arguments: Sequence[str], answer: Callable[[str], str], memory: Optional[int] = None) -> Dict[str, Any]:
    """Answers the program's questions until it gives its result."""
    with subprocess.Popen(
        [_program(), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        pass_fds=() if memory is None else (memory,),
    ) as program:  # fmt: skip
        assert program.stdin is not None and program.stdout is not None and program.stderr is not None
        try:
            for line in program.stdout:
                if line.startswith("result "):
                    result: Dict[str, Any] = json.loads(line[len("result ") :])
                    return result
                answered = answer(line) + "\n"
                try:
                    os.write(program.stdin.fileno(), answered.encode())
                except BrokenPipeError:  # it has ended, and says why
                    break
            if program.wait() == -signal.SIGINT:  # Ctrl-C, which one of the caller's functions has caught
                raise KeyboardInterrupt
            said = program.stderr.read().strip().replace("gossamer-sim: ", "", 1)
            raise ValueError(said or f"gossamer-sim has ended with status {program.wait()}")
        finally:
            program.kill()  # has no effect unless something failed here, because the program ends by itself


def _plain(value: Any, name: str) -> Any:
    """For JSON. Numbers and arrays of NumPy are numbers, too."""
    if isinstance(value, (numpy.generic, numpy.ndarray)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(one, f"{name}: {key}" if name else str(key)) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one, f"{name}[{index}]") for index, one in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}")
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError(f"{name} cannot be {value!r}")
    return value


def _checked_nodes(nodes: Any) -> int:
    """The memory for their models is made before the program can refuse their number."""
    try:
        count = operator.index(nodes)
    except TypeError:
        count = 0
    if not 1 <= count <= _MOST_NODES or isinstance(nodes, bool):
        raise ValueError(f"nodes is {nodes!r}, and must be a whole number from 1 to {_MOST_NODES}")
    return count


def _without_nan(record: Dict[str, Any]) -> Dict[str, Any]:
    """JSON has no NaN, nor infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in record.items()
    }


def _with_nan(record: Dict[str, Any]) -> Dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in record.items()}


def _save(path: Path, forms: Dict[str, str]) -> None:
    if path.suffix not in forms:
        raise ValueError(f"{path}: its name must end with {' or '.join(forms)}")
    path.write_text(forms[path.suffix])


def run(
    make_replica: Callable[[int], Any],
    train_step: Callable[[Any, int], Optional[int]],
    evaluate: Callable[[Any], Measured],
    *,
    nodes: int = 4,
    seconds: float = 0,
    samples: int = 0,
    step_ms: float = 100,
    step_jitter: float = 0.05,
    speeds: Sequence[float] = (),
    network: Optional[Mapping[str, Union[float, str]]] = None,
    faults: Sequence[Mapping[str, Union[float, str]]] = (),
    settings: Optional[Mapping[str, Union[str, int, float]]] = None,
    model_scale: float = 1,
    detection_s: float = 2,
    evaluations: int = 20,
    seed: int = 1,
    name: str = "",
) -> Result:
    """Simulates a training on `nodes` nodes.

    - `make_replica(node)`: a node's model, and what trains it: a torch.nn.Module, a dictionary of NumPy arrays, a tuple that
      begins with one of these, or an object that has it as `.model`; for other frameworks an object with `get_arrays()` and
      `set_arrays(arrays)`. All nodes begin with the model of node 0. It is called again for a node that comes back.
    - `train_step(replica, node)`: one step on the node's own data. Returns the samples that it used (None: 1).
    - `evaluate(replica)`: a loss, (loss, accuracy), or a dictionary with "loss" and more: of the mean of the nodes' models
      (without those that have become NaN), at evenly spread times; at the end of each node's model.
    - `seconds`, `samples`: when it ends: virtual time, or samples of all nodes; at least one of them.
    - `step_ms`, `step_jitter`, `speeds`: a step of node i takes step_ms / speeds[i] (1 where there is none), ± jitter.
    - `network`: `mbit` (of a node, each way; 0: not limited), `latency_ms` (0.5), `jitter_ms`, `loss` (a probability),
      `topology` ("complete", "ring", "torus", "hypercube", "star", "regular-4", …).
    - `faults`: each with `at_s`, `node`, and `what`: "kill"; "start" (it comes back and joins); "pause", "resume"; "cut",
      "mend" (its links); "speed" (with `speed`). Others notice a death after `detection_s`. A dead node can only start, and
      nothing comes after `seconds`; what the end by `samples` forestalls does not happen.
    - `settings`: those of the job, as attach() takes them. With {"method": "average", "average_steps": 8} the models are
      averaged exactly after every 8 steps, for which all nodes wait; with {"method": "alone"} nobody exchanges anything.
      With "average", outer_momentum, average_codec, and the network's loss and jitter_ms are refused: they are not simulated.
    - `model_scale`: messages count this many times: a small model stands for a large one.
    - `seed`: of the simulation; `name`: of the result.

    Raises ValueError for what cannot be simulated, and whatever the functions given raise."""
    wanted_settings = dict(settings or {})
    name = name or " ".join(f"{key}={value}" for key, value in wanted_settings.items()) or "gossip"
    nodes = _checked_nodes(nodes)
    answers = _Nodes(make_replica, train_step, evaluate, nodes)
    try:
        wanted = {
            "name": name, "elements": answers.elements, "buffers": answers.buffers, "nodes": nodes,
            "seconds": seconds, "samples": samples, "step_ms": step_ms, "step_jitter": step_jitter,
            "speeds": list(speeds), "network": network or {}, "faults": list(faults),
            "settings": wanted_settings, "model_scale": model_scale, "detection_s": detection_s,
            "evaluations": evaluations, "seed": seed,
        }  # fmt: skip
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(json.dumps(_plain(wanted, "")))
            file.flush()
            told = _run_program(["drive", file.name, f"--memory={answers.memory}"], answers.answer, answers.memory)
    finally:
        answers.close()
    records = [{**_with_nan(record), **more} for record, more in zip(told["records"], answers.measured)]
    return Result(name, records, _with_nan(told["summary"]), told["table"], told["svg"])


class _Comparison(NamedTuple):
    table: str
    svg: str

    def __str__(self) -> str:
        return self.table

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the curves (a path that ends with .svg) or the table (.txt)."""
        _save(Path(path), {".svg": self.svg, ".txt": self.table})


def compare(*results: Result) -> _Comparison:
    """One table and one picture of several results: print() it, or save() it."""
    if not results:
        raise ValueError("nothing to compare: give the results of run()")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write("[" + ",".join(result.json() for result in results) + "]")
        file.flush()
        told = _run_program(["drive", file.name, "--draw"], lambda question: "")
    return _Comparison(told["table"], told["svg"])

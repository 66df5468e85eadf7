"""Gossamer: train one model on many machines, without a master and without waiting for the network.

    import gossamer

    weights = {"w": w, "b": b}                       # NumPy arrays, updated in place by your training loop
    with gossamer.attach(weights, job="digits") as run:
        for batch in batches:
            train(batch)
            run.step(samples=len(batch))             # gossip happens here

For PyTorch see gossamer.torch. Needs gossamerd on this machine; without it training goes on alone.
"""

from ._arrays import attach
from ._average import Average, average_memory
from ._events import Event, EventKind
from ._library import GossamerError, GossamerWarning, version
from ._run import Run, RunInfo, RunStats, State
from ._shared import Finish

__all__ = [
    "attach", "Average", "average_memory", "Event", "EventKind", "Finish", "GossamerError", "GossamerWarning", "Run", "RunInfo", "RunStats",
    "State", "version",
]


def __getattr__(name: str) -> str:
    if name == "__version__":  # the C library's, which is loaded only when it is needed
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""What gossamer.tensorboard, gossamer.wandb and gossamer.mlflow share: which figures of a run they write, and when."""

from __future__ import annotations

from typing import Any, Callable, Dict

from ._run import Run, _bad_argument
from ._shared import Logged

CLOCK = "clock_samples"  # the x axis of all charts

# The fields of RunStats that are written, with their units in the chart's title.
_FIELDS = {
    "clock": CLOCK,
    "global_clock": "global_clock_samples",
    "steps": "steps",
    "age_samples": "age_samples",
    "neighbours": "neighbours",
    "exchanges": "exchanges",
    "unresolved": "unresolved",
    "quarantines": "quarantines",
    "bytes_sent": "bytes_sent",
    "bytes_received": "bytes_received",
    "consensus": "consensus",
    "period_s": "period_s",
    "step_share": "step_share",
}


def check_arguments(run: Any, prefix: Any, fits: bool, what: str, value: Any) -> None:
    """`fits`: whether the value is what the message says that it must be."""
    if not isinstance(run, Run):
        raise _bad_argument(f"run must be what attach() returned, not {run!r}")
    if not isinstance(prefix, str):
        raise _bad_argument(f"prefix must be a text, not {prefix!r}")
    if not fits:
        raise _bad_argument(f"{what}, not {value!r}")


def write_every(run: Run, every_s: float, prefix: str, write: Callable[[Dict[str, float], int], None]) -> None:
    """Calls `write` with the figures and the clock every `every_s` seconds, from run.step(), and once more when the run is
    closed. At a clock that was written before, only what run.log() has changed since is written. If `write` fails, the
    training goes on without it, and is told so."""
    before: Dict[str, Logged] = {}
    clock_before = -1
    failed = False

    def look() -> None:
        nonlocal before, clock_before, failed
        if failed:
            return
        stats, logged = run.stats, run.logged
        moved = stats.clock != clock_before
        figures = {prefix + name: getattr(stats, field) for field, name in _FIELDS.items()} if moved else {}
        taken = {*_FIELDS.values(), *(f"{name}_mean" for name in logged)}
        for name, one in logged.items():
            if moved or one != before.get(name):
                title = prefix + (f"logged_{name}" if name in taken else name)
                figures[title] = one.value
                if one.nodes > 0:
                    figures[f"{title}_mean"] = one.mean
        before, clock_before = logged, stats.clock
        try:
            if figures:
                write(figures, stats.clock)
        except Exception as error:  # anything that the writer raises, for instance because its disk is full
            failed = True
            run._warn(f"the figures of the job '{run._job}' are written no more, since their writer failed: {error!r}")

    run.every(every_s, look)

"""A run's figures in MLflow 2.9 or later:

    import gossamer.mlflow
    gossamer.mlflow.log(run)        # into the active run: mlflow.start_run() comes first

MLflow is imported when log() is called.
"""

from __future__ import annotations

import re
import time
from typing import Any, Dict

from ._figures import CLOCK, check_arguments, write_every
from ._run import Run

__all__ = ["log"]


def _metric_name(name: str) -> str:
    """A name that MLflow takes: a path within the run's folder, of some characters only."""
    parts = re.sub(r"[^/\w.\- ]", "_", name).split("/")
    return "/".join("_" if part in ("", ".", "..") else part for part in parts)


def log(run: Run, mlflow_run: Any = None, every_s: float = 10.0, prefix: str = "gossamer/") -> None:
    """Writes the figures as gossamer.tensorboard.log() does. MLflow's step is the run's clock, in samples. The clock is
    written at once, and waited for, so that a wrong run, or a server that is away, is an error here. After that
    MLflow writes in threads of its own, and the process ends when they are done: no step waits for the network, and MLflow
    only logs what it could not write.

    mlflow_run: what mlflow.start_run() returned. None: the active run.
    """
    import mlflow

    if mlflow_run is None:
        mlflow_run = mlflow.active_run()
    run_id = getattr(getattr(mlflow_run, "info", None), "run_id", None)
    what = "mlflow_run must be what mlflow.start_run() returned, given or active"
    check_arguments(run, prefix, run_id is not None, what, mlflow_run)
    client = mlflow.MlflowClient()

    def write(figures: Dict[str, float], clock: int, wait: bool = False) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [
            mlflow.entities.Metric(_metric_name(name), float(value), now_ms, clock) for name, value in figures.items()
        ]
        client.log_batch(run_id, metrics=metrics, synchronous=wait)

    write({prefix + CLOCK: run.clock}, run.clock, wait=True)
    write_every(run, every_s, prefix, write)

"""One node of the demonstration: its daemon, its trainer, and the reports of both so far."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from cluster import Cluster, DaemonError, Node
from processes import Program

from . import plan
from .trainer import Orders
from .view import Row

# Steps per second are counted over this time.
RATE_WINDOW_S = 3.0


class MemberError(RuntimeError):
    """A daemon or a trainer has failed; the message holds the end of its log."""


def _end_of(text: str, lines: int = 15) -> str:
    return "\n".join("    " + line for line in text.splitlines()[-lines:]) or "    (nothing in its log)"


class Member:
    def __init__(self, cluster: Cluster, orders: plan.Plan, index: int, train_on: bool):
        self.index = index
        self.name = orders.names()[index]
        self.row = Row(self.name)
        self.killed = False
        self.node: Node = cluster.add(self.name)
        self.trainer: Optional[Program] = None
        self.status: Dict[str, Any] = {}  # the daemon's last answers
        self.job: Dict[str, Any] = {}
        self.events: Dict[str, Dict[str, Any]] = {}  # the trainer's last report of each kind
        self._cluster = cluster
        self._orders = Orders(orders, index, str(self.node.folder / "steps.npy"), train_on)
        self.curve: List[Tuple[float, float]] = []  # (time_s, accuracy) since it was attached
        self._unread = b""
        self._rates: List[tuple] = []  # (time_s, steps)

    def start_trainer(self) -> None:
        self.trainer = self._cluster.start_trainer(
            self.node, ["-m", "demo.trainer", self._orders.to_json()], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        os.set_blocking(self.trainer.process.stdout.fileno(), False)

    def train_until(self, until_s: float) -> None:
        self.trainer.process.stdin.write(f"{until_s}\n".encode())
        self.trainer.process.stdin.flush()

    def kill(self) -> None:
        """Ends the daemon and its trainer, as when the machine loses power."""
        self.killed = True
        self.row.alive = False
        self.node.kill()
        self.trainer.kill()

    def let_go(self) -> None:
        """Makes the trainer detach and end."""
        self.trainer.process.stdin.close()

    def said(self, event: str) -> bool:
        return event in self.events

    def check(self) -> None:
        if self.killed:
            return
        if not self.node.running():
            raise MemberError(f"{self.name}: gossamerd ended by itself:\n{_end_of(self.node.log.read_text())}")
        if self.trainer is not None and not self.trainer.running():
            raise MemberError(f"{self.name}: the trainer ended by itself:\n{_end_of(self.trainer.log_text())}")

    def listen(self) -> None:
        """Reads the trainer's reports."""
        if self.trainer is None or self.trainer.process.stdout.closed:
            return
        self._unread += self.trainer.process.stdout.read() or b""
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            report = json.loads(line)
            self.events[report["event"]] = report
            if report["event"] == "ready":
                continue
            self.row.accuracy, self.row.steps = report["accuracy"], report["steps"]
            self.curve.append((report["time_s"], report["accuracy"]))
            self._rates.append((report["time_s"], report["steps"]))
            while self._rates[-1][0] - self._rates[0][0] > RATE_WINDOW_S:
                self._rates.pop(0)
            (first_s, first), (last_s, last) = self._rates[0], self._rates[-1]
            self.row.steps_per_s = (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def ask(self) -> None:
        """Asks the daemon. If it does not answer, the last answers stay."""
        if self.killed or not self.node.running():
            return
        try:
            self.status = self.node.status()
            self.job = self.node.job(plan.JOB) or self.job
        except DaemonError:
            return
        self.row.bytes_sent = self.status["bytes_sent"]
        self.row.neighbours = self.status["neighbours"]
        if self.job:
            self.row.exchanges, self.row.age_samples = self.job["exchanges"], self.job["age_samples"]

    def step_times(self) -> np.ndarray:
        """(n, 3): the trainer's times of each step; see Trainer.step()."""
        return np.load(Path(self._orders.step_times_file))

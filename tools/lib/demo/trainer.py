"""One training process of the demonstration: `python -m demo.trainer ORDERS`, where ORDERS is JSON.

It reports on standard output, one JSON object a line. When it is ready it reads a line from standard input, which says
until when to train, on the monotonic clock that all processes of a machine share. Then it attaches and trains on its
own part of the images, with at most so many steps a second. At the end it keeps its model attached until standard input
ends, so that its daemon can finish the exchanges under way; or it trains on, if the orders say so.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import data, plan
from .learner import make_learner

REPORT_EVERY_S = 0.5
WARM_UP_STEPS = 20


@dataclass(frozen=True)
class Orders:
    plan: plan.Plan
    node: int
    step_times_file: str  # a file for the times, one row for each step: see Trainer.step()
    train_on: bool  # whether it goes on training after the end, until it is stopped

    def to_json(self) -> str:
        return json.dumps({**self.__dict__, "plan": self.plan.as_dict()})

    @staticmethod
    def from_json(text: str) -> "Orders":
        values = json.loads(text)
        return Orders(**{**values, "plan": plan.Plan(**values["plan"])})


def _interruptions() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


class Trainer:
    def __init__(self, orders: Orders):
        self.orders = orders
        split = data.split(orders.plan.seed, orders.plan.nodes)
        self.held_out = split.held_out
        self.shard = split.shards[orders.plan.shard(orders.node)]
        self.random = np.random.default_rng([orders.plan.seed, 3, orders.node])
        self.pause_s = 1 / orders.plan.steps_per_s(orders.node)
        # Founders begin with different models and agree on one.
        self.learner = make_learner(orders.plan.seed + orders.node, orders.plan.torch)
        self.step_times: list = []

    def warm_up(self) -> None:
        """The first steps of a process load code and fill caches, so they are done on a model that is thrown away."""
        other = make_learner(0, self.orders.plan.torch)
        for _ in range(WARM_UP_STEPS):
            other.step(self.batch(), 0.01)
        other.accuracy(self.held_out)

    def batch(self) -> data.Digits:
        return self.shard.of(self.random.integers(len(self.shard), size=plan.BATCH))

    def step(self) -> None:
        """One training step with gossip. It notes when the step began [s, monotonic], how long it took [ms], and how
        often the kernel gave the core to another thread in that time."""
        run = self.learner.run
        batch = self.batch()
        rate = self.orders.plan.learning_rate(run.global_clock)
        interruptions = _interruptions()
        begin = time.monotonic()
        self.learner.step(batch, rate)
        took_s = time.monotonic() - begin
        self.step_times.append((begin, 1000 * took_s, _interruptions() - interruptions))

    def train(self, until_s: float) -> None:
        due = time.monotonic()
        next_report = due
        while due < until_s:
            time.sleep(max(0.0, due - time.monotonic()))
            self.step()
            # After a pause of the whole machine, training goes on at the usual pace, and does not catch up in a burst.
            due = max(due + self.pause_s, time.monotonic() - self.pause_s)
            if time.monotonic() >= next_report:
                self.report("training")
                next_report = time.monotonic() + REPORT_EVERY_S

    def train_on(self) -> None:
        """Trains without reports and records, because nobody listens any more. Ends with the process."""
        while True:
            time.sleep(self.pause_s)
            self.step()
            self.step_times.clear()

    def report(self, event: str, **more: Any) -> None:
        print(
            json.dumps(
                {
                    "event": event,
                    "time_s": time.monotonic(),
                    "accuracy": self.learner.accuracy(self.held_out),
                    "steps": len(self.step_times),
                    **more,
                }
            ),
            flush=True,
        )


def main() -> None:
    # Ctrl-C is for the demo, which ends its trainers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = Orders.from_json(sys.argv[1])
    trainer = Trainer(orders)
    trainer.warm_up()
    trainer.report("ready")
    until_s = float(sys.stdin.readline())

    begin = time.monotonic()
    run = trainer.learner.attach(plan.JOB)
    trainer.report("attached", attach_s=time.monotonic() - begin)
    trainer.train(until_s)
    np.save(orders.step_times_file, np.array(trainer.step_times).reshape(-1, 3))
    trainer.report("done")
    if orders.train_on:
        trainer.train_on()
    sys.stdin.read()
    run.close()


if __name__ == "__main__":
    main()

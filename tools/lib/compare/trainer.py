"""One training process of tools/compare: `python -m compare.trainer ORDERS`, where ORDERS is JSON.

It trains the demo's network, or what a script of the user's makes. It prepares, writes "ready", and reads a line: when
to begin and to end, on the monotonic clock that all processes of a machine share. While it trains it writes a report a line, as JSON, and at the end the last one. A method that fails says
so in a report, and training ends.
"""

from __future__ import annotations

import json
import runpy
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Protocol

import numpy as np

from demo import data
from demo.learner_numpy import Learner

JOB = "compare"
BATCH = 32
LEARNING_RATE = 0.1
REPORT_EVERY_S = 0.5


@dataclass(frozen=True)
class Orders:
    method: str
    node: int
    nodes: int
    seed: int
    every: int
    pause_s: float
    meeting: str  # where processes of gloo find each other: tcp://HOST:PORT
    script: str  # a file with make(seed, node, nodes); "": the demo's network

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Task(Protocol):
    """What is trained. The same seed gives the same weights at all nodes."""

    weights: Dict[str, np.ndarray]  # float32, changed in place

    def step(self) -> None: ...

    def accuracy(self) -> float: ...  # of this node's weights, on data that nobody trains on


class DigitsTask:
    """The demo's network, with this node's part of the images."""

    def __init__(self, seed: int, node: int, nodes: int):
        split = data.split(seed, nodes)
        self.held_out = split.held_out
        self.shard = split.shards[node]
        self.random = np.random.default_rng([seed, 3, node])
        self.learner = Learner(seed)
        self.weights = self.learner.weights

    def step(self) -> None:
        self.learner.step(self.shard.of(self.random.integers(len(self.shard), size=BATCH)), LEARNING_RATE)

    def accuracy(self) -> float:
        return self.learner.accuracy(self.held_out)


class Alone:
    """No communication, and the base of the methods."""

    def __init__(self, orders: Orders, weights: Dict[str, np.ndarray]):
        self.orders = orders
        self.weights = weights

    def prepare(self) -> None:
        """Loads what takes long."""

    def begin(self) -> None:
        """Finds the others and a common model."""

    def after_step(self, step: int) -> None:
        pass

    def end(self) -> None:
        pass


class Gossip(Alone):
    def prepare(self) -> None:
        import gossamer

        self.gossamer = gossamer

    def begin(self) -> None:
        self.run = self.gossamer.attach(self.weights, job=JOB)

    def after_step(self, step: int) -> None:
        self.run.step()

    def end(self) -> None:
        self.run.close()


class AverageModels(Gossip):
    """Every few steps the exact mean of all models. With plain gradient descent and one step in between, that is the
    same as averaging gradients."""

    def begin(self) -> None:
        self.run = self.gossamer.attach(self.weights, job=JOB)
        self.mean(at_least=self.orders.nodes)

    def after_step(self, step: int) -> None:
        if step % self.orders.every == 0:
            self.mean()

    def mean(self, at_least: int = 1) -> None:
        found = self.run.average(self.weights, name="model", at_least=at_least)
        for name, values in found.values.items():
            self.weights[name][...] = values


class Gloo(Alone):
    def prepare(self) -> None:
        import torch
        import torch.distributed

        self.torch = torch
        torch.set_num_threads(1)

    def begin(self) -> None:
        self.torch.distributed.init_process_group(
            "gloo", init_method=self.orders.meeting, rank=self.orders.node, world_size=self.orders.nodes
        )
        self.after_step(0)

    def after_step(self, step: int) -> None:
        if step % self.orders.every != 0:
            return
        flat = self.torch.from_numpy(np.concatenate([values.reshape(-1) for values in self.weights.values()]))
        self.torch.distributed.all_reduce(flat)
        mean = flat.numpy() / np.float32(self.orders.nodes)
        first = 0
        for values in self.weights.values():
            values[...] = mean[first : first + values.size].reshape(values.shape)
            first += values.size


CLASSES = {"alone": Alone, "gossip": Gossip, "average": AverageModels, "gloo": Gloo}


class Trainer:
    def __init__(self, orders: Orders):
        self.orders = orders
        make = runpy.run_path(orders.script)["make"] if orders.script else DigitsTask
        self.task: Task = make(orders.seed, orders.node, orders.nodes)
        self.method = CLASSES[orders.method](orders, self.task.weights)
        self.steps = 0
        self.longest_s = 0.0

    def report(self, **more: Any) -> None:
        report: Dict[str, Any] = {
            "time_s": time.monotonic(),
            "accuracy": float(self.task.accuracy()),
            "steps": self.steps,
            "longest_step_s": self.longest_s,
            "cpu_s": time.process_time(),
            **more,
        }
        print(json.dumps(report), flush=True)

    def step(self) -> None:
        begin = time.monotonic()
        self.task.step()
        self.steps += 1
        self.method.after_step(self.steps)
        self.longest_s = max(self.longest_s, time.monotonic() - begin)

    def train(self, end_s: float) -> None:
        due = next_report = time.monotonic()
        while time.monotonic() < end_s:
            time.sleep(max(0.0, due - time.monotonic()))
            self.step()
            due = max(due + self.orders.pause_s, time.monotonic())
            if time.monotonic() >= next_report:
                self.report()
                next_report += REPORT_EVERY_S


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for tools/compare, which ends its trainers
    trainer = Trainer(Orders(**json.loads(sys.argv[1])))
    trainer.task.accuracy()
    trainer.method.prepare()
    print("ready", flush=True)
    begin_s, end_s = map(float, sys.stdin.readline().split())
    error: List[str] = []
    try:
        trainer.method.begin()
        time.sleep(max(0.0, begin_s - time.monotonic()))
        trainer.longest_s = 0.0
        trainer.train(end_s)
    except Exception as failure:  # whatever the method's library raises
        error.append(f"{type(failure).__name__}: {failure}".splitlines()[0][:200])
    trainer.report(done=True, error=error[0] if error else "")
    if not error:
        trainer.method.end()


if __name__ == "__main__":
    main()

"""One training process of tools/compare: `python -m compare.trainer ORDERS`, where ORDERS is JSON.

It trains the demo's network, or what a script of the user's makes. It prepares, writes "ready", and reads a line: when
to begin and to end, on the monotonic clock that all processes of a machine share. While it trains it writes a report a
line, as JSON, and at the end the last one. A method that fails says so in a report, and training ends.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Protocol, Tuple

import numpy as np

from demo import data
from demo.learner_numpy import Learner

JOB = "compare"
BATCH = 32
LEARNING_RATE = 0.1
REPORT_EVERY_S = 0.5
# How long hivemind waits until a group is complete. A complete group begins at once.
HIVEMIND_MATCHMAKING_S = 1.0
HIVEMIND_ROUND_S = 20.0


@dataclass(frozen=True)
class Orders:
    method: str
    node: int
    nodes: int
    seed: int
    every: int
    pause_s: float
    address: str  # of this node
    meeting: str  # where processes of gloo find each other: tcp://HOST:PORT
    folder: str  # a folder that all trainers of the run share
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
    settings: Dict[str, Any] = {}

    def prepare(self) -> None:
        import gossamer

        self.gossamer = gossamer

    def begin(self) -> None:
        self.run = self.gossamer.attach(self.weights, job=JOB, settings=self.settings)

    def after_step(self, step: int) -> None:
        self.run.step()

    def end(self) -> None:
        self.run.close()


class Server(Gossip):
    settings = {"method": "server"}


class AverageModels(Gossip):
    """Every few steps the exact mean of all models. With plain gradient descent and one step in between, that is the
    same as averaging gradients."""

    def begin(self) -> None:
        super().begin()
        self.mean(at_least=self.orders.nodes)

    def after_step(self, step: int) -> None:
        if step % self.orders.every == 0:
            self.mean()

    def mean(self, at_least: int = 1) -> None:
        found = self.run.average(self.weights, name="model", at_least=at_least)
        for name, values in found.values.items():
            self.weights[name][...] = values


class Flat(Alone):
    """For methods that average one array."""

    def flat(self) -> np.ndarray:
        return np.concatenate([values.reshape(-1) for values in self.weights.values()])

    def each(self, flat: np.ndarray) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """The weights, and the part of the array that belongs to them."""
        first = 0
        for values in self.weights.values():
            yield values, flat[first : first + values.size].reshape(values.shape)
            first += values.size


class Gloo(Flat):
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
        flat = self.torch.from_numpy(self.flat())
        self.torch.distributed.all_reduce(flat)
        for values, mean in self.each(flat.numpy() / np.float32(self.orders.nodes)):
            values[...] = mean


class Hivemind(Flat):
    """Rounds one after the other, each in the background: what a round has changed is added to the weights once it is
    over, as hivemind's optimizer does with delay_state_averaging and delta_rule_averaging."""

    round: Any = None

    def prepare(self) -> None:
        import hivemind
        import torch

        torch.set_num_threads(1)
        self.hivemind = hivemind
        self.torch = torch

    def begin(self) -> None:
        meeting = Path(self.orders.folder) / "hivemind"
        first = self.orders.node == 0
        while not first and not meeting.exists():
            time.sleep(0.05)
        self.dht = self.hivemind.DHT(
            host_maddrs=[f"/ip4/{self.orders.address}/tcp/0"],
            initial_peers=[] if first else meeting.read_text().split(),
            start=True,
        )
        if first:
            written = meeting.with_suffix(".new")
            written.write_text("\n".join(map(str, self.dht.get_visible_maddrs())))
            written.rename(meeting)
        self.averager = self.hivemind.DecentralizedAverager(
            [self.torch.from_numpy(self.flat())],
            self.dht,
            start=True,
            prefix=JOB,
            target_group_size=self.orders.nodes,
            min_matchmaking_time=HIVEMIND_MATCHMAKING_S,
            request_timeout=HIVEMIND_MATCHMAKING_S / 2,  # must be shorter than the matchmaking
        )

    def after_step(self, step: int) -> None:
        if self.round is not None and self.round.done():
            if self.round.exception() is None:  # otherwise there was nobody to average with
                with self.averager.get_tensors() as (mean,):
                    for values, change in self.each(mean.numpy() - self.begun):
                        values += change
            self.round = None
        if self.round is None:
            self.begun = self.flat()
            with self.averager.get_tensors() as (given,):
                given[...] = self.torch.from_numpy(self.begun)
            self.round = self.averager.step(wait=False, allow_retries=False, timeout=HIVEMIND_ROUND_S)

    def end(self) -> None:
        self.averager.shutdown()
        self.dht.shutdown()


CLASSES = {
    "alone": Alone,
    "gossip": Gossip,
    "average": AverageModels,
    "server": Server,
    "gloo": Gloo,
    "hivemind": Hivemind,
}


def cpu_s(process: str = "self") -> float:
    """Of a process, and of its children that are alive."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        lists = [path.read_text(encoding="ascii") for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return 0.0  # it has just ended
    own_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(cpu_s(child) for children in lists for child in children.split())


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
            "cpu_s": cpu_s(),
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
    except Exception as failure:  # anything that the method's library raises
        error.append(f"{type(failure).__name__}: {failure}".splitlines()[0][:200])
    trainer.report(done=True, error=error[0] if error else "")
    if not error:
        trainer.method.end()


if __name__ == "__main__":
    main()

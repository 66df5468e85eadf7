"""The plan of the demonstration: the nodes, their speeds, and when which of them is killed or joins.

Plain values, computed from the command line before anything starts. They are passed to the trainers as JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import List

JOB = "digits"
# The training is the same for every trainer and for the baselines.
LEARNING_RATE = 0.2  # falls linearly to LAST_LEARNING_RATE over the run
LAST_LEARNING_RATE = 0.004
BATCH = 32
STEPS_PER_S = 80.0  # eight such trainers can run on two cores; the slow one makes a quarter as many steps
SLOWNESS = 4
# The times of the two events, as fractions of the run. Between them the survivors notice the loss.
KILL_AT = 0.40
JOIN_AT = 0.55
# The period of the exchanges that a node begins: about one exchange every three steps.
GOSSIP_PERIOD_MS = 40
CODECS = ("f32", "q8", "q4")
MIN_NODES, MAX_NODES = 2, 16
MIN_SECONDS, MAX_SECONDS = 10.0, 3600.0


@dataclass(frozen=True)
class Plan:
    nodes: int  # founders; one more joins
    codec: str
    seconds: float
    seed: int
    torch: bool = False

    def names(self) -> List[str]:
        """The founders' names, then the joiner's."""
        return [f"node-{index + 1}" for index in range(self.nodes + 1)]

    # The node that is killed is the first one, which the others dialled. This shows that no node is special.
    @property
    def killed(self) -> int:
        return 0

    @property
    def slow(self) -> int:
        return self.nodes - 1

    @property
    def joiner(self) -> int:
        return self.nodes

    def shard(self, node: int) -> int:
        """The part of the training images that a node learns from. The joiner takes over the killed node's part."""
        return self.killed if node == self.joiner else node

    def steps_per_s(self, node: int) -> float:
        return STEPS_PER_S / SLOWNESS if node == self.slow else STEPS_PER_S

    @property
    def planned_samples(self) -> float:
        """The clock at which the learning rate reaches its end: a fast trainer's in the whole run."""
        return STEPS_PER_S * self.seconds * BATCH

    def learning_rate(self, clock: float) -> float:
        """The rate at this clock, in samples. It is the job's clock, so that a late node does not start from the
        top."""
        left = max(0.0, 1.0 - clock / self.planned_samples)
        return LAST_LEARNING_RATE + (LEARNING_RATE - LAST_LEARNING_RATE) * left

    def as_dict(self) -> dict:
        return asdict(self)

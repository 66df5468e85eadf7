"""What the demonstration consists of: the nodes, their speeds, and when which of them is killed or joins.

Plain values, worked out from the command line before anything starts. Passed to the trainers as JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import List

JOB = "digits"
# Training, the same for every trainer and for the baselines.
LEARNING_RATE = 0.2  # falls linearly to LAST_LEARNING_RATE over the run
LAST_LEARNING_RATE = 0.004
BATCH = 32
STEPS_PER_S = 80.0  # two cores carry eight such trainers; the slow one takes a quarter
SLOWNESS = 4
# The story, as fractions of the run. Between kill and join the survivors notice and close ranks.
KILL_AT = 0.40
JOIN_AT = 0.55
# Exchanges that a node begins: about one every three steps.
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
        """The founders', then the joiner's."""
        return [f"node-{index + 1}" for index in range(self.nodes + 1)]

    # The first is killed: the one that the others dialled, because no node is special.
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
        """Which part of the training images a node learns from: the joiner takes over the killed node's."""
        return self.killed if node == self.joiner else node

    def steps_per_s(self, node: int) -> float:
        return STEPS_PER_S / SLOWNESS if node == self.slow else STEPS_PER_S

    @property
    def planned_samples(self) -> float:
        """The clock at which the learning rate has come down: what a fast trainer does in the whole run."""
        return STEPS_PER_S * self.seconds * BATCH

    def learning_rate(self, clock: float) -> float:
        """At this clock, in samples: the job's, so that a late node does not start from the top."""
        left = max(0.0, 1.0 - clock / self.planned_samples)
        return LAST_LEARNING_RATE + (LEARNING_RATE - LAST_LEARNING_RATE) * left

    def as_dict(self) -> dict:
        return asdict(self)

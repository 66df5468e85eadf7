"""The faults: each kind does something to some members and undoes it after a while.

`takes_out`: whether others lose the victims' daemons by it, so that the time until they notice can be measured.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from random import Random
from typing import Any, Callable, Dict, List, Optional, Sequence

from network import Network

from .member import Member

SLOW_LINK_MBIT_S = 1.0
# The least and the longest duration of a fault, as a share of the shortest time between two faults.
DURATION = (0.25, 0.5)


@dataclass
class Fault:
    kind: str
    victims: List[Member]
    duration_s: float
    takes_out: bool
    stops_trainers: bool  # the victims' trainers do not step during the fault
    do: Callable[[], None]
    undo: Callable[[], None]
    begun_s: float = 0.0
    samples_lost: float = 0.0  # training lost with trainers that died, see ledger.py
    # detected_s: for each survivor, the seconds from the beginning of the fault. rejoined_s: for all victims together,
    # the seconds from its end.
    detected_s: Dict[str, float] = field(default_factory=dict)
    rejoined_s: Optional[float] = None
    undone: bool = False

    def as_json(self, start_s: float) -> Dict[str, Any]:
        detected = sorted(self.detected_s.values())
        return {
            "kind": self.kind,
            "at_s": round(self.begun_s - start_s, 1),
            "lasted_s": round(self.duration_s, 1),
            "nodes": [victim.name for victim in self.victims],
            "detect_median_s": round(detected[len(detected) // 2], 2) if detected else None,
            "detect_last_s": round(detected[-1], 2) if detected else None,
            "rejoin_s": None if self.rejoined_s is None else round(self.rejoined_s, 2),
            "samples_lost": round(self.samples_lost),
        }


class Faults:
    """Draws the faults. `network` and `disks`: whether there are any that can be broken."""

    def __init__(self, random: Random, members: Sequence[Member], network: Optional[Network], disks: bool, shortest_s: float):
        self._random = random
        self._members = members
        self._network = network
        self._shortest_s = shortest_s
        self._kinds: Dict[str, Callable[[float], Fault]] = {
            "kill-daemon": self._kill_daemon,
            "kill-trainer": self._kill_trainer,
            "kill-node": self._kill_node,
            "pause-daemon": self._pause_daemon,
            "pause-node": self._pause_node,
            "partition": self._partition if network else self._partition_by_pauses,
        }
        if network:
            self._kinds["slow-link"] = self._slow_link
        if disks:
            self._kinds["full-disk"] = self._full_disk
        self._bag: List[str] = []

    @property
    def kinds(self) -> List[str]:
        return list(self._kinds)

    def only(self, kinds: Sequence[str]) -> None:
        """Restricts the kinds. Raises ValueError if one of them is unknown or not possible here."""
        for kind in kinds:
            if kind not in self._kinds:
                raise ValueError(f"no faults of kind {kind} here; there are: {', '.join(self._kinds)}")
        self._kinds = {kind: self._kinds[kind] for kind in kinds}

    def draw(self) -> Fault:
        """Draws in rounds: every kind comes up once before any comes up again."""
        if not self._bag:
            self._bag = self._random.sample(list(self._kinds), len(self._kinds))
        return self._kinds[self._bag.pop()](self._shortest_s * self._random.uniform(*DURATION))

    def _victim(self) -> Member:
        return self._random.choice(list(self._members))

    def _kill_daemon(self, duration_s: float) -> Fault:
        victim = self._victim()
        return Fault("kill-daemon", [victim], duration_s, True, False, victim.kill_daemon, victim.launch_daemon)

    def _kill_trainer(self, duration_s: float) -> Fault:
        victim = self._victim()
        return Fault("kill-trainer", [victim], duration_s, False, True, victim.kill_trainer, victim.start_trainer)

    def _kill_node(self, duration_s: float) -> Fault:
        victim = self._victim()

        def kill() -> None:
            victim.kill_trainer()
            victim.kill_daemon()

        def restart() -> None:
            victim.launch_daemon()
            victim.start_trainer()

        return Fault("kill-node", [victim], duration_s, True, True, kill, restart)

    def _pause_daemon(self, duration_s: float) -> Fault:
        victim = self._victim()
        return self._pause("pause-daemon", [victim], duration_s, with_trainers=False)

    def _pause_node(self, duration_s: float) -> Fault:
        return self._pause("pause-node", [self._victim()], duration_s, with_trainers=True)

    def _pause(self, kind: str, victims: List[Member], duration_s: float, with_trainers: bool) -> Fault:
        def send(number: int) -> None:
            for victim in victims:
                victim.node.program.signal(number)
                if with_trainers:
                    victim.trainer.signal(number)

        return Fault(
            kind,
            victims,
            duration_s,
            True,
            with_trainers,
            lambda: send(signal.SIGSTOP),
            lambda: send(signal.SIGCONT),
        )

    def _group(self) -> List[Member]:
        """Draws a group of one node up to half of them."""
        return self._random.sample(list(self._members), self._random.randint(1, len(self._members) // 2))

    def _partition(self, duration_s: float) -> Fault:
        group = self._group()
        mend: List[Callable[[], None]] = []
        return Fault(
            "partition",
            group,
            duration_s,
            True,
            False,
            lambda: mend.append(self._network.part([member.host for member in group])),
            lambda: mend.pop()(),
        )

    def _partition_by_pauses(self, duration_s: float) -> Fault:
        """A substitute where networks cannot be cut: daemons that stand still are as unreachable for the others as
        daemons behind a cut. But they do not go on among themselves."""
        return self._pause("partition-by-pauses", self._group(), duration_s, with_trainers=False)

    def _slow_link(self, duration_s: float) -> Fault:
        victim = self._victim()
        return Fault(
            "slow-link",
            [victim],
            duration_s,
            False,
            False,
            lambda: victim.host.limit(SLOW_LINK_MBIT_S),
            lambda: victim.host.unlimit(),
        )

    def _full_disk(self, duration_s: float) -> Fault:
        victim = self._victim()
        return Fault("full-disk", [victim], duration_s, False, False, victim.fill_disk, victim.empty_disk)

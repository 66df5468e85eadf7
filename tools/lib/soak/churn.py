"""The events of a soak: each takes something away and brings it back after a while. Daemons that stay only lose
clients. The others leave in order or by kill -9, alone or with their clients; one comes with new keys each time.
"""

from __future__ import annotations

import time
from collections import Counter
from random import Random
from typing import Callable, List, Optional, Sequence

from .party import Client, Party

# Times in seconds: how long a program is away, how long a guest stays, and how long all may take to be together again.
AWAY_S = (2.0, 6.0)
GUEST_STAYS_S = (15.0, 30.0)
BACK_TIMEOUT_S = 60.0


class LateError(RuntimeError):
    """Something has not come back."""


class Event:
    """An event runs through stages: each is a time to wait for, or a condition to wait for."""

    def __init__(self, kind: str, party: Party, stages: Sequence[Callable[[], Optional[float]]], now: float):
        self.kind = kind
        self.party = party
        self.begun_s = now
        self.back_s: Optional[float] = None  # the time from its return until it takes part
        self._stages = list(stages)
        self._next_s = now

    def go_on(self, now: float) -> bool:
        """Returns whether it is over. A stage returns how long to wait until the next one; None: ask it again."""
        while self._stages and now >= self._next_s:
            wait_s = self._stages[0]()
            if wait_s is None:
                return False
            self._stages.pop(0)
            self._next_s = now + wait_s
        return not self._stages


class Churn:
    def __init__(self, random: Random, parties: Sequence[Party], guest: Party, every_s: Sequence[float]):
        self.done: "Counter[str]" = Counter()
        self.back_s: List[float] = []
        self._random = random
        self._parties = list(parties)
        self._guest = guest
        self._every_s = every_s
        self._ongoing: List[Event] = []
        self._next_s = time.monotonic() + random.uniform(*every_s)
        self._kinds = {
            "client killed": self._client_killed,
            "client goes": self._client_goes,
            "daemon killed": self._daemon_killed,
            "node killed": self._node_killed,
            "node leaves": self._node_leaves,
            "guest comes": self._guest_comes,
        }
        self._bag: List[str] = []

    def turn(self, now: float) -> None:
        """Continues the events under way, and begins the next if it is time. Raises LateError."""
        for event in list(self._ongoing):
            if event.go_on(now):
                self._ongoing.remove(event)
                self.done[event.kind] += 1
        if now < self._next_s:
            return
        self._next_s = now + self._random.uniform(*self._every_s)
        if not self._bag:
            self._bag = self._random.sample(list(self._kinds), len(self._kinds))
        event = self._kinds[self._bag.pop()](now)
        if event is not None:
            self._ongoing.append(event)

    @property
    def quiet(self) -> bool:
        return not self._ongoing

    def begin_no_more(self) -> None:
        self._next_s = float("inf")

    # --- what can happen

    def _free(self, stays: Optional[bool]) -> Optional[Party]:
        """A party to which nothing happens now."""
        busy = {event.party for event in self._ongoing}
        free = [party for party in self._parties if party not in busy and stays in (None, party.stays)]
        return self._random.choice(free) if free else None

    def _away(self) -> float:
        return self._random.uniform(*AWAY_S)

    def _until(self, whole: Callable[[], bool], what: str) -> Callable[[], Optional[float]]:
        since: List[float] = []

        def stage() -> Optional[float]:
            now = time.monotonic()
            since.append(now)
            if whole():
                self.back_s.append(now - since[0])
                return 0.0
            if now - since[0] > BACK_TIMEOUT_S:
                raise LateError(f"{what} has not come back within {BACK_TIMEOUT_S:.0f} s")
            return None

        return stage

    def _client(self, kind: str, end: Callable[[Client], None], now: float) -> Optional[Event]:
        party = self._free(None)
        if party is None:
            return None
        client = self._random.choice(party.clients)
        stages = [
            lambda: (end(client), self._away())[1],
            lambda: 0.0 if not client.program.running() else None,
            lambda: (client.start(), 0.0)[1],
            self._until(client.takes_part, client.name),
        ]
        return Event(kind, party, stages, now)

    def _client_killed(self, now: float) -> Optional[Event]:
        return self._client("client killed", Client.kill, now)

    def _client_goes(self, now: float) -> Optional[Event]:
        return self._client("client goes", Client.ask_to_end, now)

    def _daemon(self, kind: str, end: Callable[[Party], None], with_clients: bool, now: float) -> Optional[Event]:
        party = self._free(False)
        if party is None:
            return None
        back = [lambda: (party.start_clients(), 0.0)[1]] if with_clients else []
        stages = [
            lambda: (end(party), self._away())[1],
            lambda: 0.0 if not with_clients or party.over() else None,
            lambda: (party.launch(), 0.0)[1],
            *back,
            self._until(party.whole, party.name),
        ]
        return Event(kind, party, stages, now)

    def _daemon_killed(self, now: float) -> Optional[Event]:
        return self._daemon("daemon killed", Party.kill_daemon, False, now)

    def _node_killed(self, now: float) -> Optional[Event]:
        return self._daemon("node killed", Party.kill_all, True, now)

    def _node_leaves(self, now: float) -> Optional[Event]:
        return self._daemon("node leaves", Party.leave, True, now)

    def _guest_comes(self, now: float) -> Optional[Event]:
        guest = self._guest
        if guest in {event.party for event in self._ongoing}:
            return None
        end = self._random.choice([Party.kill_all, Party.leave])
        stages = [
            lambda: (guest.become_a_stranger(), guest.launch(), guest.start_clients(), 0.0)[-1],
            self._until(guest.whole, guest.name),
            lambda: self._random.uniform(*GUEST_STAYS_S),
            lambda: (end(guest), 0.0)[1],
            lambda: 0.0 if guest.over() else None,
        ]
        return Event("guest comes", guest, stages, now)

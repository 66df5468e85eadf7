"""The course of a run: all members start, train undisturbed, train while one fault follows another, and train
undisturbed again. Looks at everything a few times a second, from one thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Sequence, Tuple

from demo.view import GREEN, RED, Row, View
from processes import wait_until

from .faults import Fault, Faults
from .ledger import Entries, Ledger
from .member import Member
from .trainer import BATCH

START_TIMEOUT_S = 120.0
# All nodes must be together again within this time after the last fault.
MENDING_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.2
# The daemons are asked for their state this often, or more often while the program waits for something.
ASK_EVERY_S = 2.0


class ChaosError(RuntimeError):
    """Something has happened that no fault explains."""


@dataclass
class Stretch:
    """The training over some time, by all trainers together."""

    steps_done: float = 0.0
    steps_in_model: float = 0.0
    seconds: float = 0.0  # summed over all trainers, also while one was away
    steps_undisturbed: float = 0.0  # steps of trainers that no fault kept from training, and their seconds
    seconds_undisturbed: float = 0.0
    wall_s: float = 0.0
    longest_step_s: float = 0.0  # among trainers that run at the end and were never stopped

    def rate(self) -> float:
        """The steps that ended in the model, per second and trainer."""
        return self.steps_in_model / self.seconds if self.seconds else 0.0

    def rate_undisturbed(self) -> float:
        """The steps done, per second and trainer that no fault kept from training."""
        return self.steps_undisturbed / self.seconds_undisturbed if self.seconds_undisturbed else 0.0


@dataclass
class Outcome:
    quiet_before: Stretch = field(default_factory=Stretch)
    faulty: Stretch = field(default_factory=Stretch)
    quiet_after: Stretch = field(default_factory=Stretch)
    faults: List[Fault] = field(default_factory=list)
    memory_start: List[int] = field(default_factory=list)
    memory_end: List[int] = field(default_factory=list)
    heap_start: List[int] = field(default_factory=list)
    heap_end: List[int] = field(default_factory=list)
    accuracy_start: List[float] = field(default_factory=list)
    accuracy_end: List[float] = field(default_factory=list)
    exchanges: int = 0
    unresolved: int = 0
    violations: int = 0
    messages_rejected: int = 0
    faults_begun_s: float = 0.0
    mended: bool = False


class Run:
    def __init__(self, members: Sequence[Member], faults: Faults, view: View, random, every_s: Tuple[float, float]):
        self.members = list(members)
        self.faults = faults
        self.view = view
        self.random = random
        self.every_s = every_s
        self.outcome = Outcome()
        self.ongoing: Optional[Fault] = None
        self._unclean: List[Member] = []
        self._paused: List[Member] = []  # members whose trainers have been stopped, perhaps within a step
        self._ledger = Ledger()
        self._in_ledger: List[Member] = []
        self._in_model_before: Optional[float] = None  # steps in the model at the beginning of the stretch
        self._seen: Dict[str, Tuple[float, float, bool]] = {}  # name: (time, steps, whether in order)
        self._asked_s = 0.0
        self._counted: Dict[Tuple[str, str], int] = {}  # (node, counter): value when last asked

    # --- the course

    def start(self) -> None:
        """Call this when the daemons run."""
        for member in self.members:
            member.start_trainer()

        def together() -> bool:
            self._check()
            return all(self._is_whole(member) for member in self.members)

        wait_until(together, START_TIMEOUT_S, "all nodes are linked and all trainers train")
        self._in_ledger = list(self.members)

    def go(self, quiet_s: float, faulty_s: float) -> Outcome:
        self.view.say(f"all {len(self.members)} train; {quiet_s:.0f} s without faults")
        self._train(quiet_s, self.outcome.quiet_before, "no faults yet")
        self._look_at_all(self.outcome.memory_start, self.outcome.heap_start, self.outcome.accuracy_start)
        self.view.say(f"faults for {faulty_s:.0f} s: {', '.join(self.faults.kinds)}")
        self.outcome.faults_begun_s = time.monotonic()
        self._train(faulty_s, self.outcome.faulty, "faults", with_faults=True)
        self.view.say(f"no more faults; {quiet_s:.0f} s to compare with")
        self._mend()
        self._train(quiet_s, self.outcome.quiet_after, "no more faults")
        self._look_at_all(self.outcome.memory_end, self.outcome.heap_end, self.outcome.accuracy_end)
        for member in self.members:
            self._count(member)
        return self.outcome

    def _train(self, seconds: float, stretch: Stretch, headline: str, with_faults: bool = False) -> None:
        begin = time.monotonic()
        next_fault_s = begin + (self.random.uniform(*self.every_s) / 4 if with_faults else float("inf"))
        self._seen.clear()
        self._in_model_before = None
        while (now := time.monotonic()) < begin + seconds:
            if self.ongoing is None and now >= next_fault_s:
                self._begin_fault(now)
                next_fault_s = now + self.random.uniform(*self.every_s)
            self._follow_fault()
            self._check()
            self._tally(stretch)
            self._ask(now)
            self._show(f"{headline}: {now - begin:.0f} of {seconds:.0f} s, {len(self.outcome.faults)} faults so far")
            time.sleep(max(0.0, LOOK_EVERY_S - (time.monotonic() - now)))
        stretch.wall_s += time.monotonic() - begin
        unpaused = [member for member in self.members if member not in self._paused]
        stretch.longest_step_s = max((member.board["longest_step_s"] for member in unpaused), default=0.0)

    def _mend(self) -> None:
        """Waits, after the last fault is undone, until all are together again."""
        deadline = time.monotonic() + MENDING_TIMEOUT_S
        while self.ongoing is not None and time.monotonic() < deadline:
            self._follow_fault()
            self._check()
            time.sleep(LOOK_EVERY_S)
        if self.ongoing is not None:
            self._undo(self.ongoing)
            self.ongoing = None
        while time.monotonic() < deadline and not self.outcome.mended:
            self._check()
            self.outcome.mended = all(self._is_whole(member) for member in self.members)
            time.sleep(LOOK_EVERY_S)

    # --- faults

    def _begin_fault(self, now: float) -> None:
        fault = self.faults.draw()
        fault.begun_s = now
        self.ongoing = fault
        self.outcome.faults.append(fault)
        if fault.stops_trainers:
            self._unclean = fault.victims
        names = ", ".join(victim.name for victim in fault.victims)
        when = f"{now - self.outcome.faults_begun_s:7.1f} s  "
        self.view.say(when + self.view.styled(RED, fault.kind) + f"  {names}, for {fault.duration_s:.1f} s")
        for victim in fault.victims:
            self._count(victim)  # because the counters of a new daemon begin at zero
        fault.do()
        for victim in fault.victims:
            if fault.stops_trainers and victim.trainer_up:
                self._paused.append(victim)
            if not victim.trainer_up:
                fault.samples_lost += BATCH * self._ledger.went(victim.name, self._entries())
                self._in_ledger.remove(victim)

    def _undo(self, fault: Fault) -> None:
        fault.undo()
        fault.undone = True

    def _follow_fault(self) -> None:
        fault = self.ongoing
        if fault is None:
            return
        now = time.monotonic()
        if not fault.undone:
            if fault.takes_out:
                self._look_for_detection(fault)
            if now < fault.begun_s + fault.duration_s:
                return
            self._undo(fault)
        if all(self._is_whole(victim) for victim in fault.victims):
            fault.rejoined_s = time.monotonic() - fault.begun_s - fault.duration_s
            when = f"{time.monotonic() - self.outcome.faults_begun_s:7.1f} s  "
            self.view.say(when + self.view.styled(GREEN, "together again") + f", {fault.rejoined_s:.1f} s after its end")
            self.ongoing = None
            self._unclean = []

    def _look_for_detection(self, fault: Fault) -> None:
        """Finds out which of the others have noticed that the victims are gone."""
        lost = {victim.id for victim in fault.victims}
        for member in self.members:
            if member in fault.victims or member.name in fault.detected_s:
                continue
            linked = member.linked()
            if linked is not None and not lost & set(linked):
                fault.detected_s[member.name] = time.monotonic() - fault.begun_s

    def _is_whole(self, member: Member) -> bool:
        """Whether it is linked to all others and its trainer takes part."""
        return (
            member.trains()
            and member.answers()
            and member.status["neighbours"] == len(self.members) - 1
            and member.job.get("state") == "running"
            and member.job.get("neighbours") == len(self.members) - 1
        )

    # --- looking

    def _check(self) -> None:
        for member in self.members:
            ended = member.unexpected_end()
            if ended is not None:
                raise ChaosError(ended)

    def _entries(self) -> Entries:
        return {member.name: member.board["ledger"] for member in self._in_ledger}

    def _keep_ledger(self) -> None:
        """A member whose trainer takes part again has joined since the last look."""
        for member in self.members:
            if member not in self._in_ledger and member.trains():
                self._in_ledger.append(member)
                self._ledger.came(member.name, self._entries(), member.board["steps"])

    def _tally(self, stretch: Stretch) -> None:
        self._keep_ledger()
        in_model = self._ledger.steps(self._entries())
        if self._in_model_before is None:
            self._in_model_before = in_model
        stretch.steps_in_model = in_model - self._in_model_before
        now = time.monotonic()
        for member in self.members:
            steps = member.board["steps"]
            in_order = member not in self._unclean
            then, before, was_in_order = self._seen.get(member.name, (now, steps, False))
            self._seen[member.name] = (now, steps, in_order)
            done = steps - before if steps >= before else steps  # a new trainer counts from zero
            stretch.steps_done += done
            stretch.seconds += now - then
            if in_order and was_in_order:
                stretch.steps_undisturbed += done
                stretch.seconds_undisturbed += now - then

    def _ask(self, now: float) -> None:
        if now < self._asked_s + ASK_EVERY_S:
            return
        self._asked_s = now
        for member in self.members:
            if self.ongoing is None or member not in self.ongoing.victims:
                self._count(member)

    def _count(self, member: Member) -> None:
        """Adds what this node has counted since it was last asked. A new daemon or replica counts from zero."""
        if not member.answers():
            return
        for counter, source in (
            ("exchanges", member.job),
            ("unresolved", member.job),
            ("violations", member.job),
            ("messages_rejected", member.status),
        ):
            now, before = source.get(counter, 0), self._counted.get((member.name, counter), 0)
            self._counted[member.name, counter] = now
            setattr(self.outcome, counter, getattr(self.outcome, counter) + (now - before if now >= before else now))

    def _look_at_all(self, memory: List[int], heap: List[int], accuracy: List[float]) -> None:
        memory.extend(member.private_bytes() for member in self.members)
        heap.extend(member.status.get("heap_bytes", 0) for member in self.members)
        accuracy.extend(member.board["score"] for member in self.members)

    def _show(self, headline: str) -> None:
        if not self.view.live:
            return  # only faults are worth a line
        rows = []
        for member in self.members:
            row = Row(member.name, alive=member.daemon_up)
            row.accuracy, row.steps = member.board["score"], int(member.board["steps"])
            lived_s = time.monotonic() - member.board["ready_s"]
            row.steps_per_s = row.steps / lived_s if member.board["ready_s"] and lived_s > 0 else 0.0
            row.exchanges, row.age_samples = member.job.get("exchanges", 0), member.job.get("age_samples", 0.0)
            row.bytes_sent = member.status.get("bytes_sent", 0)
            row.neighbours = member.status.get("neighbours", 0)
            if self.ongoing is not None and member in self.ongoing.victims:
                row.note = self.ongoing.kind
            rows.append(row)
        self.view.table(headline, rows)

"""The story that the demonstration tells: start, train, lose a node, gain one, finish.

Runs in the main thread: one loop listens to the trainers, asks the daemons, draws the table, and acts when it is time.
"""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List

from cluster import Cluster, DaemonError
from processes import POLL_S, Program, wait_until

from . import plan
from .member import Member, MemberError
from .view import View

START_TIMEOUT_S = 60.0
# After the last step, the daemons may take this long to finish the exchanges under way.
SETTLE_TIMEOUT_S = 5.0
END_TIMEOUT_S = 15.0
ASK_EVERY_S = 0.5


@dataclass(frozen=True)
class Outcome:
    """The state when the training is over; the members' programs may have ended."""

    members: List[Member]  # founders, then the joiner
    begin_s: float  # on the monotonic clock
    killed_s: float  # on the monotonic clock
    unclean: List[str]  # the programs that did not stop properly


class Scenario:
    def __init__(self, orders: plan.Plan, cluster: Cluster, view: View, keep: bool):
        self.orders = orders
        self.cluster = cluster
        self.view = view
        self.keep = keep
        self.members: List[Member] = []
        self._asked_s = float("-inf")
        self._begin_s = 0.0
        self._end_s = 0.0
        self._killed_s = 0.0

    def run(self) -> Outcome:
        founders = self._start_founders()
        self._begin_s = time.monotonic()
        self._end_s = self._begin_s + self.orders.seconds
        for member in founders:
            member.train_until(self._end_s)
        self._turn_until(lambda: self._elapsed_s() >= plan.KILL_AT * self.orders.seconds)
        self._kill()
        self._turn_until(lambda: self._elapsed_s() >= plan.JOIN_AT * self.orders.seconds)
        self._join()
        self._turn_until(lambda: all(member.said("done") for member in self.present()), self._end_s + START_TIMEOUT_S)
        self._settle()
        self.view.table(self._headline(), [member.row for member in self.members], final=True)
        return Outcome(self.members, self._begin_s, self._killed_s, [] if self.keep else self._stop())

    def present(self) -> List[Member]:
        return [member for member in self.members if not member.killed]

    def _start_founders(self) -> List[Member]:
        for index in range(self.orders.nodes):
            self._add(index).start_trainer()
        founders = list(self.members)
        self.members[self.orders.slow].row.note = f"{plan.SLOWNESS} x slower"

        def linked() -> bool:
            try:
                return all(member.node.status()["neighbours"] == len(founders) - 1 for member in founders)
            except DaemonError:  # on a busy machine an answer may come too late
                for member in founders:
                    member.check()
                return False

        wait_until(linked, START_TIMEOUT_S, "all daemons are linked with one another")
        self._turn_until(
            lambda: all(member.said("ready") for member in founders), time.monotonic() + START_TIMEOUT_S, draw=False
        )
        return founders

    def _add(self, index: int) -> Member:
        member = Member(self.cluster, self.orders, index, self.keep)
        self.members.append(member)
        member.node.start()
        return member

    def _kill(self) -> None:
        victim = self.members[self.orders.killed]
        victim.ask()
        self._killed_s = time.monotonic()
        victim.kill()
        victim.row.note = f"killed after {self._elapsed_s():.0f} s"
        self.view.say(f"{self._clock()}  {victim.name} is killed with SIGKILL, its daemon and its trainer")

    def _join(self) -> None:
        joiner = self._add(self.orders.joiner)
        joiner.row.note = f"joined after {self._elapsed_s():.0f} s"
        joiner.start_trainer()
        self.view.say(f"{self._clock()}  {joiner.name} starts, with {self.members[self.orders.killed].name}'s images")
        self._turn_until(lambda: joiner.said("ready"), time.monotonic() + START_TIMEOUT_S)
        joiner.train_until(self._end_s)
        self._turn_until(lambda: joiner.said("attached"), time.monotonic() + START_TIMEOUT_S)
        attached = joiner.events["attached"]
        self.view.say(
            f"{self._clock()}  {joiner.name} has pulled the model in {attached['attach_s']:.2f} s: "
            f"accuracy {attached['accuracy']:.3f} before its first step"
        )

    def _settle(self) -> None:
        def nothing_under_way() -> bool:
            self._ask(force=True)
            return all(member.job.get("in_flight") == 0 for member in self.present())

        try:
            wait_until(nothing_under_way, SETTLE_TIMEOUT_S, "the daemons have finished their exchanges")
        except TimeoutError:
            pass  # Daemons may go on exchanging while their trainers stand still. The counts are valid in both cases.
        for member in self.present():
            if not member.status or not member.job:
                raise MemberError(f"{member.name}: its daemon has never answered with what it knows of the job")

    def _stop(self) -> List[str]:
        """The trainers detach, then the daemons stop. Returns what went wrong, in words."""
        unclean = []
        for member in self.present():
            member.let_go()

        def end(who: str, program: Program) -> None:
            try:
                if program.wait(END_TIMEOUT_S) != 0:
                    unclean.append(f"{who} failed; its log ends:\n{program.log_text()[-2000:]}")
            except TimeoutError:
                unclean.append(f"{who} did not end within {END_TIMEOUT_S:g} s, and was killed")

        for member in self.present():
            end(f"{member.name}'s trainer", member.trainer)
        for member in self.present():
            member.node.program.signal(signal.SIGTERM)
        for member in self.present():
            end(f"{member.name}'s daemon", member.node.program)
        return unclean

    def _turn_until(
        self, condition: Callable[[], bool], deadline_s: float = float("inf"), draw: bool = True
    ) -> None:
        while not condition():
            if time.monotonic() > deadline_s:
                waiting = [member.name for member in self.present() if not member.said("done")]
                raise MemberError(f"no progress within the time allowed; waiting for {', '.join(waiting)}")
            for member in self.members:
                member.check()
                member.listen()
            self._ask()
            if draw:
                self.view.table(self._headline(), [member.row for member in self.members])
            time.sleep(POLL_S * 5)

    def _ask(self, force: bool = False) -> None:
        if force or time.monotonic() >= self._asked_s + ASK_EVERY_S:
            self._asked_s = time.monotonic()
            for member in self.members:
                member.ask()

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begin_s

    def _clock(self) -> str:
        return f"{self._elapsed_s():5.1f} s"

    def _headline(self) -> str:
        done = min(1.0, self._elapsed_s() / self.orders.seconds)
        bar = ("#" * round(20 * done)).ljust(20, ".")
        return f"{self.orders.codec}  [{bar}]  {min(self._elapsed_s(), self.orders.seconds):.0f} of {self.orders.seconds:.0f} s"

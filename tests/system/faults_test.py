"""Nodes are killed at any moment, all restarted, paused, and come and go, while real trainers train. Whatever happens
to some, the others go on learning, and all learn together when it is over.

Short by default. For the whole test: GOSSAMER_PAUSE_S=60 (how long a node stands still) and GOSSAMER_CHURN_S=300 (how
long nodes come and go, thirty a minute).
"""

import os
import signal
import time
import unittest
from typing import Callable

from support import PATIENCE_S, wait_until
from training import Member, TrainingTest, hold, resume, stop

PAUSE_S = float(os.environ.get("GOSSAMER_PAUSE_S", 3))
CHURN_S = float(os.environ.get("GOSSAMER_CHURN_S", 8))
# An arrival or a departure every two seconds.
CHANGES_PER_MINUTE = 30


class KilledAtAnyMoment(TrainingTest):
    """kill -9 at a moment that a condition chooses. Pulling this model takes a while: many small messages."""

    elements = 60_000
    nodes = 3

    def kill_when(self, member: Member, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, PATIENCE_S, what)
        member.node.kill()

    def come_back(self, member: Member, losses: int) -> None:
        """The survivors have trained in between; the node returns on its old state, and its trainer attaches again."""
        survivors = [other for other in self.members if other is not member]
        self.wait_for_neighbours({survivor: len(survivors) - 1 for survivor in survivors})
        self.wait_for_steps([member], 5)  # it trains alone
        member.node.start()
        self.wait_for_neighbours({other: self.nodes - 1 for other in self.members})
        self.assert_learns()
        self.assert_sound(losses)

    def test_each_node_in_the_middle_of_an_exchange_and_one_while_stopping(self) -> None:
        self.start_members(self.nodes)
        for losses, member in enumerate(self.members, start=1):
            with self.subTest(member.node.name):
                self.kill_when(member, lambda: member.job().get("in_flight", 0) > 0, "an exchange is under way")
                self.come_back(member, losses)
        with self.subTest("while stopping"):
            member = self.members[1]
            # The daemon may end before it is seen stopping. Then it has stopped cleanly, which is also right.
            member.node.program.signal(signal.SIGTERM)
            member.node.kill()
            self.come_back(member, self.nodes + 1)

    def test_while_attaching_and_joining(self) -> None:
        """The joiner's daemon dies as soon as its trainer has attached; then the node that it pulls from dies."""
        self.start_members(self.nodes)
        member = self.members[2]
        member.trainer.kill()
        wait_until(lambda: not member.node.jobs(), PATIENCE_S, "the trainer's replica is gone")
        self.start_trainer(member)
        self.kill_when(member, lambda: member.node.status()["clients"] == 1, "the trainer has attached")
        member.node.start()
        wait_until(lambda: member.board["ready_s"] > 0, PATIENCE_S, "the trainer takes part")
        self.wait_for_neighbours({other: self.nodes - 1 for other in self.members})
        self.assert_learns()

        member.trainer.kill()
        wait_until(lambda: not member.node.jobs(), PATIENCE_S, "the trainer's replica is gone")
        self.start_trainer(member)
        donor = self.members[0]
        self.kill_when(donor, lambda: bool(member.node.jobs()), "a replica joins")
        wait_until(lambda: member.job().get("state") == "running", PATIENCE_S, "it has joined through the other")
        self.come_back(donor, 3)

    def test_trainers_at_any_moment(self) -> None:
        self.start_members(self.nodes)
        before = self.footprint()
        for member in self.members:
            wait_until(lambda: member.job().get("in_flight", 0) > 0, PATIENCE_S, "an exchange is under way")
            member.trainer.kill()
            survivors = [other for other in self.members if other is not member]
            self.assert_learns(survivors)
            self.start_trainer(member)
            self.assert_learns()
        self.assert_no_leak(before)
        self.assert_sound(losses=len(self.members))


class AllAtOnce(TrainingTest):
    def restart(self, end: Callable[[Member], None]) -> None:
        for member in self.members:
            end(member)
        self.wait_for_steps(self.members, 5)  # each trains alone
        for member in self.members:
            member.node.launch()
        for member in self.members:
            member.node.wait_for_start()
        self.wait_for_neighbours({member: len(self.members) - 1 for member in self.members})
        self.assert_learns()
        self.assert_sound(losses=4)

    def test_daemons_then_everything(self) -> None:
        self.start_members(4)
        with self.subTest("all daemons killed"):
            self.restart(lambda member: member.node.kill())
        with self.subTest("all daemons stopped"):
            self.restart(lambda member: self.assertEqual(member.node.stop(), 0))
        with self.subTest("power cut"):
            self.cut_power()

    def cut_power(self) -> None:
        """Kills all daemons and trainers and starts them again: founders of a new run, with their old keys."""
        for member in self.members:
            member.node.kill()
            member.trainer.kill()
        for member in self.members:
            member.node.launch()
        for member in self.members:
            member.node.wait_for_start()
            self.start_trainer(member)
        self.wait_for_neighbours({member: len(self.members) - 1 for member in self.members})
        self.assert_learns()
        self.assert_sound()


class StandsStill(TrainingTest):
    """A node stands still for longer than the others wait for it. They only suspect its death, and it comes back by
    itself."""

    def pause(self, member: Member, with_trainer: bool) -> None:
        """Pauses the daemon, and its trainer if asked for."""
        programs = [member.node.program] + [member.trainer] * with_trainer
        others = [other for other in self.members if other is not member]
        for program in programs:
            stop(program)
        try:
            begin = time.monotonic()
            self.wait_for_neighbours({other: len(others) - 1 for other in others})
            self.assert_learns(others)
            if not with_trainer:
                self.wait_for_steps([member], 5)
            hold(max(0, begin + PAUSE_S - time.monotonic()))
        finally:
            for program in programs:
                resume(program)
        self.wait_for_neighbours({other: len(others) for other in self.members})
        self.assert_learns()

    def pause_trainer(self, member: Member) -> None:
        """Pauses only a trainer, as in a debugger or when it is swapped out. Its daemon stays among the others without
        costing them anything, and the trainer goes on where it was."""
        others = [other for other in self.members if other is not member]
        attachments = member.node.status()["clients"]
        stop(member.trainer)
        try:
            begin = time.monotonic()
            self.assert_learns(others)
            hold(max(0, begin + PAUSE_S - time.monotonic()))
            self.wait_for_steps(others, 5)
            self.assertEqual(member.node.status()["clients"], attachments)
        finally:
            resume(member.trainer)
        self.wait_for_neighbours({other: len(others) for other in self.members})
        self.assert_learns()

    def test_daemon_machine_and_trainer(self) -> None:
        self.start_members(4)
        before = self.footprint()
        self.pause(self.members[1], with_trainer=False)
        self.pause(self.members[2], with_trainer=True)
        self.pause_trainer(self.members[3])
        self.assert_no_leak(before)
        self.assert_sound(losses=4)


class ComeAndGo(TrainingTest):
    def test_joins_and_leaves(self) -> None:
        """Half of the changes are arrivals of new nodes with their trainers, the other half their departures, stopped
        and killed in turn. Those that stay go on learning, and keep no memory of those that are gone."""
        self.start_members(3)
        stay = list(self.members)
        before = self.footprint()
        changes, begin = 0, time.monotonic()
        while time.monotonic() < begin + CHURN_S:
            if changes % 2 == 0:
                guest = self.add_member(changes // 2, 3)
                wait_until(lambda: guest.board["ready_s"] > 0, PATIENCE_S, "the guest takes part")
            else:
                self.members.remove(guest)
                if changes % 4 == 1:
                    self.assertEqual(guest.node.stop(), 0)
                else:
                    guest.node.kill()
                guest.trainer.kill()
            changes += 1
            wait_until(
                lambda: time.monotonic() >= begin + changes * 60 / CHANGES_PER_MINUTE, PATIENCE_S, "the next change is due"
            )
            for member in stay:
                self.assertTrue(member.trainer.running())
        for guest in [member for member in self.members if member not in stay]:
            self.members.remove(guest)
            self.assertEqual(guest.node.stop(), 0)
            guest.trainer.kill()
        self.wait_for_neighbours({member: len(stay) - 1 for member in stay})
        self.assert_learns()
        self.assert_no_leak(before)
        self.assert_sound(losses=changes // 4 + 1)


if __name__ == "__main__":
    unittest.main()

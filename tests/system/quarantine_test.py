"""One of several trainings diverges, writes NaN, and goes on. The others learn from each other as before, and are told
which one it is.
"""

import unittest
from typing import List

from support import BUILD, PATIENCE_S, gossamerctl, wait_until
from training import Member, TrainingTest

TASKS = 15
# The watch looks every five seconds, and reports a finding that has held for three looks.
WATCH_PATIENCE_S = 2 * PATIENCE_S


class OneDiverges(TrainingTest):
    def said(self, member: Member, *arguments: str) -> str:
        return gossamerctl(BUILD, "--socket", str(member.node.control_socket), *arguments).stdout

    def names(self, member: Member, name: str) -> bool:
        """The watch of this member has found who is in quarantine, and that nobody else is kept from exchanges."""
        found = {(one["rule"], one["name"]) for one in member.node.status()["findings"]}
        kept_apart = {rule for rule, _ in found} & {"silent", "starved"}
        return ("quarantined", name) in found and not kept_apart

    def learn(self, healthy: List[Member]) -> None:
        """A task that none of them can learn alone."""
        self.task[0] -= 1
        try:
            wait_until(lambda: all(self.has_learned(member) for member in healthy), PATIENCE_S, "the healthy learn")
        except TimeoutError:
            self.fail(f"task {self.task[0]} is not learned: {[member.job() for member in healthy]}")

    def test_the_others_go_on(self) -> None:
        """Each healthy replica has one healthy partner, so a fault that separates them keeps them from learning."""
        *healthy, sick = self.start_members(3)
        self.task[0] = 0
        self.learn(healthy)
        wait_until(lambda: sick.job()["state"] == "quarantined", PATIENCE_S, "the sick one is in quarantine")
        wait_until(
            lambda: "held NaN or infinity in 1 of its fragments" in sick.node.log.read_text(),
            PATIENCE_S,
            "the log of the sick one says so",
        )
        for _ in range(TASKS):
            self.learn(healthy)

        name = sick.node.name
        for member in healthy:
            wait_until(lambda: self.names(member, name), WATCH_PATIENCE_S, f"{member.node.name} is told of {name}")
            self.assertIn(f"{name} holds NaN or infinity in 1 of 1 fragments", self.said(member, "status"))
            self.assertIn("it holds NaN or infinity", self.said(member, "explain", name, "--seconds", "0.1"))
            self.assertIn(f"{name} holds NaN or infinity", self.said(member, "explain", "--seconds", "0.1"))
            # The fragment is asked for rarely, and not with every second request.
            job = member.job()
            self.assertLess(job["refused"], 0.05 * job["exchanges"])
            self.assertEqual(job["quarantined_fragments"], 0)
        self.assertIn("1 fragments hold NaN or infinity", self.said(sick, "explain", "--seconds", "0.1"))
        self.learn(healthy)


if __name__ == "__main__":
    unittest.main()

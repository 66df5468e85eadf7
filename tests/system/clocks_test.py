"""Wrong or jumping clocks of one daemon among others, by a library that shifts the clocks (shifted_clock.c). The time
of day numbers a node's lives; everything else uses the monotonic clock.
"""

import unittest

import numpy as np

from support import PATIENCE_S, start_with_library, wait_until
from training import Member, TrainingTest

HOUR_NS = 3600 * 10**9
TIME_OF_DAY, MONOTONIC = 0, 1
COUNT = 3


class Clocks(TrainingTest):
    def setUp(self) -> None:
        super().setUp()
        shift_path = self.folder / "clock"
        shift_path.write_bytes(bytes(16))
        self.shift = np.memmap(shift_path, np.int64, "r+", shape=(2,))
        for number in range(COUNT):
            self.add_member(number, COUNT)
        self.member = self.members[1]
        self.assertEqual(self.member.node.stop(), 0)
        start_with_library(self.member.node, "GOSSAMER_SHIFTED_CLOCK", GOSSAMER_CLOCK_SHIFT=str(shift_path))
        self.all_learn()

    def restart(self) -> None:
        self.assertEqual(self.member.node.stop(), 0)
        self.member.node.start()

    def all_learn(self) -> None:
        self.wait_for_neighbours({member: COUNT - 1 for member in self.members})
        self.assert_learns()

    def exchanges_of(self, member: Member) -> int:
        return member.job().get("exchanges_initiated", 0)

    def assert_exchanges(self) -> None:
        """It exchanges in both roles: it answers requests, and the others do not take its own requests for old ones."""
        begun = self.exchanges_of(self.member)
        wait_until(lambda: self.exchanges_of(self.member) > begun + 10, PATIENCE_S, "it exchanges")

    def test_set_back_between_two_lives(self) -> None:
        """The new life is not taken for the old one, however soon it follows, nor its exchanges for repeated ones."""
        before = self.member.node.status()["incarnation"]
        self.shift[TIME_OF_DAY] = -HOUR_NS
        self.restart()
        self.assertGreater(self.member.node.status()["incarnation"], before)
        self.all_learn()
        self.assert_exchanges()
        self.member.node.kill()
        self.shift[TIME_OF_DAY] = -48 * HOUR_NS
        self.member.node.start()
        self.all_learn()
        self.assert_exchanges()
        self.assert_sound(losses=2)

    def test_far_ahead_in_an_earlier_life(self) -> None:
        """The others hold that life dead, under a number that the clock does not reach for decades. The node has lost its
        own record of it."""
        others = [member for member in self.members if member is not self.member]
        for years in (60, 200):
            self.shift[TIME_OF_DAY] = years * 365 * 24 * HOUR_NS
            self.restart()
            self.all_learn()
            self.member.node.kill()
            self.wait_for_neighbours({member: COUNT - 2 for member in others})
            (self.member.node.folder / "state" / "incarnation").unlink()
            self.shift[TIME_OF_DAY] = 0
            self.member.node.start()
            self.all_learn()
            self.assert_exchanges()
        self.assert_sound(losses=4)

    def test_time_of_day_jumps(self) -> None:
        """A running daemon does not use the time of day."""
        for hours in (1, -1, 24 * 365, 0):
            self.shift[TIME_OF_DAY] = hours * HOUR_NS
            self.assert_learns()
            self.assert_exchanges()
        self.all_learn()
        self.assert_sound()

    def test_monotonic_clock_leaps(self) -> None:
        """As when a virtual machine was stopped and goes on: the node has been away for an hour by its own clock, and
        not at all by the others'."""
        self.shift[MONOTONIC] = HOUR_NS
        self.all_learn()
        self.assert_exchanges()
        self.assert_sound(losses=1)


if __name__ == "__main__":
    unittest.main()

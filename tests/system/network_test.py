"""Networks and a cluster: partitions, dead connections that do not show it, loss, slow links, other addresses, between
daemons on hosts of their own (tools/lib/network.py), with real trainers. Needs root, iproute2 and iptables; without
them it is skipped, and says so.
"""

import sys
import unittest
from typing import List

from support import PATIENCE_S, wait_until
from network import Host, Network, NetworkUnavailable, connections_of
from training import Member, TrainingTest

COUNT = 4
PORT = 26746
SKIPPED = 77  # CTest's status for "skipped"


class OnHosts(TrainingTest):
    count = COUNT

    def setUp(self) -> None:
        super().setUp()
        self.network = Network()
        # The network is closed after the daemons have ended: cleanups added first run last.
        self._cleanups.insert(0, (self.network.close, (), {}))
        self.start_members(self.count, [self.network.add() for _ in range(self.count)])
        self.before = self.footprint()

    def hosts(self, members: List[Member]) -> List[Host]:
        return [member.node.host for member in members]

    def all_linked(self) -> None:
        self.wait_for_neighbours({member: self.count - 1 for member in self.members})


class Partition(OnHosts):
    def test_partition_and_heal(self) -> None:
        """Each half holds all data and learns on; together again they agree. This is done twice, along different
        lines."""
        for number, halves in enumerate(((0, 2), (1, 3)), start=1):
            group = [self.members[index] for index in halves]
            mend = self.network.part(self.hosts(group))
            self.wait_for_neighbours({member: 1 for member in self.members})
            self.assert_learns()
            mend()
            self.all_linked()
            self.assert_learns()
            self.assert_sound(losses=2 * number)
        self.cut_off_one()
        self.assert_no_leak(self.before)

    def cut_off_one(self) -> None:
        """It trains on alone, and its training in that time is not lost to the others."""
        alone, *others = self.members
        mend = self.network.part(self.hosts([alone]))
        self.wait_for_neighbours({alone: 0, **{member: len(others) - 1 for member in others}})
        self.assert_learns(others)
        self.wait_for_steps([alone], 20)
        mend()
        self.all_linked()
        self.assert_learns()
        self.assert_sound(losses=7)


class HalfOpen(OnHosts):
    def test_one_direction_then_connections_that_died_silently(self) -> None:
        self.cut_one_direction()
        self.forget_connections()
        self.assert_no_leak(self.before)

    def cut_one_direction(self) -> None:
        """The first no longer hears the second, which still hears it. Both go on with the others."""
        first, second = self.members[:2]
        rule = first.node.host.drop_from([second.node.host])
        self.wait_for_neighbours({first: self.count - 2, second: self.count - 2})
        self.assert_learns()
        rule.remove()
        self.all_linked()
        self.assert_learns()
        self.assert_sound(losses=2)

    def forget_connections(self) -> None:
        """As when a router forgets them: nothing arrives on the first node's connections any more, nobody is told, and
        new ones work. The nodes give the old ones up and make new ones."""
        first = self.members[0]
        others = self.members[1:]
        pid = first.node.program.pid
        old = [connection for other in others for connection in connections_of(pid, other.node.host.address)]
        self.assertGreaterEqual(len(old), 2 * len(others), "a link has two connections")
        rules = [first.node.host.drop_connection(connection) for connection in old]

        def made_anew() -> bool:
            now = [connection for other in others for connection in connections_of(pid, other.node.host.address)]
            return first.node.status()["neighbours"] == len(others) and not set(now) & set(old)

        wait_until(made_anew, PATIENCE_S, "every link is there on new connections")
        self.assert_learns()
        self.assert_sound(losses=5)
        for rule in rules:
            rule.remove()


class Moves(TrainingTest):
    """A node that all others have dialled gets another address while it runs, like a laptop that changes networks."""

    def test_found_again_by_its_id(self) -> None:
        network = Network()
        self._cleanups.insert(0, (network.close, (), {}))  # runs after the daemons have ended
        for number in range(COUNT):
            dialled = [f"tcp://{host.address}:{PORT}" for host in network.hosts]
            overlay = {"listen": f"tcp://*:{PORT}", "peers": dialled}
            self.add_member(number, COUNT, network.add(), overlay=overlay)
        self.all_linked()
        self.assert_learns()
        moved, *others = self.members
        node, old = moved.node.status()["node"], moved.node.host.address
        moved.node.host.move()

        def addresses() -> List[str]:
            known = [member for other in others for member in other.node.members()]
            return [member["address"] for member in known if member["node"] == node]

        wait_until(
            lambda: addresses() == [f"tcp://{moved.node.host.address}:{PORT}"] * len(others),
            PATIENCE_S,
            "all know where it is now",
        )
        self.all_linked()
        for other in others:
            self.assertEqual(connections_of(other.node.program.pid, old), [], "nothing is left of the old links")
        self.assert_learns()
        self.assert_sound(losses=COUNT - 1)
        self.assertEqual(moved.node.log.read_text().count("other addresses than before"), 1)

    def all_linked(self) -> None:
        self.wait_for_neighbours({member: COUNT - 1 for member in self.members})


class Poor(OnHosts):
    elements = 30_000

    def test_one_percent_lost_then_a_slow_node(self) -> None:
        for host in self.network.hosts:
            host.lose(0.01)
        for _ in range(3):
            self.assert_learns()
        self.network.heal()
        self.assert_sound()
        self.slow_one_down()
        self.assert_no_leak(self.before)

    def slow_one_down(self) -> None:
        """One node's network carries 2 Mbit/s; it does not slow the others down, and is not lost."""
        slow, *others = self.members
        slow.node.host.limit(2)
        self.assert_learns(others)
        self.assert_learns()
        self.all_linked()
        slow.node.host.unlimit()
        self.assert_learns()
        self.assert_sound()


if __name__ == "__main__":
    try:
        Network().close()
    except NetworkUnavailable as error:
        print(f"SKIPPED, no faults of networks were tested: {error}", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

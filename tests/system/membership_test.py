"""Members of the cluster: deaths are noticed in time, nodes that move are found again, large clusters keep few
links."""

import time
import unittest
from typing import Dict, List

import numpy as np

from support import PATIENCE_S, Node, SystemTest, wait_until

ELEMENTS = 1000
# The bound of the defaults for a LAN is a failed probe and the shortest suspicion, 5 s; the rest is for a busy machine.
LAN_DEATH_S = 8.0
LAN = {"overlay": {"ping_ms": 500, "probe_interval_ms": 1000, "probe_timeout_ms": 500, "suspicion_mult": 4}}


def member(node: Node, name: str) -> Dict:
    return next((member for member in node.members() if member["name"] == name), {})


class Members(SystemTest):
    def know_each_other(self, nodes: List[Node]) -> None:
        wait_until(
            lambda: all(
                len(node.members()) == len(nodes) - 1 and all(m["state"] == "alive" for m in node.members())
                for node in nodes
            ),
            PATIENCE_S,
            "all know all",
        )

    def test_a_crash_is_told_in_time(self) -> None:
        """With the defaults for a LAN, all neighbours notice it, and nobody takes a living node for dead."""
        nodes = self.start_nodes(4, LAN)
        self.know_each_other(nodes)
        nodes[3].kill()
        begin = time.monotonic()
        wait_until(
            lambda: all(len(node.members()) == 2 for node in nodes[:3]), PATIENCE_S, "the death is told everywhere"
        )
        seconds = time.monotonic() - begin
        print(f"declared dead by all after {seconds:.1f} s")
        self.assertLess(seconds, LAN_DEATH_S)
        self.assertGreater(seconds, 3.5, "it was given the time of a suspicion")
        for node in nodes[:3]:
            self.assertEqual(node.status()["neighbours"], 2)
            self.assertEqual(node.status()["refutations"], 0)

    def test_a_node_that_moves_is_found_by_its_id(self) -> None:
        """It is restarted at another port, with one contact that is not the first node; no other configuration
        changes."""
        nodes = self.start_nodes(4)
        self.know_each_other(nodes)
        before = nodes[2].address
        identity = nodes[2].status()["node"]
        nodes[2].kill()
        nodes[2].options["overlay"]["listen"] = "tcp://127.0.0.1:0"
        nodes[2].start()
        self.assertNotEqual(nodes[2].address, before)
        self.wait_for_links(nodes)
        self.know_each_other(nodes)
        self.assertEqual(nodes[2].status()["node"], identity)
        for index in (0, 1, 3):
            self.assertEqual(member(nodes[index], "node-3")["address"], nodes[2].address)

    def test_where_a_node_is_dialled_changes_with_a_reload(self) -> None:
        nodes = self.start_nodes(3)
        self.know_each_other(nodes)
        elsewhere = "tcp://127.0.0.1:7"
        nodes[1].options["overlay"]["advertise"] = elsewhere
        nodes[1].reload()
        wait_until(
            lambda: all(member(nodes[index], "node-2")["address"] == elsewhere for index in (0, 2)),
            PATIENCE_S,
            "all know where it is to be dialled",
        )
        self.assertEqual([node.status()["links_lost"] for node in nodes], [0, 0, 0])
        self.assertIn("reloaded: overlay.advertise", nodes[1].log.read_text())

    def test_a_first_node_without_contacts_is_found_by_those_that_knew_it(self) -> None:
        nodes = self.start_nodes(3)
        self.know_each_other(nodes)
        self.assertEqual(nodes[0].options["overlay"]["peers"], [])
        nodes[0].kill()
        nodes[0].start()
        self.wait_for_links(nodes)
        self.know_each_other(nodes)

    def test_a_first_node_that_moves_finds_those_that_it_knew(self) -> None:
        """It has no contacts, and the others only know its old address."""
        nodes = self.start_nodes(3)
        kept = nodes[0].folder / "state" / "members"
        wait_until(
            lambda: kept.exists() and len(kept.read_text().splitlines()) == 2, PATIENCE_S, "it has noted the others"
        )
        nodes[0].stop()
        nodes[0].options["overlay"]["listen"] = "tcp://127.0.0.1:0"
        nodes[0].start()
        self.wait_for_links(nodes)
        self.know_each_other(nodes)

    def test_a_cluster_moves_to_other_ports_node_by_node(self) -> None:
        """As docs/how-to/leave-and-upgrade.md says: the lists of peers name the old ports all the while."""
        nodes = self.start_nodes(3)
        self.know_each_other(nodes)
        old = [node.address for node in nodes]
        for node in nodes:
            kept = node.folder / "state" / "members"
            others = {other.address for other in nodes if other is not node}
            wait_until(
                lambda: kept.exists() and set(kept.read_text().splitlines()) == others, PATIENCE_S, "it notes the others"
            )
            node.stop()
            node.options["overlay"]["listen"] = "tcp://127.0.0.1:0"
            node.start()
            self.wait_for_links(nodes)
            self.know_each_other(nodes)
        self.assertEqual(set(old) & {node.address for node in nodes}, set())
        for node in nodes:
            node.options["overlay"]["peers"] = [other.address for other in nodes if other is not node]
            node.reload()
        nodes[0].kill()
        nodes[0].start()
        self.wait_for_links(nodes)

    def test_a_goodbye_is_no_death(self) -> None:
        nodes = self.start_nodes(3)
        self.know_each_other(nodes)
        nodes[2].stop()
        wait_until(lambda: all(len(node.members()) == 1 for node in nodes[:2]), PATIENCE_S, "it is known to have left")
        for node in nodes[:2]:
            self.assertEqual(node.status()["deaths"], 0)

    def test_nodes_that_only_dial_out_train_with_the_others(self) -> None:
        first = self.cluster.start("node-1")
        behind = [self.cluster.add(f"node-{i}", {"overlay": {"advertise": "none"}}) for i in (2, 3)]
        for node in behind:
            node.options["overlay"]["peers"] = [first.address]
            node.start()
        wait_until(lambda: first.status()["neighbours"] == 2, PATIENCE_S, "both are linked")
        wait_until(lambda: len(behind[0].members()) == 2, PATIENCE_S, "they know of each other")
        clients = [self.attach(node, np.full(ELEMENTS, 0.0)) for node in (first, *behind)]
        self.assert_still_exchanges(clients)
        for node in behind:
            self.assertEqual(node.status()["neighbours"], 1, "two that only dial out are never paired")
            self.assertEqual(node.status()["deaths"], 0)

    def test_a_large_cluster_keeps_few_links(self) -> None:
        """Beyond the limit each node has links to some only, and training still reaches all."""
        options = {"overlay": {"full_view_limit": 3, "active_view": 3, "passive_view": 8}}
        nodes = [self.cluster.start(f"node-{index + 1}", options) for index in range(7)]
        wait_until(
            lambda: all(
                node.status()["partial_view"] and 2 <= node.status()["neighbours"] <= 5 for node in nodes
            ),
            PATIENCE_S,
            "each has a few neighbours",
        )
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        self.assert_still_exchanges(clients)
        nodes[3].kill()
        rest = [client for client in clients if client.node is not nodes[3]]
        self.assert_still_exchanges(rest)


if __name__ == "__main__":
    unittest.main()

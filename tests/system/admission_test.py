"""Admission to the cluster: nodes that are invited, denied, and kept in or out while its key changes."""

import os
import shutil
import time
import unittest
from pathlib import Path
from typing import List, Optional

import numpy as np

from support import (
    PATIENCE_S,
    Node,
    OperatedTest,
    Options,
    start_other_program,
    start_with_library,
    wait_until,
)


class Admission(OperatedTest):
    def own_key(self, name: str, overlay: Optional[Options] = None) -> Node:
        """A node without contacts, with a key file of its own; it is not started."""
        path = self.folder / name / "state" / "cluster.key"
        return self.cluster.add(name, {"overlay": {"cluster_key_file": str(path), "peers": [], **(overlay or {})}})

    def found(self, name: str) -> Node:
        node = self.own_key(name)
        node.start()
        return node

    def invitation(self, node: Node, *arguments: str) -> str:
        done = self.ctl(node, "invite", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("\n"), 1)
        self.assertIn("A secret", done.stderr)
        return done.stdout.strip()

    def joined_cluster(self, count: int) -> List[Node]:
        """Nodes with a key file each: the first founds the cluster, and the others are invited."""
        nodes = [self.found("node-1")]
        while len(nodes) < count:
            nodes.append(self.found(f"node-{len(nodes) + 1}"))
            self.ask(nodes[-1], "join", self.invitation(nodes[0]))
        self.wait_for_links(nodes)
        return nodes

    def key_file(self, node: Node) -> Path:
        return Path(node.options["overlay"]["cluster_key_file"])

    def fingerprints(self, node: Node) -> List[str]:
        return [key["fingerprint"] for key in self.ask(node, "key", "list")["keys"]]

    def wait_for_keys(self, nodes: List[Node], expected: List[str]) -> None:
        wait_until(
            lambda: all(self.fingerprints(node) == expected for node in nodes), PATIENCE_S, f"all hold {expected}"
        )

    def links_lost(self, nodes: List[Node]) -> int:
        return sum(node.status()["links_lost"] for node in nodes)

    def test_a_system_that_cannot_tell_marked_connections_apart(self) -> None:
        """Bulk goes through CURVE there, and all who come are let in at once."""
        first = self.own_key("node-1")
        start_with_library(first, "GOSSAMER_WITHOUT_STEERING")
        others = []
        for number in range(2, 6):
            others.append(self.own_key(f"node-{number}", {"peers": [first.address]}))
            path = self.key_file(others[-1])
            path.parent.mkdir(mode=0o700, parents=True)
            shutil.copy(self.key_file(first), path)
            others[-1].start()
        self.wait_for_links([first, *others])
        self.assertEqual(first.status()["handshakes_failed"], 0)
        self.assertEqual({peer["bulk"] for peer in first.peers() if not peer["dialled_by_us"]}, {"curve"})
        # The other daemons listen for sealed connections.
        self.assertIn("sealed", {peer["bulk"] for peer in others[0].peers()})

    def test_invited_nodes_join_train_and_stay(self) -> None:
        first = self.found("node-1")
        line = self.invitation(first)
        second = self.found("node-2")
        self.assertIn("holds the cluster's keys", self.ctl(second, "join", line).stdout)
        third = self.own_key("node-3", {"join": self.invitation(second)})
        third.start()
        nodes = [first, second, third]
        self.wait_for_links(nodes)
        clients = [self.attach(first, np.full(1000, 3.0)), self.attach(second, np.zeros(1000))]
        clients.append(self.attach(third, np.zeros(1000)))
        self.assert_still_exchanges(clients)
        for node in nodes:
            self.assertEqual(self.key_file(node).stat().st_mode & 0o777, 0o600)
            self.assertNotIn(line, node.log.read_text())
        # An invitation can be used several times, and is not needed after a restart.
        self.assertIn("linked to others", self.error_of(second, "join", line))
        third.stop()
        third.options["overlay"]["join"] = ""
        third.start()
        self.wait_for_links(nodes)

    def test_lines_that_do_not_count(self) -> None:
        first = self.found("node-1")
        second = self.found("node-2")
        line = self.invitation(first, "--expires", "1s")
        expires_by = time.time() + 1.1
        self.assertIn("garbled", self.error_of(second, "join", line[:-3]))
        self.assertIn("another version", self.error_of(second, "join", line.replace("invite-1", "invite-3")))
        self.assertIn("no invitation", self.error_of(second, "join", "hello"))
        wait_until(lambda: time.time() > expires_by, PATIENCE_S, "the invitation has expired")
        expired = self.error_of(second, "join", line)
        self.assertIn("expired", expired)
        self.assertIn("gossamerctl invite", expired)
        self.assertEqual(second.status()["neighbours"], 0)
        address = "tcp://" + start_other_program(self, b"SSH-2.0-another\r\n")
        said = self.error_of(second, "join", self.invitation(first, "--address", address))
        self.assertIn(f'another program has the port at {address}: it answers with "SSH-2.0-another"', said)
        # It can still join later.
        self.ask(second, "join", self.invitation(first))
        self.wait_for_links([first, second])

    def test_denial_spreads_and_survives_restarts(self) -> None:
        nodes = self.joined_cluster(3)
        unwanted = nodes[2].status()["node"]
        self.ask(nodes[0], "deny", unwanted[:8], "--reason", "sold")
        wait_until(lambda: nodes[2].status()["neighbours"] == 0, PATIENCE_S, "both have put it out")
        wait_until(lambda: self.ask(nodes[1], "denials")["denials"], PATIENCE_S, "the other member knows")
        self.assertEqual(self.ask(nodes[1], "denials")["denials"][0]["reason"], "sold")
        nodes[0].stop()
        nodes[1].kill()  # the denial must be kept by a daemon that is killed, too
        for node in nodes[:2]:
            node.start()
        self.wait_for_links(nodes[:2])
        seen = len(nodes[2].log.read_text())
        wait_until(
            lambda: all(f"{node.address} denies this node" in nodes[2].log.read_text()[seen:] for node in nodes[:2]),
            PATIENCE_S,
            "it is turned away by both",
        )
        self.assertEqual(nodes[2].status()["neighbours"], 0)
        self.ask(nodes[1], "allow", unwanted)
        self.wait_for_links(nodes)

    def test_key_changes_while_training(self) -> None:
        nodes = self.joined_cluster(3)
        old_only = self.own_key("old")
        self.key_file(old_only).parent.mkdir(mode=0o700)
        shutil.copy(self.key_file(nodes[0]), self.key_file(old_only))
        clients = [self.attach(node, np.full(1000, float(index))) for index, node in enumerate(nodes)]
        lost = self.links_lost(nodes)
        old = self.fingerprints(nodes[0])[0]
        new = self.ask(nodes[1], "key", "rotate")["fingerprint"]
        self.wait_for_keys(nodes, [new, old])
        self.assert_still_exchanges(clients)

        # A copy of a member's key file still admits.
        young = self.own_key("young", {"peers": [nodes[0].address]})
        self.key_file(young).parent.mkdir(mode=0o700)
        text = self.key_file(nodes[0]).read_text().splitlines()
        keys = [line for line in text if line and not line.startswith("#")]
        self.key_file(young).write_text(keys[0] + "\n")
        os.chmod(self.key_file(young), 0o600)
        young.start()
        self.wait_for_links([*nodes, young])
        wait_until(lambda: self.fingerprints(young) == [new, old], PATIENCE_S, "it learns the other key")

        self.assertIn("listens with this key", self.error_of(nodes[0], "key", "retire", new))
        self.ask(nodes[2], "key", "retire", old)
        self.wait_for_keys([*nodes, young], [new])
        self.assertIn("only key", self.error_of(nodes[0], "key", "retire", new))
        self.assert_still_exchanges(clients)
        self.assertEqual(self.links_lost(nodes), lost)

        old_only.options["overlay"]["peers"] = [nodes[0].address]
        old_only.start()
        wait_until(
            lambda: any("needs an invitation" in peer["note"] for peer in old_only.peers()), PATIENCE_S, "it is told why"
        )
        self.assertEqual(old_only.status()["neighbours"], 0)
        self.assertEqual(self.links_lost(nodes), lost)
        # With an invitation the node is back.
        self.ask(old_only, "join", self.invitation(nodes[1]))
        wait_until(lambda: old_only.status()["neighbours"] > 0, PATIENCE_S, "it is back")
        # After a restart all nodes find each other.
        for client in self.clients:
            client.run.close()
        self.clients.clear()
        nodes[0].stop()
        nodes[0].start()
        self.assertEqual(self.fingerprints(nodes[0]), [new])
        wait_until(lambda: nodes[0].status()["neighbours"] == 4, PATIENCE_S, "it is linked to all again")


if __name__ == "__main__":
    unittest.main()

"""A hostile member, or one of another version: it holds the cluster's key, is admitted, and says anything
(hostile_member.cpp) to daemons whose trainers train. Messages against the protocol are counted and get it excluded;
messages that only look right are refused; the others go on learning.
"""

import json
import os
import re
import subprocess
import time
import unittest
from typing import Any, Dict, List, Tuple

import numpy as np

from support import PATIENCE_S, Client, Node, SystemTest, wait_until
from training import TrainingTest

HOSTILE_MEMBER = os.environ.get("GOSSAMER_HOSTILE_MEMBER", "")
COUNT = 3
LIES_S = 8.0 + PATIENCE_S
# After this many malformed messages a member is excluded (docs/reference/wire.md).
MAX_MALFORMED = 16
UNKNOWN_JOB, LAYOUT_DIFFERS, BAD_REQUEST = "refused 1", "refused 2", "refused 3"


def hostile_member(test: SystemTest, node: Node, *arguments: str) -> Dict[str, Any]:
    """The member's report on its act."""
    result = subprocess.run(
        [HOSTILE_MEMBER, str(test.cluster.cluster_key), node.address, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    test.assertEqual(result.returncode, 0, result.stderr)
    return json.loads(result.stdout)


def begin_hostile_member(test: SystemTest, address: str, *arguments: str) -> "subprocess.Popen[str]":
    """It goes on with its act meanwhile."""
    acting = subprocess.Popen(
        [HOSTILE_MEMBER, str(test.cluster.cluster_key), address, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    test.addCleanup(acting.stdout.close)
    test.addCleanup(acting.wait)
    test.addCleanup(acting.kill)
    return acting


class Repeated(SystemTest):
    def test_done_once(self) -> None:
        """However often a request comes, even when its answer is no longer kept, it is done once."""
        (node,) = self.start_nodes(1)
        client = self.attach(node, np.zeros(2000))
        self.step_until(lambda: client.job()["state"] == "running", "it runs")
        told = hostile_member(self, node, "repeated")
        self.assertGreater(told["replies"].get("done", 0), 0, told)
        job = client.job()
        self.assertEqual((job["exchanges"], job["exchanges_answered"], job["violations"]), (1, 1, 0))
        self.assertEqual(node.status()["messages_rejected"], 0)


class Invents(SystemTest):
    def test_members_that_there_are_not_displace_nobody(self) -> None:
        """Above full_view_limit a node keeps few neighbours. Members that one liar tells of, and that nobody has linked
        to, neither take their places nor count for that limit: nobody loses a link, and all go on exchanging with all
        alike."""
        nodes = self.start_nodes(6, {"overlay": {"full_view_limit": 16, "active_view": 2}})
        clients = [self.attach(node, np.zeros(2000)) for node in nodes]
        self.step_until(lambda: all(client.job()["state"] == "running" for client in clients), "all run")
        pairs = len(nodes) * (len(nodes) - 1)
        self.step_until(lambda: sum(count > 0 for count in self.exchanged(clients).values()) == pairs, "all met all")

        before = self.exchanged(clients)
        self.assertEqual(len(before), pairs)
        begun = time.monotonic()
        liar = begin_hostile_member(self, nodes[0].address, "invents")
        while liar.poll() is None:
            self.assertLess(time.monotonic(), begun + LIES_S, "it tells its lies to the end")
            for client in clients:
                client.step()
            for node in nodes:
                self.assertGreaterEqual(node.status()["neighbours"], len(nodes) - 1)
        self.assertEqual(json.loads(liar.communicate()[0])["rejected"], "")
        beside = {pair: count - before[pair] for pair, count in self.exchanged(clients).items()}
        self.assertEqual(len(beside), pairs)
        self.assertGreater(min(beside.values()), 0.3 * sum(beside.values()) / len(beside), beside)

    def exchanged(self, clients: List[Client]) -> Dict[Tuple[str, str], int]:
        """By the node and its partner."""
        return {
            (client.node.name, partner["node"]): partner["exchanges"]
            for client in clients
            for partner in client.job()["partners"]
            if partner["state"] == "running"
        }


class Hostile(TrainingTest):
    def setUp(self) -> None:
        super().setUp()
        self.start_members(COUNT)
        self.target = self.members[0]

    def act(self, *arguments: str) -> Dict[str, Any]:
        return hostile_member(self, self.target.node, *arguments)

    def logged(self, text: str) -> int:
        return len(re.findall(text, self.target.node.log.read_text(errors="replace")))

    def rejected(self) -> int:
        return self.target.node.status()["messages_rejected"]

    def all_learn(self) -> None:
        self.assert_learns()
        self.wait_for_neighbours({member: COUNT - 1 for member in self.members})

    def test_breaks_the_protocol(self) -> None:
        before = self.footprint()
        for act in ("random", "truncated", "too-large"):
            with self.subTest(act):
                rejected = self.rejected()
                told = self.act(act)
                self.assertGreater(told["messages"], 0)
                more = self.rejected() - rejected
                self.assertGreater(more, 0, "it is noticed")
                # Messages that were on their way when it was excluded count as a stranger's.
                self.assertLessEqual(more, MAX_MALFORMED + 1)
                if act != "too-large":
                    self.assertIn("too many malformed messages", told["rejected"])
                self.all_learn()
        self.assertLessEqual(self.logged("malformed message from"), 3 * (MAX_MALFORMED + 1))
        self.assert_sound(losses=3, rejected_by={self.target: self.rejected()})
        self.assert_no_leak(before)

    def test_keeps_to_the_letter(self) -> None:
        """Other jobs and layouts, one request again and again, answers that nobody asked for, lies about the others,
        questions whose answers it never reads: each message alone is right."""
        before = self.footprint()
        for act in ("other-jobs", "repeated", "lies", "reads-nothing"):
            with self.subTest(act):
                told = self.act(act)
                self.assertEqual(told["rejected"], "")
                if act == "other-jobs":
                    self.assertGreaterEqual(set(told["replies"]), {UNKNOWN_JOB, LAYOUT_DIFFERS, BAD_REQUEST})
                    self.assertNotIn("done", told["replies"])
                self.all_learn()
        self.assert_sound(losses=4)
        self.assert_no_leak(before)

    def test_lies_about_its_clock(self) -> None:
        """Impossible clocks are malformed; a clock far from all others' moves nobody's schedule."""
        rejected = self.rejected()
        self.act("impossible-clock")
        self.assertEqual(self.rejected(), rejected + 1)
        self.assertLessEqual(self.furthest_while("far-ahead"), self.furthest("clock"))
        self.assertEqual(self.logged("it is not believed"), 1)
        # The claimed clock is read before the true one, which grows meanwhile.
        self.assertLessEqual(self.furthest_while("ahead"), 2 * self.furthest("clock"))
        self.assertEqual(self.logged("raise .gossip. clock_pace"), 1)
        self.all_learn()
        self.assert_sound(losses=3, rejected_by={self.target: rejected + 1})

    def furthest(self, clock: str) -> int:
        return max(member.job()[clock] for member in self.members)

    def furthest_while(self, act: str) -> int:
        """The largest global clock while the member lies."""
        liar = begin_hostile_member(self, self.target.node.address, act)
        largest = 0

        def it_has_lied() -> bool:
            nonlocal largest
            largest = max(largest, self.furthest("global_clock"))
            return liar.poll() is not None

        wait_until(it_has_lied, PATIENCE_S, "the act is over")
        self.assertEqual(json.loads(liar.stdout.read())["rejected"], "")
        return largest

    def test_other_versions(self) -> None:
        """A member that speaks none of our versions is refused, and both ends say why. A member that also speaks ours
        is accepted, with its further features."""
        told = self.act("nothing", "2", "3")
        self.assertIn("we speak protocol 1 to 1, you 2 to 3", told["rejected"])
        self.assertEqual(self.logged("turned away a node at .*: we speak protocol 1 to 1, you 2 to 3"), 1)
        told = self.act("newer", "1", "3")
        self.assertEqual((told["rejected"], told["version"]), ("", 1))
        self.assertGreater(told["messages"], 100)
        self.all_learn()
        self.assert_sound(losses=1)

    def test_dials_one_of_another_version(self) -> None:
        """The reason is in the log, once, and in the table of peers."""
        listener = begin_hostile_member(self, "tcp://127.0.0.1:0", "listen", "2", "3")
        address = listener.stdout.readline().strip()
        node = self.cluster.start("other", {"overlay": {"peers": [address, self.target.node.address]}})

        def note() -> str:
            return next((peer["note"] for peer in node.peers() if peer["address"] == address), "")

        wait_until(lambda: "we speak protocol 2 to 3" in note(), PATIENCE_S, "the table says why")
        wait_until(lambda: node.status()["neighbours"] == COUNT, PATIENCE_S, "it is linked to the others")
        log = node.log.read_text(errors="replace")
        self.assertEqual(len(re.findall(r"warning.*turns us away: we speak protocol 2 to 3", log)), 1, log)


if __name__ == "__main__":
    unittest.main()

"""The authority of a cluster: only who has its key denies nodes and changes cluster keys, on whatever member."""

import os
import stat
import unittest
from typing import Any, Dict, List

import numpy as np

from hostile_test import hostile_member
from support import JOB, PATIENCE_S, Node, OperatedTest, wait_until

INVENTED = "ee" * 16  # the node that hostile_member.cpp denies
# How the audit names the user who typed a command.
OPERATOR = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"


class Authority(OperatedTest):
    def setUp(self) -> None:
        super().setUp()
        self.key = self.folder / "authority.key"

    def authority_of(self, node: Node) -> str:
        return self.ask(node, "authority", "show")["authority"]

    def denied(self, node: Node) -> List[str]:
        return [one["node"] for one in self.ask(node, "denials")["denials"] if one["denied"]]

    def fingerprints(self, node: Node) -> List[str]:
        return [key["fingerprint"] for key in self.ask(node, "key", "list")["keys"]]

    def create(self, nodes: List[Node]) -> str:
        authority = self.ask(nodes[0], "authority", "create", str(self.key), "--yes")["authority"]
        for node in nodes:
            wait_until(lambda: self.authority_of(node) == authority, PATIENCE_S, f"{node.name} follows it")
            wait_until(
                lambda: self.ask(node, "authority", "show")["not_signed"] == 0,
                PATIENCE_S,
                f"{node.name} has all signed",
            )
        return authority

    def test_only_its_key_decides(self) -> None:
        nodes = self.start_nodes(3)
        unwanted = "aa" * 16
        self.ask(nodes[2], "deny", unwanted, "--reason", "of before")
        wait_until(lambda: all(self.denied(node) == [unwanted] for node in nodes), PATIENCE_S, "all know")
        authority = self.create(nodes)
        self.assertEqual(stat.S_IMODE(self.key.stat().st_mode), 0o600)
        self.assertNotIn(self.key.read_text().split()[-1], "".join(node.log.read_text() for node in nodes))

        # A command that nobody signs is refused, and the message says what to do.
        for node in nodes:
            for command in (["deny", "bb" * 16], ["allow", unwanted], ["key", "rotate"]):
                self.assertIn("--authority", self.error_of(node, *command))
        self.assertIn("decides in this cluster already", self.error_of(nodes[1], "authority", "create", "another"))
        foreign = self.foreign_key()
        said = self.error_of(nodes[0], "key", "rotate", "--authority", foreign)
        self.assertIn(f"in this cluster {authority} decides", said)
        self.assertIn("there is no", self.error_of(nodes[0], "key", "rotate", "--authority", str(self.folder / "none")))
        self.assertTrue(all(self.denied(node) == [unwanted] for node in nodes))

        # With the key, a command works on any member, also on those where the authority was not made.
        key = ["--authority", str(self.key)]
        self.ask(nodes[1], "allow", unwanted, *key)
        self.ask(nodes[2], "deny", "cc" * 16, "--reason", "sold", *key)
        wait_until(lambda: all(self.denied(node) == ["cc" * 16] for node in nodes), PATIENCE_S, "all follow")
        old = self.fingerprints(nodes[0])[0]
        new = self.ask(nodes[1], "key", "rotate", *key)["fingerprint"]
        wait_until(lambda: all(self.fingerprints(node) == [new, old] for node in nodes), PATIENCE_S, "all listen")
        self.ask(nodes[0], "key", "retire", old, *key)
        wait_until(lambda: all(self.fingerprints(node) == [new] for node in nodes), PATIENCE_S, "the old one is gone")

        # The decisions hold after restarts, and on nodes that come later.
        for node in nodes:
            node.stop()
            node.start()
        self.wait_for_links(nodes)
        self.assertEqual({self.authority_of(node) for node in nodes}, {authority})
        decided = [one["what"] for one in self.ask(nodes[2], "audit")["records"] if one["followed"]]
        self.assertIn(f"cluster key {new} admits (signed)", decided)
        self.assertIn(f"cluster key {old} is retired (signed)", decided)
        self.assertIn("node " + "cc" * 16 + f" is denied: sold (signed), by {OPERATOR}", decided)
        self.assertEqual(self.denied(nodes[0]), ["cc" * 16])
        self.assertIn("--authority", self.error_of(nodes[0], "key", "rotate"))
        newcomer = self.cluster.add(
            "newcomer", {"overlay": {"cluster_key_file": str(self.folder / "own.key"), "peers": []}}
        )
        newcomer.start()
        self.ask(newcomer, "join", self.ask(nodes[0], "invite")["invitation"])
        self.assertEqual(self.authority_of(newcomer), authority)
        wait_until(lambda: self.denied(newcomer) == ["cc" * 16], PATIENCE_S, "it is told who is denied")

    def test_no_file_is_left_of_an_authority_that_was_not_made(self) -> None:
        [node] = self.start_nodes(1)
        notes = node.folder / "state" / "key_notes"
        notes.unlink(missing_ok=True)
        notes.mkdir()  # so that the daemon cannot save who decides
        said = self.error_of(node, "authority", "create", str(self.key), "--yes")
        self.assertIn(f"{self.key} is removed again", said)
        self.assertFalse(self.key.exists())
        notes.rmdir()
        self.create([node])
        # A file that was there before stays, whatever happens.
        node.stop()
        self.assertEqual(self.ctl(node, "authority", "create", str(self.key), "--yes").returncode, 1)
        self.assertTrue(self.key.exists())

    def foreign_key(self) -> str:
        """The key of another cluster's authority."""
        other = self.cluster.add(
            "other", {"overlay": {"cluster_key_file": str(self.folder / "other.key"), "peers": []}}
        )
        other.start()
        path = self.folder / "foreign.key"
        self.ask(other, "authority", "create", str(path), "--yes")
        other.stop()
        self.cluster.nodes.remove(other)
        return str(path)

    def test_deputies_sign_what_they_may(self) -> None:
        nodes = self.start_nodes(3)
        self.create(nodes)
        signed = ["--authority", str(self.key)]
        files = {name: str(self.folder / f"{name}.key") for name in ("anna", "bert")}
        keys = {name: self.ask(nodes[0], "authority", "key", file)["key"] for name, file in files.items()}
        again = self.ask(nodes[1], "authority", "key", files["anna"])["key"]
        self.assertEqual(again, keys["anna"], "the file is not replaced")
        anna = ["--authority", files["anna"]]
        bert = ["--authority", files["bert"]]
        self.assertIn("of whom that is no deputy", self.error_of(nodes[0], "deny", "aa" * 16, *anna))
        for name, may in (("anna", "deny,invite"), ("bert", "keys,settings")):
            self.ask(nodes[0], "authority", "appoint", keys[name], "--name", name, "--may", may, *signed)

        def deputies(node: Node) -> Dict[str, str]:
            return {one["name"]: one["may"] for one in self.ask(node, "authority", "show")["deputies"]}

        wait_until(lambda: all(len(deputies(node)) == 2 for node in nodes), PATIENCE_S, "all know them")
        self.assertEqual(deputies(nodes[2]), {"anna": "deny, invite", "bert": "keys, settings"})
        # Whoever appoints a deputy anew sees what the key was called and might sign.
        for name, may, shown in (("bert", "settings,keys", ""), ("bertha", "keys", "until now bert: keys, settings\n"),
                                 ("bert", "keys,settings", "until now bertha: keys\n")):  # fmt: skip
            done = self.ctl(nodes[0], "authority", "appoint", keys["bert"], "--name", name, "--may", may, *signed)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(done.stderr.partition("Signed: ")[0], shown)
        wait_until(lambda: deputies(nodes[2])["bert"] == "keys, settings", PATIENCE_S, "all know it")

        # Deputies decide on any member, and no more than they may.
        self.ask(nodes[1], "deny", "aa" * 16, *anna)
        old = self.fingerprints(nodes[0])[0]
        new = self.ask(nodes[2], "key", "rotate", *bert)["fingerprint"]
        for command, key in (
            (["authority", "require", "certificates", "--yes"], anna), (["authority", "dismiss", keys["bert"]], anna),
            (["authority", "appoint", keys["anna"], "--name", "anna", "--may", "keys"], anna),
        ):
            self.assertIn("nor a deputy who may", self.error_of(nodes[0], *command, *key), command)
        for command, key in ((["deny", "bb" * 16], bert), (["key", "rotate"], anna), (["invite"], bert)):
            self.assertIn("a deputy who may not sign that", self.error_of(nodes[0], *command, *key), command)
        wait_until(lambda: all(self.denied(node) == ["aa" * 16] for node in nodes), PATIENCE_S, "all follow anna")
        wait_until(lambda: all(self.fingerprints(node) == [new, old] for node in nodes), PATIENCE_S, "all follow bert")
        client = self.attach(nodes[0], np.zeros(2000))
        self.step_until(lambda: client.job()["state"] == "running", "it runs")
        said = self.error_of(nodes[0], "job", "set", JOB, "codec=q4", *anna)
        self.assertIn("a deputy who may not sign that", said)
        self.ask(nodes[0], "job", "set", JOB, "codec=q4", *bert)

        # A node that joins learns of the deputies with its invitation, which a deputy may sign.
        newcomer = self.cluster.add(
            "newcomer", {"overlay": {"cluster_key_file": str(self.folder / "own.key"), "peers": []}}
        )
        newcomer.start()
        line = self.ask(nodes[1], "invite", *anna)["invitation"]
        self.ask(newcomer, "join", line)
        self.assertEqual(deputies(newcomer), deputies(nodes[0]))
        wait_until(lambda: self.denied(newcomer) == ["aa" * 16], PATIENCE_S, "it is told who is denied")

        decided = "".join(one["what"] for one in self.ask(nodes[2], "audit")["records"])
        self.assertIn("is denied (signed by anna)", decided)
        self.assertIn(f"cluster key {new} admits (signed by bert)", decided)

        # The deputies are known after a restart. A dismissed deputy decides nothing, and the authority takes over its
        # decisions.
        nodes[1].stop()
        nodes[1].start()
        self.assertEqual(deputies(nodes[1]), deputies(nodes[0]))
        members = [*nodes, newcomer]
        self.wait_for_links(members)
        self.ask(nodes[1], "authority", "dismiss", "anna", "--yes", *signed)
        wait_until(lambda: all("anna" not in deputies(node) for node in members), PATIENCE_S, "all know")
        for node in members:
            self.assertIn("of whom that is no deputy", self.error_of(node, "allow", "aa" * 16, *anna))
            wait_until(
                lambda: [one["signed"] for one in self.ask(node, "denials")["denials"]] == [True], PATIENCE_S, "signed"
            )
        authority = self.authority_of(nodes[0])
        self.assertEqual([one["signer"] for one in self.ask(newcomer, "denials")["denials"]], [authority])
        decided = "".join(one["what"] for one in self.ask(newcomer, "audit")["records"])
        self.assertIn(f"anna ({keys['anna']}) may sign nothing in the authority's place", decided)

    def test_what_a_dismissed_deputy_has_decided_is_forgotten(self) -> None:
        """Also by a member that was away, and meets a denied one first."""
        nodes = self.start_nodes(3)
        self.create(nodes)
        signed = ["--authority", str(self.key)]
        deputy = self.ask(nodes[0], "authority", "key", str(self.folder / "carl.key"))["key"]
        carl = ["--authority", str(self.folder / "carl.key")]
        self.ask(nodes[0], "authority", "appoint", deputy, "--name", "carl", "--may", "deny", *signed)
        others = [str(node.status()["node"]) for node in nodes[:2]]
        self.ask(nodes[0], "deny", "dd" * 16, *carl)
        wait_until(lambda: all(self.denied(node) == ["dd" * 16] for node in nodes), PATIENCE_S, "all follow")
        # This member has heard, while it was alone, that the others are denied.
        for node in nodes[:2]:
            node.stop()
        for node in others:
            self.ask(nodes[2], "deny", node, *carl)
        nodes[2].stop()
        for node in nodes[:2]:
            node.start()
        self.assertIn("--yes", self.error_of(nodes[0], "authority", "dismiss", "carl", *signed))
        self.ask(nodes[0], "authority", "dismiss", deputy, *signed)  # none of the deputy's decisions is kept
        wait_until(lambda: all(self.denied(node) == [] for node in nodes[:2]), PATIENCE_S, "the others forget")
        nodes[2].start()
        self.wait_for_links(nodes)
        self.assertEqual(self.denied(nodes[2]), [])
        # To dismiss the deputy a second time does no harm.
        self.ask(nodes[1], "authority", "dismiss", deputy, *signed)

    def test_without_one_every_member_decides(self) -> None:
        """A member that means harm, and holds the cluster key, changes what it likes."""
        nodes = self.start_nodes(2)
        self.attach(nodes[0], np.zeros(2000))
        hostile_member(self, nodes[0], "decides")
        wait_until(lambda: all(self.denied(node) == [INVENTED] for node in nodes), PATIENCE_S, "all follow anybody")
        wait_until(lambda: all(len(self.fingerprints(node)) > 1 for node in nodes), PATIENCE_S, "all take any key")

    def unsaved(self, node: Node) -> str:
        """What the watch says that the node cannot save. It finds nothing else."""
        findings = node.status()["findings"]
        self.assertEqual([finding["rule"] for finding in findings], ["state"] * len(findings))
        return "".join(finding["text"] for finding in findings)

    def test_what_cannot_be_written_is_told_and_tried_again(self) -> None:
        (node,) = self.start_nodes(1)
        denied = "ab" * 16
        files = [node.folder / "state" / name for name in ("denials", "audit")]
        for file in files:
            file.unlink(missing_ok=True)
            file.mkdir()  # like a full disk, this makes writing fail
        done = self.ctl(node, "deny", denied)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("forgets it with its next start", done.stderr)
        self.assertEqual([entry["node"] for entry in self.ask(node, "denials")["denials"]], [denied])
        wait_until(lambda: self.unsaved(node).startswith("the deny list"), PATIENCE_S, "the watch tells of it")
        self.assertIn("the deny list could not be saved", self.ctl(node, "doctor").stdout)
        self.assertIn("the deny list could not be saved", self.ctl(node, "explain").stdout)
        for file in files:  # each file is written again by itself
            file.rmdir()
            wait_until(file.is_file, PATIENCE_S, "it is written")
            self.assertIn(denied, file.read_text())
        notes = node.folder / "state" / "key_notes"
        notes.unlink(missing_ok=True)
        notes.mkdir()
        self.assertIn("cannot be written", self.ctl(node, "key", "rotate").stderr)
        wait_until(lambda: self.unsaved(node).startswith("the cluster keys"), PATIENCE_S, "and of the keys")
        notes.rmdir()
        wait_until(notes.is_file, PATIENCE_S, "they are written as they are")
        wait_until(lambda: self.unsaved(node) == "", PATIENCE_S, "all is well again")

    def test_with_one_what_members_decide_has_no_effect(self) -> None:
        nodes = self.start_nodes(2)
        self.attach(nodes[0], np.zeros(2000))
        authority = self.create(nodes)
        keys = self.fingerprints(nodes[0])
        for act in ("decides", "decides-signed"):
            told = hostile_member(self, nodes[0], act)
            self.assertGreater(told["messages"], 20, told)
            for node in nodes:
                self.assertEqual(self.denied(node), [])
                self.assertEqual(self.fingerprints(node), keys)
                self.assertEqual(self.authority_of(node), authority)
        self.assertIn("not signed by whoever decides in the cluster", nodes[0].log.read_text())
        records = self.ask(nodes[0], "audit")["records"]
        followed = [one["what"] for one in records if one["followed"]]
        self.assertIn(f"{authority} decides in the cluster, by {OPERATOR}", followed)
        refused = [one for one in records if not one["followed"]]
        self.assertTrue(any("another authority" in one["what"] for one in refused), records)
        self.assertTrue(any("denials" in one["what"] and one["times"] > 1 for one in refused), records)
        self.assertEqual([one["told_by"] for one in refused if one["told_by"] == nodes[0].status()["node"]], [])
        self.assertGreater(nodes[0].status()["decisions_refused"], 20)

    def settings(self, node: Node) -> Dict[str, Any]:
        job = node.job(JOB)
        assert job is not None
        return dict(job["settings"])

    def test_only_its_key_changes_settings_of_jobs(self) -> None:
        """What the programs have given at the beginning holds until the authority has signed others."""
        nodes = self.start_nodes(2)
        given = {"codec": "q8", "period_ms": "50"}
        for node in nodes:
            self.attach(node, np.zeros(2000), settings=given)
        hold = lambda values, version: wait_until(  # noqa: E731
            lambda: all(self.settings(node) == {"version": version, "values": values} for node in nodes),
            PATIENCE_S,
            f"version {version} holds",
        )
        hold(given, 1)
        told = hostile_member(self, nodes[0], "sets")
        self.assertGreater(told["messages"], 20, told)
        hold({"codec": "f32", "period_ms": "9000"}, 2)  # without an authority, members believe every member
        authority = self.create(nodes)
        key = ["--authority", str(self.key)]
        self.assertIn("--authority", self.error_of(nodes[0], "job", "set", JOB, "codec=q4"))
        self.ask(nodes[0], "job", "set", JOB, "codec=q4", "period_ms=40", *key)
        hold({"codec": "q4", "period_ms": "40"}, 3)
        for node in nodes:
            hostile_member(self, node, "sets")
            self.assertGreater(node.status()["messages_rejected"], 20)
            self.assertIn("that nobody who may has signed", node.log.read_text())
        hold({"codec": "q4", "period_ms": "40"}, 3)
        foreign = ["--authority", self.foreign_key()]
        self.assertIn(authority, self.error_of(nodes[0], "job", "set", JOB, "clip=2", *foreign))
        # The settings hold after a daemon was killed, because the process keeps them, and a newcomer is told of them.
        nodes[0].kill()
        nodes[0].start()
        self.wait_for_links(nodes)
        self.step_until(lambda: (nodes[0].job(JOB) or {}).get("state") == "running", "it runs again")
        hold({"codec": "q4", "period_ms": "40"}, 3)
        self.ask(nodes[0], "job", "set", JOB, "period_ms=", "--yes", *key)
        hold({"codec": "q4"}, 4)

    def test_a_running_job_without_settings_gets_none_from_a_member(self) -> None:
        nodes = self.start_nodes(2)
        for node in nodes:
            self.attach(node, np.zeros(2000))
        self.create(nodes)
        for node in nodes:
            self.step_until(lambda n=node: (n.job(JOB) or {}).get("state") == "running", "it runs")  # type: ignore[misc]
            hostile_member(self, node, "sets")
            self.assertGreater(node.status()["messages_rejected"], 20)
        self.assertEqual([self.settings(node)["values"] for node in nodes], [{}, {}])
        records = self.ask(nodes[0], "audit")["records"]
        self.assertTrue([one for one in records if f"settings of the job {JOB}" in one["what"] and not one["followed"]])
        # The audit notes who typed the operator's own command.
        self.ask(nodes[0], "job", "set", JOB, "codec=q4", "--authority", str(self.key))
        records = self.ask(nodes[0], "audit")["records"]
        self.assertTrue([one for one in records if f"codec=q4 (signed), by {OPERATOR}" in one["what"]], records[-3:])

    def test_a_node_may_be_told_by_hand_whom_to_follow(self) -> None:
        (node,) = self.start_nodes(1)
        first = self.ask(node, "authority", "create", str(self.key), "--yes")["authority"]
        self.assertEqual(self.ask(node, "authority", "use", "none")["authority"], "")
        self.ask(node, "deny", "bb" * 16)
        shown = self.ask(node, "authority", "use", first)
        self.assertEqual((shown["authority"], shown["not_signed"]), (first, 1))
        self.assertIn("64 hexadecimal digits", self.error_of(node, "authority", "use", first[:-1]))
        self.assertIn("Nobody has signed 1", self.ctl(node, "authority", "show").stdout)
        # `authority create` with the same file signs the decisions that nobody has signed yet, after a person has seen
        # them.
        shown = self.ctl(node, "authority", "create", str(self.key))
        self.assertEqual(shown.returncode, 3)
        self.assertIn("To be signed: deny node " + "bb" * 16, shown.stderr)
        self.assertIn("nothing has changed", shown.stderr)
        self.assertEqual(self.ask(node, "authority", "show")["not_signed"], 1)
        shown = self.ask(node, "authority", "create", str(self.key), "--yes")
        self.assertEqual((shown["authority"], shown["not_signed"]), (first, 0))

    def test_members_that_drop_an_authority_one_by_one_do_not_hear_it_from_each_other(self) -> None:
        nodes = self.start_nodes(2)
        self.create(nodes)
        for node in nodes:
            self.ask(node, "authority", "use", "none")
            node.stop()
            node.start()  # new links send everything again
            self.wait_for_links(nodes)
        self.assertEqual([self.authority_of(node) for node in nodes], ["", ""])
        made = self.ask(nodes[0], "authority", "create", str(self.folder / "new.authority"), "--yes")["authority"]
        wait_until(lambda: self.authority_of(nodes[1]) == made, PATIENCE_S, "the other follows the new one")

    def test_all_that_a_full_table_holds_is_signed(self) -> None:
        """More signatures than one request of the control socket has room for."""
        (node,) = self.start_nodes(1)
        records = "".join(f"denied {number:032x} 1700000000000000 one of many\n" for number in range(1, 1025))
        node.stop()
        (self.folder / node.name / "state" / "denials").write_text(records)
        node.start()
        shown = self.ask(node, "authority", "create", str(self.key), "--yes")
        self.assertEqual(shown["not_signed"], 0)
        self.assertEqual(len(self.denied(node)), 1024)

    def test_a_node_that_follows_another_does_not_join(self) -> None:
        (member,) = self.start_nodes(1)
        self.create([member])
        other = self.cluster.add(
            "other", {"overlay": {"cluster_key_file": str(self.folder / "other.key"), "peers": []}}
        )
        other.start()
        self.ask(other, "authority", "create", str(self.folder / "foreign.key"), "--yes")
        line = self.ask(member, "invite")["invitation"]
        said = self.error_of(other, "join", line)
        self.assertIn("authority use none", said)
        self.ask(other, "authority", "use", "none")
        self.ask(other, "join", line)
        self.assertEqual(self.authority_of(other), self.authority_of(member))


if __name__ == "__main__":
    unittest.main()

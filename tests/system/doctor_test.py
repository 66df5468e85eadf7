"""gossamerctl doctor: a sound node is called sound, and broken things are named."""

import json
import unittest
from typing import Any, Dict, List, Tuple

from support import BUILD, PATIENCE_S, SystemTest, gossamerctl, start_other_program, wait_until


class Doctor(SystemTest):
    def examine(self, *arguments: str) -> Tuple[int, List[Dict[str, Any]]]:
        done = gossamerctl(BUILD, *arguments, "doctor", "--json")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        return done.returncode, json.loads(done.stdout)["findings"]

    def test_a_sound_node(self) -> None:
        nodes = self.start_nodes(2)
        status, findings = self.examine("--socket", str(nodes[0].control_socket))
        self.assertEqual([f for f in findings if f["grade"] == "problem"], [])
        self.assertEqual(status, 0)
        found = {f["topic"] for f in findings if f["grade"] == "ok"}
        self.assertLessEqual({"daemon", "keys", "port", "links", "state"}, found)

    def test_a_key_that_others_can_read(self) -> None:
        (node,) = self.start_nodes(1)
        self.cluster.cluster_key.chmod(0o644)
        status, findings = self.examine("--socket", str(node.control_socket))
        self.assertEqual(status, 1)
        (problem,) = [f for f in findings if f["grade"] == "problem"]
        self.assertEqual(problem["topic"], "keys")
        self.assertIn(str(self.cluster.cluster_key), problem["advice"])

    def test_nobody_at_the_other_end(self) -> None:
        node = self.cluster.start("node-1", {"overlay": {"peers": ["tcp://127.0.0.1:1"]}})
        wait_until(lambda: any(p["note"] for p in node.peers()), PATIENCE_S, "dialling has failed once")
        status, findings = self.examine("--socket", str(node.control_socket))
        self.assertEqual(status, 1)
        (problem,) = [f for f in findings if f["grade"] == "problem"]
        self.assertEqual(problem["topic"], "links")

    def test_another_program_at_the_other_end(self) -> None:
        """The daemon says so in its log, once, and doctor tells it."""
        address = start_other_program(self, b"SSH-2.0-another\r\n")
        # The scheme may be left out.
        node = self.cluster.start("node-1", {"overlay": {"peers": [address]}})
        wait_until(lambda: any(p["note"] for p in node.peers()), PATIENCE_S, "dialling has failed once")
        _, findings = self.examine("--socket", str(node.control_socket))
        found = [f for f in findings if "another program has the port" in f["text"]]
        self.assertEqual([f["topic"] for f in found], ["links"])
        self.assertIn("SSH-2.0-another", found[0]["text"])
        self.assertIn("[overlay] peers", found[0]["advice"])
        said = [line for line in node.log.read_text().splitlines() if f"another program has the port at tcp://{address}" in line]
        self.assertEqual([line.split()[2] for line in said if " debug " not in line], ["warning"], said)

    def test_without_a_daemon(self) -> None:
        (node,) = self.start_nodes(1)
        node.stop()
        state = node.folder / "state"
        arguments = ("--socket", str(node.control_socket), "doctor", "--json", "--state-dir", str(state))
        done = gossamerctl(BUILD, *arguments)
        findings = json.loads(done.stdout)["findings"]
        self.assertEqual(findings[0]["topic"], "daemon")
        self.assertEqual(done.returncode, 1)  # the cluster key of these tests is in another place
        self.assertIn(("keys", "ok"), {(f["topic"], f["grade"]) for f in findings})
        (state / "cluster.key").write_text("0" * 64)
        (state / "cluster.key").chmod(0o600)
        self.assertEqual(gossamerctl(BUILD, *arguments).returncode, 0)


if __name__ == "__main__":
    unittest.main()

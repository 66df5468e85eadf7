"""The watch with real daemons: each finding is logged once, shown everywhere while it holds, and ended.
"""

import json
import unittest
import urllib.request
from typing import Dict, List

import numpy as np

from support import BUILD, JOB, PATIENCE_S, Node, SystemTest, gossamerctl, wait_until

# The watch looks every five seconds, compares with the minute before, and waits for three looks in a row.
WATCH_PATIENCE_S = 2 * PATIENCE_S + 60
EXCHANGE_PERIOD_MS = 500


class Watch(SystemTest):
    def train(self, pull: float) -> None:
        """A step that pulls the two replicas apart, while their mean and its norm stay."""
        for client, sign in zip(self.clients, (1, -1)):
            client.array += np.float32(sign * pull)
            client.step(samples=16)

    def rules(self, node: Node) -> List[str]:
        return [finding["rule"] for finding in node.status()["findings"]]

    def said(self, node: Node, *arguments: str) -> str:
        return gossamerctl(BUILD, "--socket", str(node.control_socket), *arguments).stdout

    def metric(self, node: Node) -> str:
        with urllib.request.urlopen(node.status()["page"] + "metrics", timeout=PATIENCE_S) as reply:
            text = reply.read().decode()
        (line,) = [line for line in text.splitlines() if line.startswith('gossamer_findings{rule="spread"}')]
        return line.split()[-1]

    def test_replicas_that_move_apart(self) -> None:
        # There are several steps between two exchanges, even on a busy machine: with none, the distance would be zero.
        settings = {"metrics": {"listen": "127.0.0.1:0"}, "gossip": {"period_ms": EXCHANGE_PERIOD_MS}}
        nodes = self.start_nodes(2, settings)
        for node in nodes:
            self.attach(node, np.ones(3000))

        def calm() -> bool:
            self.train(1e-4)
            return all(node.status()["uptime_s"] > 20 and 0 < node.jobs()[0]["consensus"] < 0.01 for node in nodes)

        wait_until(calm, WATCH_PATIENCE_S, "replicas are near each other, as the watch has seen")
        self.assertEqual([self.rules(node) for node in nodes], [[], []])
        self.assertEqual(self.metric(nodes[0]), "0")

        def found() -> bool:
            self.train(3)
            return "spread" in self.rules(nodes[0])

        wait_until(found, WATCH_PATIENCE_S, "the watch has found that they move apart")
        (finding,) = [finding for finding in nodes[0].status()["findings"] if finding["rule"] == "spread"]
        self.assertEqual((finding["job"], finding["node"], finding["grade"]), (JOB, "", "warning"))
        self.assertGreater(finding["since_s"], 0)
        for text in (
            self.said(nodes[0], "status"),
            self.said(nodes[0], "explain", "--seconds", "0.1"),
            self.said(nodes[0], "top", "--frames", "1", "--interval", "0.1"),
        ):
            self.assertIn("replicas move apart", text)
        self.assertEqual(self.metric(nodes[0]), "1")
        with urllib.request.urlopen(nodes[0].status()["page"] + "status.json", timeout=PATIENCE_S) as reply:
            page: Dict = json.load(reply)
        self.assertIn("spread", [shown["rule"] for shown in page["node"]["findings"]])
        self.assertIn("a smaller learning rate", finding["advice"])

        def over() -> bool:
            self.train(0)
            return not any(self.rules(node) for node in nodes)

        wait_until(over, WATCH_PATIENCE_S, "they are near each other again, and the watch says so")
        log = nodes[0].log.read_text()
        self.assertEqual(log.count("replicas move apart"), 2, log)
        self.assertIn("no longer so: replicas move apart", log)


if __name__ == "__main__":
    unittest.main()

"""The node's pages over HTTP: metrics while it trains, anything sent to that port, and gossip that goes on in the
meantime.
"""

import json
import os
import re
import socket
import threading
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path
from typing import Dict, List

import numpy as np

from support import JOB, PATIENCE_S, Node, SystemTest, wait_until

# The system chooses a free port, and gossamerctl status names it.
PAGE = {"metrics": {"listen": "127.0.0.1:0"}}
# "Costs gossip little" (docs/explanation/security.md): each node makes at least this many exchanges. The flooded node
# makes nearly as many as the others, and uses at most this much more of a core.
EXCHANGES_COMPARED = 600
LEAST_SHARE_OF_EXCHANGES = 0.8
MOST_OF_A_CORE = 0.1
SAMPLE = re.compile(r'^([a-z_]+)(\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)*\})? (NaN|[+-]Inf|[-+0-9.e]+)$')


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
        return reply.read().decode()


def metrics(node: Node) -> Dict[str, float]:
    """The metrics by name and labels, as they stand in the text. Each line of the text is checked."""
    samples: Dict[str, float] = {}
    for line in get(node.status()["page"] + "metrics").splitlines():
        if line.startswith("# HELP ") or line.startswith("# TYPE "):
            continue
        match = SAMPLE.match(line)
        if match is None or match.group(1) + (match.group(2) or "") in samples:
            raise AssertionError(f"not in the text format, or said twice: {line}")
        samples[match.group(1) + (match.group(2) or "")] = float(match.group(3))
    return samples


def of_job(name: str) -> str:
    return f'{name}{{job_name="{JOB}"}}'


def exchanges_in(shown: Dict[str, float]) -> float:
    return sum(shown[of_job(f"gossamer_job_exchanges_{way}_total")] for way in ("initiated", "answered"))


class Metrics(SystemTest):
    def setUp(self) -> None:
        super().setUp()
        self.nodes = self.start_nodes(3, PAGE)
        for index, node in enumerate(self.nodes):
            self.attach(node, np.full(3000, float(index + 1)))

    def test_a_scrape_tells_what_happened(self) -> None:
        # Replicas differ and age only while they train, and may have exchanged before what they train is published.
        def told() -> bool:
            for client in self.clients:
                client.array += np.random.default_rng().normal(0, 0.01, client.array.shape).astype(np.float32)
                client.step(samples=16)
            return all(
                exchanges_in(shown) >= 20
                and shown[of_job("gossamer_job_codec_error_ratio_sum")] > 0
                and shown[of_job("gossamer_job_consensus_distance_ratio")] > 0
                for shown in map(metrics, self.nodes)
            )

        wait_until(told, PATIENCE_S, "each tells of exchanges, what the codec added and how far the replicas are apart")
        for node, client in zip(self.nodes, self.clients):
            shown = metrics(node)
            job = client.job()
            self.assertEqual(shown["gossamer_neighbours"], 2)
            self.assertEqual(shown['gossamer_node_state{state="running"}'], 1)
            self.assertEqual(shown[of_job("gossamer_job_elements")], 3000)
            done = exchanges_in(shown)
            self.assertLessEqual(done, job["exchanges"])
            self.assertEqual(shown[of_job("gossamer_job_exchange_age_intervals_count")], done)
            self.assertEqual(shown[of_job("gossamer_job_codec_error_ratio_count")], done)
            self.assertGreater(shown[of_job("gossamer_job_sent_payload_bytes_total")], 0)
            for other in self.nodes:
                if other is not node:
                    self.assertEqual(shown[f'gossamer_link_up{{peer="{other.status()["node"]}"}}'], 1)

    def test_nodes_know_how_fast_they_mix_and_find_nothing_wrong(self) -> None:
        def train() -> None:
            for client in self.clients:
                client.array += np.random.default_rng().normal(0, 0.01, client.array.shape).astype(np.float32)
                client.step(samples=16)

        def known() -> bool:
            train()
            return all(node.jobs()[0]["mixing_per_s"] > 0 for node in self.nodes)

        wait_until(known, PATIENCE_S, "each has measured how fast exchanges mix")
        for node in self.nodes:
            (job,) = node.jobs()
            self.assertGreater(job["spectral_gap"], 0.05)  # three nodes that meet at random
            self.assertLessEqual(job["spectral_gap"], 1)
            shown = metrics(node)
            self.assertGreater(shown[of_job("gossamer_job_mixing_rate_per_second")], 0)
            self.assertEqual(node.status()["findings"], [])

        def told() -> bool:
            train()
            cluster = json.loads(get(self.nodes[0].status()["page"] + "status.json"))["cluster"]
            jobs = [job for summary in cluster for job in summary["jobs"]]
            return len(jobs) == 2 and all(job["mixing_per_s"] > 0 and job["tracer_round"] > 0 for job in jobs)

        wait_until(told, PATIENCE_S, "the others have told of theirs")
        self.assertEqual([finding for node in self.nodes for finding in node.status()["findings"]], [])

    def test_the_history_has_points_with_time(self) -> None:
        def curve() -> List[float]:
            for client in self.clients:
                client.step()
            status = json.loads(get(self.nodes[0].status()["page"] + "status.json"))
            return status["history"]["jobs"].get(JOB, {}).get("clock", [])

        wait_until(lambda: len(curve()) >= 2, PATIENCE_S, "two points of the curve")
        status = json.loads(get(self.nodes[0].status()["page"] + "status.json"))
        self.assertEqual({peer["name"] for peer in status["peers"]}, {"node-2", "node-3"})
        self.assertTrue(any("runs as node node-1" in line for line in status["log"]))

    def exchanges(self) -> List[int]:
        return [client.job()["exchanges"] for client in self.clients]

    def exchanges_since(self, before: List[int]) -> List[int]:
        return [now - then for now, then in zip(self.exchanges(), before)]

    def processor_s(self) -> List[float]:
        """The processor time that each daemon has used so far."""
        used = []
        for node in self.nodes:
            fields = Path(f"/proc/{node.program.pid}/stat").read_text().rpartition(")")[2].split()
            used.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
        return used

    def test_a_flood_costs_gossip_little(self) -> None:
        url = self.nodes[0].status()["page"]
        port = int(url.rsplit(":", 1)[1].rstrip("/"))
        stop = threading.Event()
        asked = []

        def connect() -> socket.socket:
            return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

        def flood(what: bytes) -> None:
            held: List[socket.socket] = []
            while not stop.is_set():
                try:
                    connection = connect()
                    connection.sendall(what)
                    held.append(connection)
                except OSError:
                    pass  # the other end closed it to make way
                if len(held) > 100:
                    held.pop(0).close()
                asked.append(1)
            for connection in held:
                connection.close()

        floods = [
            b"",  # says nothing
            b"GET / HT",  # never ends
            b"GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n",  # never reads
            b"\x16\x03\x01" + bytes(range(256)) * 64,
        ]
        threads = [threading.Thread(target=flood, args=(what,), daemon=True) for what in floods]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(asked) > 600, PATIENCE_S, "many connections")
            before, used_before_s, began = self.exchanges(), self.processor_s(), time.monotonic()
            self.assert_still_exchanges(self.clients)
            self.step_until(
                lambda: min(self.exchanges_since(before)) > EXCHANGES_COMPARED, "exchanges go on"
            )
            done, took_s = self.exchanges_since(before), time.monotonic() - began
            used_s = [after - before_s for after, before_s in zip(self.processor_s(), used_before_s)]
            # All three nodes gossip alike, so the flood causes the first one's extra time.
            more = (used_s[0] - (used_s[1] + used_s[2]) / 2) / took_s
            print(f"exchanges {done}, processor {used_s} in {took_s:.1f} s: the flood takes {more:.3f} of a core")
            self.assertGreater(done[0], LEAST_SHARE_OF_EXCHANGES * (done[1] + done[2]) / 2)
            self.assertLess(more, MOST_OF_A_CORE)
            self.assertEqual([node.status()["links_lost"] for node in self.nodes], [0, 0, 0])
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        # After the flood the page is there as before.
        def answers() -> bool:
            try:
                return "gossamer_build_info" in get(url + "metrics")
            except (OSError, urllib.error.URLError):
                return False

        wait_until(answers, PATIENCE_S, "the metrics are there again")


class OfOthers(SystemTest):
    def test_a_node_hears_of_one_to_which_it_has_no_link(self) -> None:
        far, between = self.start_nodes(2)
        near = self.cluster.start("near", {**PAGE, "overlay": {"denied": [far.status()["node"]]}})
        self.attach(far, np.ones(300))

        def heard() -> bool:
            self.clients[0].array += 1
            self.clients[0].step(samples=8)
            told = {node["name"]: node for node in json.loads(get(near.status()["page"] + "status.json"))["cluster"]}
            jobs = told.get(far.name, {}).get("jobs", [])
            return len(jobs) == 1 and jobs[0]["job"] == JOB and jobs[0]["clock"] > 0

        wait_until(heard, PATIENCE_S, "the node between has passed on what the far one told it")
        self.assertEqual([peer["name"] for peer in near.peers() if peer["up"]], [between.name])

        far.kill()  # its report is forgotten after a minute; until then its age shows
        shown = [node for node in json.loads(get(near.status()["page"] + "status.json"))["cluster"]]
        self.assertIn(far.name, [node["name"] for node in shown])


class NoPage(SystemTest):
    def test_an_address_beyond_this_machine_is_refused(self) -> None:
        node = self.cluster.add("open", {"metrics": {"listen": "0.0.0.0:9746"}})
        with self.assertRaisesRegex(Exception, r"\[metrics\] listen: .*not of this machine alone.*proxy"):
            node.start()

    def test_nothing_listens_if_nothing_is_to(self) -> None:
        (node,) = self.start_nodes(1, {"metrics": {"listen": ""}})
        self.assertEqual(node.status()["page"], "")


if __name__ == "__main__":
    unittest.main()

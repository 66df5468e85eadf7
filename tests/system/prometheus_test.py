"""A real Prometheus collects from real daemons: the alert rules are right and fire, and every panel of the dashboard has
something to show. Skipped where Debian's package prometheus is not installed.
"""

import json
import re
import shutil
import subprocess
import sys
import unittest
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Set

import numpy as np

from support import BUILD, PATIENCE_S, REPOSITORY, SystemTest, free_port, wait_until
import processes

SKIPPED = 77  # CTest's status for "skipped"
PROGRAMS = ("prometheus", "promtool")
MONITORING = REPOSITORY / "tools" / "monitoring"
ALERTS_TEST = Path(__file__).resolve().parent / "alerts_test.yml"
# In this time it starts, reads its storage, and scrapes for the first time.
PROMETHEUS_PATIENCE_S = 3 * PATIENCE_S
METRIC = re.compile(r"\bgossamer_[a-z_]+")
# A histogram or a summary has these endings after its name.
SERIES_ENDING = re.compile(r"_(bucket|sum|count)$")


def promtool(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["promtool", *arguments], capture_output=True, text=True, timeout=PROMETHEUS_PATIENCE_S, check=False
    )


def known_metrics() -> Set[str]:
    said = subprocess.run(
        [str(BUILD / "bin" / "gossamerd"), "--print-metrics"], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    return set(re.findall(r"^\| `(gossamer_[a-z_]+)`", said.stdout, re.MULTILINE))


def dashboard_queries() -> List[str]:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


class Files(unittest.TestCase):
    def test_rules_are_right_and_fire_when_they_should(self) -> None:
        checked = promtool("check", "rules", str(MONITORING / "alerts.yml"))
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        tested = promtool("test", "rules", str(ALERTS_TEST))
        self.assertEqual(tested.returncode, 0, tested.stdout + tested.stderr)

    def test_every_rule_is_tested_and_says_what_to_do(self) -> None:
        rules = (MONITORING / "alerts.yml").read_text()
        names = re.findall(r"- alert: (\w+)", rules)
        self.assertGreater(len(names), 10)
        for name in names:
            self.assertIn(name, ALERTS_TEST.read_text())
        for part in ("summary: ", "action: ", "severity: "):
            self.assertEqual(rules.count(part), len(names))

    def test_rules_and_dashboard_ask_for_metrics_that_there_are(self) -> None:
        known = known_metrics()
        self.assertGreater(len(known), 50)
        asked = set(METRIC.findall((MONITORING / "alerts.yml").read_text()))
        for query in dashboard_queries():
            asked |= set(METRIC.findall(query))
        self.assertGreater(len(asked), 20)
        self.assertEqual({name for name in asked if name not in known and SERIES_ENDING.sub("", name) not in known}, set())


class Collected(SystemTest):
    def start_prometheus(self, targets: List[str]) -> None:
        folder = self.folder / "prometheus"
        folder.mkdir()
        port = free_port()
        (folder / "prometheus.yml").write_text(
            json.dumps(  # JSON is valid YAML
                {
                    "global": {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"},
                    "rule_files": [str(MONITORING / "alerts.yml")],
                    "scrape_configs": [{"job_name": "gossamer", "static_configs": [{"targets": targets}]}],
                }
            )
        )
        self.prometheus = processes.Program(
            [
                "prometheus",
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            folder / "log",
        )
        self.addCleanup(processes.end, [self.prometheus])
        self.api = f"http://127.0.0.1:{port}/api/v1/"

        def ready() -> bool:
            self.assertTrue(self.prometheus.running(), self.prometheus.log_text())
            try:
                return len(self.query("up == 1")) == len(targets)
            except (OSError, urllib.error.URLError):
                return False

        wait_until(ready, PROMETHEUS_PATIENCE_S, "Prometheus has collected from every node")

    def query(self, expression: str) -> List[Dict[str, Any]]:
        url = self.api + "query?" + urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
            return json.load(reply)["data"]["result"]

    def firing(self) -> Set[str]:
        return {alert["metric"]["alertname"] for alert in self.query('ALERTS{alertstate="firing"}')}

    def test_the_death_of_a_node_raises_an_alert_and_the_dashboard_shows_the_rest(self) -> None:
        # The usual patience, so that on a busy machine nobody is declared dead too early.
        usual = {"ping_ms": 500, "probe_interval_ms": 1000, "probe_timeout_ms": 500, "suspicion_mult": 4}
        nodes = self.start_nodes(3, {"metrics": {"listen": "127.0.0.1:0"}, "overlay": usual})
        for index, node in enumerate(nodes):
            self.attach(node, np.full(3000, float(index + 1)))
        self.start_prometheus([node.status()["page"][len("http://") : -1] for node in nodes])

        def train() -> None:
            for client in self.clients:
                client.array += np.random.default_rng().normal(0, 0.01, client.array.shape).astype(np.float32)
                client.step(samples=16)

        silent: List[str] = []

        def shown() -> bool:
            train()
            silent.clear()
            for query in dashboard_queries():
                query = query.replace("$instance", ".*").replace("$job_name", ".*").replace("$__rate_interval", "5s")
                if not self.query(query):
                    silent.append(query)
                    return False
            return True

        try:
            wait_until(shown, PROMETHEUS_PATIENCE_S, "every panel of the dashboard has something to show")
        except TimeoutError:
            self.fail(f"nothing to show for {silent}")
        self.assertNotIn("GossamerMemberDied", self.firing())

        nodes[2].kill()
        self.clients.pop().run.close()

        def raised() -> bool:
            train()
            return "GossamerMemberDied" in self.firing()

        wait_until(raised, PROMETHEUS_PATIENCE_S, "the alert fires")
        alert = self.query('ALERTS{alertname="GossamerDown"}')
        self.assertEqual(len(alert), 1)  # it is pending: it fires after a minute
        for node in nodes[:2]:
            self.assertEqual(node.status()["state"], "running")


if __name__ == "__main__":
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        print(f"SKIPPED, no alert rule was tested: {' and '.join(missing)} not found; apt-get install prometheus", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

"""The status page in a real browser: it shows the nodes and jobs of a real cluster, without an error of a script or of
the content policy. Skipped where Debian's package chromium is not installed.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import urllib.request

import numpy as np

from support import JOB, PATIENCE_S, SystemTest, wait_until

SKIPPED = 77  # CTest's status for "skipped"
BROWSER = "chromium"
BROWSER_PATIENCE_S = 4 * PATIENCE_S
# The time in the page's virtual clock, which runs as fast as possible: enough for a refresh.
PAGE_TIME_MS = 3000


class Shown(SystemTest):
    def look(self, url: str, width: int = 1280) -> str:
        """The page after its script has run."""
        with tempfile.TemporaryDirectory(dir=self.folder) as profile:
            looked = subprocess.run(
                [
                    BROWSER,
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--no-first-run",
                    "--enable-logging=stderr",
                    f"--user-data-dir={profile}",
                    f"--window-size={width},2000",
                    f"--virtual-time-budget={PAGE_TIME_MS}",
                    "--dump-dom",
                    url,
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=BROWSER_PATIENCE_S,
                check=False,
            )
        self.assertEqual(looked.returncode, 0, looked.stderr[-2000:])
        self.assertEqual([line for line in looked.stderr.splitlines() if "CONSOLE" in line], [])
        self.assertIn('data-drawn="yes"', looked.stdout, looked.stderr[-2000:])
        self.assertRegex(looked.stdout, r'<p id="trouble"[^>]* hidden=""')
        return looked.stdout

    def text(self, dom: str) -> str:
        return re.sub(r"<[^>]*>", " ", dom)

    def test_it_shows_the_cluster(self) -> None:
        nodes = self.start_nodes(3, {"metrics": {"listen": "127.0.0.1:0"}})
        # A node's name may be hostile: anyone who may name a node can try this.
        hostile = self.cluster.start("<img src=x>", {"metrics": {"listen": "127.0.0.1:0"}})
        self.wait_for_links([*nodes, hostile])
        for index, node in enumerate(nodes):
            self.attach(node, np.full(3000, float(index + 1)))
        url = nodes[0].status()["page"]

        def has_curves() -> bool:
            for client in self.clients:
                client.array += np.random.default_rng().normal(0, 0.01, client.array.shape).astype(np.float32)
                client.step(samples=16)
            with urllib.request.urlopen(url + "status.json", timeout=PATIENCE_S) as reply:
                status = json.load(reply)
            past = status["history"]["jobs"].get(JOB, {})
            told = {
                summary["name"]: [(job["job"], job["state"]) for job in summary["jobs"]] for summary in status["cluster"]
            }
            running = [(JOB, "running")]
            known = told == {"node-2": running, "node-3": running, "<img src=x>": []}
            known = known and all(len(summary["linked"]) == 3 for summary in status["cluster"])
            return known and sum(rate is not None and rate > 0 for rate in past.get("exchanges_s", [])) >= 2

        wait_until(has_curves, PATIENCE_S, "the history has points, and the others have told of themselves")
        for width in (1280, 500):
            dom = self.look(url, width)
            text = self.text(dom)
            for name in ("node-1", "node-2", "node-3", JOB, "running", "clock, samples", "exchanges by age"):
                self.assertIn(name, text)
            self.assertNotIn("<img", dom)
            self.assertIn("&lt;img src=x&gt;", dom)
            self.assertIn("3 other nodes were heard of", text)
            self.assertIn(f"{JOB}: running, ", text)
            self.assertEqual(dom.count('class="edge"'), 3)
            self.assertEqual(dom.count('class="edge among"'), 3)
            self.assertGreaterEqual(dom.count('class="path"'), 6)  # the curve of the codec's error may have gaps
            self.assertEqual(dom.count('<article class="job"'), 1)

        nodes[2].kill()
        wait_until(lambda: nodes[0].status()["neighbours"] == 2, PATIENCE_S, "the loss is noticed")
        dom = self.look(url)
        self.assertEqual(dom.count('class="edge"'), 2)
        self.assertEqual(dom.count('class="edge down"'), 1)

    def test_a_node_alone_has_a_page_that_says_so(self) -> None:
        (node,) = self.start_nodes(1, {"metrics": {"listen": "[::1]:0"}})
        text = self.text(self.look(node.status()["page"]))
        self.assertIn("This node knows no other yet.", text)
        self.assertIn("No training process is attached to this node.", text)


if __name__ == "__main__":
    if shutil.which(BROWSER) is None:
        print(f"SKIPPED, no page was looked at: {BROWSER} not found; apt-get install {BROWSER}", file=sys.stderr)
        sys.exit(SKIPPED)
    unittest.main()

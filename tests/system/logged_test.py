"""What programs log (run.log()): its means over the job's nodes, where programs and people look."""

import math
import unittest
import urllib.request
from typing import Any

import numpy as np

from support import BUILD, JOB, PATIENCE_S, SystemTest, gossamerctl, wait_until

import gossamer


class Logged(SystemTest):
    def attach(self, node: Any) -> gossamer.Run:
        run = gossamer.attach({"w": np.zeros(300, np.float32)}, job=JOB, socket=str(node.client_socket), timeout_s=PATIENCE_S)
        self.addCleanup(run.close)
        return run

    def test_means_are_told_at_all_nodes(self) -> None:
        nodes = self.start_nodes(2, {"metrics": {"listen": "127.0.0.1:0"}})
        runs = [self.attach(nodes[0]), self.attach(nodes[0]), self.attach(nodes[1])]
        runs[0].log(loss=1, accuracy=0.5)
        runs[1].log(loss=3)
        runs[2].log(loss=6, other=7)

        def told() -> bool:
            for run in runs:
                run.step()
            return all(run.logged["loss"].nodes == 2 for run in runs)

        wait_until(told, PATIENCE_S, "the means have come to all")
        # The first node counts in the mean with the mean of its two processes, 2.
        self.assertEqual({run.logged["loss"].mean for run in runs}, {4.0})
        self.assertEqual([run.logged["loss"].value for run in runs], [1, 3, 6])
        self.assertEqual(runs[0].logged["accuracy"], gossamer._shared.Logged(0.5, 0.5, 1))
        said = gossamerctl(BUILD, "--socket", str(nodes[1].control_socket), "jobs").stdout
        self.assertIn("loss 6 (4 over 2 nodes), other 7", said)
        page = urllib.request.urlopen(nodes[0].status()["page"] + "metrics").read().decode()
        self.assertIn(f'gossamer_job_logged{{job_name="{JOB}",name="loss"}} 2', page)
        self.assertIn(f'gossamer_job_logged_mean{{job_name="{JOB}",name="loss"}} 4', page)

        runs[2].log(loss=math.nan)
        wait_until(lambda: told() and math.isnan(runs[0].logged["loss"].mean), PATIENCE_S, "NaN is told")
        said = gossamerctl(BUILD, "--socket", str(nodes[1].control_socket), "jobs").stdout
        self.assertIn("loss not finite", said)
        runs[2].close()
        wait_until(lambda: runs[0].step() or runs[0].logged["loss"].nodes == 1, PATIENCE_S, "who has gone counts no more")
        self.assertEqual(runs[0].logged["loss"].mean, 2)


if __name__ == "__main__":
    unittest.main()

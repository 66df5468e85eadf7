"""GPUs as a real daemon and gossamerctl see them, with a fake driver (libfake_nvml.so): the machine is a file, which
changes while the daemon runs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
import unittest.mock
import urllib.request
from pathlib import Path
from typing import Any, Dict, Optional

import json_test
from support import BUILD, PATIENCE_S, Node, SystemTest, wait_until

CTL = BUILD / "bin" / "gossamerctl"
LIBRARY = BUILD / "lib" / "libfake_nvml.so"
# gossamerctl waits this long for one look at a driver that hangs.
LIMIT_S = 3 * PATIENCE_S
# The `state` line of a GPU that works.
WHOLE = "name=NVIDIA_H200 bus=3b total=141000000000 used=4000000000 busy=37 celsius=55 milliwatts=300500 ecc=3/0"


def gpu(index: int, more: str = "") -> str:
    return f"gpu uuid=GPU-{index} {WHOLE} {more}\n"


class FakeMachine(unittest.TestCase):
    """Without a daemon, gossamerctl looks itself."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="gossamer-gpus-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.machine = self.folder / "machine"

    def become(self, description: str) -> None:
        new = self.machine.with_suffix(".new")
        new.write_text("driver 550.90\n" + description)
        new.rename(self.machine)

    def environment(self) -> Dict[str, str]:
        without = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        return {**without, "GOSSAMER_NVML": str(LIBRARY), "GOSSAMER_FAKE_NVML": str(self.machine)}

    def ctl(self, *arguments: str, node: Optional[Node] = None, **more: str) -> subprocess.CompletedProcess:
        socket = node.control_socket if node else self.folder / "none.sock"
        return subprocess.run(
            [str(CTL), "--socket", str(socket), *arguments],
            env={**self.environment(), **more},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def report(self, node: Optional[Node] = None) -> Dict[str, Any]:
        done = self.ctl("gpus", "--json", node=node)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        json_test.check("gpus", report)
        return report


class WithoutDaemon(FakeMachine):
    def test_what_there_is(self) -> None:
        self.become(gpu(0) + gpu(1, "lost=1"))
        report = self.report()
        self.assertEqual((report["by"], report["state"], report["driver"]), ("gossamerctl", "watched", "550.90"))
        self.assertEqual([one["health"] for one in report["gpus"]], ["sound", "ill"])
        self.assertEqual(report["gpus"][0]["memory_used_bytes"], 4_000_000_000)
        self.assertIsNone(report["gpus"][0]["rows_remapped"])
        table = self.ctl("gpus").stdout
        self.assertIn("4.00 GB of 141 GB", table)
        self.assertIn("fallen off the bus", table)

    def test_no_driver(self) -> None:
        done = self.ctl("gpus", GOSSAMER_NVML="/nonexistent/libnvidia-ml.so.1")
        self.assertEqual(done.returncode, 0)
        self.assertIn("no driver", done.stdout)

    def test_a_driver_that_hangs(self) -> None:
        self.become("hang\n")
        self.assertEqual(self.report()["state"], "stuck")
        self.become("")  # releases calls that still hang

    def test_doctor(self) -> None:
        self.become(gpu(0))
        self.assertIn("1 of 1 sound", self.ctl("doctor").stdout)
        self.become(gpu(0) + gpu(1, "fault=16"))
        done = self.ctl("doctor", "--json")
        self.assertEqual(done.returncode, 1)
        (problem,) = [f for f in json.loads(done.stdout)["findings"] if f["grade"] == "problem" and f["topic"] == "GPU"]
        self.assertIn("GPU 1", problem["text"])
        self.assertIn("--gpu-reset -i 1", problem["advice"])

    def test_a_client_for_each_gpu(self) -> None:
        self.become(gpu(0) + gpu(1) + gpu(2, "mig=MIG-a,MIG-b"))
        say = ("--", "sh", "-c", "echo $GOSSAMER_LOCAL_RANK/$GOSSAMER_LOCAL_WORLD_SIZE:$CUDA_VISIBLE_DEVICES")

        def seen(*options: str, **more: str) -> Dict[str, str]:
            done = self.ctl("run", *options, *say, **more)
            self.assertEqual(done.returncode, 0, done.stderr)
            return {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}

        all_of_them = {"[0]": "0/4:GPU-0", "[1]": "1/4:GPU-1", "[2]": "2/4:MIG-a", "[3]": "3/4:MIG-b"}
        self.assertEqual(seen("--gpus", "all"), all_of_them)
        self.assertEqual(seen(), all_of_them)
        self.assertEqual(seen("--gpus", "1", "--per-gpu", "2", "--bind"), {"[0]": "0/2:GPU-1", "[1]": "1/2:GPU-1"})
        self.assertEqual(seen("--gpus", "all", CUDA_VISIBLE_DEVICES="0"), {"[0]": "0/1:GPU-0"})
        self.assertEqual(seen("--gpus", "none"), {"[0]": "0/1:"})
        done = self.ctl("run", "--gpus", "5", *say)
        self.assertEqual(done.returncode, 2)
        self.assertIn("there are 0, 1, 2:0, 2:1", done.stderr)

    def test_no_gpu_to_run_on(self) -> None:
        self.become("")
        done = self.ctl("run", "--gpus", "all", "--", "true")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no GPU here", done.stderr)
        self.assertIn("--clients N", done.stderr)


class WithDaemon(SystemTest, FakeMachine):
    def setUp(self) -> None:
        SystemTest.setUp(self)
        self.machine = self.folder / "machine"
        self.become(gpu(0) + gpu(1))
        inherited = unittest.mock.patch.dict(os.environ, {"GOSSAMER_FAKE_NVML": str(self.machine)})
        inherited.start()
        self.addCleanup(inherited.stop)
        (self.node,) = self.start_nodes(
            1, {"gpus": {"library": str(LIBRARY)}, "metrics": {"listen": "127.0.0.1:0"}}
        )

    def wait_for(self, index: int, health: str) -> Dict[str, Any]:
        def gpus() -> Any:
            report = self.report(self.node)
            return report["gpus"] if report["by"] == "daemon" else []  # it has not looked yet

        wait_until(lambda: len(gpus()) > index and gpus()[index]["health"] == health, PATIENCE_S, f"one is {health}")
        return gpus()[index]

    def metrics(self) -> str:
        with urllib.request.urlopen(self.node.status()["page"] + "metrics", timeout=PATIENCE_S) as answer:
            return answer.read().decode()

    def test_a_gpu_falls_ill(self) -> None:
        self.wait_for(1, "sound")
        self.assertEqual(self.report(self.node)["by"], "daemon")
        self.assertIn('gossamer_gpu_health{gpu="GPU-1",state="sound"} 1', self.metrics())
        self.become(gpu(0) + gpu(1) + "xid 1 79\n")
        ill = self.wait_for(1, "ill")
        self.assertEqual([(xid["code"], xid["count"]) for xid in ill["xids"]], [(79, 1)])
        wait_until(lambda: 'state="ill"} 1' in self.metrics(), PATIENCE_S, "the metrics say so")
        self.assertIn('gossamer_gpu_xid_errors_total{gpu="GPU-1",xid="79"} 1', self.metrics())
        warning = "GPU 1 (NVIDIA_H200, GPU-1) is ill"
        wait_until(lambda: warning in self.node.log.read_text(), PATIENCE_S, "the log warns")
        self.assertEqual(self.node.log.read_text().count("is ill"), 1)
        done = self.ctl("doctor", node=self.node)
        self.assertEqual(done.returncode, 1)
        self.assertIn("restart the machine", done.stdout)

    def test_clients_are_recognised(self) -> None:
        self.become(gpu(0, f"processes={os.getpid()}:1000,1:-"))
        self.attach(self.node, [1.0, 2.0])
        wait_until(
            lambda: {p["job"] for one in self.report(self.node)["gpus"] for p in one["processes"]} == {"test", ""},
            PATIENCE_S,
            "the client is known by its job",
        )
        self.assertIn("1 + 1", self.ctl("gpus", node=self.node).stdout)

    def test_a_driver_that_hangs_does_not_hold_up_the_daemon(self) -> None:
        self.wait_for(1, "sound")
        self.become(gpu(0) + gpu(1) + "hang\n")
        wait_until(lambda: self.report(self.node)["state"] == "stuck", 3 * PATIENCE_S, "the daemon has noticed")
        client = self.attach(self.node, [1.0])
        client.step()
        self.assertIn("the driver has not answered", self.ctl("gpus", node=self.node).stdout)
        self.node.stop()  # stopping works although a thread hangs
        self.become("")


if __name__ == "__main__":
    unittest.main()

"""The recipes (docs/how-to/recipes.md), as far as one machine allows: the Kubernetes file's pods in namespaces, the Slurm
script in a real Slurm, the Spark job in a real Spark. If this machine lacks something, the recipe is skipped, and the
test says why.
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

from support import BUILD, PATIENCE_S, REPOSITORY, SystemTest, free_port, wait_until
from cluster import ask, gossamerctl, toml
from fake_pod import Pod, why_not
from processes import Program, end

RECIPES = REPOSITORY / "tools" / "recipes"
SLURM_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")


def skip(test: unittest.TestCase, why: str) -> None:
    print(f"SKIPPED, {test.id()}: {why}", file=sys.stderr)
    test.skipTest(why)


class Kubernetes(SystemTest):
    # Trains, and reports what it sees of the node.
    TRAINER = """
import os, sys, time
import numpy as np, gossamer
assert os.getpid() < 10, "it has PIDs of its own"
assert os.getuid() == 1000 and 64900 in os.getgroups()
print("sees", sorted(os.listdir("/run")), sorted(os.listdir("/run/gossamer")), flush=True)
model = {"w": np.zeros(100000, np.float32)}
run = gossamer.attach(model, job="pods", timeout_s=60)
goal = float(sys.argv[1])
begin = time.monotonic()
# Who goes to 3 passes 2 on its way, also alone.
while (run.info().neighbours != 1 or abs(model["w"].mean() - 2.0) > 0.5) and time.monotonic() < begin + 60:
    model["w"] += 0.01 * (goal - model["w"])
    run.step()
    time.sleep(0.005)
print("mean", model["w"].mean(), "neighbours", run.info().neighbours, flush=True)
while True:
    model["w"] += 0.01 * (goal - model["w"])
    run.step()
    time.sleep(0.01)
"""

    def setUp(self) -> None:
        super().setUp()
        reason = why_not()
        if reason:
            skip(self, reason)
        try:
            import yaml
        except ImportError:
            skip(self, "not installed: python3-yaml")
        with open(RECIPES / "kubernetes.yaml", encoding="utf-8") as file:
            parts = list(yaml.safe_load_all(file))
        self.parts = {part["kind"]: part for part in parts}
        self.programs: List[Program] = []
        self.addCleanup(lambda: end(self.programs))

    def pod(self, kind: str, node: Path, image: Dict[str, Path], files: Dict[str, Dict[str, str]]) -> Pod:
        part = self.parts[kind]["spec"]
        return Pod(part["template"]["spec"] if "template" in part else part, node, image, files)

    def start_daemon(self, node: Path, peers: List[str]) -> Path:
        """Starts the DaemonSet's pod on this node; returns the place of its sockets."""
        config = self.parts["ConfigMap"]["data"]["gossamer.toml"]
        # There are two nodes on one machine, each at a port of its own, and no page.
        config = config.replace("tcp://*:26746", "tcp://127.0.0.1:0") + toml({"metrics": {"listen": ""}})
        config = re.sub("(?m)^peers = .*$", f"peers = {peers}".replace("'", '"'), config)
        files = {"gossamer": {"gossamer.toml": config}, "gossamer-cluster-key": {"cluster.key": self.key}}
        image = {f"/usr/bin/{name}": BUILD / "bin" / name for name in ("gossamerd", "gossamerctl")}
        pod = self.pod("DaemonSet", node, image, files)
        folders = pod.container("folders", self.folder / f"{node.name}-folders.log")
        self.programs.append(folders)
        self.assertEqual(folders.wait(PATIENCE_S), 0, folders.log_text())
        daemon = pod.container("gossamerd", self.folder / f"{node.name}-gossamerd.log")
        self.programs.append(daemon)
        sockets = node / "run" / "gossamer"

        def answers() -> bool:
            self.assertTrue(daemon.running(), daemon.log_text())
            return gossamerctl(BUILD, "--socket", str(sockets / "control.sock"), "status").returncode == 0

        wait_until(answers, PATIENCE_S, "the daemon in the pod answers")
        return sockets

    def start_trainer(self, node: Path, goal: float) -> Program:
        """Starts the training pod, with a trainer of ours in place of the image's."""
        (self.folder / "train.py").write_text(self.TRAINER)
        image = {"/train.py": self.folder / "train.py", "/opt/python": BUILD / "python", "/opt/lib": BUILD / "lib"}
        trainer = self.pod("Pod", node, image, {}).container(
            "train",
            self.folder / f"{node.name}-train.log",
            ["/usr/bin/python3", "/train.py", str(goal)],
            PYTHONPATH="/opt/python",
            GOSSAMER_LIBRARY="/opt/lib/libgossamer.so.1",
        )
        self.programs.append(trainer)
        return trainer

    def test_two_nodes(self) -> None:
        self.key = self.cluster.cluster_key.read_text()
        nodes = [self.folder / name for name in ("node-a", "node-b")]
        for node in nodes:
            node.mkdir()
        first = self.start_daemon(nodes[0], [])
        status = self.asked(first, "status")["node"]
        second = self.start_daemon(nodes[1], [status["address"]])
        wait_until(lambda: self.asked(second, "status")["node"]["neighbours"] == 1, PATIENCE_S, "the pods are linked")
        trainers = [self.start_trainer(node, goal) for node, goal in zip(nodes, (1.0, 3.0))]

        def together() -> bool:
            for trainer in trainers:
                self.assertTrue(trainer.running(), trainer.log_text())
            return all("neighbours 1" in trainer.log_text() for trainer in trainers)

        wait_until(together, 3 * PATIENCE_S, "both train together")
        for trainer in trainers:
            self.assertIn("sees ['gossamer'] ['average.sock', 'client.sock', 'control.sock']", trainer.log_text())
        # The client's process is gone with its pod. The daemon sees this, although it does not see the process.
        end(trainers)
        for sockets in (first, second):
            wait_until(lambda s=sockets: self.asked(s, "status")["node"]["clients"] == 0, PATIENCE_S, "it is gone")
        # A daemon's pod is replaced; keys and members belong to the node.
        before = self.asked(second, "status")["node"]["node"]
        end([self.programs[3]])
        second = self.start_daemon(nodes[1], [])
        wait_until(lambda: self.asked(second, "status")["node"]["neighbours"] == 1, PATIENCE_S, "linked again")
        self.assertEqual(self.asked(second, "status")["node"]["node"], before)

    def test_who_is_not_in_the_group_may_not_attach(self) -> None:
        self.key = self.cluster.cluster_key.read_text()
        node = self.folder / "node"
        node.mkdir()
        self.start_daemon(node, [])
        kind = "socket.AF_UNIX, socket.SOCK_SEQPACKET"
        attach = f"import socket; socket.socket({kind}).connect('/run/gossamer/client.sock')"
        for groups, status, said in (([64900], 0, ""), ([], 1, "Permission denied")):
            self.parts["Pod"]["spec"]["securityContext"]["supplementalGroups"] = groups
            log = self.folder / f"attach-{len(groups)}.log"
            pod = self.pod("Pod", node, {}, {}).container("train", log, ["/usr/bin/python3", "-c", attach])
            self.programs.append(pod)
            self.assertEqual(pod.wait(PATIENCE_S), status, pod.log_text())
            self.assertIn(said, pod.log_text())

    def asked(self, sockets: Path, command: str) -> Dict[str, Any]:
        return ask(sockets / "control.sock", command)

    def test_it_fits_together(self) -> None:
        """Checks for errors that Kubernetes would refuse: names of things that do not exist."""
        names = {part["metadata"]["name"] for part in self.parts.values()}
        self.assertEqual(set(self.parts), {"ConfigMap", "DaemonSet", "Pod"})
        daemon_set = self.parts["DaemonSet"]["spec"]
        self.assertEqual(daemon_set["selector"]["matchLabels"], daemon_set["template"]["metadata"]["labels"])
        for spec in (daemon_set["template"]["spec"], self.parts["Pod"]["spec"]):
            volumes = {volume["name"] for volume in spec["volumes"]}
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
            for volume in spec["volumes"]:
                if "configMap" in volume:
                    self.assertIn(volume["configMap"]["name"], names)


class Slurm(unittest.TestCase):
    # A task that trained alone would reach a number of its own.
    TRAINER = """
import os, time
import numpy as np, gossamer
model = {"w": np.zeros(100000, np.float32)}
run = gossamer.attach(model, job="slurm", timeout_s=60)
goal = 1.0 + 2.0 * int(os.environ["SLURM_PROCID"])
for _ in range(300):
    model["w"] += 0.02 * (goal - model["w"])
    run.step()
    time.sleep(0.005)
end = run.finish(timeout_s=30)
print("task", os.environ["SLURM_PROCID"], "of", end.members, "agreed", end.agreed, "mean", model["w"].mean())
run.close()
"""

    def setUp(self) -> None:
        missing = [program for program in SLURM_PROGRAMS if shutil.which(program) is None]
        if os.geteuid() != 0 or missing:
            skip(self, f"one must be root, and these must be installed: {', '.join(missing)} (slurm-wlm, munge)")
        folder = tempfile.TemporaryDirectory(prefix="g-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.folder.chmod(0o755)
        self.programs: List[Program] = []
        self.addCleanup(lambda: end(self.programs))
        self.start_slurm()

    def start(self, *command: str) -> Program:
        self.programs.append(Program(command, self.folder / f"{Path(command[0]).name}.log", self.environment))
        return self.programs[-1]

    def start_slurm(self) -> None:
        """One node, this machine, with a controller, a daemon and authentication of its own."""
        host = socket.gethostname().split(".")[0]
        key, munge = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        files = [f"--{name}-file={self.folder}/munge.{name}" for name in ("pid", "seed", "log")]
        self.start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={munge}", *files)
        for name in ("state", "spool"):
            (self.folder / name).mkdir()
        settings = {
            "ClusterName": "fake",
            "SlurmctldHost": f"{host}(127.0.0.1)",
            "SlurmUser": "root",
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={munge}",
            "CredType": "cred/munge",
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": self.folder / "spool",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": self.folder / "slurmd.pid",
            "SlurmctldPort": free_port(),
            "SlurmdPort": free_port(),
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SwitchType": "switch/none",
            "MpiDefault": "none",
            "ReturnToService": 2,
            "SlurmdParameters": "config_overrides",
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        lines.append(f"NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN")
        lines.append("PartitionName=all Nodes=ALL Default=YES State=UP MaxTime=10")
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        wait_until(munge.exists, PATIENCE_S, "munged listens")
        self.start("slurmctld", "-D", "-i")
        self.start("slurmd", "-D")
        try:
            wait_until(lambda: "idle" in self.asked("sinfo", "--noheader", "--format=%T").stdout, PATIENCE_S, "idle")
        except TimeoutError as error:
            logs = "\n".join(program.log_text()[-1500:] for program in self.programs)
            skip(self, f"Slurm does not come up here: {error}\n{logs}")

    def asked(self, *command: str, **more: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
            check=False,
            env={**os.environ, **self.environment, **more},
            cwd=self.folder,
        )

    def sbatch(self, *command: str) -> Tuple[int, str]:
        """The job's exit status and its output."""
        output = self.folder / "job.log"
        options = ["--wait", "--nodes=1", "--ntasks-per-node=2", "--overcommit", f"--output={output}"]
        submitted = self.asked(
            "sbatch",
            *options,
            str(RECIPES / "slurm.sbatch"),
            *command,
            GOSSAMER_BIN=str(BUILD / "bin"),
            PYTHONPATH=str(BUILD / "python"),
            GOSSAMER_SHARED=str(self.folder),
        )
        return submitted.returncode, submitted.stderr + (output.read_text() if output.exists() else "")

    def test_two_tasks_train_together(self) -> None:
        (self.folder / "train.py").write_text(self.TRAINER)
        status, said = self.sbatch(sys.executable, str(self.folder / "train.py"))
        self.assertEqual(status, 0, said)
        means = {}
        for task in range(2):
            found = re.search(rf"task {task} of 2 agreed True mean ([0-9.]+)", said)
            self.assertIsNotNone(found, said)
            means[task] = float(found[1])
        self.assertAlmostEqual(means[0], means[1], delta=1e-2)
        self.assertGreater(means[0], 1.2, said)
        self.assertLess(means[0], 2.8, said)
        self.assertEqual([path.name for path in self.folder.glob("gossamer-*")], [], "the key is gone")

    def test_a_script_that_fails_fails_the_job(self) -> None:
        status, said = self.sbatch("sh", "-c", "exit $((3 * SLURM_PROCID))")
        self.assertEqual(status, 3, said)


class Spark(SystemTest):
    def test_a_barrier_stage(self) -> None:
        if shutil.which("java") is None or importlib.util.find_spec("pyspark") is None:
            skip(self, "no Java, or no pyspark (python3 -m pip install 'pyspark<4')")
        [node] = self.start_nodes(1)
        environment = {
            "PYSPARK_SUBMIT_ARGS": "--master local[2] --conf spark.ui.enabled=false pyspark-shell",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(BUILD / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "SPARK_LOCAL_DIRS": str(self.folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "GOSSAMER_SOCKET": str(node.client_socket),
        }
        spark = subprocess.run(
            [sys.executable, str(RECIPES / "spark_barrier.py"), "2000", "2"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=6 * PATIENCE_S,
            check=False,
            env={**os.environ, **environment},
            cwd=self.folder,
        )
        self.assertEqual(spark.returncode, 0, spark.stdout + spark.stderr[-4000:])
        tasks = re.findall(r"(?m)^task (\d): (.*?)( saves)?$", spark.stdout)
        self.assertEqual([number for number, _, _ in tasks], ["0", "1"], spark.stdout)
        self.assertEqual(len([saver for _, _, saver in tasks if saver]), 1, spark.stdout)
        for _, weights, _ in tasks:
            np.testing.assert_allclose([float(weight) for weight in weights.split()], [1, -2, 0.5, 3], atol=0.2)


if __name__ == "__main__":
    unittest.main()

"""What the package brings beside the programs: completion in bash with names from a running daemon, manual pages that say
what a command takes, and a unit whose reload needs nothing that a small system lacks.
"""

import re
import shlex
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import List

import numpy as np

from support import BUILD, JOB, PATIENCE_S, REPOSITORY, Node, SystemTest, gossamerctl, wait_until

COMPLETION = REPOSITORY / "tools" / "packaging" / "completion.bash"
MANUAL = REPOSITORY / "tools" / "packaging" / "manual.py"
UNIT = REPOSITORY / "daemon" / "gossamerd.service.in"
CTL = str(BUILD / "bin" / "gossamerctl")


def completed(*words: str) -> List[str]:
    """What the last word may become. Nothing else may be printed."""
    script = f"source {shlex.quote(str(COMPLETION))}; COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; "
    script += '_gossamer "${COMP_WORDS[0]}"; printf "%s\\n" "${COMPREPLY[@]}"'
    ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert ran.stderr == "", ran.stderr
    return [line for line in ran.stdout.split("\n") if line]


class Completion(SystemTest):
    def of(self, node: Node, *words: str) -> List[str]:
        return completed(CTL, "--socket", str(node.control_socket), *words)

    def assert_no_names_within(self, most_s: float, control_socket: Path) -> None:
        """Once at least: a busy machine may take longer, but not each time."""

        def at_once() -> bool:
            begun = time.monotonic()
            self.assertEqual(completed(CTL, "--socket", str(control_socket), "keep", "t"), [])
            return time.monotonic() - begun < most_s

        wait_until(at_once, PATIENCE_S, f"an answer within {most_s} s")

    def test_names_come_from_the_daemon(self) -> None:
        first, second = self.start_nodes(2)
        self.attach(first, np.zeros(10))
        wait_until(lambda: first.job(JOB) is not None, PATIENCE_S, "the job runs")
        wait_until(lambda: bool(first.members()), PATIENCE_S, "the other is a member")
        for command in (["keep"], ["checkpoint"], ["export"], ["job", "set"], ["import", "--job"]):
            self.assertIn(JOB, self.of(first, *command, ""), command)
            self.assertEqual(self.of(first, *command, JOB[:2]), [JOB], command)
        self.assertEqual(self.of(first, "explain", "node"), ["node-2"])
        identity = second.status()["node"]
        self.assertEqual(self.of(first, "deny", identity[:3]), [identity])
        self.assertEqual(gossamerctl(BUILD, "--socket", str(first.control_socket), "deny", "0" * 32).returncode, 0)
        self.assertEqual(self.of(first, "allow", "000"), ["0" * 32])
        self.assertEqual(len([word for word in self.of(first, "key", "retire", "") if len(word) == 16]), 1)
        # keep takes one job, so no second one is offered.
        self.assertEqual(self.of(first, "keep", JOB, JOB[:2]), [])

    def test_without_a_daemon_there_are_no_names_at_once(self) -> None:
        self.assert_no_names_within(2, self.folder / "nobody")
        self.assertIn("status", completed(CTL, "sta"))
        self.assertEqual(completed(CTL, "key", "ro"), ["rotate"])
        self.assertEqual(completed(CTL, "cluster", "start", "--fo"), ["--folder"])
        self.assertEqual(completed(CTL, "config", "check", str(COMPLETION)[:-2]), [str(COMPLETION)])

    def test_a_daemon_that_does_not_answer_holds_up_nobody(self) -> None:
        (node,) = self.start_nodes(1)
        assert node.program is not None
        node.program.signal(19)  # SIGSTOP
        self.addCleanup(node.program.signal, 18)
        self.assert_no_names_within(3, node.control_socket)


class Unit(SystemTest):
    def test_a_reload_needs_no_program_of_a_package(self) -> None:
        """What the unit says is done to a real daemon. /bin/kill is not on every Debian."""
        (command,) = re.findall(r"^ExecReload=(.*)$", UNIT.read_text(encoding="utf-8"), re.M)
        words = shlex.split(command.replace("$$", "$"))
        self.assertEqual(words[0], "/bin/sh")
        (node,) = self.start_nodes(1)
        assert node.program is not None
        environment = {"MAINPID": str(node.program.pid), "PATH": "/nowhere"}
        subprocess.run(words, env=environment, check=True, timeout=PATIENCE_S)
        wait_until(lambda: "reloaded" in node.log.read_text(), PATIENCE_S, "it has read its options again")


class Manual(unittest.TestCase):
    def test_usage_and_date(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            programs = [str(BUILD / "bin" / name) for name in ("gossamerd", "gossamerctl")]
            subprocess.run(["/usr/bin/python3", "-B", MANUAL, folder, *programs], check=True, timeout=PATIENCE_S)
            pages = {path.name: path.read_text(encoding="utf-8") for path in Path(folder).iterdir()}
        self.assertEqual(set(pages), {"gossamerd.8", "gossamerctl.1", "gossamer.toml.5"})
        for name, page in pages.items():
            self.assertRegex(page, r'^\.TH \S+ \d \d{4}-\d\d-\d\d "Gossamer \d', name)
        usages = re.findall(r"^\.SS (.*)$", pages["gossamerctl.1"].replace("\\-", "-"), re.M)
        self.assertIn("keep [--client-socket PATH] [--wait SECONDS] [--memory KIND] JOB", usages)
        self.assertIn("explain [--seconds SECONDS] [node]", usages)
        self.assertIn("export [--mean FILE ...] [--output FILE] [JOB] [FILE]", usages)
        for usage in usages:
            self.assertEqual(usage.count("["), usage.count("]"), usage)
            self.assertNotRegex(usage, r"[{}]|ENUM", usage)


if __name__ == "__main__":
    unittest.main()

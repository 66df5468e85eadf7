"""gossamerctl run: clients are started, heard, told of signals and started again, and none is left behind."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any, Dict, List

from support import BUILD, JOB, PATIENCE_S, SystemTest, programs_naming, wait_until

CTL = BUILD / "bin" / "gossamerctl"
# One run of the launcher may take at most this long in these tests.
LIMIT_S = 2 * PATIENCE_S


def sh(text: str) -> List[str]:
    return ["sh", "-c", text]


def lines(path: Path) -> List[str]:
    return path.read_text().splitlines() if path.exists() else []


class Run(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="gossamer-run-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.addCleanup(self.kill_what_is_left)

    def kill_what_is_left(self) -> None:
        """A failed test may have left processes behind; all of them name the folder."""
        for pid in programs_naming(self.folder):
            os.kill(pid, signal.SIGKILL)

    def command(self, *arguments: str) -> List[str]:
        # There is no daemon there; the launcher says so and goes on.
        return [str(CTL), "run", "--socket", str(self.folder / "none.sock"), *arguments]

    def run_to_end(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess:
        return subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=LIMIT_S, check=False, **options
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen:
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        launcher = subprocess.Popen(self.command(*arguments), text=True, **options)
        self.addCleanup(self.end, launcher)
        return launcher

    @staticmethod
    def end(launcher: subprocess.Popen) -> None:
        launcher.kill()
        launcher.wait()
        for stream in (launcher.stdout, launcher.stderr):
            if stream:
                stream.close()

    def file(self, name: str) -> Path:
        return self.folder / name

    def wait_for_lines(self, path: Path, count: int) -> List[str]:
        wait_until(lambda: len(lines(path)) >= count, PATIENCE_S, f"{count} lines in {path.name}")
        return lines(path)

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not programs_naming(self.folder), PATIENCE_S, "no process is left")

    # --- starting -------------------------------------------------------------------------------------------------

    def test_each_client_knows_its_rank(self) -> None:
        done = self.run_to_end(
            "--clients", "3", "--",
            *sh("echo $GOSSAMER_LOCAL_RANK of $GOSSAMER_LOCAL_WORLD_SIZE, start $GOSSAMER_RESTARTS, ${LOCAL_RANK-alone}; cat"),
        )  # fmt: skip
        self.assertEqual(done.returncode, 0)
        # Frameworks take LOCAL_RANK for torchrun's, and look for the other processes.
        self.assertEqual(sorted(done.stdout.splitlines()), [f"[{i}] {i} of 3, start 0, alone" for i in range(3)])
        self.assertIn("no daemon answers", done.stderr)
        self.assertIn("start gossamerd", done.stderr)

    def test_clients_that_know_their_daemon_are_not_told_that_there_is_none(self) -> None:
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(str(self.file("client.sock")))
            done = self.run_to_end("--", "true", env={**os.environ, "GOSSAMER_SOCKET": str(self.file("client.sock"))})
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_arguments_reach_the_command_as_they_are(self) -> None:
        done = self.run_to_end("--", "printf", "%s|", "--help", "[a,b]", "", "--", "--json", "status", "a b")
        self.assertEqual(done.stdout, "[0] --help|[a,b]||--|--json|status|a b|\n")

    def test_what_cannot_be_started(self) -> None:
        done = self.run_to_end("--clients", "3", "--restart", "always", "--", "no-such-program")
        self.assertEqual(done.returncode, 127)
        self.assertEqual(done.stderr.count("there is no program no-such-program"), 1)
        plain = self.file("plain")
        plain.write_text("text")
        done = self.run_to_end("--", str(plain))
        self.assertEqual(done.returncode, 126)
        self.assertIn("chmod +x", done.stderr)

    def test_wrong_usage(self) -> None:
        for arguments, hint in [
            (["true"], "write -- before the command"),
            (["python3", "train.py", "--epochs", "3"], "write -- before the program"),
            ([], "nothing to start"),
            (["--restart", "maybe", "--", "true"], "never, on-failure or always"),
            (["--output", "loud", "--", "true"], "prefix, raw or a folder"),
            (["--output", "/dev/null/logs", "--", "true"], "cannot be made"),
            (["--clients", "0", "--", "true"], "--clients"),
            (["--clients", "257", "--", "true"], "--clients"),
        ]:
            done = self.run_to_end(*arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(hint, done.stderr + done.stdout)

    def test_commands_that_do_not_exist(self) -> None:
        for arguments, hint in [
            (["statsu"], 'there is no command "statsu": did you mean status?'),
            (["--socket", "jbos", "job"], "A subcommand is required"),
            (["--json", "frobnicate"], "'gossamerctl --help' lists them"),
            ([], "A subcommand is required"),
        ]:
            done = subprocess.run([str(CTL), *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(hint, done.stderr + done.stdout)

    # --- the end --------------------------------------------------------------------------------------------------

    def test_the_status_is_that_of_the_first_that_failed(self) -> None:
        first = self.file("first")
        done = self.run_to_end(
            "--clients",
            "3",
            "--",
            *sh(
                f"case $GOSSAMER_LOCAL_RANK in 0) exit 0;; 1) touch {first}; exit 7;; esac; "
                f"while ! [ -e {first} ]; do sleep 0.05; done; sleep 0.3; exit 3"
            ),
        )
        self.assertEqual(done.returncode, 7)
        self.assertIn("client 1, process", done.stderr)
        self.assertIn("ended with status 3", done.stderr)

    def test_a_signal_that_ended_a_client_is_told(self) -> None:
        done = self.run_to_end("--", *sh("kill -SEGV $$"))
        self.assertEqual(done.returncode, 128 + signal.SIGSEGV)
        self.assertIn("signal 11 (Segmentation fault)", done.stderr)

    def test_the_others_train_on_when_one_fails_unless_told_not_to(self) -> None:
        go_on = self.file("go-on")
        script = f"[ $GOSSAMER_LOCAL_RANK = 0 ] && exit 5; while ! [ -e {go_on} ]; do sleep 0.05; done; echo done"
        launcher = self.start("--clients", "2", "--", *sh(script))
        self.assertIn("no daemon", launcher.stderr.readline())
        self.assertIn("client 0", launcher.stderr.readline())
        go_on.touch()
        out, _ = launcher.communicate(timeout=LIMIT_S)
        self.assertEqual((launcher.returncode, out), (5, "[1] done\n"))
        go_on.unlink()
        done = self.run_to_end("--fail-fast", "--clients", "2", "--", *sh(script))
        self.assertEqual((done.returncode, done.stdout), (5, ""))
        self.assertIn("--fail-fast", done.stderr)
        self.assert_nothing_left()

    def test_what_a_client_leaves_in_its_group_is_ended(self) -> None:
        done = self.run_to_end("--", *sh(f"sh -c 'sleep 1000; : {self.folder}' & echo left"))
        self.assertEqual((done.returncode, done.stdout), (0, "[0] left\n"))
        self.assert_nothing_left()

    # --- restarts -------------------------------------------------------------------------------------------------

    def test_a_client_is_started_again_until_it_succeeds(self) -> None:
        done = self.run_to_end(
            *("--restart", "on-failure", "--backoff", "0.01", "--"),
            *sh("echo $GOSSAMER_RESTARTS; [ $GOSSAMER_RESTARTS = 3 ]"),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split(), ["[0]", "0", "[0]", "1", "[0]", "2", "[0]", "3"])
        self.assertEqual(done.stderr.count("starts again in"), 3)

    def test_restarts_are_bounded(self) -> None:
        done = self.run_to_end("--restart", "on-failure:2", "--backoff", "0.01", "--", *sh("echo x; exit 9"))
        self.assertEqual(done.returncode, 9)
        self.assertEqual(done.stdout.count("x"), 3)

    def test_many_clients_that_die_at_once(self) -> None:
        done = self.run_to_end(
            *("--clients", "64", "--restart", "on-failure:5", "--backoff", "0", "--"),
            *sh("echo $GOSSAMER_RESTARTS; exit 4"),
        )
        self.assertEqual(done.returncode, 4)
        expected = sorted(f"[{rank:2}] {restarts}" for rank in range(64) for restarts in range(6))
        self.assertEqual(sorted(done.stdout.splitlines()), expected)

    def test_a_pause_before_a_restart_ends_with_a_signal(self) -> None:
        launcher = self.start("--restart", "always", "--backoff", "3000", "--", *sh("exit 0"))
        launcher.stderr.readline()
        self.assertIn("starts again in 3000.0 s", launcher.stderr.readline())
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(launcher.wait(LIMIT_S), 0)

    # --- signals --------------------------------------------------------------------------------------------------

    def test_signals_are_passed_on(self) -> None:
        heard = self.file("heard")
        traps = "; ".join(f"trap 'echo {name} >> {heard}' {name}" for name in ("USR1", "USR2", "TERM"))
        script = f"{traps}; echo ready >> {heard}; while ! grep -q TERM {heard}; do sleep 0.05; done; exit 0"
        launcher = self.start("--clients", "2", "--grace", "1000", "--", *sh(script))
        self.wait_for_lines(heard, 2)
        for count, one in ((4, signal.SIGUSR1), (6, signal.SIGUSR2), (8, signal.SIGTERM)):
            launcher.send_signal(one)
            told = self.wait_for_lines(heard, count)
            self.assertEqual(told[-2:], [one.name[3:]] * 2)
        self.assertEqual(launcher.wait(LIMIT_S), 0)

    def test_the_status_after_a_signal_is_what_the_clients_make_of_it(self) -> None:
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            ready = self.file(f"ready-{one.name}")
            # The script does not use exec, because dash loses a SIGINT that it gets on the way.
            script = f"echo > {ready}; while :; do sleep 0.1; done"
            launcher = self.start("--restart", "always", "--", *sh(script))
            self.wait_for_lines(ready, 1)
            launcher.send_signal(one)
            self.assertEqual(launcher.wait(LIMIT_S), 128 + one)

    def test_who_does_not_end_is_killed_after_the_grace(self) -> None:
        ready = self.file("ready")
        launcher = self.start("--grace", "0.3", "--", *sh(f"trap '' TERM; echo > {ready}; while :; do sleep 1; done"))
        self.wait_for_lines(ready, 1)
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(launcher.wait(LIMIT_S), 128 + signal.SIGKILL)
        self.assertIn("are killed", launcher.stderr.read())
        self.assert_nothing_left()

    def test_a_second_signal_kills(self) -> None:
        ready = self.file("ready")
        script = f"trap 'echo >> {ready}' INT; echo > {ready}; while :; do sleep 0.1; done"
        launcher = self.start("--grace", "1000", "--", *sh(script))
        self.wait_for_lines(ready, 1)
        launcher.send_signal(signal.SIGINT)
        self.wait_for_lines(ready, 2)
        launcher.send_signal(signal.SIGINT)
        self.assertEqual(launcher.wait(LIMIT_S), 128 + signal.SIGKILL)

    def test_signals_that_were_ignored_before_stay_ignored(self) -> None:
        ready = self.file("ready")
        command = shlex.join(self.command("--", *sh(f"echo > {ready}; exec sleep 1000")))
        launcher = subprocess.Popen(sh(f"trap '' INT; exec {command}"), stderr=subprocess.DEVNULL)
        self.addCleanup(launcher.wait)
        self.addCleanup(launcher.kill)
        self.wait_for_lines(ready, 1)
        launcher.send_signal(signal.SIGINT)
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(launcher.wait(LIMIT_S), 128 + signal.SIGTERM)

    def test_a_stopped_launcher_stops_its_clients(self) -> None:
        pid_file = self.file("pid")
        launcher = self.start("--", *sh(f"echo $$ > {pid_file}; exec sleep 1000"))
        pid = int(self.wait_for_lines(pid_file, 1)[0])

        def is_stopped(process: int) -> bool:
            return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"

        launcher.send_signal(signal.SIGTSTP)
        wait_until(lambda: is_stopped(pid) and is_stopped(launcher.pid), PATIENCE_S, "both stand still")
        launcher.send_signal(signal.SIGCONT)
        wait_until(lambda: not is_stopped(pid), PATIENCE_S, "the client goes on")
        launcher.send_signal(signal.SIGTERM)
        self.assertEqual(launcher.wait(LIMIT_S), 128 + signal.SIGTERM)

    def test_nobody_survives_a_launcher_that_is_killed(self) -> None:
        ready = self.file("ready")
        # Each has a child of its own, like a data loader, which the kernel does not end with it.
        script = f"sh -c 'echo >> {ready}; sleep 1000; : {self.folder}' & wait"
        launcher = self.start("--clients", "4", "--", *sh(script))
        self.wait_for_lines(ready, 4)
        launcher.kill()
        launcher.wait()
        self.assert_nothing_left()

    # --- output ---------------------------------------------------------------------------------------------------

    def test_lines_of_several_clients_are_not_mixed(self) -> None:
        writer = (
            "import os, sys\n"
            "rank = os.environ['GOSSAMER_LOCAL_RANK']\n"
            "for i in range(500):\n"
            "    for part in (rank * 300, ' ', str(i), rank * 300, '\\n'):\n"
            "        sys.stdout.write(part)\n"
            "        sys.stdout.flush()\n"
        )
        done = self.run_to_end("--clients", "4", "--", sys.executable, "-c", writer)
        self.assertEqual(done.returncode, 0)
        for rank in "0123":
            own = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
            self.assertEqual(own, [f"[{rank}] {rank * 300} {i}{rank * 300}" for i in range(500)])

    def test_what_has_no_end_of_line_is_told_too(self) -> None:
        done = self.run_to_end("--", *sh("printf out; printf err >&2; printf '\\n 1 %%\\r 2 %%\\r 3 %%'"))
        self.assertEqual(done.stdout, "[0] out\n[0]  1 %\n[0]  3 %\n")
        self.assertIn("[0] err\n", done.stderr)

    def test_raw_output(self) -> None:
        done = self.run_to_end("--output", "raw", "--", *sh("printf out; printf err >&2"))
        self.assertEqual(done.stdout, "out")
        self.assertTrue(done.stderr.endswith("err"))

    def test_a_folder_of_outputs(self) -> None:
        folder = self.file("logs") / "run"
        for _ in range(2):
            done = self.run_to_end("--clients", "2", "--output", str(folder), "--", *sh("echo out; echo err >&2"))
            self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertEqual(sorted(path.name for path in folder.iterdir()), ["0.log", "1.log"])
        self.assertEqual((folder / "1.log").read_text(), "out\nerr\n" * 2)

    def test_output_that_nobody_reads(self) -> None:
        """The launcher waits with its clients, and still hears signals."""
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        # The pipe holds a page, less than the client's first lines with their prefixes. So the launcher always has
        # output left.
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        launcher = self.start("--grace", "1000", "--", "yes", str(self.folder), stdout=write, stderr=subprocess.DEVNULL)
        os.close(write)
        readable, _, _ = select.select([read], [], [], PATIENCE_S)
        self.assertTrue(readable, "the client writes")
        launcher.send_signal(signal.SIGINT)
        # The launcher and its guard name the folder, too.
        wait_until(lambda: len(programs_naming(self.folder)) == 2, PATIENCE_S, "the client is gone")
        self.assertIsNone(launcher.poll())
        launcher.send_signal(signal.SIGINT)
        self.assertEqual(launcher.wait(LIMIT_S), 128 + signal.SIGINT)

    def test_a_reader_that_has_gone(self) -> None:
        read, write = os.pipe()
        launcher = self.start("--", "yes", stdout=write, stderr=subprocess.DEVNULL)
        os.close(write)
        self.assertTrue(os.read(read, 100).startswith(b"[0] y\n"))
        os.close(read)
        self.assertEqual(launcher.wait(LIMIT_S), 128 + signal.SIGPIPE)

    def test_colour_on_a_terminal_only(self) -> None:
        shown = self.on_terminal({})
        self.assertIn(b"\x1b[36m[0]\x1b[0m hello", shown)
        self.assertNotIn(b"\x1b[", self.on_terminal({"NO_COLOR": "1"}))

    def on_terminal(self, environment: Dict[str, str]) -> bytes:
        main, terminal = pty.openpty()
        launcher = self.start(
            "--", "echo", "hello", stdout=terminal, stderr=terminal, env={**os.environ, **environment}
        )
        os.close(terminal)
        self.assertEqual(launcher.wait(LIMIT_S), 0)
        shown = b""
        try:
            while part := os.read(main, 4096):
                shown += part
        except OSError:
            pass  # the other end is closed
        os.close(main)
        return shown


TRAINER = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import numpy as np, gossamer
done = Path(sys.argv[3])
rank = int(os.environ["GOSSAMER_LOCAL_RANK"])
weights = np.zeros(1000, np.float32)
target = np.arange(1000, dtype=np.float32) / 1000
own = slice(500 * rank, 500 * rank + 500)
with gossamer.attach({"w": weights}, job=sys.argv[2]) as run:
    # Until both have learned: each needs what the other sees.
    while len(list(done.iterdir())) < int(os.environ["GOSSAMER_LOCAL_WORLD_SIZE"]):
        weights[own] += 0.1 * (target[own] - weights[own])
        run.step(samples=1)
        if abs(weights - target).max() < 0.01:
            (done / str(rank)).touch()
print("learned", flush=True)
"""


class Training(SystemTest):
    """Each of two clients sees half of the data, and both learn all of it."""

    def test_they_get_the_socket_of_the_daemon_that_was_named(self) -> None:
        first, second = self.start_nodes(2)
        for environment, expected in (({}, second), ({"GOSSAMER_SOCKET": str(first.client_socket)}, second)):
            done = subprocess.run(
                [str(CTL), "--socket", str(second.control_socket), "run", "--", "printenv", "GOSSAMER_SOCKET"],
                env={**{name: text for name, text in os.environ.items() if name != "GOSSAMER_SOCKET"}, **environment},
                capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )
            self.assertEqual(done.stdout, f"[0] {expected.client_socket}\n", done.stderr)

    def test_two_clients_of_one_daemon(self) -> None:
        (node,) = self.start_nodes(1)
        learned = self.folder / "learned"
        learned.mkdir()
        command = [str(CTL), "run", "--socket", str(node.control_socket), "--clients", "2", "--"]
        done = subprocess.run(
            [*command, sys.executable, "-c", TRAINER, str(BUILD / "python"), JOB, str(learned)],
            env={**os.environ, "GOSSAMER_SOCKET": str(node.client_socket)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] learned", "[1] learned"])
        self.assertNotIn("no daemon", done.stderr)


if __name__ == "__main__":
    # A script that runs the test in the background ignores SIGINT, and child processes inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()

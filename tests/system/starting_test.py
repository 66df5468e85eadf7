"""Starting a node in a wrong environment: a clear message and an exit status, never a crash or a hang."""

import ctypes
import os
import resource
import subprocess
import unittest
from pathlib import Path
from typing import Dict, List

import numpy as np

from support import BUILD, PATIENCE_S, SystemTest, gossamerctl, wait_until

CANNOT_START, WRONG_USAGE = 1, 2
libc = ctypes.CDLL(None, use_errno=True)


class Starting(SystemTest):
    def refused(self, config: Path, status: int, *says: str, limits: Dict[int, int] = {}) -> None:  # noqa: B006
        """gossamerd ends by itself with this status, and its messages contain all of `says`."""
        result = subprocess.run(
            [str(BUILD / "bin" / "gossamerd"), "--config", str(config)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            preexec_fn=lambda: [resource.setrlimit(which, (most, most)) for which, most in limits.items()],
        )
        self.assertEqual(result.returncode, status, result.stderr)
        for text in says:
            self.assertIn(text, result.stderr)

    def written(self, text: str) -> Path:
        path = self.folder / "wrong.toml"
        path.write_text(text)
        return path

    def test_wrong_configurations(self) -> None:
        (node,) = self.start_nodes(1)
        whole = node.config.read_text()
        for cut in range(1, len(whole) - 1, 37):
            # A file that is cut anywhere is either refused with a line number, or complete as far as it goes.
            text = whole[:cut] + "\n[node"
            self.refused(self.written(text), WRONG_USAGE, f"{self.folder}/wrong.toml:")
        self.refused(self.written("[node]\nnmae = 'x'\n"), WRONG_USAGE, "wrong.toml:2", "nmae")
        self.refused(self.written("[gossip]\nperiod_ms = 'x'\n"), WRONG_USAGE, "wrong.toml:2", "period_ms")
        self.refused(self.written("[gossip]\n\ncodec = 'q2'\n"), WRONG_USAGE, "wrong.toml:3", "codec")
        self.refused(self.written("\xff\xfe\x00"), WRONG_USAGE, "wrong.toml")
        self.refused(self.folder / "absent.toml", WRONG_USAGE, "absent.toml")

    def test_limits_too_low_to_start(self) -> None:
        (node,) = self.start_nodes(1)
        node.stop()
        for most in (10, 20, 63):
            limits = {resource.RLIMIT_NOFILE: most}
            self.refused(node.config, CANNOT_START, f"at most {most} open files", "LimitNOFILE=", limits=limits)
        limits = {resource.RLIMIT_AS: 60000 << 10}
        self.refused(node.config, CANNOT_START, "at most 58 MiB of addresses", "LimitAS=", limits=limits)

    def test_state_folder_in_use(self) -> None:
        (node,) = self.start_nodes(1)
        second = self.cluster.add("second", {"node": {"state_dir": node.options["node"]["state_dir"]}})
        second.launch()
        self.assertEqual(second.program.wait(PATIENCE_S), CANNOT_START)
        log = second.log.read_text()
        self.assertIn(node.options["node"]["state_dir"], log)
        self.assertIn(str(node.program.pid), log, "the message names the process that holds it")
        node.status()

    def test_port_in_use(self) -> None:
        (node,) = self.start_nodes(1)
        second = self.cluster.add("second", {"overlay": {"listen": node.address}})
        second.launch()
        self.assertEqual(second.program.wait(PATIENCE_S), CANNOT_START)
        self.assertIn(node.address, second.log.read_text())
        node.status()

    def test_addresses_without_a_scheme(self) -> None:
        """They are taken as they are meant, wherever the configuration names one."""
        first = self.cluster.start("node-1", {"overlay": {"listen": "*:0"}})
        self.assertTrue(first.address.startswith("tcp://0.0.0.0:"), first.address)
        reached_at = f"127.0.0.1:{first.address.rsplit(':', 1)[1]}"
        second = self.cluster.start(
            "node-2", {"overlay": {"listen": "127.0.0.1:0", "advertise": "127.0.0.1:9", "peers": [reached_at]}}
        )
        self.wait_for_links([first, second])
        (member,) = first.members()
        self.assertEqual(member["address"], "tcp://127.0.0.1:9")
        invited = gossamerctl(BUILD, "--socket", str(first.control_socket), "invite", "--address", reached_at)
        self.assertEqual(invited.returncode, 0, invited.stderr)
        self.assertIn(f"tcp://{reached_at}", invited.stderr)

    def test_sockets_in_use(self) -> None:
        (node,) = self.start_nodes(1)
        second = self.cluster.add("second", {"node": {"socket_dir": str(node.sockets)}})
        second.launch()
        self.assertEqual(second.program.wait(PATIENCE_S), CANNOT_START)
        self.assertIn(str(node.sockets), second.log.read_text())
        node.status()

    def test_sockets_that_are_removed_are_made_again(self) -> None:
        (node,) = self.start_nodes(1)
        sockets = [node.control_socket, node.client_socket, node.client_socket.with_name("average.sock")]
        for socket in sockets:
            socket.unlink()
        wait_until(lambda: all(socket.exists() for socket in sockets), PATIENCE_S, "they are there again")
        client = self.attach(node, np.zeros(10))
        self.assertEqual(client.run.average(1.0, timeout_s=PATIENCE_S).values, 1.0)
        self.assertEqual(node.log.read_text().count("was removed or replaced: listening there again"), 3)
        node.status()

    def test_socket_of_a_dead_daemon_is_taken_over(self) -> None:
        (node,) = self.start_nodes(1)
        node.kill()
        self.assertTrue(node.control_socket.exists())
        node.start()

    def test_cluster_key_that_others_can_read(self) -> None:
        os.chmod(self.cluster.cluster_key, 0o644)
        node = self.cluster.add("node-1")
        node.launch()
        self.assertEqual(node.program.wait(PATIENCE_S), CANNOT_START)
        self.assertIn(str(self.cluster.cluster_key), node.log.read_text())
        self.assertNotIn(self.cluster.cluster_key.read_text().strip(), node.log.read_text())

    def test_keys_are_private(self) -> None:
        (node,) = self.start_nodes(1)
        state = Path(node.options["node"]["state_dir"])
        for path in [state, *state.iterdir()]:
            self.assertEqual(path.stat().st_mode & 0o077, 0, path)

    def test_a_lost_node_key_is_told(self) -> None:
        (node,) = self.start_nodes(1)
        self.assertNotIn("is missing", node.log.read_text())
        node.kill()
        (Path(node.options["node"]["state_dir"]) / "node.key").unlink()
        node.start()
        self.assertIn("this is a new node for all others", node.log.read_text())

    def test_control_tool(self) -> None:
        nodes = self.start_nodes(2)
        socket = ["--socket", str(nodes[0].control_socket)]
        for command in ("status", "peers", "members", "jobs"):
            self.assertEqual(gossamerctl(BUILD, command, *socket).returncode, 0)
            shown = gossamerctl(BUILD, command, "--json", *socket)
            self.assertEqual(shown.returncode, 0)
            self.assertTrue(shown.stdout.startswith("{"), shown.stdout)
        absent = gossamerctl(BUILD, "status", "--socket", str(self.folder / "absent.sock"))
        self.assertNotEqual(absent.returncode, 0)
        self.assertIn("absent.sock", absent.stderr)


class FullDisk(SystemTest):
    """On a file system of a few pages, which needs root."""

    def small_disk(self) -> Path:
        folder = self.folder / "disk"
        folder.mkdir()
        if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=64k,mode=0700") != 0:
            self.skipTest(f"no small file system can be mounted here: {os.strerror(ctypes.get_errno())}")
        self.addCleanup(libc.umount2, os.fsencode(folder), 2)  # MNT_DETACH
        return folder

    def fill(self, folder: Path) -> List[Path]:
        filler = folder / "filler"
        with open(filler, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass
        return [filler]

    def test_start_on_a_full_disk(self) -> None:
        disk = self.small_disk()
        self.fill(disk)
        node = self.cluster.add("node-1", {"node": {"state_dir": str(disk / "state")}})
        node.launch()
        self.assertEqual(node.program.wait(PATIENCE_S), CANNOT_START)
        self.assertIn("space", node.log.read_text())

    def test_start_on_a_read_only_disk(self) -> None:
        disk = self.small_disk()
        if libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 1 | 32, None) != 0:  # MS_RDONLY | MS_REMOUNT
            self.skipTest("the file system cannot be made read-only here")
        node = self.cluster.add("node-1", {"node": {"state_dir": str(disk / "state")}})
        node.launch()
        self.assertEqual(node.program.wait(PATIENCE_S), CANNOT_START)
        self.assertIn("Read-only", node.log.read_text())

    def test_disk_fills_up_while_training(self) -> None:
        disk = self.small_disk()
        nodes = [
            self.cluster.start("node-1", {"node": {"state_dir": str(disk / "state")}}),
            self.cluster.start("node-2"),
        ]
        self.wait_for_links(nodes)
        clients = [self.attach(node, np.zeros(1000)) for node in nodes]
        self.fill(disk)
        self.assert_still_exchanges(clients)
        # A third node comes; nothing about that may need the disk.
        third = self.cluster.start("node-3")
        wait_until(lambda: nodes[0].status()["neighbours"] == 2, PATIENCE_S, "the third is linked")
        self.assert_still_exchanges([self.attach(third, np.zeros(1000)), *clients])
        self.assertEqual(nodes[0].stop(), 0)


if __name__ == "__main__":
    unittest.main()

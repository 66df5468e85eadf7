"""A private network on this machine: hosts with an address each, behind one switch, whose packets can be lost, slowed
or cut off. For the system tests and tools/chaos; needs root, iproute2 and iptables.

Every host is a network namespace without a name: it lives as long as this process holds its descriptor or a program
runs in it. Those programs die with this process (processes.py), so nothing is left behind however this process ends,
and the machine's own network is not touched. The switch is a bridge in a namespace of its own.

The kernels that this is made for have no netem, so a host's delay is made in user space (delay_line.py).
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path
from typing import Callable, Iterable, List, NamedTuple, Optional, Sequence

from delay_line import DelayLine
from elsewhere import made_in

CLONE_NEWNET = 0x40000000
MAX_HOSTS = 250
NETWORK_BITS = 16
COMMAND_TIMEOUT_S = 20.0
TOOLS = {"ip": "iproute2", "tc": "iproute2", "iptables": "iptables"}

_libc = ctypes.CDLL(None, use_errno=True)


class NetworkUnavailable(RuntimeError):
    """Such a network is not possible here; the message says why, and what would help."""


class Connection(NamedTuple):
    """An established TCP connection, seen from one host."""

    own_port: int
    other: str  # address
    other_port: int


def _new_namespace() -> int:
    """A descriptor of a new network namespace, made by a thread that moves there and ends."""

    def leave() -> None:
        if _libc.unshare(CLONE_NEWNET) != 0:
            why = os.strerror(ctypes.get_errno())
            raise NetworkUnavailable(f"no network namespace can be made here ({why}): be root")

    return made_in(leave, lambda: os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))


class _Namespace:
    def __init__(self) -> None:
        self._descriptor = _new_namespace()

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def enter(self) -> None:
        """Moves only the calling thread; in a new process, call it before the process becomes another program."""
        if _libc.setns(self._descriptor, CLONE_NEWNET) != 0:
            os._exit(1)

    def run(self, *command: str) -> str:
        """The command's output. Raises NetworkUnavailable if the command fails."""
        try:
            result = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
                preexec_fn=self.enter,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NetworkUnavailable(f"{command[0]}: {error}") from error
        if result.returncode != 0:
            raise NetworkUnavailable(f"{' '.join(command)}: {result.stderr.strip()}")
        return result.stdout

    def close(self) -> None:
        os.close(self._descriptor)


class Rule:
    """Drops packets to a host. It ends when it is removed, or by Network.heal()."""

    def __init__(self, host: "Host", match: Sequence[str]):
        self._host = host
        self._match = match
        self._change("-A")

    def remove(self) -> None:
        self._change("-D")

    def _change(self, what: str) -> None:
        self._host.run("iptables", "-w", what, "INPUT", *self._match, "-j", "DROP")


def _shape(mbit_s: float, queue_ms: float) -> List[str]:
    return ["root", "tbf", "rate", f"{mbit_s:g}mbit", "burst", "32kb", "latency", f"{queue_ms:g}ms"]


class Host(_Namespace):
    """A place where a daemon can run (`enter` in its process); see Cluster.add(). Packets take `delay_s` in each
    direction between it and the switch."""

    def __init__(self, switch: _Namespace, number: int, delay_s: float = 0.0):
        super().__init__()
        self.address = f"10.203.0.{number}"
        self._switch = switch
        self._port = f"port{number}"
        self._line: Optional[DelayLine] = None
        if delay_s > 0:
            try:
                self._line = DelayLine((self._port, switch.enter), ("eth0", self.enter), delay_s)
            except OSError as error:
                raise NetworkUnavailable(f"no TAP device can be made here ({error}): /dev/net/tun") from error
        else:
            switch.run("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.path)
        switch.run("ip", "link", "set", self._port, "master", "switch", "up")
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "address", "add", f"{self.address}/{NETWORK_BITS}", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def move(self) -> None:
        """Moves to another address in the same network. Connections to the old address hear nothing any more."""
        old, self.address = self.address, f"10.203.1.{self.address.rsplit('.', 1)[1]}"
        self.run("ip", "address", "del", f"{old}/{NETWORK_BITS}", "dev", "eth0")
        self.run("ip", "address", "add", f"{self.address}/{NETWORK_BITS}", "dev", "eth0")

    def drop_from(self, others: Iterable["Host"]) -> Rule:
        """Packets from these hosts no longer arrive here; packets from here still arrive there."""
        return Rule(self, ["-s", ",".join(other.address for other in others)])

    def lose(self, share: float) -> Rule:
        """Drops this share of all packets that arrive here, at random."""
        return Rule(self, ["-m", "statistic", "--mode", "random", "--probability", f"{share:.4f}"])

    def drop_connection(self, connection: Connection) -> Rule:
        """Drops the packets of this one connection. Other connections still work, also new ones from the same host."""
        return Rule(
            self,
            ["-p", "tcp", "-s", connection.other, "--sport", str(connection.other_port)]
            + ["--dport", str(connection.own_port)],
        )

    def limit(self, mbit_s: float) -> None:
        """Limits the rate of packets from this host, and that of packets to it."""
        self.run("tc", "qdisc", "replace", "dev", "eth0", *_shape(mbit_s, 100))
        self.limit_incoming(mbit_s, 100)

    def limit_incoming(self, mbit_s: float, queue_ms: float) -> None:
        """Limits the rate of packets to this host, behind a queue that holds as many as pass in that time. This queue
        fills up, unlike a queue in the sending host, which TCP keeps short (TCP small queues)."""
        self._switch.run("tc", "qdisc", "replace", "dev", self._port, *_shape(mbit_s, queue_ms))

    def control_congestion(self, algorithm: str) -> None:
        """Sets the congestion control of TCP connections that begin here from now on: "reno", which every kernel has,
        or "bbr"."""
        self.run("sh", "-c", f"echo {algorithm} > /proc/sys/net/ipv4/tcp_congestion_control")

    def unlimit(self) -> None:
        self.run("tc", "qdisc", "del", "dev", "eth0", "root")
        self._switch.run("tc", "qdisc", "del", "dev", self._port, "root")

    def heal(self) -> None:
        """Removes every rule of this host."""
        self.run("iptables", "-w", "-F", "INPUT")

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        super().close()


class Network:
    """The network. Raises NetworkUnavailable where it cannot be made."""

    def __init__(self) -> None:
        missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
        if missing:
            raise NetworkUnavailable(f"not installed: {', '.join(missing)} (apt-get install {' '.join(missing)})")
        self.hosts: List[Host] = []
        self._switch = _Namespace()
        try:
            self._switch.run("ip", "link", "add", "switch", "type", "bridge")
            self._switch.run("ip", "link", "set", "switch", "up")
        except NetworkUnavailable:
            self._switch.close()
            raise

    def add(self, delay_s: float = 0.0) -> Host:
        if len(self.hosts) == MAX_HOSTS:
            raise ValueError(f"a network has at most {MAX_HOSTS} hosts")
        host = Host(self._switch, len(self.hosts) + 1, delay_s)
        self.hosts.append(host)
        return host

    def part(self, group: Sequence[Host]) -> Callable[[], None]:
        """Cuts these hosts off from all others, silently, in both directions. Call the result to end that."""
        others = [host for host in self.hosts if host not in group]
        rules = [host.drop_from(others) for host in group] + [host.drop_from(group) for host in others]
        return lambda: [rule.remove() for rule in rules] and None

    def heal(self) -> None:
        for host in self.hosts:
            host.heal()

    def close(self) -> None:
        """The kernel removes the hosts when the programs in them have ended."""
        for host in self.hosts:
            host.close()
        self.hosts.clear()
        self._switch.close()

    def __enter__(self) -> "Network":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def bytes_sent(host: Host) -> int:
    """By all that has run there, with the headers of IP and Ethernet."""
    (line,) = [line for line in host.run("cat", "/proc/net/dev").splitlines() if "eth0:" in line]
    return int(line.split(":")[1].split()[8])


def connections_of(pid: int, other: Optional[str] = None) -> List[Connection]:
    """The established connections in the network of process `pid`: all, or those with one address (IPv4)."""

    def endpoint(text: str) -> tuple:
        address, port = text.split(":")
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(address))), int(port, 16)

    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        _, own, remote, state, *_ = line.split()
        (_, own_port), (address, port) = endpoint(own), endpoint(remote)
        if state == "01" and other in (None, address):
            found.append(Connection(own_port, address, port))
    return found

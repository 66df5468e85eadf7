"""A slow cable: Ethernet frames that enter one of two TAP devices leave the other a fixed time later, in the order in
which they came. For network.py, because the kernels that it is made for have no netem.

It is a program of its own, so that the delay does not depend on its user's interpreter. DelayLine starts it with the
devices' descriptors; it ends when its standard input does. The devices end with the descriptors.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import struct
import subprocess
import sys
import time
from typing import Callable, Deque, Tuple

from elsewhere import made_in

TUNSETIFF = 0x400454CA
IFF_TAP = 0x0002
IFF_NO_PI = 0x1000
MAX_FRAME_BYTES = 2048
# At most this many frames are read from one device before frames that are due are sent.
FRAMES_AT_ONCE = 64
# If this many frames are under way, further ones are lost, as in a full switch. This is 1 Gbit/s for 100 ms.
MAX_FRAMES_UNDER_WAY = 10_000
# If this program runs late, frames have a longer delay. So it has priority over others where that is allowed.
NICENESS = -15

Device = Tuple[str, Callable[[], None]]


def open_tap(name: str, enter: Callable[[], None]) -> int:
    """A descriptor of a new TAP device, in the network that `enter` moves the calling thread to. Raises OSError."""

    def make() -> int:
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
        return descriptor

    return made_in(enter, make)


class DelayLine:
    """A line between two new TAP devices, each given as a name and a network (see open_tap). Raises OSError."""

    def __init__(self, one: Device, other: Device, delay_s: float):
        with contextlib.ExitStack() as opened:
            descriptors = []
            for device in (one, other):
                descriptors.append(open_tap(*device))
                opened.callback(os.close, descriptors[-1])  # the program has descriptors of its own
            self._program = subprocess.Popen(
                [sys.executable, "-B", __file__, *map(str, descriptors), repr(delay_s)],
                stdin=subprocess.PIPE,
                pass_fds=descriptors,
            )

    def close(self) -> None:
        self._program.stdin.close()
        self._program.wait()


def forward(one: int, other: int, delay_s: float) -> None:
    opposite = {one: other, other: one}
    under_way: Deque[Tuple[float, int, bytes]] = collections.deque()
    stop = sys.stdin.fileno()
    while True:
        now_s = time.monotonic()
        while under_way and under_way[0][0] <= now_s:
            _, device, frame = under_way.popleft()
            try:
                os.write(device, frame)
            except OSError:
                pass  # the device is down: the frame is lost, as in any network
        # select() counts microseconds; poll() and epoll only milliseconds.
        patience_s = max(0.0, under_way[0][0] - now_s) if under_way else None
        readable, _, _ = select.select([one, other, stop], [], [], patience_s)
        if stop in readable:
            return
        due_s = time.monotonic() + delay_s
        for device in readable:
            for _ in range(FRAMES_AT_ONCE):
                try:
                    frame = os.read(device, MAX_FRAME_BYTES)
                except OSError:
                    break  # no more frames for now
                if len(under_way) < MAX_FRAMES_UNDER_WAY:
                    under_way.append((due_s, opposite[device], frame))


if __name__ == "__main__":
    try:
        os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
    except OSError:
        pass  # only root may do this
    forward(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))

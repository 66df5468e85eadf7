"""A stretch of network in user space: bytes sent to its port arrive at another port later, more slowly, damaged, or not
at all. For tests of what network.py cannot do (delay), and where network.py cannot be used (no root).

A thread of the proxy forwards the connections. Its properties may be changed from any thread at any time and hold for
all connections. A daemon that advertises the proxy's address is dialled through it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import List, Optional, Set

CHUNK_BYTES = 16 << 10
# If this many chunks are under way in one direction of a connection, the sender has to wait, as for a router's full
# queue.
MAX_CHUNKS_UNDER_WAY = 256
MAX_RECORDED_BYTES = 1 << 20
POLL_S = 0.005


class ShapingProxy:
    """Forwards to `target` (host, port), which must be set before the first connection comes."""

    def __init__(self) -> None:
        self.target: Optional[tuple] = None
        self.delay_s = 0.0  # in each direction
        self.mbit_s = 0.0  # in each direction, for all connections together, which share one line; 0: no limit
        self.stalled = False  # nothing gets through, and closed connections are not reported
        self.record = False
        self.recorded: List[bytes] = []  # the first bytes that each connection has sent to the target
        self._flips = 0
        self._free_s = {True: 0.0, False: 0.0}  # when the line is free again: to the target, back
        self._tasks: Set[asyncio.Task] = set()
        self._loop = asyncio.new_event_loop()
        listening: "threading.Event" = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(listening,), daemon=True)
        self._thread.start()
        listening.wait()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self._port}"

    def flip_a_bit(self) -> None:
        """Flips a bit in the last of the next bytes that are forwarded, which is content and not framing."""
        self._flips += 1

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # --- on the proxy's thread

    def _serve(self, listening: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accepted, "127.0.0.1", 0))
        self._port = server.sockets[0].getsockname()[1]
        listening.set()
        self._loop.run_forever()
        server.close()
        for task in list(self._tasks):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        try:
            # A stalled network answers nobody, so a new connection waits, too.
            while self.stalled:
                await asyncio.sleep(POLL_S)
            onward_reader, onward_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.close()
            return
        record = len(self.recorded) if self.record else None
        if self.record:
            self.recorded.append(b"")
        pumps = [
            asyncio.ensure_future(self._pump(reader, onward_writer, True, record)),
            asyncio.ensure_future(self._pump(onward_reader, writer, False, None)),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            writer.close()
            onward_writer.close()
            self._tasks.difference_update({*pumps, asyncio.current_task()})

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, onward: bool, record: Optional[int]
    ) -> None:
        """Forwards one direction: a task reads and stamps, this one waits and writes. Ends when the sender has ended
        and all is written."""
        under_way: asyncio.Queue = asyncio.Queue(MAX_CHUNKS_UNDER_WAY)

        async def read() -> None:
            while chunk := await reader.read(CHUNK_BYTES):
                free_s = max(self._free_s[onward], time.monotonic())
                if self.mbit_s:
                    free_s += len(chunk) * 8 / (self.mbit_s * 1e6)
                self._free_s[onward] = free_s
                await under_way.put((free_s + self.delay_s, chunk))
            await under_way.put((time.monotonic() + self.delay_s, b""))

        reading = asyncio.ensure_future(read())
        self._tasks.add(reading)
        try:
            while True:
                due_s, chunk = await under_way.get()
                await asyncio.sleep(max(0.0, due_s - time.monotonic()))
                while self.stalled:
                    await asyncio.sleep(POLL_S)
                if not chunk:
                    return
                if record is not None and len(self.recorded[record]) < MAX_RECORDED_BYTES:
                    self.recorded[record] += chunk
                if self._flips:
                    self._flips -= 1
                    chunk = chunk[:-1] + bytes([chunk[-1] ^ 1])
                writer.write(chunk)
                await writer.drain()
        except OSError:
            pass  # one end is gone, and the other is closed, too
        finally:
            reading.cancel()
            self._tasks.discard(reading)

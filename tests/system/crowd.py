"""HOST PORT COUNT KEY: a crowd of strangers from many addresses of the loopback network, until its input ends. Each sends
half a handshake with the listening key (in hex). What is closed is made anew at once. Prints how many connections it has
made.
"""

import selectors
import socket
import sys
from typing import Tuple

from curve import Handshake

ADDRESSES = 250
IP_BIND_ADDRESS_NO_PORT = 24  # <linux/in.h>
MADE_AT_ONCE = 512


def stranger(endpoint: Tuple[str, int], number: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)  # the search for a port takes long
    made.bind((f"127.1.{number % ADDRESSES}.1", 0))
    made.connect_ex(endpoint)
    return made


def is_over(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1 << 12)
    except BlockingIOError:
        return False
    except OSError:
        return True


def main() -> None:
    host, port, count, listening_key = sys.argv[1:]
    beginning = Handshake(bytes.fromhex(listening_key)).begin()  # the same for all: nobody looks for repetitions
    made = there = 0
    with selectors.DefaultSelector() as crowd:
        crowd.register(sys.stdin, selectors.EVENT_READ)
        while True:
            for _ in range(min(MADE_AT_ONCE, int(count) - there)):
                crowd.register(stranger((host, int(port)), made), selectors.EVENT_WRITE)
                made += 1
                there += 1
            for key, events in crowd.select(0.05):
                if key.fileobj is sys.stdin:
                    print(made)
                    return
                over = False
                if events & selectors.EVENT_WRITE:
                    try:
                        key.fileobj.send(beginning)
                        crowd.modify(key.fileobj, selectors.EVENT_READ)
                    except OSError:
                        over = True
                elif is_over(key.fileobj):
                    over = True
                if over:
                    crowd.unregister(key.fileobj)
                    key.fileobj.close()
                    there -= 1


if __name__ == "__main__":
    main()

"""Makes something in another network: a socket or a device belongs to the network of the thread that opens it."""

from __future__ import annotations

import threading
from typing import Any, Callable, List


def made_in(enter: Callable[[], None], make: Callable[[], Any]) -> Any:
    """Returns the result of `make`, called in a thread that `enter` moves to another network. Raises what either
    raises."""
    made: List[Any] = []
    failed: List[BaseException] = []

    def enter_and_make() -> None:
        try:
            enter()
            made.append(make())
        except BaseException as error:  # the caller raises it again
            failed.append(error)

    thread = threading.Thread(target=enter_and_make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]

"""A training loop in a thread of its own, for the tests of exact averages."""

import threading
import time
from typing import Optional


class TrainingThread:
    """Calls step() until it is stopped or a step fails, then leave()."""

    PAUSE_S = 0.0  # after each step
    PATIENCE_S: float  # the longest time that a step may take

    def __init__(self) -> None:
        self.error: Optional[BaseException] = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._train)

    def step(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """The others do not wait for it any more."""
        raise NotImplementedError

    def close(self) -> None:
        """Is called when the thread has ended."""

    def _train(self) -> None:
        try:
            while not self._stop.is_set():
                self.step()
                time.sleep(self.PAUSE_S)
            self.leave()
        except BaseException as error:
            self.error = error

    def start(self) -> None:
        self._thread.start()

    def resume(self) -> None:
        """After its thread has ended."""
        self._thread.join()
        self._thread = threading.Thread(target=self._train)
        self.start()

    def stop(self) -> None:
        """Waits for the last step, and raises the error of a step that has failed."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self.PATIENCE_S)
            assert not self._thread.is_alive(), "a step does not end"
        self.close()
        if self.error is not None:
            raise self.error

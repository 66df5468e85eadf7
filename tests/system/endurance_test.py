"""Four nodes train a model of several fragments until each has done this many exchanges: no sum goes wrong, and no
daemon's memory grows. The default number shows a buffer that is lost with every tenth exchange. For smaller leaks:
GOSSAMER_ENDURANCE_ELEMENTS=25000000 GOSSAMER_ENDURANCE_EXCHANGES=30000.
"""

import os
import time
import unittest
from typing import List

import numpy as np

from support import SystemTest, private_bytes, spread, total

ELEMENTS = int(os.environ.get("GOSSAMER_ENDURANCE_ELEMENTS", 3_000_000))
# Training adds multiples of this, so that the additions themselves hardly round.
GRAIN = 2.0**-10
# Each of thousands of exchanges rounds to fp32 once at each end. A lost exchange would move a hundred times this.
ADDING_UP = 1e-4
# Buffers come and go with the exchanges under way and the waiting corrections. Their number is random, and their memory
# is below two copies of the model.
ALLOWED_GROWTH_BYTES = (8 << 20) + 2 * 4 * ELEMENTS
# A buffer is as large as a fragment, which is larger in large models. If every tenth exchange lost one, the second half
# would exceed the limit.
BUFFER_BYTES = 4 * min(ELEMENTS, 1 << 19)
EXCHANGES = int(os.environ.get("GOSSAMER_ENDURANCE_EXCHANGES", 2 * 10 * (ALLOWED_GROWTH_BYTES // BUFFER_BYTES + 1)))
# On two cores, beside twenty other programs, an exchange took half of this time.
PATIENCE_PER_EXCHANGE_S = 1.0


class Endurance(SystemTest):
    def test_sum_and_memory(self) -> None:
        # Slow enough for the daemons, the trainer and the other tests to share two cores.
        nodes = self.start_nodes(4, {"gossip": {"period_ms": 20, "time_share": 0.0}, "log": {"level": "info"}})
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        random = np.random.default_rng(6)
        # Each number that is added at one trainer is subtracted at the next, so that the sum stays zero.
        updates = [(GRAIN * random.integers(-16, 17, ELEMENTS)).astype(np.float32) for _ in range(4)]
        grown: List[List[int]] = []
        half = 1
        done = [0]
        deadline = time.monotonic() + PATIENCE_PER_EXCHANGE_S * EXCHANGES
        # Fast daemons may do half of the exchanges within one turn of this loop, but each half needs a look at the
        # memory.
        while min(done) < EXCHANGES or len(grown) < 2 * half:
            self.assertLess(time.monotonic(), deadline, f"{done} exchanges, of {EXCHANGES}")
            number = len(grown)
            clients[number % 4].array += updates[number // 4 % 4]
            clients[(number + 1) % 4].array -= updates[number // 4 % 4]
            for client in clients:
                client.step(samples=32)
            grown.append([private_bytes(node) for node in nodes])
            done = [client.run.info().exchanges for client in clients]
            if min(done) < EXCHANGES / 2:
                half = len(grown)

        # The most memory in the first half of the exchanges, and in the second.
        halves = np.array(grown[:half]), np.array(grown[half:])
        for node, before, after in zip(nodes, *(half.max(axis=0) for half in halves)):
            self.assertLess(after - before, ALLOWED_GROWTH_BYTES, f"{node.name} grew from {before} to {after} bytes")
        # Each fragment needs some ten exchanges until it agrees.
        self.step_until(
            lambda: spread(clients) < 1e-3 and float(np.abs(total(clients)).max()) < ADDING_UP,
            "agreement, on zero",
            patience_s=PATIENCE_PER_EXCHANGE_S * EXCHANGES / 4,
        )
        for client in clients:
            self.assertGreater(client.job()["exchanges"], 0)
            self.assertEqual(client.job()["unresolved"], 0)


if __name__ == "__main__":
    unittest.main()

"""A program is told what keeps it apart from nodes that could take part, and no longer when nothing does."""

import unittest
import warnings

import numpy as np

from support import PATIENCE_S, Client, SystemTest, wait_until


class Apart(SystemTest):
    def wait_for_message(self, client: Client, *parts: str) -> None:
        """Steps until the run's message has these parts; without any, until it is empty."""

        def said() -> bool:
            client.step()
            message = client.run.info().message
            return all(part in message for part in parts) if parts else message == ""

        wait_until(said, PATIENCE_S, f"the program is told {parts}")

    def test_of_another_layout(self) -> None:
        first, second = self.start_nodes(2)
        ours = self.attach(first, np.zeros(1000))
        self.step_until(ours.run.info().ready.__bool__, "it runs")
        theirs = self.attach(second, np.zeros(1001))
        for client, other in ((ours, theirs), (theirs, ours)):
            self.wait_for_message(client, "another layout", other.run.info().node_id[:8])
        theirs.run.close()
        self.clients.remove(theirs)
        self.wait_for_message(ours)
        self.attach(second, np.zeros(1000))
        self.assert_still_exchanges(self.clients)
        self.assertEqual([client.run.info().message for client in self.clients], ["", ""])

    def test_of_a_name_that_is_mistyped(self) -> None:
        first, second = self.start_nodes(2)
        right = self.attach(first, np.zeros(1000), job="resnet50")
        wrong = self.attach(second, np.zeros(1000), job="resnet5O")
        other = self.attach(second, np.zeros(1000), job="llama")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            right.step()
            other.step()
            self.wait_for_message(wrong, "others run resnet50", "mistyped")

            def warned() -> bool:
                wrong.step()
                return any("job 'resnet5O': no other node in reach runs" in str(one.message) for one in caught)

            wait_until(warned, PATIENCE_S, "the program is warned")
        self.assertEqual(other.run.info().message, "")

    def test_of_others_that_hold_nan(self) -> None:
        first, second, third = self.start_nodes(3)
        spoiled = [self.attach(node, np.full(1000, np.nan), wait=False) for node in (first, second)]
        self.step_until(lambda: all(one.run.info().state.name == "QUARANTINED" for one in spoiled), "they run")
        joiner = self.attach(third, np.zeros(1000), wait=False)
        self.wait_for_message(joiner, "every other node in reach that runs the job holds NaN")
        spoiled[0].array[:] = 0
        self.step_until(lambda: joiner.run.info().message == "", "one of them is sound")


if __name__ == "__main__":
    unittest.main()

"""A run's place in its data and its end: the cursor travels with the model, clocks count a sample once, and replicas
that finish agree on one model and on who saves it.
"""

import math
import threading
import time
import unittest
from typing import List, Optional

import numpy as np

from support import BUILD, PATIENCE_S, Client, SystemTest, finish_all, gossamer, gossamerctl, spread, wait_until

ELEMENTS = 5000
# Replicas that agree to 1e-4 of a fragment's length may differ by this in one element: 4096 elements of size 2.2.
AGREED = 1.5e-2
DAEMON_PATIENCE_S = 10.0  # daemon_patience in sdk/c/client_run.cpp


class Place(SystemTest):
    def test_the_cursor_comes_with_the_model_and_stays(self) -> None:
        nodes = self.start_nodes(2)
        first = self.attach(nodes[0], np.zeros(ELEMENTS))
        self.assertIsNone(first.run.cursor)
        first.run.cursor = {"file": "part-7", "line": 12}
        first.step(1000)
        joiner = self.attach(nodes[1], np.ones(ELEMENTS), wait=False)
        joiner.run.cursor = b"of its own model, which it gives up"
        self.step_until(lambda: joiner.run.ready, "the newcomer has its model")
        self.assertEqual(joiner.run.cursor, {"file": "part-7", "line": 12})
        nodes[1].kill()
        nodes[1].start()
        self.step_until(lambda: joiner.run.info().attachments == 2, "its daemon is back")
        self.assertEqual(joiner.run.cursor, {"file": "part-7", "line": 12})
        joiner.run.cursor = {"line": 13}
        self.assertEqual(joiner.run.cursor, {"line": 13})

    def test_samples_are_counted_once(self) -> None:
        """Holds for a client that joins with a checkpoint of its own, for one that joins without, and after a restart
        of the daemon; and the job's clock never goes back."""
        nodes = self.start_nodes(2)
        first = self.attach(nodes[0], np.zeros(ELEMENTS))
        first.step(1200)
        second = self.attach(nodes[1], np.zeros(ELEMENTS), initial_clock=1000, wait=False)
        self.step_until(lambda: second.run.ready, "the newcomer has its model", [second])
        self.assertGreaterEqual(second.run.clock, 1200, "what the model had seen, and not its own checkpoint's clock")
        self.assertLessEqual(second.run.clock, 1200 + second.run.info().steps)
        for _ in range(10):
            second.step(10)
        reached = 1200 + 100 + second.run.info().steps  # the steps until it was ready count one sample each
        wait_until(lambda: second.job()["clock"] >= 1300, PATIENCE_S, "the daemon has read the clock")
        self.assertLessEqual(second.job()["clock"], reached)
        self.assert_one_clock(second)
        self.step_until(lambda: first.run.global_clock >= 1300, "the job's clock is known to the other", [first])
        before, known = second.job()["clock"], second.run.global_clock
        nodes[1].kill()
        self.assertGreaterEqual(second.run.global_clock, known)
        nodes[1].start()
        self.step_until(lambda: second.run.info().attachments == 2 and second.run.ready, "its daemon is back", [second])
        self.assertGreaterEqual(second.job()["clock"], before)
        self.assertLessEqual(second.job()["clock"], 1200 + 100 + second.run.info().steps)
        self.assert_one_clock(second)
        known = first.run.global_clock
        nodes[1].kill()  # the largest clock is lost with it
        wait_until(lambda: nodes[0].status()["neighbours"] == 0, PATIENCE_S, "it is missed")
        first.step()
        self.assertGreaterEqual(first.run.global_clock, known)

    def assert_one_clock(self, client: Client) -> None:
        """What the program would save as the clock of its checkpoint is what its daemon says."""
        wait_until(lambda: client.job()["clock"] == client.run.clock, PATIENCE_S, "program and daemon say the same clock")

    def test_members_are_known(self) -> None:
        nodes = self.start_nodes(2)
        clients = [self.attach(node, np.zeros(ELEMENTS)) for node in nodes]
        ids = sorted(client.run.info().node_id for client in clients)
        self.step_until(lambda: all(client.run.members == ids for client in clients), "both know both")
        clients[1].run.close()
        self.step_until(lambda: clients[0].run.members == [clients[0].run.info().node_id], "one has gone", clients[:1])


class End(SystemTest):
    def start_apart(self, count: int) -> List[Client]:
        """Replicas that differ: each has trained by itself since they last agreed."""
        nodes = self.start_nodes(count)
        clients = [self.attach(node, np.ones(ELEMENTS)) for node in nodes]
        self.step_until(lambda: all(client.run.info().neighbours == count - 1 for client in clients), "all take part")
        random = np.random.default_rng(1)
        for client in clients:
            client.array += random.standard_normal(ELEMENTS).astype(np.float32)
            client.step(100)
        return clients

    def test_replicas_agree_and_one_is_to_save(self) -> None:
        clients = self.start_apart(3)
        self.assertGreater(spread(clients), 0.5)
        found = finish_all(clients)
        self.assertTrue(all(finish.agreed and finish.members == 3 for finish in found), found)
        self.assertLess(max(finish.distance for finish in found), 1e-4)
        self.assertLess(spread(clients), AGREED)
        ids = [client.run.info().node_id for client in clients]
        self.assertEqual([finish.saver for finish in found], [one == min(ids) for one in ids])
        # Training goes on afterwards, and ends again.
        for client, samples in zip(clients, (150, 190, 100)):
            client.array += 1
            client.step(samples)
        furthest = max(client.run.clock for client in clients)
        found = finish_all(clients)
        self.assertTrue(all(finish.agreed for finish in found))
        self.assertEqual([finish.clock for finish in found], [furthest] * 3, "one model, one clock")
        self.assertLess(spread(clients), AGREED)

    def test_one_that_still_trains_is_waited_for(self) -> None:
        trains, done = self.start_apart(2)
        found = done.run.finish(timeout_s=0.5)
        self.assertFalse(found.agreed)
        stop = threading.Event()

        def train() -> None:
            while not stop.wait(0.01):
                trains.array += 0.01
                trains.step()
            results.append(trains.run.finish(PATIENCE_S))

        results: List[gossamer.Finish] = []
        thread = threading.Thread(target=train)
        thread.start()
        threading.Timer(0.5, stop.set).start()
        found = done.run.finish(PATIENCE_S)
        thread.join()
        self.assertTrue(found.agreed and results[0].agreed)
        self.assertEqual(found.clock, results[0].clock)
        self.assertNotEqual(found.saver, results[0].saver)
        self.assertLess(spread([trains, done]), AGREED)

    def test_one_that_ended_early_ends_with_the_clock_of_one_that_trained_on(self) -> None:
        trains, done = (self.attach(node, np.zeros(ELEMENTS)) for node in self.start_nodes(2))
        clients = [trains, done]
        # How fast a replica trains is measured from when it runs.
        self.step_until(lambda: all(client.job()["state"] == "running" for client in clients), "both run")

        def both_train_for(time_s: float, training: List[Client]) -> None:
            until = time.monotonic() + time_s
            while time.monotonic() < until:
                for client in training:
                    client.step(10)
                time.sleep(0.005)

        both_train_for(0.5, clients)
        ended: List[gossamer.Finish] = []
        thread = threading.Thread(target=lambda: ended.append(done.run.finish(PATIENCE_S)))
        thread.start()
        both_train_for(6.0, [trains])
        ended.append(trains.run.finish(PATIENCE_S))
        thread.join()
        self.assertTrue(all(finish.agreed for finish in ended), ended)
        self.assertGreater(trains.run.clock, 8 * done.run.clock)
        self.assertEqual([finish.clock for finish in ended], [trains.run.clock] * 2)

    def test_one_that_dies_is_not_waited_for(self) -> None:
        clients = self.start_apart(3)
        threading.Timer(0.2, clients[2].node.kill).start()
        found = finish_all(clients[:2])
        self.assertTrue(all(finish.agreed for finish in found), found)
        self.assertEqual(sum(finish.saver for finish in found), 1)

    def finish_with_nan(self, count: int, poisoned: int, trains_on: bool) -> None:
        """The poisoned ones have the smallest ids, and so would save."""
        by_id = sorted(self.start_apart(count), key=lambda client: client.run.info().node_id)
        spoiled, sound = by_id[:poisoned], by_id[poisoned:]
        for client in spoiled:
            client.array[7] = np.nan
        if trains_on:
            self.step_until(lambda: all(client.run.info().quarantines > 0 for client in spoiled), "NaN is noticed")
        finishing = sound if trains_on else by_id
        began = time.monotonic()
        ends = finish_all(finishing)
        self.assertLess(time.monotonic() - began, PATIENCE_S / 2)
        for client, end in zip(finishing, ends):
            if client in spoiled:
                self.assertEqual((end.agreed, end.saver, end.distance), (False, False, math.inf))
            else:
                self.assertEqual((end.agreed, end.saver, end.members), (True, client is sound[0], len(sound)))
        self.assertLess(spread(sound), AGREED)

    def test_one_of_three_with_nan_neither_saves_nor_holds_up_the_others(self) -> None:
        self.finish_with_nan(3, 1, trains_on=False)

    def test_nor_do_two_of_four(self) -> None:
        self.finish_with_nan(4, 2, trains_on=False)

    def test_nor_does_one_that_trains_on(self) -> None:
        self.finish_with_nan(3, 1, trains_on=True)

    def test_alone_with_nan_it_is_not_to_save(self) -> None:
        (client,) = [self.attach(node, np.ones(ELEMENTS)) for node in self.start_nodes(1)]
        client.array[0] = np.inf
        end = client.run.finish(timeout_s=PATIENCE_S)
        self.assertEqual((end.agreed, end.saver, end.distance), (False, False, math.inf))

    def finish_with_nan_in_a_group(self, trains_on: bool) -> None:
        """It serves nothing after its end, while the others still exchange."""
        nodes = self.start_nodes(3)
        clients = [self.attach(node, np.ones(ELEMENTS), wait=False) for node in (nodes[0], *nodes)]
        self.step_until(lambda: all(client.run.ready for client in clients), "all take part", clients)
        clients[0].array[0] = np.nan
        self.step_until(lambda: clients[0].run.info().quarantines > 0, "NaN is noticed", clients)
        random = np.random.default_rng(1)
        spoiled, *sound = clients
        for client in sound:
            client.array += random.standard_normal(ELEMENTS).astype(np.float32)
            client.step(100)  # values changed without a step do not count as training
        ends = finish_all(sound if trains_on else clients)
        if not trains_on:
            end, *ends = ends
            self.assertEqual((end.agreed, end.saver, end.distance), (False, False, math.inf))
        self.assertTrue(all(end.agreed and end.members == 3 for end in ends), ends)
        self.assertEqual(sum(end.saver for end in ends), 1)
        self.assertLess(spread(sound), AGREED)

    def test_of_two_clients_of_a_node_the_one_with_nan_is_left_out(self) -> None:
        self.finish_with_nan_in_a_group(trains_on=False)

    def test_of_two_clients_of_a_node_the_one_that_trains_on_with_nan_is_left_out(self) -> None:
        self.finish_with_nan_in_a_group(trains_on=True)

    def test_clients_of_one_node_finish_as_one(self) -> None:
        nodes = self.start_nodes(2)
        clients = [self.attach(node, np.ones(ELEMENTS), wait=False) for node in (nodes[0], nodes[0], nodes[1])]
        self.step_until(lambda: all(client.run.ready for client in clients), "all take part", clients)
        self.step_until(
            lambda: sorted((client.run.info().client_index, client.run.info().clients) for client in clients[:2])
            == [(0, 2), (1, 2)],
            "they are told that they are two",
            clients,
        )
        random = np.random.default_rng(1)
        for client, samples in zip(clients, (100, 300, 100)):
            client.array += random.standard_normal(ELEMENTS).astype(np.float32)
            client.step(samples)
        self.assertFalse(clients[0].run.finish(timeout_s=0.3).agreed, "the others still train")
        found = finish_all(clients)
        self.assertTrue(all(finish.agreed and finish.members == 2 for finish in found), found)
        self.assertEqual(len({finish.clock for finish in found}), 1, found)
        self.assertEqual(sum(finish.saver for finish in found), 1)
        self.assertLess(spread(clients), AGREED)

    def test_where_the_first_client_hangs_another_of_its_node_saves(self) -> None:
        (node,) = self.start_nodes(1)
        hangs, ends = (self.attach(node, np.ones(ELEMENTS), wait=False) for _ in range(2))
        self.step_until(
            lambda: [(one.run.info().client_index, one.run.info().clients) for one in (hangs, ends)] == [(0, 2), (1, 2)],
            "both take part",
            [hangs, ends],
        )
        found = ends.run.finish(timeout_s=1)
        self.assertEqual((found.agreed, found.saver), (False, True))
        both = finish_all([hangs, ends])
        self.assertEqual((sum(end.saver for end in both), [end.agreed for end in both]), (1, [True, True]))

    def test_a_node_all_of_whose_clients_hold_nan_is_no_member_and_does_not_save(self) -> None:
        nodes = sorted(self.start_nodes(2), key=lambda node: node.status()["node"])
        spoiled = [self.attach(nodes[0], np.ones(ELEMENTS), wait=False) for _ in range(2)]
        sound = self.attach(nodes[1], np.ones(ELEMENTS), wait=False)
        self.step_until(lambda: all(client.run.ready for client in self.clients), "all take part")
        for client in spoiled:
            client.array[3] = np.nan
        found = finish_all([*spoiled, sound])
        self.assertEqual([(end.agreed, end.saver) for end in found], [(False, False), (False, False), (True, True)])
        self.assertEqual(found[2].members, 1)

    def test_who_finished_before_and_idles_is_no_member_of_the_next_end(self) -> None:
        """Its program may save, or be left open: what the others train now is not in its model."""
        clients = self.start_apart(3)
        ids = {client.run.info().node_id: client for client in clients}
        self.assertTrue(all(end.agreed and end.members == 3 for end in finish_all(clients)))
        ids.pop(min(ids))
        others = list(ids.values())
        for client in others:
            client.array += 1
            client.step(100)
        ends = finish_all(others)
        self.assertTrue(all(end.agreed and end.members == 2 for end in ends), ends)
        self.assertEqual(sum(end.saver for end in ends), 1)
        self.assertLess(spread(others), AGREED)
        for client in clients:
            client.step(1)
        self.assertTrue(all(end.agreed and end.members == 3 for end in finish_all(clients)))
        self.assertLess(spread(clients), AGREED)

    def test_of_two_clients_of_a_node_one_that_has_finished_does_not_hold_up_the_other(self) -> None:
        [node] = self.start_nodes(1)
        clients = [self.attach(node, np.ones(ELEMENTS), wait=False) for _ in range(2)]
        self.step_until(lambda: all(client.run.ready for client in clients), "both take part")
        self.assertTrue(all(end.agreed for end in finish_all(clients)))
        clients[1].array += 1
        clients[1].step(100)
        end = clients[1].run.finish(PATIENCE_S)
        self.assertTrue(end.agreed and end.saver, end)

    def test_clients_in_double_precision_finish(self) -> None:
        """Rounding to single precision moves such clients for ever."""
        nodes = self.start_nodes(2)
        clients = [
            self.attach(node, np.ones(ELEMENTS, np.float64), wait=False) for node in (nodes[0], *[nodes[1]] * 3)
        ]
        self.step_until(lambda: all(client.run.ready for client in clients), "all take part")
        for end in range(5):
            for number, client in enumerate(clients):
                client.array += (number + end) / 3
                client.step(100)
            began = time.monotonic()
            found = finish_all(clients)
            self.assertTrue(all(one.agreed for one in found), found)
            self.assertLess(time.monotonic() - began, PATIENCE_S / 2)

    def test_alone_it_is_over_at_once(self) -> None:
        (client,) = [self.attach(node, np.ones(ELEMENTS)) for node in self.start_nodes(1)]
        found = client.run.finish(timeout_s=PATIENCE_S)
        self.assertTrue(found.agreed and found.saver and found.members == 1)
        detached = gossamer.attach([np.ones(4, np.float32)], job="other", socket="/nonexistent/socket", wait=False)
        found = detached.finish(timeout_s=PATIENCE_S)
        self.assertTrue(found.agreed and found.saver and found.members == 1)
        detached.close()

    def test_a_daemon_that_has_gone_away_is_not_waited_for_for_ever(self) -> None:
        """However it went, and without a time-out, too."""
        nodes = self.start_nodes(3)
        clients = [self.attach(node, np.ones(ELEMENTS)) for node in nodes]
        nodes[0].kill()
        nodes[1].stop()
        gossamerctl(BUILD, "--socket", str(nodes[2].control_socket), "leave", "--timeout", "1")
        self.step_until(lambda: not any(client.run.info().attached for client in clients), "they are alone")
        self.assertEqual([client.run.info().neighbours for client in clients], [0] * len(clients))
        began = time.monotonic()
        found = finish_all(clients, None)
        self.assertLess(time.monotonic() - began, DAEMON_PATIENCE_S + 5)
        self.assertTrue(all(end.agreed and end.saver and end.members == 1 for end in found), found)

    def test_a_daemon_that_is_restarted_is_waited_for(self) -> None:
        [node] = self.start_nodes(1)
        client = self.attach(node, np.ones(ELEMENTS))
        node.kill()
        self.step_until(lambda: not client.run.info().attached, "it is missed")
        ends: List[gossamer.Finish] = []
        finishing = threading.Thread(target=lambda: ends.append(client.run.finish(None)))
        finishing.start()
        time.sleep(1.0)
        self.assertTrue(finishing.is_alive())
        node.start()
        finishing.join()
        self.assertEqual(client.run.info().attachments, 2)
        self.assertTrue(ends[0].agreed and ends[0].saver, ends)


if __name__ == "__main__":
    unittest.main()

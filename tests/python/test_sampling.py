"""gossamer.sampling: every sample is visited, once where it should be, and a client that is started again goes on where
it was. The runs need no daemon.
"""

import sys
import unittest
import unittest.mock
from collections import Counter

from gossamer import GossamerError
from gossamer.sampling import ShardedSampler, ShuffledSampler, _Permutation, owners


class Info:
    parts, part = 1, 0

    def __init__(self, node_id, clock, trained, client_index=0, clients=1):
        self.node_id, self.client_index, self.clients = node_id, client_index, clients
        self.clock, self.trained = clock, trained


class FakeRun:
    """A run as a sampler sees it."""

    def __init__(self, node, members=None, clock=0, cursor=None, client=(0, 1)):
        self._node, self._client = node, client
        self.members = members or ([node] if node else [])
        self.clock = clock
        self.cursor = cursor
        self._begun_at = clock

    def take_over(self, samples):
        """Takes over a model that has seen this many samples more."""
        self.clock += samples
        self._begun_at += samples

    def info(self):
        return Info(self._node, self.clock, self.clock - self._begun_at, *self._client)


def train(sampler, run, samples, batch=1):
    """Trains on `samples` samples and stops in the middle of the loop."""
    seen = []
    for index in sampler:
        seen.append(index)
        if len(seen) % batch == 0:
            run.clock += batch
        if len(seen) == samples:
            return seen
    run.clock += len(seen) % batch
    return seen


# All implementations must agree on these.
RECORDED = [1, 4, 2, 5, 7, 0, 2, 6, 1, 3, 5, 1]
NODES = [f"{n:032x}" for n in range(1, 9)]


class InParts(unittest.TestCase):
    def test_parts_of_a_replica_are_refused(self):
        run = FakeRun(NODES[0])
        with unittest.mock.patch.object(Info, "parts", 2):
            for sampler in (ShuffledSampler, ShardedSampler):
                with self.assertRaisesRegex(GossamerError, "part 0 of 2"):
                    sampler(10, run)


class Pieces(unittest.TestCase):
    def test_a_permutation_visits_everything_once(self):
        for size in (1, 2, 3, 7, 64, 65, 1000):
            order = [_Permutation(size, 99)(i) for i in range(size)]
            self.assertEqual(sorted(order), list(range(size)))
        self.assertNotEqual([_Permutation(1000, 1)(i) for i in range(1000)], [_Permutation(1000, 2)(i) for i in range(1000)])

    def test_owners_do_not_depend_on_the_order_of_the_members_and_are_recorded(self):
        self.assertEqual(owners(NODES, 500), owners(NODES[::-1], 500))
        self.assertEqual([NODES.index(node) for node in owners(NODES, 12)], RECORDED)

    def test_owners_are_the_same_without_numpy(self):
        with_numpy = owners(NODES, 3000, seed=5)
        with unittest.mock.patch.dict(sys.modules, {"numpy": None}):
            self.assertEqual(owners(NODES, 3000, seed=5), with_numpy)

    def test_shards_are_of_nearly_the_same_size(self):
        for count in Counter(owners(NODES, 8000)).values():
            self.assertLess(abs(count - 1000), 150)

    def test_when_one_comes_or_goes_only_its_groups_change_hands(self):
        with_all, without = owners(NODES, 8000), owners(NODES[:-1], 8000)
        moved = sum(a != b for a, b in zip(with_all, without))
        self.assertLess(abs(moved - 1000), 150)
        self.assertTrue(all(a == NODES[-1] for a, b in zip(with_all, without) if a != b))


class Shuffled(unittest.TestCase):
    def test_an_epoch_visits_everything_and_orders_differ(self):
        run = FakeRun(NODES[0])
        sampler = ShuffledSampler(1000, run)
        first, second = train(sampler, run, 5000), train(sampler, run, 5000)
        self.assertEqual(sorted(first), list(range(1000)))
        self.assertEqual(sorted(second), list(range(1000)))
        self.assertNotEqual(first, second)
        self.assertEqual(sampler.epoch, 2)
        other = FakeRun(NODES[1])
        self.assertNotEqual(train(ShuffledSampler(1000, other), other, 5000), first)
        again = FakeRun(NODES[0])
        self.assertEqual(train(ShuffledSampler(1000, again), again, 5000), first)

    def test_a_client_started_again_goes_on_at_the_first_sample_not_trained_on(self):
        whole_run = FakeRun(NODES[0])
        sampler = ShuffledSampler(1000, whole_run)
        whole = train(sampler, whole_run, 1000) + train(sampler, whole_run, 300)
        run = FakeRun(NODES[0])
        sampler = ShuffledSampler(1000, run)
        head = train(sampler, run, 700)
        checkpoint, clock = run.cursor, run.clock
        self.assertEqual((head, clock), (whole[:700], 700))
        run = FakeRun(NODES[0], clock=clock, cursor=checkpoint)
        sampler = ShuffledSampler(1000, run)
        self.assertEqual(train(sampler, run, 5000), whole[700:1000])
        self.assertEqual(train(sampler, run, 300), whole[1000:])

    def test_what_a_loader_has_read_ahead_is_not_counted(self):
        run = FakeRun(NODES[0])
        sampler = ShuffledSampler(1000, run)
        ahead = iter(sampler)
        read = [next(ahead) for _ in range(640)]
        run.clock += 64
        self.assertEqual(train(sampler, run, 10), read[64:74])

    def test_the_samples_of_a_model_that_is_taken_over_meanwhile_are_not_counted(self):
        """A program that did not wait for its model makes its sampler first."""
        run = FakeRun(NODES[0])
        sampler = ShuffledSampler(1000, run)
        head = train(sampler, run, 300)
        run.take_over(85_184)
        self.assertEqual(len(sampler), 700)
        tail = train(sampler, run, 400)
        self.assertEqual(sampler.epoch, 0)
        checkpoint, clock = run.cursor, run.clock
        self.assertEqual(clock, 85_184 + 700)
        run = FakeRun(NODES[0], clock=clock, cursor=checkpoint)
        sampler = ShuffledSampler(1000, run)
        self.assertEqual(sorted(head + tail + train(sampler, run, 1000)), list(range(1000)))

    def test_a_last_batch_left_out_does_not_keep_the_epoch_from_ending(self):
        run = FakeRun(NODES[0])
        sampler = ShuffledSampler(100, run)
        for epoch in range(3):
            self.assertEqual(sampler.epoch, epoch)
            self.assertEqual(len(list(sampler)), 100)
            run.clock += 96  # three batches of 32
        self.assertEqual(sampler.epoch, 3)

    def test_without_a_daemon_a_client_started_again_is_the_one_it_was(self):
        run = FakeRun("")
        whole = train(ShuffledSampler(100, run), run, 40)
        run = FakeRun("", clock=run.clock, cursor=run.cursor)
        self.assertEqual(sorted(whole + train(ShuffledSampler(100, run), run, 100)), list(range(100)))

    def test_one_that_joins_begins_the_jobs_epoch(self):
        run = FakeRun(NODES[0])
        sampler = ShuffledSampler(100, run)
        train(sampler, run, 500), train(sampler, run, 40)
        joiner = FakeRun(NODES[1], cursor=run.cursor)
        sampler = ShuffledSampler(100, joiner)
        self.assertEqual((sampler.epoch, len(sampler)), (1, 100))

    def test_the_programs_own_cursor_is_kept(self):
        run = FakeRun(NODES[0], cursor={"mine": 1})
        train(ShuffledSampler(10, run), run, 5)
        self.assertEqual(run.cursor["mine"], 1)


class Sharded(unittest.TestCase):
    def test_shards_are_disjoint_and_cover_everything(self):
        for size in (5, 1000, 9001):
            runs = [FakeRun(node, NODES[:3]) for node in NODES[:3]]
            samplers = [ShardedSampler(size, run) for run in runs]
            for _ in range(2):
                seen = [index for sampler, run in zip(samplers, runs) for index in train(sampler, run, size + 1)]
                self.assertEqual(sorted(seen), list(range(size)))

    def test_clients_of_one_node_share_its_shard(self):
        runs = [FakeRun(NODES[0], NODES[:2], client=(index, 3)) for index in range(3)] + [FakeRun(NODES[1], NODES[:2])]
        shards = [train(ShardedSampler(1000, run), run, 1001) for run in runs]
        self.assertTrue(all(len(shard) > 100 for shard in shards))
        self.assertEqual(sorted(index for shard in shards for index in shard), list(range(1000)))

    def test_a_shard_stays_with_its_client_and_its_order_changes(self):
        run = FakeRun(NODES[0], NODES[:3])
        sampler = ShardedSampler(1000, run)
        length = len(sampler)
        first, second = train(sampler, run, 1001), train(sampler, run, 1001)
        self.assertEqual(len(first), length)
        self.assertEqual(sorted(first), sorted(second))
        self.assertNotEqual(first, second)

    def test_what_a_newcomer_takes_over_lies_ahead(self):
        """With clients equally far, each sample is visited once in the epoch although the members change in its
        middle."""
        size, pair = 3000, NODES[:2]
        runs = [FakeRun(node, pair) for node in pair]
        samplers = [ShardedSampler(size, run) for run in runs]
        loops = [iter(sampler) for sampler in samplers]
        seen = []
        # Each sampler goes through its own part up to the middle of the common order.
        for sampler, run, loop in zip(samplers, runs, loops):
            for _ in range(sum(1 for place in sampler._places(0, 0) if place < size // 2)):
                seen.append(next(loop))
                run.clock += 1
        joiner = FakeRun(NODES[2], NODES[:3], cursor={"sampler": {"node": NODES[0], "client": 0, "epoch": 0, "place": size // 2, "clock": 0}})
        for run in runs:
            run.members = NODES[:3]
        for sampler, run, loop in zip(samplers, runs, loops):
            seen += list(loop)
        taken = train(ShardedSampler(size, joiner), joiner, size)
        self.assertTrue(taken)
        self.assertEqual(sorted(seen + taken), list(range(size)))

    def test_everything_is_visited_when_one_leaves(self):
        size = 1000
        run = FakeRun(NODES[0], NODES[:2])
        sampler = ShardedSampler(size, run)
        train(sampler, run, size)
        run.members = NODES[:1]
        self.assertEqual(sorted(train(sampler, run, size + 1)), list(range(size)))

    def test_a_client_started_again_goes_on(self):
        whole_run = FakeRun(NODES[0], NODES[:2])
        whole = train(ShardedSampler(2000, whole_run), whole_run, 2000)
        run = FakeRun(NODES[0], NODES[:2])
        train(ShardedSampler(2000, run), run, 400)
        run = FakeRun(NODES[0], NODES[:2], clock=run.clock, cursor=run.cursor)
        self.assertEqual(train(ShardedSampler(2000, run), run, 2000), whole[400:])


if __name__ == "__main__":
    unittest.main()

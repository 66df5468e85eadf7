"""Which samples a client trains on, and in which order: samplers for a run, with nothing to be agreed on.

    sampler = gossamer.sampling.ShardedSampler(len(dataset), run)
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, sampler=sampler)     # or: for index in sampler

ShuffledSampler gives every client all samples, in an order of its own. ShardedSampler gives every sample to one client.
One pass of `for index in sampler` is one epoch. The position is kept in the run's cursor, under "sampler", so that a
client that is started again goes on where it was, and one that joins begins where the job is.

What counts as done is what `run.step(samples=...)` was told, not what was asked of the sampler: a data loader may have
read ahead. Pure Python, with and without PyTorch. For the thread that uses the run.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import secrets
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

from ._library import GossamerError
from ._run import Run

__all__ = ["ShuffledSampler", "ShardedSampler", "owners"]

_MASK = (1 << 64) - 1
# Samples change hands in at most this many groups: few enough to be dealt out in milliseconds, and many enough for
# shards of nearly the same size.
MAX_GROUPS = 8192
_ROUNDS = 4
# The position is saved after this many samples were given out, so that a joining client gets a recent one.
SETTLE_EVERY = 256
MAX_EPOCHS_SKIPPED = 16


def _mix(x: int) -> int:
    """A hash of 64 well-mixed bits (the finaliser of SplitMix64: Steele, Lea & Flood 2014)."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def _key(*parts: object) -> int:
    """A hash of the parts' text with 64 bits, the same on every machine."""
    text = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class _Permutation:
    """A permutation of range(size), computed element by element: a balanced Feistel network with cycle walking (Black &
    Rogaway 2002). A million samples need no list, and any position can be entered at once."""

    def __init__(self, size: int, key: int):
        self._size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        self._half_mask = (1 << self._half_bits) - 1
        self._keys = [_mix((key + number * 0x9E3779B97F4A7C15) & _MASK) for number in range(_ROUNDS)]

    def __call__(self, position: int) -> int:
        value = position
        while True:
            left, right = value >> self._half_bits, value & self._half_mask
            for key in self._keys:
                left, right = right, left ^ (_mix((right + key) & _MASK) & self._half_mask)
            value = left << self._half_bits | right
            if value < self._size:
                return value


def owners(members: Sequence[str], groups: int, seed: int = 0) -> List[str]:
    """The owner of each of range(groups): the member whose hash with the group is largest (rendezvous hashing, Thaler &
    Ravishankar 1998). All that know the same members get the same answer. When one of n members comes or goes, only its
    own groups, about 1/n of all, change hands."""
    keys = [(_key(seed, member), member) for member in sorted(set(members))]
    if not keys:
        raise ValueError("there are no members")
    try:
        import numpy
    except ImportError:
        return [max((_mix(key ^ _mix(group + 1)), member) for key, member in keys)[1] for group in range(groups)]
    return _owners_at_once(numpy, keys, groups)


def _owners_at_once(numpy: Any, keys: List[Tuple[int, str]], groups: int) -> List[str]:
    """Does the same a hundred times as fast, because members come and go while the program trains."""

    def mix(x: Any) -> Any:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> numpy.uint64(shift))) * numpy.uint64(factor)
        return x ^ (x >> numpy.uint64(31))

    mixed = mix(numpy.arange(1, groups + 1, dtype=numpy.uint64))
    largest, owner = numpy.zeros(groups, numpy.uint64), numpy.zeros(groups, numpy.int64)
    for index, (key, _) in enumerate(keys):
        hashes = mix(mixed ^ numpy.uint64(key))
        better = hashes >= largest
        largest[better], owner[better] = hashes[better], index
    return [keys[index][1] for index in owner]


class _Sampler:
    """The common part of both samplers: the position (an epoch, and a place in its order), which is kept in the cursor.

    An order has `size` places. A client visits its own places; a place counts as done once the run's clock says so.
    Subclasses say which index a place has, and which places are the client's own.
    """

    def __init__(self, size: int, run: Run, seed: int = 0):
        if size < 1:
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", f"a sampler needs at least one sample; size is {size}")
        self._size = size
        self._run = run
        self._seed = seed
        info = run.info()
        if info.parts > 1:
            raise GossamerError(
                "GOSSAMER_UNSUPPORTED",
                f"the run is part {info.part} of {info.parts} of a replica, and samplers would give all of them the same samples: in "
                "shards let torch.utils.data.DistributedSampler deal them out, and elsewhere draw with one seed",
            )
        self.node = info.node_id or secrets.token_hex(16)
        self.client = info.client_index  # index of this client among those that train the job at this node
        self._epoch, self._place = 0, 0  # the next place to be trained on
        self._trained = info.trained  # what the run had counted at that position
        self._given: Deque[Tuple[int, int]] = deque()  # (epoch, place) given out and not trained on yet
        self._exhausted: List[int] = []  # the next epoch, once a loop has gone to its end
        self._iteration = 0
        self._restore()

    @property
    def epoch(self) -> int:
        """The epoch of the next loop, from 0, or of the present loop."""
        self._settle()
        return self._exhausted[0] if self._exhausted else self._epoch

    def __iter__(self) -> Iterator[int]:
        """The rest of the present epoch. Places that were given out before but not trained on are given out again.
        After a loop that went to its end, the next epoch follows, whatever was left of the last batch."""
        self._settle()
        if self._exhausted:
            self._epoch, self._place = self._exhausted[0], 0
        elif self._place > 0 and next(self._places(self._epoch, self._place), None) is None:
            self._epoch, self._place = self._epoch + 1, 0  # training ended after the epoch's last sample
        self._exhausted.clear()
        self._given.clear()
        self._trained = self._run.info().trained
        self._iteration += 1
        self._save()
        return self._rest(self._iteration, self._epoch, self._place)

    def _rest(self, iteration: int, epoch: int, place: int) -> Iterator[int]:
        for at in self._places(epoch, place):
            if iteration != self._iteration:
                raise RuntimeError("this sampler has been started again since: use one loop at a time")
            self._given.append((epoch, at))
            if len(self._given) % SETTLE_EVERY == 0:
                self._settle()
            yield self._index(epoch, at)
        self._exhausted.append(epoch + 1)
        self._settle()

    def _settle(self) -> None:
        """Moves the position to where training is."""
        trained = self._run.info().trained - self._trained
        moved = False
        while self._given and trained > 0:
            epoch, at = self._given.popleft()
            self._epoch, self._place = epoch, at + 1
            self._trained += 1
            trained -= 1
            moved = True
        if self._exhausted and not self._given:
            self._epoch, self._place = self._exhausted.pop(), 0
            moved = True
        if moved:
            self._save()

    def _save(self) -> None:
        cursor = self._run.cursor
        if isinstance(cursor, bytes):
            raise GossamerError("GOSSAMER_BAD_ARGUMENT", "the cursor is bytes; beside a sampler it has to be a dict")
        info = self._run.info()
        clock = info.clock - (info.trained - self._trained)  # the run's clock at the position
        state = {"node": self.node, "client": self.client, "epoch": self._epoch, "place": self._place, "clock": clock}
        self._run.cursor = {**(cursor or {}), "sampler": state}

    def _restore(self) -> None:
        cursor = self._run.cursor
        state = cursor.get("sampler") if isinstance(cursor, dict) else None
        try:
            epoch, place, clock = (int(state[name]) for name in ("epoch", "place", "clock"))  # type: ignore[index]
            node, client = str(state["node"]), int(state["client"])  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            return  # there is no cursor, or another program's
        self._epoch, self._place = max(0, epoch), min(max(0, place), self._size)
        if not self._run.info().node_id:
            # Without a daemon the node's id is not known, so this process takes the one that it had before.
            self.node, self.client = node, client
        if (node, client) == (self.node, self.client):
            self._skip(max(0, self._run.clock - clock))
        else:
            self._adopt()

    def _skip(self, samples: int) -> None:
        """Skips samples that were trained on after the position was kept."""
        if samples > MAX_EPOCHS_SKIPPED * self._size:  # the position is useless: it is very old, or another program's
            self._epoch, self._place = self._epoch + 1, 0
            return
        while samples > 0:
            left = 0
            for at in self._places(self._epoch, self._place):
                left += 1
                if left == samples:
                    self._place = at + 1
                    return
            if left == 0 and self._place == 0:
                return  # no place belongs to this client
            samples -= left
            self._epoch, self._place = self._epoch + 1, 0

    def _adopt(self) -> None:
        """Takes over the position of the client that the model came from."""
        raise NotImplementedError

    def _places(self, epoch: int, first: int) -> Iterator[int]:
        raise NotImplementedError

    def _index(self, epoch: int, place: int) -> int:
        raise NotImplementedError


class ShuffledSampler(_Sampler):
    """Every client goes through all samples in each epoch, in an order of its own, which depends on its node, the epoch
    and `seed`. A client that joins begins with the job's present epoch."""

    def __init__(self, size: int, run: Run, seed: int = 0):
        self._order: Optional[Tuple[int, _Permutation]] = None
        super().__init__(size, run, seed)

    def __len__(self) -> int:
        """The samples left in the epoch."""
        self._settle()
        return self._size - self._place

    def _adopt(self) -> None:
        self._place = 0

    def _places(self, epoch: int, first: int) -> Iterator[int]:
        return iter(range(first, self._size))

    def _index(self, epoch: int, place: int) -> int:
        if self._order is None or self._order[0] != epoch:
            self._order = (epoch, _Permutation(self._size, _key("order", self._seed, self.node, self.client, epoch)))
        return self._order[1](place)


class ShardedSampler(_Sampler):
    """Every sample belongs to one client. owners() deals the samples to the members in groups, and deals them again as
    members come and go, so that about 1/n of them change hands.

    All clients go through one order, which depends on the epoch and `seed`, and each visits its own samples in it. When
    members come or go, only samples that still lie ahead change hands. This is exact for clients that are equally far;
    otherwise a sample may be visited twice or left out in that epoch. Every sample is visited as long as every member
    knows itself as one. Members that do not see each other (run.members, in clusters larger than a node's view) may
    visit the same sample.
    """

    def __init__(self, size: int, run: Run, seed: int = 0):
        self._groups = min(size, MAX_GROUPS)
        self._shuffle = _Permutation(size, _key("groups", seed))
        self._way: Tuple[int, List[int], List[int]] = (-1, [], [])  # epoch, its groups in order, their first places
        self._dealt: Tuple[object, List[bool]] = ((), [])
        super().__init__(size, run, seed)

    def __len__(self) -> int:
        """The samples left in the epoch, with the present members."""
        self._settle()
        return sum(end - begin for begin, end in self._stretches(self._epoch, self._place))

    def own_groups(self) -> List[bool]:
        """Whether each group is this client's, with the present members."""
        info = self._run.info()
        members = tuple(sorted(set(self._run.members) | {self.node}))
        known = (members, info.client_index, info.clients)
        if known != self._dealt[0]:
            # Groups are dealt to the nodes first, and then to the clients of the node.
            nodes = owners(members, self._groups, self._seed)
            clients = owners([str(index) for index in range(info.clients)], self._groups, _key(self._seed, self.node))
            own = (self.node, str(info.client_index))
            self._dealt = (known, [one == own for one in zip(nodes, clients)])
        return self._dealt[1]

    def _adopt(self) -> None:
        pass  # all clients share one order, so others have visited the places before this one

    def _group_begin(self, group: int) -> int:
        """The group's first place in the fixed order that groups are cut from. The groups' sizes differ by one at
        most."""
        return group * self._size // self._groups

    def _epoch_way(self, epoch: int) -> Tuple[List[int], List[int]]:
        if self._way[0] != epoch:
            order = _Permutation(self._groups, _key("order", self._seed, epoch))
            groups = [order(rank) for rank in range(self._groups)]
            sizes = (self._group_begin(group + 1) - self._group_begin(group) for group in groups)
            self._way = (epoch, groups, list(itertools.accumulate(sizes, initial=0)))
        return self._way[1], self._way[2]

    def _stretches(self, epoch: int, first: int) -> Iterator[Tuple[int, int]]:
        """This client's places from `first`, as [begin, end). Asks again for each group whose it is."""
        groups, places = self._epoch_way(epoch)
        for rank in range(max(0, bisect.bisect_right(places, first) - 1), self._groups):
            if self.own_groups()[groups[rank]]:
                yield max(first, places[rank]), places[rank + 1]

    def _places(self, epoch: int, first: int) -> Iterator[int]:
        for begin, end in self._stretches(epoch, first):
            yield from range(begin, end)

    def _index(self, epoch: int, place: int) -> int:
        groups, places = self._epoch_way(epoch)
        rank = bisect.bisect_right(places, place) - 1
        return self._shuffle(self._group_begin(groups[rank]) + place - places[rank])

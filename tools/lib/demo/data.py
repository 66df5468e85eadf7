"""The images: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, split the same way in every process.

A third is held out for testing, the same for everyone. The rest is dealt to the nodes in parts of equal size but
unequal content: nine tenths of the images go out sorted by digit, so that each of four nodes sees mostly two or three
kinds, and one tenth at random. A model trained on one part alone is therefore clearly worse than one trained on all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List

import numpy as np

HELD_OUT = 599
SORTED_SHARE = 0.9
CLASSES = 10
PIXELS = 64


@dataclass(frozen=True)
class Digits:
    images: np.ndarray  # float32, (n, 64), 0 to 1
    labels: np.ndarray  # int64, (n,)

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, index: np.ndarray) -> "Digits":
        return Digits(self.images[index], self.labels[index])

    def kinds(self) -> str:
        """The digits that make up most of these images, most frequent first."""
        counts = np.bincount(self.labels, minlength=CLASSES)
        common = [digit for digit in np.argsort(-counts, kind="stable") if counts[digit] > 1.5 * len(self) / CLASSES]
        return ", ".join(str(digit) for digit in common) or "all"


@dataclass(frozen=True)
class Split:
    held_out: Digits
    training: Digits
    shards: List[Digits]  # parts of `training`


def split(seed: int, parts: int) -> Split:
    # Imported here because it is slow, and not every program that uses these images loads them.
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    digits = Digits((images / 16).astype(np.float32), labels.astype(np.int64))
    random = np.random.default_rng([seed, 1])
    order = random.permutation(len(digits))
    held_out, rest = order[:HELD_OUT], order[HELD_OUT:]

    to_sort = int(SORTED_SHARE * len(rest))
    rank = random.permutation(CLASSES)  # the order in which the digits are dealt
    by_digit = rest[:to_sort][np.argsort(rank[digits.labels[rest[:to_sort]]], kind="stable")]
    shards = [
        digits.of(np.concatenate(pair))
        for pair in zip(np.array_split(by_digit, parts), np.array_split(rest[to_sort:], parts))
    ]
    return Split(digits.of(held_out), digits.of(rest), shards)

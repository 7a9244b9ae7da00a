"""Bisection: the first bad version of a history, by a test of as few versions as possible."""

from __future__ import annotations

from collections.abc import Callable

GOOD = "good"
BAD = "bad"
SKIPPED = "skipped"
FLAKY = "flaky"  # tests of one version differ: it says no more than a skipped one


def first_bad(count: int, test: Callable[[int], str]) -> range:
    """Returns the first bad of `count` versions, of which 0 is good and the last is bad; several
    where all but the last of them were skipped. Without skips that takes ⌈log2(count - 1)⌉ tests;
    after one, versions at a distance of 1, 2, 4, … from it come first."""
    low = 0
    high = count - 1
    skipped = set[int]()
    while untested := [version for version in range(low + 1, high) if version not in skipped]:
        middle = (low + high) // 2
        candidate = min(
            untested,
            key=lambda version: ((version - middle).bit_count() > 1, abs(version - middle)),
        )
        result = test(candidate)
        if result in (SKIPPED, FLAKY):
            skipped.add(candidate)
        low = candidate if result == GOOD else low
        high = candidate if result == BAD else high
    return range(low + 1, high + 1)

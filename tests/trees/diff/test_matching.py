"""What corresponds in two texts: correct for all, good for usual ones, bounded for the rest."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from casfs.trees.diff import matching
from casfs.trees.diff.matching import Lines, changed_blocks

TEXT = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n", b"\n", b"e"]), max_size=30)
SIZE = 256 << 10  # bytes of the largest text that is shown
SORTED = [b"%05d\n" % n for n in range(SIZE // 6)]


def rebuilt(old: Lines, new: Lines) -> Lines:
    """`new`, from `old` and the blocks alone."""
    found: Lines = []
    at = 0
    for i1, i2, j1, j2 in changed_blocks(old, new):
        assert at <= i1 <= i2
        assert (i1, j1) != (i2, j2)
        found += old[at:i1] + new[j1:j2]
        at = i2
    return found + old[at:]


def swapped(lines: Lines, size: int) -> Lines:
    """Neighbouring pieces of so many lines change places."""
    pairs = range(0, len(lines) - 2 * size + 1, 2 * size)
    return [
        line
        for at in pairs
        for line in lines[at + size : at + 2 * size] + lines[at : at + size]
    ]  # fmt: skip


@given(old=TEXT, new=TEXT)
@example(old=[b"a\n"] * 3, new=[b"a\n"] * 2)
@example(old=[], new=[])
def test_blocks_say_what_became_of_the_old_lines(old: Lines, new: Lines) -> None:
    assert rebuilt(old, new) == new


@given(old=TEXT, new=TEXT, limit=st.integers(0, 200))
def test_blocks_are_right_wherever_the_effort_ends(old: Lines, new: Lines, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(matching, "MATCH_BUDGET", limit)
        assert rebuilt(old, new) == new


def test_an_edit_of_a_large_text_is_small() -> None:
    old = [b"%d\n" % n for n in range(50_000)]
    new = [*old[:25_000], b"new\n", *old[25_001:]]
    assert changed_blocks(old, new) == [(25_000, 25_001, 25_000, 25_001)]


def test_each_pair_of_swapped_lines_is_found() -> None:
    old = SORTED[:-1] if len(SORTED) % 2 else SORTED
    new = swapped(old, 1)
    assert rebuilt(old, new) == new
    assert sum(i2 - i1 for i1, i2, _, _ in changed_blocks(old, new)) == len(old) // 2


def test_repetitive_texts_are_not_matched() -> None:
    old = [b"%d\n" % (n % 150) for n in range(60_000)]
    new = [b"%d\n" % (n * 7 % 150) for n in range(60_000)]
    assert changed_blocks(old, new) == [(1, 60_000, 1, 60_000)]


class Counted(bytes):
    """A line that counts how often it was looked up."""

    looked = 0

    def __hash__(self) -> int:
        Counted.looked += 1
        return super().__hash__()


@pytest.mark.parametrize("kind", ["shuffled", "reversed", "swapped", "doubled", "few"])
def test_the_effort_is_bounded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a few looks for each line there are no more than MATCH_BUDGET."""
    dice = random.Random(kind)
    old = SORTED
    if kind == "shuffled":
        new = dice.sample(old, len(old))
    elif kind == "reversed":
        new = old[::-1]
    elif kind == "swapped":
        new = swapped(old, 1)
    elif kind == "doubled":  # no anchors, and a chain of tiny matches
        old = [line for line in old[: len(old) // 2] for _ in range(2)]
        new = swapped(old, 2)
    else:
        old = [b"%d\n" % dice.randrange(5000) for _ in range(SIZE // 5)]
        new = [b"%d\n" % dice.randrange(5000) for _ in range(SIZE // 5)]
    counted = [Counted(line) for line in old]
    monkeypatch.setattr(matching, "MATCH_BUDGET", 500_000)
    monkeypatch.setattr(Counted, "looked", 0)
    found = changed_blocks(counted, [Counted(line) for line in new])
    assert found
    assert Counted.looked <= 500_000 + 10 * (len(old) + len(new))

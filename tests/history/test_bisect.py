"""The search for the first bad version, against a linear one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from casfs.history.bisect import BAD, GOOD, SKIPPED, first_bad


def searched(outcomes: Sequence[str]) -> tuple[range, list[int]]:
    """What is found, and which versions were tested."""
    tested: list[int] = []

    def test(at: int) -> str:
        tested.append(at)
        return outcomes[at]

    return first_bad(len(outcomes), test), tested


def linear(outcomes: Sequence[str]) -> range:
    bad = outcomes.index(BAD)
    good = max(at for at in range(bad) if outcomes[at] == GOOD)
    return range(good + 1, bad + 1)


@st.composite
def histories(draw: st.DrawFn) -> list[str]:
    goods, bads = draw(st.integers(1, 300)), draw(st.integers(1, 300))
    found = [GOOD] * goods + [BAD] * bads
    for start, length in draw(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 200)))):
        for at in range(start, min(start + length, len(found) - 1)):
            found[at] = SKIPPED
    return found


@given(histories())
def test_as_a_linear_search(outcomes: list[str]) -> None:
    found, tested = searched(outcomes)
    assert found == linear(outcomes)
    assert len(set(tested)) == len(tested), "none is tested twice"
    assert not {0, len(outcomes) - 1} & set(tested), "the ends are known"


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_the_number_of_tests(goods: int, bads: int) -> None:
    found, tested = searched([GOOD] * goods + [BAD] * bads)
    assert found == range(goods, goods + 1)
    assert len(tested) <= (goods + bads - 2).bit_length(), "log2 of the candidates, rounded up"


def test_a_long_run_of_skips_is_left_soon() -> None:
    outcomes = [GOOD] * 300 + [SKIPPED] * 400 + [GOOD] * 200 + [BAD] * 100
    found, tested = searched(outcomes)
    assert found == range(900, 901)
    assert len(tested) < 50, "of 998"
    assert searched([GOOD] * 2 + [BAD])[1] == [1]
    assert searched([GOOD, BAD])[1] == []

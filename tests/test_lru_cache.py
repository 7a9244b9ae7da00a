from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from casfs.lru_cache import Memo


def test_what_was_put_is_there() -> None:
    memo = Memo(10)
    assert memo.get("a") is None
    memo.put("a", [1], 1)
    assert memo.get("a") == [1]


def test_the_least_recently_used_goes_first() -> None:
    memo = Memo(3)
    for key in "abc":
        memo.put(key, key, 1)
    memo.get("a")
    memo.put("d", "d", 1)
    assert [memo.get(key) for key in "abcd"] == ["a", None, "c", "d"]


def test_a_heavy_item_pushes_out_several() -> None:
    memo = Memo(4)
    for key in "abcd":
        memo.put(key, key, 1)
    memo.put("e", "e", 3)
    assert [memo.get(key) for key in "abcde"] == [None, None, None, "d", "e"]


def test_an_item_heavier_than_the_limit_stays_alone() -> None:
    memo = Memo(2)
    memo.put("a", "a", 1)
    memo.put("b", "b", 100)
    assert [memo.get(key) for key in "ab"] == [None, "b"]
    memo.put("c", "c", 1)
    assert [memo.get(key) for key in "bc"] == [None, "c"]


def test_putting_again_replaces_value_and_weight() -> None:
    memo = Memo(4)
    memo.put("a", "old", 4)
    memo.put("a", "new", 1)
    memo.put("b", "b", 3)
    assert [memo.get(key) for key in "ab"] == ["new", "b"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5)), max_size=40))
def test_it_never_holds_more_than_its_limit(puts: list[tuple[str, int]]) -> None:
    memo, weights = Memo(8), {}
    for key, weight in puts:
        memo.put(key, key, weight)
        weights[key] = weight
        assert memo.get(key) == key
        assert sum(weights[other] for other in "abcdef" if memo.get(other)) <= 8

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from casfs.system.lru_cache import LruCache


def test_what_was_put_is_there() -> None:
    cache = LruCache(10)
    assert cache.get("a") is None
    cache.put("a", [1], 1)
    assert cache.get("a") == [1]


def test_a_value_that_was_read_before_the_cache_was_cleared_is_not_cached() -> None:
    cache = LruCache(3)
    generation = cache.generation
    cache.clear()
    cache.put("a", "stale", 1, generation)
    assert cache.get("a") is None
    cache.put("a", "new", 1, cache.generation)
    assert cache.get("a") == "new"


def test_the_least_recently_used_goes_first() -> None:
    cache = LruCache(3)
    for key in "abc":
        cache.put(key, key, 1)
    cache.get("a")
    cache.put("d", "d", 1)
    assert [cache.get(key) for key in "abcd"] == ["a", None, "c", "d"]


def test_a_heavy_item_pushes_out_several() -> None:
    cache = LruCache(4)
    for key in "abcd":
        cache.put(key, key, 1)
    cache.put("e", "e", 3)
    assert [cache.get(key) for key in "abcde"] == [None, None, None, "d", "e"]


def test_an_item_heavier_than_the_limit_stays_alone() -> None:
    cache = LruCache(2)
    cache.put("a", "a", 1)
    cache.put("b", "b", 100)
    assert [cache.get(key) for key in "ab"] == [None, "b"]
    cache.put("c", "c", 1)
    assert [cache.get(key) for key in "bc"] == [None, "c"]


def test_putting_again_replaces_value_and_weight() -> None:
    cache = LruCache(4)
    cache.put("a", "old", 4)
    cache.put("a", "new", 1)
    cache.put("b", "b", 3)
    assert [cache.get(key) for key in "ab"] == ["new", "b"]


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5)), max_size=40))
def test_it_never_holds_more_than_its_limit(puts: list[tuple[str, int]]) -> None:
    cache, weights = LruCache(8), {}
    for key, weight in puts:
        cache.put(key, key, weight)
        weights[key] = weight
        assert cache.get(key) == key
        assert sum(weights[other] for other in "abcdef" if cache.get(other)) <= 8

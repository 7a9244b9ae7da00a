"""Checkpoints by the texts that name them: count, id, part of an id, time."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from casfs.checkpoints import checkpoint, forget
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.errors import Conflict, Invalid, NotFound
from casfs.store.store import Store
from tests.support.maintenance import CREATED, put_checkpoint

HOUR = 3_600_000


@pytest.fixture
def made(store: Store) -> list[Checkpoint]:
    """Three, an hour apart, and one of another name after them."""
    for hours in range(3):
        put_checkpoint(store, {"f": b"%d" % hours}, at=hours * HOUR)
    put_checkpoint(store, {"f": b"other"}, "other", at=9 * HOUR)
    return checkpoint.listing(store, "work")


def test_by_count(store: Store, made: list[Checkpoint]) -> None:
    for text, place in [("work~0", 2), ("work~", 1), ("work~1", 1), ("work@latest~2", 0)]:
        assert checkpoint.find(store, text) == made[place]
    assert checkpoint.find(store, f"work@{made[1].id}~1") == made[0]
    with pytest.raises(NotFound, match=r"no checkpoint 3 before work@.*: there are 2"):
        checkpoint.find(store, "work~3")


def test_by_a_part_of_its_id(store: Store, made: list[Checkpoint]) -> None:
    one = made[1]
    random = one.id[-8:]
    for text in (f"work@{random}", f"work@{random[2:6]}", f"work@{random.upper()}", one.id, random):
        assert checkpoint.find(store, text) == one
    assert checkpoint.find(store, f"{random[:4]}~1") == made[0]
    assert checkpoint.find(store, "@last").name == "other"
    with pytest.raises(Conflict, match=f"work@{made[0].id}, work@{made[1].id}, work@"):
        checkpoint.find(store, "work@20")
    for text in (f"work@{random[:3]}", random[:3], f"other@{random}"):
        with pytest.raises(NotFound, match="casfs checkpoint list"):
            checkpoint.find(store, text)


def test_by_time(store: Store, made: list[Checkpoint]) -> None:
    def at(ms: int) -> str:
        return f"work@{{{datetime.fromtimestamp((CREATED + ms) / 1000, UTC).isoformat()}}}"

    for ms, place in [(0, 0), (HOUR - 1, 0), (HOUR, 1), (HOUR + 1, 1), (99 * HOUR, 2)]:
        assert checkpoint.find(store, at(ms)) == made[place]
    assert checkpoint.find(store, "work@{yesterday}") == made[2]
    assert checkpoint.find(store, "work@{2 hours ago}~1") == made[1]
    with pytest.raises(NotFound, match=f"no checkpoint .work. at .*; the oldest is {made[0].id}"):
        checkpoint.find(store, at(-1))
    with pytest.raises(Invalid, match="invalid time 'last summer'"):
        checkpoint.find(store, "work@{last summer}")


def test_back_from_one_that_was_forgotten_meanwhile(store: Store, made: list[Checkpoint]) -> None:
    forget.remove(store, [made[1]])
    with pytest.raises(NotFound, match=f"no checkpoint 'work@{made[1].id}'"):
        checkpoint._back(store, made[1], 1)


def test_names_are_sorted(store: Store) -> None:
    for name in ("a", "a-b", "a.b", "B"):
        put_checkpoint(store, {}, name)
    assert checkpoint.names(store) == ["B", "a", "a-b", "a.b"]

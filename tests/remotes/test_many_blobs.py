"""Many blobs of many sizes in several packs: whole, lazily, and whole after that."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from casfs.backend.derived import in_remote
from casfs.remotes import push as pushing
from casfs.remotes.remote import Settings
from tests.support.remotes import NAME, Site

Sites = Callable[[Settings], Site]
RANDOM = random.Random(11)
TREE = {
    f"dir{d}": {
        f"file{n}": RANDOM.randbytes(RANDOM.choice((10, 900, 2000, 9000, 70_000)))
        for n in range(60)
    }
    for d in range(20)
} | {"large": {"a": RANDOM.randbytes(3 << 20), "b": bytes(5 << 20)}}


@pytest.fixture
def pushed(directory: Settings, sites: Sites, monkeypatch: pytest.MonkeyPatch) -> tuple[Site, str]:
    monkeypatch.setitem(pushing.PLAIN_BYTES, "blobs", 8 << 20)
    here = sites(directory)
    name = here.checkpoint("app", TREE)
    assert here.push("app").packs > 4
    return here, name


def test_whole(pushed: tuple[Site, str], sites: Sites) -> None:
    here, name = pushed
    there = sites(here.settings)
    there.pull()
    assert there.contents(name) == here.contents(name)
    assert not list(in_remote(there.store.blobs))
    assert not any((there.root / "remotes" / NAME / "packs").iterdir())  # it was a buffer


def test_lazily_and_then_whole(pushed: tuple[Site, str], sites: Sites) -> None:
    here, name = pushed
    there = sites(here.settings)
    done = there.pull(lazy=True)
    assert len(list(in_remote(there.store.blobs, NAME))) == done.blobs > 1000
    assert there.heads() == here.heads()
    assert there.pull().unchanged == 1
    assert not list(in_remote(there.store.blobs))
    assert there.contents(name) == here.contents(name)

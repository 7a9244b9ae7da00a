"""A text that was purged from a record leaves a remote's log, and no old copy brings it back."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.backend.protocols import Head
from casfs.checkpoints import create as checkpoints
from casfs.exchange.arrivals import is_what_is_left
from casfs.maintenance import archive, grep
from casfs.maintenance.needle import Needle
from casfs.maintenance.redact import redact
from casfs.remotes import gc as remote_gc
from casfs.remotes.log import SNAPSHOT_INTERVAL
from casfs.remotes.remote import Settings
from casfs.store.store import Store
from tests.remotes.conftest import Sites
from tests.support.helpers import write_tree
from tests.support.remotes import Site
from tests.support.thread_example import make_thread

TEXT = "hunter2-in-a-message"


def purge(store: Store) -> None:
    needle = Needle(TEXT)
    redact(store, needle, grep.search(store, needle), "leaked")


def has_text(store: Store) -> bool:
    return bool(grep.search(store, Needle(TEXT)))


def collect(site: Site) -> int:
    with site.remote() as remote:
        return remote_gc.collect(remote).entries


def is_in_log(site: Site) -> bool:
    with site.remote() as remote:
        end = remote.state.position()[0]
        entries = [remote.entry(number) for number in range(1, end + 1)]
    return TEXT in repr(entries)


@pytest.fixture
def said(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "place", {"f": b"1"})


def record(store: Store, place: Path) -> str:
    """A checkpoint whose message has the text, and a thread whose reason has; returns its id."""
    checkpoints.create(store, "work", place, message=f"with {TEXT}")
    thread = make_thread(store)
    thread.step("planner", "done")
    thread.move(thread.head.hash, status="suspended", reason=f"failed: {TEXT}")
    return thread.id


def test_it_leaves_the_log(anywhere: Settings, sites: Sites, said: Path) -> None:
    here, there = sites(anywhere), sites(anywhere)
    id = record(here.store, said)
    here.push("work", id)
    there.pull()
    assert is_in_log(here)
    purge(here.store)
    here.push("work", id)
    assert collect(here) == 1
    assert not is_in_log(here)
    assert collect(here) == 0
    # A clone that still has it pushes nothing of it, and loses it with the purge.
    pushed = there.push("work", id)
    assert pushed.refs == []
    there.pull(purge=True)
    assert not has_text(there.store)
    assert not is_in_log(there)
    assert there.push("work", id).refs == []
    # A new reader gets all of it.
    new = sites(anywhere)
    new.pull()
    assert not has_text(new.store)
    assert {name for name, _ in new.store.heads.list("checkpoints/")} == {
        name for name, _ in here.store.heads.list("checkpoints/")
    }
    assert new.store.heads.get(f"threads/{id}") is not None


def test_entries_with_snapshots(anywhere: Settings, sites: Sites, said: Path) -> None:
    here = sites(anywhere)
    id = record(here.store, said)
    here.push("work", id)
    for number in range(70):
        (said / "f").write_text(str(number))
        checkpoints.create(here.store, "other", said)
        here.push("other")
    purge(here.store)
    here.push("work", id)
    assert collect(here) == 2  # the first, and the snapshot
    assert not is_in_log(here)
    new = sites(anywhere)
    new.pull()
    names = ("checkpoints/", "threads/")
    found = [[*new.store.heads.list(name)] for name in names]
    assert [len(heads) for heads in found] == [71, 1]


def test_what_was_not_purged_here_stays(anywhere: Settings, sites: Sites, said: Path) -> None:
    here, there = sites(anywhere), sites(anywhere)
    id = record(here.store, said)
    here.push("work", id)
    there.pull()
    purge(here.store)
    here.push("work", id)
    there.pull()
    assert has_text(there.store)


def test_an_older_archive_brings_nothing_back(tmp_path: Path, sites: Sites, said: Path) -> None:
    here = sites(Settings((tmp_path / "remote").as_uri()))
    record(here.store, said)
    heads = [*here.store.heads.list("checkpoints/"), *here.store.heads.list("threads/")]
    with (tmp_path / "old").open("wb") as file:
        archive.export(here.store, [], heads, file)
    purge(here.store)
    archive.load(here.store, tmp_path / "old")
    assert not has_text(here.store)
    for name, head in [*here.store.heads.list("checkpoints/")]:
        with here.store.batch() as batch:
            batch.swap(name, head, None)
    archive.load(here.store, tmp_path / "old")
    assert [*here.store.heads.list("checkpoints/")]
    assert not has_text(here.store)


def test_a_time_in_the_future_is_no_purge(tmp_path: Path, sites: Sites, said: Path) -> None:
    """Another writer cannot keep a purge from the log."""
    here = sites(Settings((tmp_path / "remote").as_uri()))
    id = record(here.store, said)
    name = f"threads/{id}"
    head = here.store.heads.get(name)
    assert head is not None
    with here.store.batch() as batch:
        batch.swap(name, head, Head(head.hash, {**head.record, "redactedAt": 1 << 50}))
    here.push("work", id)
    collect(here)
    purge(here.store)
    here.push("work", id)
    assert collect(here) == 1
    assert not is_in_log(here)


def test_a_purge_that_is_pushed_into_a_snapshot(tmp_path: Path, sites: Sites, said: Path) -> None:
    """The snapshot of an entry is the state before it."""
    here = sites(Settings((tmp_path / "remote").as_uri()))
    id = record(here.store, said)
    here.push("work", id)
    with here.remote() as remote:
        while remote.state.position()[0] < SNAPSHOT_INTERVAL - 1:
            remote.append(lambda entry: None)
    purge(here.store)
    here.push("work", id)
    assert collect(here) == 2
    assert not is_in_log(here)
    new = sites(Settings((tmp_path / "remote").as_uri()))
    new.pull()
    assert new.store.heads.get(f"threads/{id}") is not None


def test_a_purge_that_is_pushed_in_parts(tmp_path: Path, sites: Sites, said: Path) -> None:
    here = sites(Settings((tmp_path / "remote").as_uri()))
    id = record(here.store, said)
    here.push("work", id)
    purge(here.store)
    here.push(id)
    collect(here)
    here.push("work")
    assert collect(here)
    assert not is_in_log(here)


@pytest.mark.parametrize(
    ("new", "is_taken"),
    [
        ("with ‹purged›", True),
        ("‹purged›", True),
        ("evil", False),
        ("evil ‹purged›", False),
        ("", False),
        (None, False),
    ],
)
def test_a_purge_elsewhere_writes_no_text(new: str | None, is_taken: bool) -> None:
    assert is_what_is_left(f"with {TEXT}", new) is is_taken

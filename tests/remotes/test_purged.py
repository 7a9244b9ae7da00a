"""What was purged leaves a remote, comes back by none, and takes nothing away elsewhere."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.protocols import Head
from casfs.digest import Digest, NodeHash, hash_bytes
from casfs.errors import Corrupt, NotFound, Purged
from casfs.maintenance import fsck, gc
from casfs.maintenance.purge import purge, purge_all
from casfs.remotes import gc as remote_gc
from casfs.remotes import push, view
from casfs.remotes.remote import Settings
from casfs.store import tombstones
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from tests.remotes.conftest import Sites
from tests.support.helpers import blobs
from tests.support.maintenance import age, content, put_checkpoint
from tests.support.remotes import Site, remote_bytes
from tests.support.thread_example import make_thread

SECRET = b"TOKEN=hunter2hunter2"
HASH = hash_bytes(SECRET)
NOISE = {f"n{number}": random.Random(number).randbytes(3000) for number in range(20)}
TREE: dict[str, Any] = {**NOISE, ".env": SECRET, "main.py": b"print()"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "remote"


def collect(site: Site, *, dry_run: bool = False) -> remote_gc.Collected:
    with site.remote() as remote:
        return remote_gc.collect(remote, dry_run=dry_run)


def faults(site: Site) -> list[fsck.Fault]:
    with site.remote() as remote, view.opened(remote, read_data=True) as (store, _):
        return fsck.check(store, quarantine=False).faults


def is_purged(store: Store, hash: str) -> bool:
    info = store.blobs.info([hash]).get(hash)
    return info is not None and info.purged and tombstones.get(store, hash) is not None


def pushed(site: Site) -> str:
    """A checkpoint with the secret, in the store and in the remote; returns its head's name."""
    name = put_checkpoint(site.store, TREE)
    site.push("work")
    return name


# -- a remote loses it --------------------------------------------------------------------


def test_the_bytes_leave_a_remote(anywhere: Settings, sites: Sites) -> None:
    here, there = sites(anywhere), sites(anywhere)
    name = pushed(here)
    purge(here.store, HASH, "leaked")
    again = here.push("work")
    assert (again.refs, again.tombstones, again.packs) == ([], 1, 0)
    assert here.push("work").tombstones == 0
    done = collect(here)
    assert len(done.purged) == len(done.copied) == len(done.deleted) == 1
    assert collect(here).deleted == []
    assert faults(here) == []
    pulled = there.pull()
    assert (pulled.refs, pulled.purged, pulled.kept) == ([name], 1, [])
    assert is_purged(there.store, HASH)
    assert there.store.get(hash_bytes(TREE["main.py"])) == TREE["main.py"]
    assert tombstones.get(there.store, HASH) == tombstones.get(here.store, HASH)
    assert fsck.check(there.store).faults == []


def test_no_file_of_a_remote_has_it_any_more(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    here = sites(directory)
    pushed(here)
    assert SECRET in remote_bytes(folder)
    purge(here.store, HASH)
    age(here.store)
    gc.collect(here.store)
    here.push("work")
    assert collect(here, dry_run=True).purged
    assert SECRET in remote_bytes(folder)
    collect(here)
    found = remote_bytes(folder)
    assert SECRET not in found
    assert all(one in found for one in NOISE.values())


def test_what_is_pushed_first_after_the_purge_has_it_nowhere(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    here, there = sites(directory), sites(directory)
    put_checkpoint(here.store, TREE)
    purge(here.store, HASH)
    done = here.push("work")
    assert (done.tombstones, done.purged) == (1, [HASH])
    assert SECRET not in remote_bytes(folder)
    assert faults(here) == []
    assert there.pull().purged == 1


def test_an_interrupted_push_leaves_none_of_it(
    directory: Settings, sites: Sites, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = sites(directory), sites(directory)
    put_checkpoint(here.store, TREE)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("casfs.remotes.remote.Remote.append", die)
        with pytest.raises(KeyboardInterrupt):
            here.push("work")
    assert SECRET in remote_bytes(folder)
    put_checkpoint(other.store, {**TREE, "x": b"x"}, "other")
    purge(here.store, HASH)
    here.push("work")
    assert SECRET in remote_bytes(folder)
    collect(other)
    assert SECRET not in remote_bytes(folder)
    assert other.push("other").purged == [HASH]
    assert SECRET not in remote_bytes(folder)
    assert faults(other) == []


def test_it_leaves_given_up_packs_too(directory: Settings, sites: Sites, folder: Path) -> None:
    here = sites(directory)
    name = pushed(here)
    put_checkpoint(here.store, {"main.py": b"print()", ".env": SECRET}, "second")
    with here.remote() as remote:
        push.delete(remote, [name], dry_run=False)
    assert len(collect(here).orphaned) == 2
    assert SECRET in remote_bytes(folder)
    purge(here.store, HASH)
    here.push("second")
    collect(sites(directory))
    assert SECRET not in remote_bytes(folder)
    assert faults(here) == []


def test_a_plan_made_before_a_purge_is_made_anew(
    directory: Settings, sites: Sites, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, other = sites(directory), sites(directory)
    pushed(here)
    purge(here.store, HASH)
    put_checkpoint(other.store, {".env": SECRET}, "other")
    planned = push.push_plan.make

    def make_late(*args: Any, **options: Any) -> Any:
        plan = planned(*args, **options)
        patched.undo()
        here.push("work")
        collect(here)
        return plan

    with monkeypatch.context() as patched:
        patched.setattr("casfs.remotes.push.push_plan.make", make_late)
        assert other.push("other").purged == [HASH]
    collect(here)
    assert SECRET not in remote_bytes(folder)
    assert faults(here) == []


# -- another store ------------------------------------------------------------------------


def test_what_another_store_has_stays_there(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    here, there = sites(directory), sites(directory)
    pushed(here)
    there.pull()
    purge(here.store, HASH)
    here.push("work")
    collect(here)
    pulled = there.pull()
    assert (pulled.purged, pulled.kept) == (0, [HASH])
    assert there.store.get(HASH) == SECRET
    put_checkpoint(there.store, {".env": SECRET}, "more")
    done = there.push("more")
    assert (done.tombstones, done.purged) == (0, [HASH])
    assert SECRET not in remote_bytes(folder)
    assert faults(there) == []


def test_a_pull_may_purge_it_here_too(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    pushed(here)
    other = hash_bytes(TREE["main.py"])
    there.pull()
    purge(here.store, HASH)
    redacted(here.store, other, here.store.put(b"<purged>").hash)
    here.push("work")
    pulled = there.pull(purge=True)
    assert (pulled.purged, pulled.kept) == (2, [])
    assert is_purged(there.store, HASH)
    assert there.store.get(other) == b"<purged>"


def test_a_store_that_purged_it_does_not_get_it_back(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    name = pushed(here)
    there.store.put(SECRET)
    purge(there.store, HASH)
    for lazy in (False, True):
        there.pull(lazy=lazy)
        assert is_purged(there.store, HASH)
    assert there.contents_but(name, HASH) == here.contents_but(name, HASH)
    assert there.push("work").tombstones == 1


@pytest.mark.parametrize("is_purged_first", [True, False])
def test_a_lazy_store_loses_what_it_never_read(
    directory: Settings, sites: Sites, is_purged_first: bool
) -> None:
    here, lazy = sites(directory), sites(directory)
    pushed(here)
    if not is_purged_first:
        lazy.pull(lazy=True)
    purge(here.store, HASH)
    here.push("work")
    pulled = lazy.pull(lazy=True)
    assert pulled.purged == 1
    assert is_purged(lazy.store, HASH)
    with pytest.raises(Purged):
        lazy.store.get(HASH)


# -- substitutes --------------------------------------------------------------------------


def redacted(store: Store, hash: str, substitute: str) -> None:
    size = store.blobs.info([hash])[hash].size
    purge_all(store, [Tombstone(hash, size, 1, "", substitute)])


def test_a_substitute_travels(anywhere: Settings, sites: Sites) -> None:
    here, there = sites(anywhere), sites(anywhere)
    thread = make_thread(here.store)
    thread.step("planner", "the word is hunter2")
    step = here.store.node(thread.steps[0]).payload
    put_checkpoint(here.store, TREE)
    here.push("work", thread.id)
    redacted(here.store, step["content"], content(here.store, "the word is <purged>"))
    redacted(here.store, HASH, here.store.put(b"TOKEN=<purged>").hash)
    assert here.push("work").tombstones == 2
    collect(here)
    assert faults(here) == []
    pulled = there.pull()
    assert pulled.purged == 2
    assert there.store.get(HASH) == b"TOKEN=<purged>"
    assert there.store.node(step["content"]).payload["text"] == "the word is <purged>"
    assert fsck.check(there.store).faults == []
    age(there.store)
    gc.collect(there.store)
    assert there.store.get(HASH) == b"TOKEN=<purged>"


def test_a_later_substitute_replaces_the_first(
    directory: Settings, sites: Sites, folder: Path
) -> None:
    here, there = sites(directory), sites(directory)
    pushed(here)
    first, second = here.store.put(b"first try: hunter2").hash, here.store.put(b"second").hash
    redacted(here.store, HASH, first)
    assert here.push("work").tombstones == 1
    redacted(here.store, first, second)
    assert here.push("work").tombstones == 2
    collect(here)
    assert b"hunter2" not in remote_bytes(folder)
    there.pull()
    assert there.store.get(HASH) == b"second"


# -- hostile ------------------------------------------------------------------------------


def forged(site: Site, *purged: Tombstone) -> None:
    with site.remote() as remote:
        remote.catch_up()

        def fill(entry: Any) -> None:
            for one in purged:
                head: Head = one.head
                record = {"hash": head.hash, "record": dict(head.record)}
                name = tombstones.head_name(one.hash)
                entry["refs"][name] = {**record, "previous": None, "size": None}

        remote.append(fill)


def test_a_forged_tombstone_takes_nothing_away(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    name = pushed(here)
    there.pull()
    before = there.contents(name)
    unknown = Digest.of(b"what somebody will write").hash
    forged(here, *(Tombstone(hash, 1, 1) for hash in [*before, unknown]))
    put_checkpoint(here.store, {"new": b"file"}, "later")
    here.push("later")
    there.pull()
    assert there.contents(name) == before
    assert there.store.put(b"what somebody will write").hash in blobs(there.store)
    assert not is_purged(there.store, unknown)


def test_a_tree_has_no_substitute(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    name = pushed(here)
    head = here.store.heads.get(name)  # type: ignore[arg-type]  # a name
    assert head is not None
    root = here.store.node(head.hash).payload["root"]
    put_checkpoint(here.store, {"main.py": b"evil()"}, "evil")
    here.push("evil")
    [evil] = [ref for ref in here.refs() if "evil" in ref]
    other = here.store.heads.get(evil)  # type: ignore[arg-type]  # a name
    assert other is not None
    forged(here, Tombstone(root, 1, 1, "", other.record["root"]))
    with pytest.raises(Corrupt, match="cannot stand for"):
        there.pull("work")


def test_a_tombstone_stays_in_its_remote(directory: Settings, sites: Sites) -> None:
    here = sites(directory)
    pushed(here)
    purge(here.store, HASH)
    here.push("work")
    with here.remote() as remote, pytest.raises(NotFound):
        push.delete(remote, [tombstones.head_name(HASH)], dry_run=False)


def test_tombstones_in_a_circle(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    pushed(here)
    other = hash_bytes(TREE["main.py"])
    forged(here, Tombstone(HASH, 1, 1, "", other), Tombstone(other, 1, 1, "", HASH))
    forged(here, Tombstone(NodeHash(hash_bytes(NOISE["n1"])), 1, 1, "", hash_bytes(b"nowhere")))
    with pytest.raises(Corrupt, match="lacks"):
        there.pull()

"""What is private stays here: a push sends what a local ref leads to only where it is asked for."""

from __future__ import annotations

from pathlib import Path

from casfs.digest import hash_bytes
from casfs.maintenance import fsck, gc
from casfs.remotes import gc as remote_gc
from casfs.remotes import view
from casfs.remotes.remote import Settings
from tests.remotes.conftest import Sites
from tests.support.helpers import blobs
from tests.support.maintenance import age, put_checkpoint
from tests.support.remotes import Site, remote_bytes

SECRET = b"TOKEN=hunter2hunter2"
PRIVATE = hash_bytes(SECRET)
WORK = {"main.py": b"print()", "sub": {"x": b"y"}}
LOCAL = {**WORK, ".env": SECRET}


def faults(site: Site) -> list[fsck.Fault]:
    with site.remote() as remote, view.opened(remote, read_data=True) as (store, _):
        return fsck.check(store, quarantine=False).faults


def test_a_push_leaves_it_out(anywhere: Settings, sites: Sites) -> None:
    here, there = sites(anywhere), sites(anywhere)
    name = put_checkpoint(here.store, WORK, local=LOCAL)
    here.push("work")
    assert faults(here) == []
    assert there.pull().refs == [name]
    assert PRIVATE not in blobs(there.store)
    assert fsck.check(there.store).faults == []
    age(here.store)
    gc.collect(here.store)
    assert here.store.get(PRIVATE) == SECRET
    assert there.push("work", with_local=True).refs == []


def test_the_remote_has_no_byte_of_it(directory: Settings, sites: Sites, tmp_path: Path) -> None:
    here = sites(directory)
    put_checkpoint(here.store, WORK, local=LOCAL)
    here.push("work")
    found = remote_bytes(tmp_path / "remote")
    assert b"print()" in found
    assert SECRET not in found


def test_a_push_takes_it_along_where_asked(anywhere: Settings, sites: Sites) -> None:
    here, there, lazy = sites(anywhere), sites(anywhere), sites(anywhere)
    put_checkpoint(here.store, WORK, local=LOCAL)
    here.push("work", with_local=True)
    assert here.push("work").packs == 0
    assert faults(here) == []
    there.pull()
    assert PRIVATE not in blobs(there.store)
    there.pull(with_local=True)
    lazy.pull(lazy=True, with_local=True)
    for site in (there, lazy):
        assert site.store.blobs.local_among([PRIVATE]) == {PRIVATE}
        age(site.store)
        gc.collect(site.store)
        assert site.store.get(PRIVATE) == SECRET
        assert fsck.check(site.store).faults == []


def test_it_follows_a_checkpoint_that_is_there_already(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    put_checkpoint(here.store, WORK, local=LOCAL)
    here.push("work")
    assert here.push("work", dry_run=True, with_local=True).blobs == 1
    later = here.push("work", with_local=True)
    assert (later.refs, later.nodes, later.blobs) == ([], 1, 1)
    assert here.push("work", with_local=True).packs == 0
    with here.remote() as remote:
        assert remote_gc.collect(remote).orphaned == []
    there.pull(with_local=True)
    assert there.store.get(PRIVATE) == SECRET

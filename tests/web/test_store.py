"""The state of the store in the browser."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from casfs.checkpoints import watch_list
from casfs.checkpoints.watch_list import WatchSpec
from casfs.store.store import Store
from casfs.version import VERSION
from casfs.web import store as stores
from casfs.web.store import garbage, page, rooms
from tests.support.cli import Cli
from tests.support.engine import daemon
from tests.support.helpers import LARGE, put_tree
from tests.support.web import Web, visible


def test_the_room_is_by_type(store: Store) -> None:
    before = dict(rooms(store))
    put_tree(store, {"a": b"1234", "b": LARGE})
    found = dict(rooms(store))
    name = "files and other bytes"
    assert (found[name].blobs, found[name].bytes) == (2, 4 + len(LARGE))
    assert found["directory"].blobs == 1
    assert found["schema"] == before["schema"]
    assert found[name].files == 1


def test_what_gc_would_free_stays(disk_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    hash = disk_store.put(b"garbage").hash

    def freed() -> int:
        result = garbage(disk_store).result
        assert result is not None
        return result.freed.bytes

    assert freed() == 0, "in the period of grace"
    with closing(sqlite3.connect(disk_store.root / "store.db")) as db, db:
        db.execute("UPDATE blobs SET touched = 0")
    assert freed() == len(b"garbage")
    assert disk_store.get(hash) == b"garbage"
    monkeypatch.setattr(stores, "GC_LIMIT_S", -1.0)
    assert garbage(disk_store).fault == stores.TOO_LONG


def test_the_last_fsck_is_shown(cli: Cli) -> None:
    with Store.open(cli.root) as store:
        assert page(store).fsck is None
        cli("fsck")
        cli("fsck")
        found = page(store).fsck
        assert found is not None
        assert (found["faults"], found["blobs"]) == (0, page(store).total.blobs)
        log = cli.root / "log" / "fsck.jsonl"
        assert len(log.read_text().splitlines()) == 2
        for text in ("", "x\n", "[]\n", json.dumps({"time": "now"})):
            log.write_text(text)
            assert page(store).fsck is None


def test_a_page(web: Web, disk_store: Store) -> None:
    shown = visible(web.get("/store").text)
    assert "None runs; casfs daemon starts one." in shown
    assert "Never checked; casfs fsck reads and checks everything." in shown
    assert "gc would free" not in shown.replace("Find what gc would free", "")
    assert "gc would free 0B in 0 blobs" in visible(web.get("/store?gc=1").text)
    with daemon(disk_store.root) as pid:
        shown = visible(web.get("/store").text)
        assert f"Process {pid}, version {VERSION}. It runs 0 threads of 8 at once." in shown


def test_the_watched_directories_are_shown(web: Web, disk_store: Store) -> None:
    shown = visible(web.get("/store").text)
    assert "casfs watch DIR records a directory whenever it has come to rest" in shown
    one = WatchSpec("/srv/<b>site</b>", "site", 2.0, error="no directory /srv/<b>site</b>")
    watch_list.save(disk_store, {one.directory: one})
    text = web.get("/store").text
    assert "<code>/srv/&lt;b&gt;site&lt;/b&gt;</code> as site: no checkpoint yet" in text
    assert "no directory /srv/&lt;b&gt;site&lt;/b&gt;" in text

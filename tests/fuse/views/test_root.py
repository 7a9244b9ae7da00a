"""The root of the mount, its statistics and workflows, as plain vnodes."""

from __future__ import annotations

import json

from casfs.backend.protocols import Head
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.store.store import Store
from tests.support.fuse import (
    at,
    content,
    names,
    read,
    resolve,
)
from tests.support.thread_example import Example


def test_the_root(store: Store) -> None:
    assert names(store, "") == [
        "README.txt", "blobs", "trees", "threads", "nodes", "workflows", "actions", "threads.json",
        "history", ".casfs",
    ]  # fmt: skip
    assert names(store, ".casfs") == ["stats.json", "events", "objects"]
    assert read(store, "README.txt").count(b"\n") <= 16
    top = root(StoreReader(store), Stats())
    assert top.fixed
    assert not top.live


def test_stats_say_what_was_asked(store: Store) -> None:
    stats = Stats()
    top = root(StoreReader(store), stats)
    stats.requests["lookup"] += 3
    stats.bytes_served = 17
    vnode = at(store, ".casfs/stats.json", top)
    assert vnode.live
    report = json.loads(content(vnode))
    assert {kind: n for kind, n in report["requests"].items() if n} == {"lookup": 3}
    assert report["bytes_served"] == 17
    assert set(report["cache"]) == {"nodes", "descriptors"}
    length = vnode.attr().size
    stats.requests["lookup"] += 10**9
    assert vnode.attr().size == length


def test_workflows(store: Store, thread: Example) -> None:
    assert names(store, "workflows") == ["demo"]
    assert resolve(store, "workflows/demo").digest == thread.workflow
    before = at(store, "workflows/demo")
    with store.batch() as batch:
        head = store.heads.get("workflows/demo")
        batch.swap("workflows/demo", head, Head(thread.agent, {}))
    after = at(store, "workflows/demo")
    assert resolve(store, "workflows/demo").digest == thread.agent
    assert after.key != before.key

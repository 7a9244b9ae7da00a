"""Nodes and blobs in the browser."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from casfs.backend.purged_contents import CHECK_INTERVAL_S
from casfs.maintenance import purge
from casfs.store import tombstones
from casfs.store.referrers import Referrers
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.web import node as nodes
from casfs.web.node import page, why
from casfs.web.rendering import Rendering
from tests.support.helpers import Link, put_tree, put_unchecked
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible


def test_a_step_has_its_references_by_type(store: Store) -> None:
    thread = make_thread(store)
    first, second = thread.step("planner", "one"), thread.step("planner", "two")
    found = page(store, first)
    assert (found.type, found.tree, found.fault) == ("thread-step", thread.tree, None)
    assert found.content is not None
    assert json.loads(found.content.text)["index"] == 1
    assert [one.type for one in found.out.links] == sorted(one.type for one in found.out.links)
    assert found.out.types == {
        "agent": 1, "content": 1, "directory": 1, "schema": 1, "thread-start": 1,
    }  # fmt: skip
    assert [(one.hash, one.type) for one in found.into.links] == [(second, "thread-step")]
    assert page(store, thread.tree).tree == thread.tree
    assert page(store, thread.agent).tree is None


def test_a_directory_lists_its_entries_by_name(store: Store) -> None:
    root = put_tree(store, {b"\xff": b"1", "dir": {}, "to": Link(b"dir")})
    found = page(store, root).out
    assert [(one.name, one.type) for one in found.links] == [
        (b"dir", "directory"), (b"to", "symlink"), (b"\xff", "blob"),
    ]  # fmt: skip
    assert found.links[1].hash is None


def test_a_large_directory_is_listed_to_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "MAX_REFS", 100)
    found = page(store, put_tree(store, {f"{n:03}": b"" for n in range(250)}), out=200).out
    assert (found.links[-1].name, found.total, found.cut) == (b"249", 250, False)


def test_references_are_windows_by_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    blob = store.put(b"shared").hash
    for n in range(230):
        put_tree(store, {"f": b"shared", str(n): b"%d" % n})
    found = page(store, blob, into=200).into
    assert (found.first, len(found.links), found.total, found.cut) == (200, 30, 230, False)
    assert page(store, blob, into=10**12).into.first == 200
    monkeypatch.setattr(nodes, "MAX_REFS", 100)
    found = page(store, blob).into
    assert (found.total, found.cut) == (100, True)


def test_an_index_that_takes_long_goes_on_at_the_next_load(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash = store.put(b"x").hash
    monkeypatch.setattr(nodes, "INDEX_LIMIT_S", -1.0)
    assert page(store, hash).into.fault == nodes.LATER
    monkeypatch.setattr(nodes, "WHY_LIMIT_S", -1.0)
    assert why(store, hash).fault == nodes.TOO_LONG


def test_why_it_is_kept(store: Store) -> None:
    thread = make_thread(store)
    step = thread.step("planner", "text")
    text = store.node(step).payload["content"]
    reason = why(store, text)
    assert reason.head == f"threads/{thread.id}"
    assert [(one.hash, one.type) for one in reason.path] == [
        (step, "thread-step"),
        (text, "content"),
    ]
    assert why(store, store.put(b"garbage").hash) == nodes.Reason()


def test_a_purged_node_shows_its_substitute(disk_store: Store, web: Web) -> None:
    """Also in a browser that has kept the node: no page asks for it by its old URL again."""
    texts = ["the secret", "the rest"]
    first, second = (
        disk_store.put_node("content", {"text": one, "artifacts": []}).hash for one in texts
    )
    path = f"/nodes/{first}?fragment=content&v={Rendering().version}"
    assert "immutable" in web.get(path).headers["cache-control"]
    size = disk_store.blobs.info([first])[first].size
    tombstones.add(disk_store, [Tombstone(first, size, 1, "", second)])
    time.sleep(2 * CHECK_INTERVAL_S)  # the server's process asks the journal that often
    after = web.get(path)
    assert "the rest" in after.text
    assert after.headers["cache-control"] == "private, no-store"


def test_what_is_purged_damaged_or_unknown_is_said(disk_store: Store) -> None:
    store = disk_store
    blob = store.put(b"secret" * 1000).hash
    purge.purge(store, blob)
    found = page(store, blob)
    assert (found.type, found.content) == ("blob", None)
    assert found.fault == "Its content was purged: deleted for good."
    damaged = store.put(b"plain" * 1000).hash
    path = store.root / "objects" / damaged[:2] / damaged[2:]
    path.chmod(0o600)
    path.write_bytes(b"other")
    with Store.open(store.root) as again:
        shown = page(again, damaged).content
        assert shown is not None
        assert "does not hash to its name" in shown.text
    broken = put_unchecked(store, "directory", {"files": 1})
    assert page(store, broken).fault
    missing: Any = {**store.node(make_thread(store).start).payload, "input": "0f" * 32}
    found = page(store, put_unchecked(store, "thread-start", missing))
    assert "not in this store" in {one.type for one in found.out.links}


# -- pages ------------------------------------------------------------------------------------


def test_a_page(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store)
    step = thread.step("planner", "<b>text</b>")
    text = disk_store.node(step).payload["content"]
    html = web.get(f"/nodes/{text[:10]}?why=1").text
    assert "&lt;b&gt;text&lt;/b&gt;" in html
    assert f'<a href="/threads/{thread.id}">threads/{thread.id}</a>' in html
    shown = visible(html)
    assert "Refers to 1" in shown
    assert f"Referred to by 1 1 thread-step {step[:12]} thread-step" in shown
    assert "Make it a checkpoint" in web.get(f"/nodes/{step}").text
    blob = disk_store.put(b"\x1b[2J<i>").hash
    assert r"\x1b[2J&lt;i&gt;" in web.get(f"/nodes/{blob}").text
    assert "No head reaches it" in web.get(f"/nodes/{blob}?why=1").text


def test_the_content_of_a_node_is_kept_by_the_browser(web: Web, disk_store: Store) -> None:
    hash = disk_store.put_node("content", {"text": "x", "artifacts": []}).hash
    version = web.get(f"/nodes/{hash}?fragment=content").text  # without a version: not kept
    assert "<pre" in version
    path = f"/nodes/{hash}?fragment=content&v={Rendering().version}"
    found = web.get(path)
    assert found.headers["etag"] == f'"{hash}"'
    assert "immutable" in found.headers["cache-control"]
    whole = web.get(path.replace("fragment=content&", ""))
    assert whole.headers["cache-control"] == "private, no-store"


def test_no_such_node(web: Web) -> None:
    assert "no blob" in web.get(f"/nodes/{'0f' * 32}", 404).text
    assert "is not a valid hash" in web.get("/nodes/x", 400).text


def test_the_index_is_the_stores(disk_store: Store) -> None:
    hash = disk_store.put(b"x").hash
    parent = put_tree(disk_store, {"f": b"x"})
    assert [one.hash for one in page(disk_store, hash).into.links] == [parent]
    with Referrers(disk_store) as index:
        assert index.catch_up() == 0

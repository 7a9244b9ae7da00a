from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from casfs.backend.derived import repairable, version_of
from casfs.backend.protocols import META, Head, HeadName
from casfs.digest import Digest
from casfs.errors import Conflict, Invalid, NotFound
from casfs.store import write_batch as batch_module
from casfs.store.nodes.node import encode
from casfs.store.nodes.ref_collectors import Ref
from casfs.store.nodes.registry import HEADS
from casfs.store.store import Store
from casfs.store.write_batch import PUBLISH_BATCH_BLOBS, Batch
from tests.support.helpers import ABSENT, LARGE, blobs, private_files, set_head

NOTE = {
    "$id": "note",
    "type": "object",
    "properties": {
        "about": {"type": "string", "format": "cas_ref", "cas_type": "content"},
        "any": {"type": ["string", "null"], "format": "cas_ref"},
    },
}


class Stop(Exception):
    pass


def abort(store: Store, write: Callable[[Batch], None]) -> None:
    """Leave a batch by an exception after `write`."""

    def run() -> None:
        with store.batch() as batch:
            write(batch)
            raise Stop

    with pytest.raises(Stop):
        run()


def text(value: str = "text", *artifacts: str) -> dict[str, Any]:
    return {"text": value, "artifacts": list(artifacts)}


# -- closure ------------------------------------------------------------------------------


def test_a_ref_to_nowhere_is_refused_and_nothing_is_stored(store: Store) -> None:
    before = blobs(store)
    with pytest.raises(Invalid, match=f"refers to {ABSENT}.*put it first"):
        store.put_node("content", text("x", ABSENT))
    assert blobs(store) == before


def test_a_ref_may_lead_into_the_store_or_the_batch(disk_store: Store) -> None:
    stored = disk_store.put(b"stored").hash
    with disk_store.batch() as batch:
        small, large = batch.put(b"small").hash, batch.put(LARGE).hash
        inner = batch.put_node("content", text("inner", small)).hash
        outer = batch.put_node("content", text("outer", stored, large, inner)).hash
    assert disk_store.node(outer).payload["artifacts"] == [stored, large, inner]


def test_what_went_between_put_and_publish_is_noticed(store: Store) -> None:
    gone = store.put(b"gone").hash
    here = store.put(b"here").hash
    batch = store.batch()
    batch.put_node("content", text("x", gone))
    batch.swap("name", None, Head(here))
    repairable(store.blobs).quarantine(gone)
    with pytest.raises(NotFound, match=gone):
        batch.commit()
    assert store.heads.get("name") is None


def test_what_was_there_and_went_is_stored_again(store: Store) -> None:
    store.put(b"again")
    with store.batch() as batch:
        hash = batch.put(b"again").hash
        repairable(store.blobs).quarantine(hash)
    assert store.get(hash) == b"again"


def test_a_target_of_the_wrong_type_is_refused(store: Store) -> None:
    with store.batch() as batch:
        batch.put_schema(NOTE)
    content = store.put_node("content", text()).hash
    store.put_node("note", {"about": content, "any": None})
    agent = store.put_node("agent", {"package": "p", "version": "", "config": {}}).hash
    blob, schema = store.put(b"blob").hash, store.registry.head("content").hash
    for hash, type in ((agent, "agent"), (blob, "blob"), (schema, "schema")):
        with pytest.raises(Invalid, match=f"refers to {hash}: a {type}, and must be a content"):
            store.put_node("note", {"about": hash})
        store.put_node("note", {"any": hash})


def test_types_are_checked_inside_a_batch_too(store: Store) -> None:
    with store.batch() as batch:
        batch.put_schema(NOTE)
        blob = batch.put(b"blob").hash
        with pytest.raises(Invalid, match="a blob, and must be a content"):
            batch.put_node("note", {"about": blob})


def test_the_meta_schema_is_a_schema_by_type(store: Store) -> None:
    with store.batch() as batch:
        about = {"type": "string", "format": "cas_ref", "cas_type": "schema"}
        batch.put_schema({"$id": "uses", "properties": {"schema": about}})
    store.put_node("uses", {"schema": store.registry.head("schema").hash})


def test_a_tuple_hides_no_ref(store: Store) -> None:
    with pytest.raises(Invalid, match=ABSENT):
        store.put_node("content", {"text": "", "artifacts": (ABSENT,)})


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        ({"text": 1, "artifacts": []}, "$.text"),
        ({"text": ""}, "$"),
        ({"text": "\ud800", "artifacts": []}, "$.text"),
        ({"text": "", "artifacts": [], 1: 2}, "$"),
        ({"text": "", "artifacts": [], "x": float("nan")}, "$.x"),
        (None, "$"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_with_its_path(
    store: Store, payload: Any, path: str
) -> None:
    before = blobs(store)
    with pytest.raises(Invalid) as caught:
        store.put_node("content", payload)
    assert str(caught.value).startswith(f"{path}: ")
    assert blobs(store) == before


@pytest.mark.parametrize(
    "name", [{"name": ".."}, {"name": "\ud800"}, {"name": "a" * 256}, {"name_base64": "YQ=="}]
)
def test_a_directory_is_checked_beyond_its_schema(store: Store, name: dict[str, str]) -> None:
    payload = {"files": [], "directories": [], "symlinks": [{**name, "target": "x"}]}
    with pytest.raises(Invalid, match=r"\$\.symlinks\[0\]"):
        store.put_node("directory", payload)


def test_a_link_target_must_be_one_that_can_be_loaded(store: Store) -> None:
    for target in ("YQ==", "/wA="):
        item = {"name": "a", "target_base64": target}
        with pytest.raises(Invalid, match=r"\$\.symlinks\[0\]"):
            store.put_node("directory", {"files": [], "directories": [], "symlinks": [item]})


def test_an_unknown_type_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound, match="no type 'nothing'"):
        store.put_node("nothing", {})


# -- all or nothing -----------------------------------------------------------------------


def test_nothing_is_visible_before_the_commit(disk_store: Store) -> None:
    before = blobs(disk_store)
    with disk_store.batch() as batch:
        hash = batch.put_node("content", text("x", batch.put(LARGE).hash)).hash
        batch.swap("name", None, Head(hash))
        assert blobs(disk_store) == before
        assert disk_store.heads.get("name") is None
    found = disk_store.heads.get("name")
    assert found == Head(hash)
    assert len(blobs(disk_store)) == len(before) + 2


def test_an_abort_leaves_no_private_file_and_no_head(disk_store: Store) -> None:
    before = blobs(disk_store)

    def write(batch: Batch) -> None:
        large = LARGE * 256  # a file of its own
        batch.swap("name", None, Head(batch.put(large).hash))
        batch.put(large)
        assert len(private_files(disk_store.root)) == 1

    abort(disk_store, write)
    assert private_files(disk_store.root) == []
    assert blobs(disk_store) == before
    assert disk_store.heads.get("name") is None


def test_a_conflict_leaves_no_private_file_and_no_blob(disk_store: Store) -> None:
    set_head(disk_store, "name", disk_store.put(b"there").hash)
    before = blobs(disk_store)
    with pytest.raises(Conflict), disk_store.batch() as batch:
        batch.swap("name", None, Head(batch.put(LARGE).hash))
    assert private_files(disk_store.root) == []
    assert blobs(disk_store) == before


def test_bytes_that_become_a_node_leave_no_private_file(disk_store: Store) -> None:
    payload = text("x" * 5000)
    data = encode(disk_store.registry.head("content").hash, payload)
    with disk_store.batch() as batch:
        blob = batch.put_stream(io.BytesIO(data))
        assert batch.put_node("content", payload) == blob
        assert batch.put(data) == blob
    assert private_files(disk_store.root) == []
    assert disk_store.node(blob.hash).payload == payload


def test_a_batch_can_be_committed_on_the_way(store: Store) -> None:
    first = Digest.of(b"first").hash

    def write(batch: Batch) -> None:
        batch.swap("name", None, Head(batch.put(b"first").hash))
        batch.commit()
        assert store.heads.get("name") == Head(first)
        batch.put(b"second")

    abort(store, write)
    assert Digest.of(b"second").hash not in blobs(store)
    assert store.heads.get("name") == Head(first)


def test_a_head_that_was_committed_on_the_way_does_not_move_again(store: Store) -> None:
    with store.batch() as batch:
        first = Head(batch.put(b"first").hash)
        batch.swap("name", None, first)
        batch.commit()
        second = batch.move("name", first, batch.put(b"second").hash, {"n": 2})
    assert store.heads.get("name") == second


def test_an_empty_batch_writes_nothing(store: Store) -> None:
    version = version_of(store.backend)()
    with store.batch():
        pass
    assert version_of(store.backend)() == version


def test_moves_of_one_head_follow_each_other(disk_store: Store) -> None:
    one, two = disk_store.put(b"1").hash, disk_store.put(b"2").hash
    head = set_head(disk_store, "name", one, n=0)
    with disk_store.batch() as batch:
        head = batch.move("name", head, two, {"n": 1})
        head = batch.move("name", head, one, {"n": 2})
    assert disk_store.heads.get("name") == head == Head(one, {"n": 2})


def test_new_bytes_counts_what_the_store_did_not_have(store: Store) -> None:
    store.put(b"old")
    with store.batch() as batch:
        for data in (b"old", b"new", b"new", LARGE):
            batch.put(data)
    assert batch.new_bytes == 3 + len(LARGE)


# -- parts -----------------------------------------------------------------------------


def test_more_than_a_part_is_published_on_the_way(disk_store: Store) -> None:
    before = len(blobs(disk_store))
    with disk_store.batch() as batch:
        hashes = [batch.put(b"%d" % n).hash for n in range(PUBLISH_BATCH_BLOBS + 10)]
        assert len(blobs(disk_store)) == before + PUBLISH_BATCH_BLOBS
        batch.put_node("content", text("all", hashes[0], hashes[-1]))
    assert len(blobs(disk_store)) == before + PUBLISH_BATCH_BLOBS + 11


def test_heads_wait_for_the_last_part(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "PUBLISH_BATCH_BLOBS", 4)
    with store.batch() as batch:
        head = Head(batch.put(b"first").hash, {"n": 1})
        batch.swap("name", None, head)
        batch.put_schema(NOTE)
        for n in range(10):
            batch.put(b"%d" % n)
        assert store.heads.get("name") is None
    assert store.heads.get("name") == head
    assert store.registry.head("note")


def test_large_contents_are_published_on_the_way(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_module, "PUBLISH_BATCH_BYTES", 10_000)
    with store.batch() as batch:
        for n in range(5):
            batch.put(LARGE + b"%d" % n)
        assert Digest.of(LARGE + b"0").hash in blobs(store)
        assert Digest.of(LARGE + b"4").hash not in blobs(store)


# -- schemas ------------------------------------------------------------------------------


def test_a_schema_is_registered_under_its_name(store: Store) -> None:
    with store.batch() as batch:
        digest = batch.put_schema(NOTE)
        batch.put_node("note", {})
    assert store.heads.get(HEADS + "note") == Head(digest.hash, {"builtin": False})
    assert store.node(digest.hash).payload == NOTE
    assert store.node(digest.hash).type == "schema"


def test_the_same_schema_again_moves_nothing(store: Store) -> None:
    with store.batch() as batch:
        first = batch.put_schema(NOTE)
        assert batch.put_schema(NOTE) == first
    with store.batch() as batch:
        assert batch.put_schema(dict(reversed(NOTE.items()))) == first


def test_a_newer_schema_takes_the_name_and_older_nodes_keep_their_type(store: Store) -> None:
    with store.batch() as batch:
        batch.put_schema(NOTE)
    old = store.put_node("note", {})
    with store.batch() as batch:
        batch.put_schema({**NOTE, "title": "between"})
        newer = batch.put_schema({**NOTE, "required": ["any"]})
    assert store.registry.head("note").hash == newer.hash
    with pytest.raises(Invalid):
        store.put_node("note", {})
    found = store.node(old.hash, "note")
    assert found.type_hash != newer.hash
    assert store.refs(found) == [Ref(found.type_hash, "schema")]


@pytest.mark.parametrize("name", ["content", "schema", "directory"])
def test_built_in_names_are_protected(store: Store, name: str) -> None:
    before = blobs(store), list(store.heads.list())
    with store.batch() as batch, pytest.raises(Conflict, match="built in"):
        batch.put_schema({"$id": name, "type": "object"})
    assert (blobs(store), list(store.heads.list())) == before
    with store.batch() as batch:
        batch.put_schema(store.registry.document(store.registry.head(name).hash))
    assert list(store.heads.list()) == before[1]


def test_a_schema_node_is_checked_like_a_schema(store: Store) -> None:
    for document in ({"$id": "x", "keyword": 1}, {"$id": "X"}, {"$id": "x", "type": "text"}):
        with pytest.raises(Invalid):
            store.put_node("schema", document)
        with pytest.raises(Invalid), store.batch() as batch:
            batch.put_schema(document)
    assert store.heads.get(HEADS + "x") is None


@pytest.mark.parametrize(
    ("name", "record", "fault"),
    [
        ("threads/01M816QZ5T3M9V9N4Y0R6D8WKB", {"status": "running"}, "its record is damaged"),
        ("checkpoints/latest/20261122T000000.000Z-00000000", {}, "its name is not allowed"),
        ("plugins/name/1", {"root": "x"}, "its record is damaged"),
    ],
)
def test_a_head_is_validated_when_it_is_written(
    store: Store, name: str, record: dict[str, Any], fault: str
) -> None:
    hash = store.put_node("content", {"text": "", "artifacts": []}).hash
    with pytest.raises(Invalid, match=fault), store.batch() as batch:
        batch.swap(HeadName(name), None, Head(hash, record))
    assert store.heads.get(HeadName(name)) is None


def test_what_is_required_and_not_there_is_left_out_of_the_commit(store: Store) -> None:
    with store.batch() as batch:
        assert not batch.require(ABSENT)
        digest = batch.put(b"x")
    assert store.get(digest.hash) == b"x"


def test_a_node_that_is_not_canonical_is_not_kept(store: Store) -> None:
    """Also where the caller goes on after the error, and commits the rest."""
    schema = {"$id": "odd", "type": "object"}
    data = json.dumps({"type": META, "payload": schema}).encode()
    with store.batch() as batch, pytest.raises(Invalid, match="not canonical"):
        batch.put_encoded(data)
    assert store.blobs.info([Digest.of(data).hash]) == {}


def test_what_new_work_reaches_is_work_though_a_head_names_it_too(store: Store) -> None:
    with store.batch() as batch:
        batch.begin_local()
        below = batch.put(b"below").hash
        node = batch.put_node("content", {"text": "", "artifacts": [below]}).hash
        batch.commit()
        assert store.blobs.local_among([node, below]) == {node, below}
        batch.settle([node])
        batch.swap(HeadName("others/a"), None, Head(node, {"names": below}))
    assert store.blobs.local_among([node, below]) == set()

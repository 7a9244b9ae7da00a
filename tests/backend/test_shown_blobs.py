"""What a view of a store hides is absent, however it is asked for."""

from __future__ import annotations

import pytest

from casfs.backend.shown_blobs import ShownBlobs
from casfs.digest import hash_bytes
from casfs.errors import NotFound
from casfs.store.referrers import Referrers
from casfs.store.store import Store
from tests.support.helpers import put_tree

PRIVATE = b"TOKEN=hunter2\n"
HASH = hash_bytes(PRIVATE)


@pytest.fixture
def hidden(store: Store) -> str:
    """The root of a local tree beside that of work."""
    with store.batch() as batch:
        work = put_tree(store, {"src": b"work"})
        batch.begin_local()
        batch.put(PRIVATE)
        payload = {**store.node(work).payload}
        file = {**payload["files"][0], "name": ".env"}
        file["digest"] = {"hash": HASH, "size_bytes": len(PRIVATE)}
        payload["files"] = [file, *payload["files"]]
        root = batch.put_directory(payload).hash
        batch.commit()
        batch.settle([work])
    return root


def test_it_is_absent_by_hash(store: Store, hidden: str) -> None:
    view = store.shown()
    blobs = view.blobs
    for hash in (HASH, hidden):
        for read in (
            blobs.get,
            blobs.open,
            view.node,
            view.expand,
            lambda hash: view.expand(hash[:12]),
            lambda hash: list(blobs.get_many([hash])),
            lambda hash: ShownBlobs(store.blobs).stream(hash),
            lambda hash: ShownBlobs(store.blobs).get_sized(hash, 1),
        ):
            with pytest.raises(NotFound, match="no blob"):
                read(hash)
        assert blobs.info([hash]) == {}
        assert store.get(hash)
        assert store.shown(with_local=True).get(hash)


def test_it_is_in_no_listing(store: Store, hidden: str) -> None:
    view = store.shown()
    arrived = {hash for _, hash, _ in view.blobs.iterate()}
    whole = {hash for _, hash, _ in store.blobs.iterate()}
    assert whole - arrived == {HASH, hidden}
    type = store.blobs.info([hidden])[hidden].type
    assert type is not None
    assert hidden not in {hash for hash, _ in ShownBlobs(store.blobs).of_type(type)}
    assert hidden in {hash for hash, info in store.blobs.info(whole).items() if info.type == type}


def test_it_refers_to_nothing(store: Store, hidden: str) -> None:
    work = next(file["digest"]["hash"] for file in store.node(hidden).payload["files"][1:])
    with Referrers(store.shown()) as index:
        assert hidden not in index.of(work)
        assert index.of(work) != []
    with Referrers(store) as index:
        assert hidden in index.of(work)


def test_it_is_shown_once_work_has_it(store: Store, hidden: str) -> None:
    view = store.shown()
    assert view.blobs.info([HASH]) == {}
    store.put(PRIVATE)
    assert view.get(HASH) == PRIVATE

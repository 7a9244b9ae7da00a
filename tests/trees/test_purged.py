"""What readers of a tree see of purged files, also where it was read before."""

from __future__ import annotations

import pytest

from casfs.checkpoints import create
from casfs.digest import hash_bytes
from casfs.errors import NotFound
from casfs.history import blame
from casfs.history.versions import find
from casfs.store import tombstones
from casfs.store.store import Store
from casfs.store.tombstones import MARK, Tombstone
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from tests.support.helpers import put_tree

SECRET, REST = b"a\nsecret\nb\n", f"a\n{MARK}\nb\n".encode()


def purged(store: Store, data: bytes, substitute: bytes | None = None) -> Tombstone:
    other = None if substitute is None else store.put(substitute).hash
    made = Tombstone(hash_bytes(data), len(data), 1, "a key", other)
    tombstones.add(store, [made])
    return made


def test_an_entry_is_left_out_or_has_the_size_of_its_substitute(store: Store) -> None:
    root = put_tree(store, {"d": {"f": SECRET, "g": b"whole", "h": b"other"}, "f": SECRET})
    assert not list(tree.missing(store, root))
    assert {path for path, _ in tree.walk(store, root)} == {b"d", b"d/f", b"d/g", b"d/h", b"f"}
    first, second = purged(store, SECRET, REST), purged(store, b"whole")
    other = Store(store.backend, store.root)  # one that has read nothing yet
    for reader in (store, other):
        seen = dict(tree.walk(reader, root))
        assert seen.keys() == {b"d", b"d/f", b"d/h", b"f"}
        for path in (b"d/f", b"f"):
            assert seen[path].digest.size_bytes == len(REST)  # type: ignore[union-attr]
        assert dict(tree.missing(reader, root)) == {b"f": first, b"d/f": first, b"d/g": second}
        with pytest.raises(NotFound, match="it was purged"):
            tree.resolve(reader, root, b"d/g")


def test_two_trees_that_differ_in_purged_text_only(store: Store) -> None:
    """They are equal for a reader, though their hashes differ."""
    old = put_tree(store, {"f": SECRET})
    purged(store, SECRET, REST)
    new = put_tree(store, {"f": REST})
    assert old != new
    assert list(tree.diff(store, old, new)) == []


def test_a_substitute_that_is_purged_too(store: Store) -> None:
    root = put_tree(store, {"f": SECRET})
    first = purged(store, SECRET, REST)
    purged(store, REST, b"nothing")
    assert tombstones.get(store, first.hash) != first
    entry = tree.resolve(store, root, b"f")
    assert entry is not None
    assert store.get(first.hash) == b"nothing"
    assert entry.digest.size_bytes == len(b"nothing")  # type: ignore[union-attr]


def test_blame_shows_the_rest(disk_store: Store) -> None:
    stats = {"files": 1, "bytes": 0, "added": 0, "modified": 0, "deleted": 0}
    last = None
    for data in (SECRET, SECRET + b"c\n", b"whole\n", b"whole\nd\n"):
        root = put_tree(disk_store, {"f": data})
        with disk_store.batch() as batch:
            last = create.put(
                batch, "work", last, create.Content(RecordedState(root), "", stats, [])
            )
    purged(disk_store, SECRET, REST)
    purged(disk_store, b"whole\n")
    found = blame.blame(find(disk_store, "work")[0], b"f")
    assert [line.text for line in found] == [b"whole\n", b"d\n"]

"""Checkpoints and trees in the mount, as plain vnodes."""

from __future__ import annotations

import stat

import pytest

from casfs.backend.derived import last_use
from casfs.backend.protocols import Head
from casfs.digest import Digest
from casfs.errors import Corrupt
from casfs.fuse.inodes import inode_number
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Y2000_NS, Directory, File, Link, Vnode
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File as FileEntry
from casfs.store.nodes.directory import Properties, Subdirectory
from casfs.store.nodes.directory import Symlink as SymlinkEntry
from casfs.store.store import Store
from tests.support.fuse import (
    at,
    damage,
    missing,
    names,
    read,
    target,
    walk,
)
from tests.support.helpers import put_unchecked
from tests.support.thread_example import make_thread, put_tree

MS = 1_000_000


def test_a_tree(store: Store) -> None:
    tree = f"trees/{put_tree(store)}"
    vnode = at(store, tree)
    assert isinstance(vnode, Directory)
    assert [name for name, _ in vnode.entries()] == [
        b"empty", b"hello.txt", b"link", b"one", b"run", b"two", b"\xff\xfe",
    ]  # fmt: skip
    assert at(store, f"{tree}/hello.txt").attr() == (stat.S_IFREG | 0o644, 6, Y2000_NS, 1)
    assert at(store, f"{tree}/run").attr().mode == stat.S_IFREG | 0o755
    assert at(store, f"{tree}/empty").attr() == (stat.S_IFDIR | 0o755, 0, Y2000_NS, 1)
    assert target(store, f"{tree}/link") == "hello.txt"
    assert read(store, f"{tree}/two/same") == b"hello\n"
    assert names(store, f"{tree}/empty") == []
    assert missing(store, f"{tree}/nothing")
    assert vnode.fixed
    assert not any(child.live for _, child in walk(vnode))


def test_only_directories_are_trees(store: Store) -> None:
    blob, node = store.put(b"blob"), store.put_node("content", {"text": "", "artifacts": []})
    for name in (blob.hash, node.hash, "00" * 32, "nothing"):
        assert missing(store, f"trees/{name}")


def test_what_was_preserved_is_shown(store: Store) -> None:
    properties = Properties((1_600_000_000, 5), 0o640)
    with store.batch() as batch:
        blob = batch.put(b"x")
        inner = batch.put_node("directory", directory.encode([], properties))
        entries = [
            FileEntry(b"f", blob, executable=True, properties=properties),
            SymlinkEntry(b"l", b"f", properties),
            Subdirectory(b"d", inner),
        ]
        tree = batch.put_node("directory", directory.encode(entries))
    at_that_time = 1_600_000_000_000_000_005
    assert at(store, f"trees/{tree}/f").attr() == (stat.S_IFREG | 0o640, 1, at_that_time, 1)
    assert at(store, f"trees/{tree}/l").attr().mtime_ns == at_that_time
    assert at(store, f"trees/{tree}/d").attr() == (stat.S_IFDIR | 0o640, 0, at_that_time, 1)


IDS = ("20250101T000000.000Z-aaaaaaaa", "20250202T000000.000Z-bbbbbbbb")


def put_checkpoint(store: Store, name: str, id: str, tree: str, created: int) -> None:
    payload = {"root": tree, "previous": None, "name": name, "createdAt": created, "message": "",
               "stats": dict.fromkeys(("files", "bytes", "added", "modified", "deleted"), 0),
               "changed_files": []}  # fmt: skip
    record = {"root": tree, "createdAt": created, "message": ""}
    with store.batch() as batch:
        node = batch.put_node("checkpoint", payload)
        batch.swap(f"checkpoints/{name}/{id}", None, Head(node.hash, record))


def test_looking_into_a_checkpoint_is_a_use_of_it(store: Store) -> None:
    tree = put_tree(store).hash
    for place, id in enumerate(IDS):
        put_checkpoint(store, "ws", id, tree, 5 + place)
    reader = StoreReader(store)
    checkpoints = at(store, "trees/ws", root(reader, Stats()))
    assert isinstance(checkpoints, Directory)
    list(checkpoints.entries())  # a listing is none
    assert checkpoints.lookup(IDS[0].encode()) is not None
    reader.note_uses()
    assert last_use(store.heads, f"checkpoints/ws/{IDS[0]}") > 0
    assert last_use(store.heads, f"checkpoints/ws/{IDS[1]}") == 0


def test_checkpoints(store: Store) -> None:
    tree = put_tree(store).hash
    top = root(StoreReader(store), Stats())
    trees = at(store, "trees", top)
    assert isinstance(trees, Directory)
    assert trees.lookup(b"ws") is None
    put_checkpoint(store, "ws", "20250101T000000.000Z-aaaaaaaa", tree, 5)
    checkpoints = trees.lookup(b"ws")
    assert isinstance(checkpoints, Directory)
    first = checkpoints.attr().mtime_ns
    assert first // MS == 5
    latest = checkpoints.lookup(b"latest")
    assert isinstance(latest, Link)
    assert latest.target == b"20250101T000000.000Z-aaaaaaaa"

    put_checkpoint(store, "ws", "20250202T000000.000Z-bbbbbbbb", tree, 7)
    assert [name for name, _ in checkpoints.entries()] == [
        b"20250101T000000.000Z-aaaaaaaa", b"20250202T000000.000Z-bbbbbbbb", b"latest",
    ]  # fmt: skip
    newer = checkpoints.lookup(b"latest")
    assert isinstance(newer, Link)
    assert newer.target == b"20250202T000000.000Z-bbbbbbbb"
    assert newer.key != latest.key, "a link that moved is another inode"
    assert checkpoints.attr().mtime_ns // MS == 7
    assert not checkpoints.binds(b"latest")
    assert checkpoints.lookup(b"20250303T000000.000Z-cccccccc") is None
    assert [name for name, _ in trees.entries()] == [b"ws"]


def test_a_directory_of_checkpoints_has_another_mtime_when_one_went(store: Store) -> None:
    tree = put_tree(store).hash
    for id in IDS:
        put_checkpoint(store, "ws", id, tree, 7)
    top = root(StoreReader(store), Stats())
    trees, checkpoints = at(store, "trees", top), at(store, "trees/ws", top)
    before = trees.attr().mtime_ns, checkpoints.attr().mtime_ns
    put_checkpoint(store, "other", IDS[0], tree, 7)
    assert trees.attr().mtime_ns > before[0]
    assert checkpoints.attr().mtime_ns == before[1], "nothing of its own moved"
    with store.batch() as batch:
        batch.swap(f"checkpoints/ws/{IDS[0]}", store.heads.get(f"checkpoints/ws/{IDS[0]}"), None)
    assert checkpoints.attr().mtime_ns > before[1], "within its millisecond"
    with store.batch() as batch:
        batch.swap(f"checkpoints/ws/{IDS[1]}", store.heads.get(f"checkpoints/ws/{IDS[1]}"), None)
    assert isinstance(trees, Directory)
    assert trees.lookup(b"ws") is None
    assert [name for name, _ in trees.entries()] == [b"other"]


def test_inode_keys_in_trees(store: Store) -> None:
    tree = put_tree(store).hash
    put_checkpoint(store, "ws", IDS[0], tree, 1)
    put_checkpoint(store, "ws", IDS[1], tree, 2)
    seen: dict[str, dict[str, Vnode]] = {}
    for where in (f"trees/{tree}", f"trees/ws/{IDS[0]}", f"trees/ws/{IDS[1]}"):
        vnode = at(store, where)
        assert isinstance(vnode, Directory)
        seen[where] = dict(walk(vnode))
    first, *others = seen.values()
    for other in others:
        for path, vnode in other.items():
            same = vnode.key == first[path].key
            assert same is not isinstance(vnode, Directory), path
    for paths in seen.values():
        assert len({inode_number(vnode.key) for vnode in paths.values()}) == len(paths)
    assert first["/one/same"].key != first["/two/same"].key, "an overlay would alias them"


def test_an_inode_changes_with_content_and_mode(store: Store) -> None:
    def key(entry: directory.Entry) -> bytes:
        tree = store.put_node("directory", directory.encode([entry]))
        return at(store, f"trees/{tree}/f").key

    one, two = store.put(b"1"), store.put(b"2")
    keys = [
        key(FileEntry(b"f", one)),
        key(FileEntry(b"f", two)),
        key(FileEntry(b"f", one, executable=True)),
        key(FileEntry(b"f", one, properties=Properties((1, 0)))),
        key(SymlinkEntry(b"f", b"1")),
        key(SymlinkEntry(b"f", b"2")),
    ]
    assert len(set(keys)) == len(keys)


def test_damage_in_a_tree_stays_where_it_is(store: Store) -> None:
    tree = put_tree(store).hash
    inner = at(store, f"trees/{tree}/one").digest
    assert inner is not None
    damage(store, inner, None)
    damage(store, Digest.of(b"hello\n").hash, None)
    store = Store(store.backend, store.root)  # one that has decoded nothing yet
    top = at(store, f"trees/{tree}")
    assert isinstance(top, Directory)
    assert len(dict(top.entries())) == 7
    one, hello = top.lookup(b"one"), top.lookup(b"hello.txt")
    assert read(store, f"trees/{tree}/run").startswith(b"#!")
    assert isinstance(one, Directory)
    assert isinstance(hello, File)
    with pytest.raises(Corrupt):
        one.lookup(b"same")
    with pytest.raises(Corrupt):
        hello.read(0, 6)


def test_a_size_that_lies_is_an_error_not_a_short_file(store: Store) -> None:
    blob = store.put(b"0123456789")
    for size in (3, 20):
        lie = FileEntry(b"f", Digest(blob.hash, size))
        tree = put_unchecked(store, "directory", directory.encode([lie]))
        vnode = at(store, f"trees/{tree}/f")
        assert isinstance(vnode, File)
        with pytest.raises(Corrupt):
            vnode.read(0, 100)
        with pytest.raises(Corrupt):
            vnode.read(1, 1)


def test_a_tree_with_its_times(store: Store) -> None:
    inner = directory.encode([FileEntry(b"f", store.put(b"f"), False)])
    below = store.put_node("directory", inner)
    tree = store.put_node("directory", directory.encode([Subdirectory(b"d", below)])).hash
    leaf = {"own": "7", "newest": "9", "files": ["9"], "directories": [], "symlinks": []}
    top = {**leaf, "files": [], "directories": [store.put_node("times", leaf).hash], "own": None}
    times = store.put_node("times", top).hash
    assert at(store, f"trees/{tree}@{times}/d/f").attr().mtime_ns == 9
    assert at(store, f"trees/{tree}@{times}/d").attr().mtime_ns == 7
    assert at(store, f"trees/{tree}@{times}").attr().mtime_ns == Y2000_NS
    assert at(store, f"trees/{tree}/d/f").attr().mtime_ns == Y2000_NS
    trees = at(store, "trees")
    assert isinstance(trees, Directory)
    assert not trees.binds(f"{tree}@{times}".encode())
    for name in (
        f"{tree}@",
        f"{tree}@{tree}",
        f"{times}@{times}",
        f"{tree}@{'0' * 64}",
        "@",
        "x@1",
    ):
        assert trees.lookup(name.encode()) is None
    wrong = at(store, f"trees/{below.hash}@{times}")
    assert isinstance(wrong, Directory)
    with pytest.raises(Corrupt, match="not of directory"):
        list(wrong.entries())


def test_a_tree_by_its_step(store: Store) -> None:
    thread = make_thread(store)
    thread.step("planner", "# Plan")
    trees = at(store, "trees")
    assert isinstance(trees, Directory)
    for index in (0, 1):
        assert trees.lookup(f"{thread.id}@{index}".encode()) is not None
    for name in ("2", "99", "01", "-1", "x", "", "1@1"):
        assert trees.lookup(f"{thread.id}@{name}".encode()) is None

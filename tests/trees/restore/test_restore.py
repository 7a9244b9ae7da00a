from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.backend.protocols import FILE_MIN_BYTES
from casfs.backend.purge_marks import PURGED_PREFIX
from casfs.digest import hash_bytes
from casfs.errors import Corrupt, CorruptBlob, Failed, NotFound, Refused
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees.restore import write
from tests.support.helpers import (
    ABSENT,
    LARGE,
    Link,
    Program,
    Tree,
    put_tree,
    put_unchecked,
    read_tree,
    take,
    write_tree,
)
from tests.support.restores import restore_tree
from tests.trees.snapshot.test_walker import TREE


def named(tree: Tree) -> dict[bytes, Any]:
    """A literal tree with all names as bytes, as `read_tree` gives it."""
    return {
        os.fsencode(name): item if isinstance(item, bytes) else named(item)
        for name, item in tree.items()
    }


def corrupt(store: Store, hash: str) -> None:
    """Flip one byte of a large blob on disk."""
    path = store.root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


@pytest.fixture(params=["memory", "disk"])
def any_store(request: pytest.FixtureRequest) -> Store:
    name = "store" if request.param == "memory" else "disk_store"
    found: Store = request.getfixturevalue(name)
    return found


def test_a_tree_is_written_as_it_is(any_store: Store, tmp_path: Path) -> None:
    restore_tree(any_store, put_tree(any_store, TREE), tmp_path / "out")
    assert read_tree(tmp_path / "out") == named(TREE)


def test_modes_are_those_of_the_mount(any_store: Store, tmp_path: Path) -> None:
    root = put_tree(any_store, {"f": LARGE, "run": Program(b""), "d": {"f": b""}})
    mask = os.umask(0o077)
    try:
        restore_tree(any_store, root, tmp_path / "out")
    finally:
        os.umask(mask)
    modes = {name: (tmp_path / "out" / name).stat().st_mode & 0o7777 for name in TREE_MODES}
    assert modes == TREE_MODES


TREE_MODES = {".": 0o755, "f": 0o644, "run": 0o755, "d": 0o755, "d/f": 0o644}


@pytest.mark.parametrize("there", [False, True])
def test_the_target_is_new_or_empty(store: Store, tmp_path: Path, there: bool) -> None:
    target = tmp_path / "a" / "b"
    if there:
        target.mkdir(parents=True)
    else:
        with pytest.raises(NotFound, match=f"no directory {target.parent}; use --parents"):
            restore_tree(store, put_tree(store, {"f": b"1"}), target)
    restore_tree(store, put_tree(store, {"f": b"1"}), target, parents=True)
    assert read_tree(target.parent) == {b"b": {b"f": b"1"}}


def test_a_target_with_the_longest_name(store: Store, tmp_path: Path) -> None:
    target = tmp_path / ("n" * 255)
    restore_tree(store, put_tree(store, {"f": b"1"}), target)
    assert read_tree(target) == {b"f": b"1"}


@pytest.mark.parametrize(
    "there", [{"target": {"x": b""}}, {"target": b"file"}, {"target": Link(b"nowhere")}]
)
def test_what_is_there_is_left_alone(store: Store, tmp_path: Path, there: Tree) -> None:
    place = write_tree(tmp_path / "place", there)
    with pytest.raises(Refused, match="target"):
        restore_tree(store, put_tree(store, {"f": b"1"}), place / "target")
    assert read_tree(place) == named(there)


def test_a_planted_symlink_is_not_followed(store: Store, tmp_path: Path) -> None:
    write_tree(tmp_path / "elsewhere", {})
    (tmp_path / "target").symlink_to("elsewhere")
    with pytest.raises(Refused):
        restore_tree(store, put_tree(store, {"f": b"1"}), tmp_path / "target")
    assert read_tree(tmp_path / "elsewhere") == {}


def test_links_of_the_tree_are_not_followed_while_it_is_written(
    store: Store, tmp_path: Path
) -> None:
    write_tree(tmp_path / "victim", {"f": b"mine"})
    tree = {"l": Link(os.fsencode(tmp_path / "victim")), "m": Link(b"l"), "f": b"theirs"}
    restore_tree(store, put_tree(store, tree), tmp_path / "out")
    assert read_tree(tmp_path / "victim") == {b"f": b"mine"}
    assert read_tree(tmp_path / "out") == named(tree)


def test_two_entries_of_one_name_cannot_lead_out(store: Store, tmp_path: Path) -> None:
    """A link and then a directory of its name would write through the link."""
    inner = put_tree(store, {"f": b"theirs"})
    digest = {"hash": inner, "size_bytes": 1}
    payload = {
        "files": [],
        "directories": [{"name": "l", "digest": digest}],
        "symlinks": [{"name": "l", "target": str(tmp_path)}],
    }
    for hash in (
        put_unchecked(store, "directory", payload),
        put_unchecked(
            store,
            "directory",
            {"files": [], "symlinks": [], "directories": [{"name": "../l", "digest": digest}]},
        ),
    ):
        with pytest.raises(Corrupt):
            restore_tree(store, hash, tmp_path / "place" / "out")
    assert not (tmp_path / "f").exists()
    assert not (tmp_path / "place").exists()


@pytest.mark.parametrize("kind", ["missing blob", "flipped bit", "deep corrupt directory"])
def test_a_restore_that_fails_leaves_nothing(disk_store: Store, tmp_path: Path, kind: str) -> None:
    place = write_tree(tmp_path / "place", {"target": {}})
    first = directory.encode([File(b"a", disk_store.put(b"small"))])
    good = disk_store.put(LARGE)
    if kind == "missing blob":
        item = {"name": "b", "digest": {"hash": ABSENT, "size_bytes": 9}, "is_executable": False}
        root = put_unchecked(disk_store, "directory", {**first, "files": [*first["files"], item]})
        expected: type[Exception] = NotFound
    elif kind == "flipped bit":
        root = put_tree(disk_store, {"a": b"small", "b": LARGE})
        corrupt(disk_store, good.hash)
        expected = CorruptBlob
    else:
        bad = put_unchecked(disk_store, "directory", {"files": 1})
        below = {"name": "d", "digest": {"hash": bad, "size_bytes": 1}}
        root = put_unchecked(disk_store, "directory", {**first, "directories": [below]})
        expected = Corrupt
    with pytest.raises(expected):
        restore_tree(disk_store, root, place / "target")
    assert read_tree(place) == {b"target": {}}


def test_an_interrupted_restore_leaves_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tree(tmp_path / "place", {})
    root = put_tree(store, {"a": b"1", "d": {"b": b"2"}, "z": b"3"})
    get_many = store.blobs.get_many

    def interrupted(hashes: list[str]) -> Iterator[bytes | None]:
        yield from get_many(hashes[:2])
        raise KeyboardInterrupt

    monkeypatch.setattr(store.blobs, "get_many", interrupted)
    with pytest.raises(KeyboardInterrupt):
        restore_tree(store, root, place / "out")
    assert read_tree(place) == {}


def test_what_is_no_tree_is_refused_before_anything_is_made(store: Store, tmp_path: Path) -> None:
    for hash in (store.put(b"blob").hash, ABSENT):
        with pytest.raises(NotFound):
            restore_tree(store, hash, tmp_path / "place" / "out")
    assert not (tmp_path / "place").exists()


def test_a_target_below_a_file_is_a_clear_failure(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Failed, match="cannot restore to"):
        restore_tree(store, put_tree(store, {}), tmp_path / "file" / "out")


@pytest.mark.parametrize("hole", [(0, 3 << 20), (1 << 20, 8 << 20), (8 << 20, 8 << 20)])
def test_holes_stay_holes(disk_store: Store, tmp_path: Path, hole: tuple[int, int]) -> None:
    data_at, size = hole
    write_tree(tmp_path / "w", {})
    with (tmp_path / "w" / "sparse").open("wb") as file:
        file.truncate(size)
        if data_at < size:
            file.seek(data_at)
            file.write(b"data")
    restore_tree(disk_store, take(disk_store, tmp_path / "w"), tmp_path / "out")
    out = tmp_path / "out" / "sparse"
    assert out.read_bytes() == (tmp_path / "w" / "sparse").read_bytes()
    assert out.stat().st_blocks * 512 <= 2 << 20


def test_the_content_is_the_blobs_whatever_size_the_directory_claims(
    disk_store: Store, tmp_path: Path
) -> None:
    hash = disk_store.put(LARGE).hash
    for claimed in (1, len(LARGE) + 5000):
        item = {"name": "f", "digest": {"hash": hash, "size_bytes": claimed}}
        payload = {"files": [{**item, "is_executable": False}], "directories": [], "symlinks": []}
        root = put_unchecked(disk_store, "directory", payload)
        restore_tree(disk_store, root, tmp_path / f"out-{claimed}")
        assert (tmp_path / f"out-{claimed}" / "f").read_bytes() == LARGE


def test_a_file_whose_bytes_are_a_large_node(disk_store: Store, tmp_path: Path) -> None:
    """Such a blob is a row, so it is not copied in the kernel."""
    digest = disk_store.put_node("content", {"text": "x" * 300_000, "artifacts": []})
    data = disk_store.get(digest.hash)
    restore_tree(disk_store, put_tree(disk_store, {"f": data}), tmp_path / "out")
    assert (tmp_path / "out" / "f").read_bytes() == data


# What is left of a purged file is not recorded.
DATA = st.binary(max_size=40).filter(lambda data: not data.startswith(PURGED_PREFIX))
FILES = DATA.flatmap(lambda data: st.sampled_from([data, Program(data)]))
LINKS = st.binary(min_size=1, max_size=9).map(lambda b: Link(b.replace(b"\0", b"/")))
NAMES = st.binary(min_size=1, max_size=5).filter(
    lambda name: name not in (b".", b"..") and b"/" not in name and b"\0" not in name
)
TREES = st.recursive(
    FILES | LINKS, lambda inner: st.dictionaries(NAMES, inner, max_size=4), max_leaves=10
).filter(lambda value: isinstance(value, dict))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(tree=TREES)
def test_a_restored_tree_has_the_same_root(
    store: Store, tmp_path_factory: pytest.TempPathFactory, tree: Any
) -> None:
    place = tmp_path_factory.mktemp("round")
    root = take(store, write_tree(place / "w", tree))
    restore_tree(store, root, place / "out")
    assert take(store, place / "out") == root
    assert read_tree(place / "out") == tree


@pytest.mark.parametrize("at", ["_clone", "_copy_range"])
def test_a_blob_whose_file_is_cut_while_it_is_copied(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    data = b"x" * 2 * FILE_MIN_BYTES
    root = put_tree(disk_store, {"f": data})
    hash = hash_bytes(data)
    path = disk_store.root / "objects" / hash[:2] / hash[2:]
    path.chmod(0o644)
    called = getattr(write, at)

    def cut(*arguments: Any, **more: Any) -> Any:
        os.truncate(path, 100)
        return called(*arguments, **more)

    monkeypatch.setattr(write, at, cut)
    with pytest.raises(CorruptBlob, match=f"blob {hash}: its file is not .* long any more"):
        restore_tree(disk_store, root, tmp_path / "out")

"""Images of trees: made once, whole or not at all, and gone with their tree."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from casfs.backend.derived import find_missing, total_stored
from casfs.backend.protocols import INLINE_MAX_BYTES
from casfs.digest import Digest
from casfs.errors import Corrupt, CorruptBlob, Failed, Invalid, NotFound
from casfs.maintenance.gc import Limits, collect
from casfs.native import images
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.system import mounts
from casfs.workspaces import image_mount
from casfs.workspaces.overlay_mount import OverlayLayers
from tests.support.helpers import (
    ABSENT,
    LARGE,
    Link,
    Program,
    Tree,
    put_tree,
    put_unchecked,
    read_tree,
)
from tests.support.maintenance import age, put_checkpoint, reopened, sql
from tests.support.native import (
    ensure_image,
    fsck,
    look,
    mounted,
    needs_native,
    overlaid,
    write_layer,
)
from tests.support.new_store import init_store

TREE: Tree = {
    "empty": b"",
    "small": b"s" * INLINE_MAX_BYTES,
    "larger": b"l" * (INLINE_MAX_BYTES + 1),
    "tool": Program(LARGE),
    "link": Link(b"tool"),
    "nothing": {},
    "deep": {"er": {b"\xff\xfe": b"bytes", "same": LARGE}},
}


def folder(store: Store) -> Path:
    return store.root / "images"


def listed(store: Store) -> list[str]:
    return sorted(os.listdir(folder(store))) if folder(store).exists() else []


def old(path: Path, seconds: int) -> Path:
    """Make it used that long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def shown(store: Store, root: str, work: Path) -> dict[bytes, object]:
    """A tree as its image and the objects show it."""
    with (
        mounted(ensure_image(store, root), work / "lower") as lower,
        overlaid(lower, store.root / "objects", work / "point") as point,
    ):
        return read_tree(point)


# -- what is in it ------------------------------------------------------------------------


@needs_native
def test_over_the_objects_it_is_the_tree(disk_store: Store, tmp_path: Path) -> None:
    root = put_tree(disk_store, TREE)
    assert shown(disk_store, root, tmp_path) == read_tree_of(TREE)


def read_tree_of(tree: Tree) -> dict[bytes, object]:
    return {
        os.fsencode(name): item if isinstance(item, bytes) else read_tree_of(item)
        for name, item in tree.items()
    }


@needs_native
def test_attributes_are_those_of_the_mount_unless_preserved(
    disk_store: Store, tmp_path: Path
) -> None:
    blob = disk_store.put(LARGE)
    kept = Properties((-5, 999), 0o4751)
    inner = disk_store.put_node("directory", directory.encode([], Properties((7, 8), 0o700)))
    entries: list[Entry] = [
        File(b"plain", blob),
        File(b"program", blob, executable=True),
        File(b"kept", blob, properties=kept),
        File(b"mode", blob, properties=Properties(None, 0o600)),
        Symlink(b"link", b"x"),
        Symlink(b"kept link", b"x", kept),
        Subdirectory(b"inner", inner),
    ]
    root = disk_store.put_node("directory", directory.encode(entries)).hash
    with mounted(ensure_image(disk_store, root, uid=70_000, gid=3), tmp_path / "lower") as lower:
        found = look(lower, holes=True)
    usual = images.YEAR_2000 * 1_000_000_000
    assert {(one.uid, one.gid) for one in found.values()} == {(70_000, 3)}
    assert {os.fsdecode(path): (one.mode, one.mtime_ns) for path, one in found.items()} == {
        ".": (0o40755, usual),
        "plain": (0o100644, usual),
        "program": (0o100755, usual),
        "kept": (0o104751, -4_999_999_001),
        "mode": (0o100600, usual),
        "link": (0o120777, usual),
        "kept link": (0o120777, -4_999_999_001),
        "inner": (0o40700, 7_000_000_008),
    }


@needs_native
def test_what_is_a_row_is_in_the_image_and_what_is_a_file_is_not(
    disk_store: Store, tmp_path: Path
) -> None:
    root = put_tree(disk_store, TREE)
    with mounted(ensure_image(disk_store, root), tmp_path / "lower") as lower:
        found = look(lower, holes=True)
    redirects = {
        os.fsdecode(path): one.xattrs["trusted.overlay.redirect"].decode()
        for path, one in found.items()
        if one.xattrs
    }
    large = Digest.of(LARGE).hash
    larger = Digest.of(b"l" * (INLINE_MAX_BYTES + 1)).hash
    assert redirects == {
        "larger": f"/{larger[:2]}/{larger[2:]}",
        "tool": f"/{large[:2]}/{large[2:]}",
        "deep/er/same": f"/{large[:2]}/{large[2:]}",
    }
    assert found[b"small"].content == b"s" * INLINE_MAX_BYTES


@needs_native
@pytest.mark.parametrize("first_a_blob", [False, True])
def test_a_file_that_is_a_node(disk_store: Store, tmp_path: Path, first_a_blob: bool) -> None:
    """It is a row of any length, or a file, if it was stored as plain bytes before."""
    many = {f"{number:06}{'x' * 200}": b"" for number in range(4000)}  # over 1 MiB as a node
    with Store.memory() as other:
        data = other.get(put_tree(other, many))
    assert len(data) > 1 << 20
    if first_a_blob:
        disk_store.put(data)
    node = put_tree(disk_store, many)
    entries: list[Entry] = [
        File(b"node", Digest(node, len(data))),
        Subdirectory(b"tree", Digest(node, len(data))),
    ]
    root = disk_store.put_node("directory", directory.encode(entries)).hash
    assert shown(disk_store, root, tmp_path)[b"node"] == data


def test_it_is_small(disk_store: Store) -> None:
    """A slot of 160 bytes and an entry for each file; times and owner are the image's."""
    root = put_tree(disk_store, {f"{number:04}": LARGE for number in range(1000)})
    assert (
        ensure_image(disk_store, root, uid=0, gid=0).stat().st_size < 1000 * (160 + 12 + 4) + 12_000
    )


# -- made once ----------------------------------------------------------------------------


def test_it_is_made_once(disk_store: Store) -> None:
    root = put_tree(disk_store, TREE)
    path = ensure_image(disk_store, root)
    made = path.stat()
    assert made.st_mode & 0o7777 == 0o444
    with reopened(disk_store) as other:
        assert ensure_image(other, root) == path
    assert path.stat().st_ino == made.st_ino
    assert listed(disk_store) == [path.name]
    assert images.roots(disk_store) == {root}


def test_one_root_one_image(disk_store: Store, tmp_path: Path) -> None:
    root = put_tree(disk_store, TREE)
    with init_store(tmp_path / "other") as other:
        other.put(b"something before")
        assert put_tree(other, dict(reversed(list(TREE.items())))) == root
        assert ensure_image(other, root).read_bytes() == ensure_image(disk_store, root).read_bytes()


def test_each_owner_has_an_image(disk_store: Store) -> None:
    root = put_tree(disk_store, TREE)
    mine, yours = ensure_image(disk_store, root), ensure_image(disk_store, root, uid=1, gid=2)
    assert mine != yours
    assert mine.read_bytes() != yours.read_bytes()
    assert ensure_image(disk_store, root, uid=os.geteuid(), gid=os.getegid()) == mine


def test_several_at_once_make_one(disk_store: Store) -> None:
    root = put_tree(disk_store, TREE)

    def opened(_: int) -> tuple[Path, int]:
        with reopened(disk_store) as other:
            path = ensure_image(other, root)
            return path, path.stat().st_ino

    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(opened, range(12)))
    assert len(found) == 1
    assert len(listed(disk_store)) == 1


def test_what_a_killed_process_left_is_no_image(disk_store: Store) -> None:
    root = put_tree(disk_store, TREE)
    path = ensure_image(disk_store, root)
    whole = path.read_bytes()
    path.rename(path.with_name(f".{path.name}"))
    assert ensure_image(disk_store, root).read_bytes() == whole
    path.with_name(f".{'0' * 64}-0.0.v1.erofs").write_bytes(b"half")
    collect(disk_store)
    assert listed(disk_store) == [path.name]


# -- or not at all ------------------------------------------------------------------------


def test_what_is_no_tree(disk_store: Store) -> None:
    blob = disk_store.put(LARGE).hash
    schema = disk_store.registry.head("directory").hash
    for hash in (ABSENT, blob, schema, blob[:10], "../../etc"):
        with pytest.raises(NotFound):
            ensure_image(disk_store, hash)
    assert listed(disk_store) == []


def test_a_damaged_row(disk_store: Store) -> None:
    root = put_tree(disk_store, {"a": b"sound", "b": b"rotten"})
    hash = bytes.fromhex(Digest.of(b"rotten").hash)
    sql(disk_store, "UPDATE blobs SET data = ? WHERE hash = ?", b"ROTTEN", hash)
    with pytest.raises(CorruptBlob):
        ensure_image(disk_store, root)
    assert listed(disk_store) == []


@pytest.mark.parametrize("data", [b"a row", LARGE])
def test_a_size_that_is_not_the_blobs(disk_store: Store, data: bytes) -> None:
    hash = disk_store.put(data).hash
    payload = directory.encode([File(b"f", Digest(hash, len(data) + 1))])
    root = put_unchecked(disk_store, "directory", payload)
    with pytest.raises(Corrupt, match=hash):
        ensure_image(disk_store, root)
    assert listed(disk_store) == []


@pytest.mark.parametrize("size", [5, 5000])
def test_a_blob_that_is_not_there(disk_store: Store, size: int) -> None:
    payload = directory.encode([File(b"f", Digest(ABSENT, size))])
    root = put_unchecked(disk_store, "directory", payload)
    with pytest.raises(NotFound, match=ABSENT):
        ensure_image(disk_store, root)
    assert listed(disk_store) == []


def test_a_place_that_cannot_be_written(disk_store: Store) -> None:
    root = put_tree(disk_store, TREE)
    folder(disk_store).write_bytes(b"in the way")
    with pytest.raises(Failed, match="images"):
        ensure_image(disk_store, root)


# -- and gone with its tree ---------------------------------------------------------------


def test_gc_takes_the_image_of_a_tree_that_goes(disk_store: Store) -> None:
    head = disk_store.heads.get(put_checkpoint(disk_store, dict(TREE)))
    assert head is not None
    kept = ensure_image(disk_store, head.record["root"])
    lost = ensure_image(disk_store, put_tree(disk_store, {"other": LARGE}))
    age(disk_store)
    assert collect(disk_store, dry_run=True).evicted == [f"images/{lost.name}"]
    assert kept.exists()
    assert lost.exists()
    assert collect(disk_store).evicted == [f"images/{lost.name}"]
    assert listed(disk_store) == [kept.name]


def test_gc_takes_the_image_of_a_tree_that_is_gone(disk_store: Store) -> None:
    path = ensure_image(disk_store, put_tree(disk_store, TREE))
    stray = path.rename(path.with_name(path.name.replace(path.name[:64], ABSENT)))
    assert collect(disk_store).evicted == [f"images/{stray.name}"]
    with pytest.raises(NotFound):
        ensure_image(disk_store, ABSENT)


def test_an_image_keeps_nothing(disk_store: Store) -> None:
    root = put_tree(disk_store, TREE)
    ensure_image(disk_store, root)
    age(disk_store)
    collect(disk_store)
    assert find_missing(disk_store.blobs, [root]) == [root]
    assert listed(disk_store) == []


def test_a_limit_takes_the_images_used_longest_ago(disk_store: Store) -> None:
    paths = []
    for number in range(4):
        head = disk_store.heads.get(put_checkpoint(disk_store, {f"{number}": LARGE}, at=number))
        assert head is not None
        paths.append(old(ensure_image(disk_store, head.record["root"]), 100 * number))
    age(disk_store)
    content = total_stored(disk_store.blobs)
    two = sum(path.stat().st_size for path in paths[:2])
    assert collect(disk_store, limits=Limits(content.bytes + 10 * two)).evicted == []
    used = ensure_image(disk_store, paths[3].name[:64])  # used just now
    limit = Limits(content.bytes + two)
    gone = [f"images/{paths[1].name}", f"images/{paths[2].name}"]
    assert collect(disk_store, limits=limit, dry_run=True).evicted == gone
    assert collect(disk_store, limits=limit).evicted == gone
    assert listed(disk_store) == sorted([used.name, paths[0].name])
    assert collect(disk_store, limits=Limits(max_files=content.files + 1)).evicted == [
        f"images/{paths[0].name}"
    ]
    assert total_stored(disk_store.blobs) == content


# -- beside the objects -------------------------------------------------------------------


def test_a_path_of_another_object_is_refused(disk_store: Store) -> None:
    """The kernel would take that file for the object."""
    hash = disk_store.put(LARGE).hash
    good = put_tree(disk_store, {hash[:2]: {hash[2:]: LARGE, "other": b"x"}})
    assert ensure_image(disk_store, good).exists()
    for other in (b"another", LARGE[1:], {}, Link(b"x")):
        bad = put_tree(disk_store, {hash[:2]: {hash[2:]: other}})
        with pytest.raises(Invalid, match="cannot be an image"):
            ensure_image(disk_store, bad)


def test_an_object_of_somebody_else_is_refused(disk_store: Store) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    root, hash = put_tree(disk_store, TREE), Digest.of(LARGE).hash
    os.chown(disk_store.root / "objects" / hash[:2] / hash[2:], 65534, 65534)
    with pytest.raises(Failed, match="not a file of this user"):
        ensure_image(disk_store, root)
    assert listed(disk_store) == []


# -- changes ------------------------------------------------------------------------------

CHANGED: Tree = {
    **{name: item for name, item in TREE.items() if name not in ("small", "nothing")},
    "empty": {"now": LARGE},
    "tool": LARGE,
    "deep": {
        "er": {b"\xff\xfe": b"other"},
        "new": {"x": Link(b"y"), "z": b"l" * (INLINE_MAX_BYTES + 1)},
    },
}


@needs_native
@pytest.mark.parametrize("swapped", [False, True])
def test_changes_above_an_image_are_the_other_tree(
    disk_store: Store, tmp_path: Path, swapped: bool
) -> None:
    old, new = (CHANGED, TREE) if swapped else (TREE, CHANGED)
    roots = put_tree(disk_store, old), put_tree(disk_store, new)
    changes = tmp_path / "changes"
    size = write_layer(disk_store, *roots, changes)
    assert size == changes.stat().st_size
    fsck(changes)
    layers = OverlayLayers(
        ensure_image(disk_store, roots[0]),
        tmp_path,
        tmp_path / "work",
        tmp_path / "point",
        True,
        changes,
    )
    layers.point.mkdir()
    image_mount.mount(layers)
    try:
        assert read_tree(layers.point) == read_tree_of(new)
    finally:
        mounts.unmount(layers.point)
    assert list(tmp_path.glob("lower*")) == []


def test_changes_cost_what_they_are(disk_store: Store, tmp_path: Path) -> None:
    many = {str(number): {"f": b"%d" % number} for number in range(500)}
    roots = put_tree(disk_store, many), put_tree(disk_store, {**many, "7": {"f": b"other"}})
    size = write_layer(disk_store, *roots, tmp_path / "changes")
    assert size == 4096 < ensure_image(disk_store, roots[0]).stat().st_size
    with pytest.raises(NotFound, match="no tree"):
        write_layer(disk_store, roots[0], ABSENT, tmp_path / "changes")

"""Images of trees whose files are in packs, mounted by the kernel, while gc and packing go on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.backend import hot_packs
from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import FILE_MIN_BYTES, INLINE_MAX_BYTES
from casfs.digest import Digest
from casfs.errors import CorruptBlob, NotFound
from casfs.maintenance.gc import collect
from casfs.native import images
from casfs.native.erofs import devices
from casfs.native.object_protection import device_path
from casfs.store.store import Store
from casfs.system import mounts
from casfs.trees.dated import DatedTree
from casfs.workspaces import image_mount
from casfs.workspaces.overlay_mount import OverlayLayers
from tests.support.block_maps import FIRST, changed, put_change
from tests.support.helpers import Link, Tree, put_tree, read_tree
from tests.support.maintenance import age, put_checkpoint, sql
from tests.support.native import ensure_image, fsck, needs_native, write_layer
from tests.support.new_store import init_store
from tests.support.packs import freeze

pytestmark = needs_native


@pytest.fixture(autouse=True)
def every_group_is_a_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_packs, "MIN_BLOBS", 1)


def data(seed: int, size: int) -> bytes:
    return (b"%08d " % seed * (size // 9 + 1))[:size]


PACKED: Tree = {
    "row": data(0, INLINE_MAX_BYTES),
    "first": data(1, INLINE_MAX_BYTES + 1),
    "block": data(2, 4096),
    "more": data(3, 4097),
    "file": data(4, FILE_MIN_BYTES + 1),
    "link": Link(b"first"),
    "deep": {"er": {"same": data(3, 4097), "large": data(5, FILE_MIN_BYTES - 1)}, "e": {}},
}


def plain(tree: Tree) -> dict[bytes, object]:
    return {
        os.fsencode(name): item if isinstance(item, bytes) else plain(item)
        for name, item in tree.items()
    }


def packs_of(image: Path) -> list[str]:
    with image.open("rb") as opened:
        return [device.name for device in devices.read(opened)]


def local(store: Store) -> list[str]:
    return sorted(path.stem for path in (store.root / "packs").glob("*.pack"))


@contextmanager
def shown(image: Path, work: Path, changes: Path | None = None) -> Iterator[Path]:
    """The tree of an image as the product mounts it, writable."""
    for name in ("upper", "work", "point"):
        (work / name).mkdir(parents=True, exist_ok=True)
    upper, point = work / "upper", work / "point"
    image_mount.mount(OverlayLayers(image, upper, work / "work", point, changes=changes))
    try:
        yield point
    finally:
        mounts.unmount(point)


# -- what is in it ------------------------------------------------------------------------


def test_a_tree_of_rows_packs_and_files(disk_store: Store, tmp_path: Path) -> None:
    root = put_tree(disk_store, PACKED)
    image = ensure_image(disk_store, root)
    assert packs_of(image) == local(disk_store) != []
    fsck(image, [disk_store.root / f"packs/{name}.pack" for name in packs_of(image)])
    with shown(image, tmp_path / "at") as top:
        assert read_tree(top) == plain(PACKED)
        assert (top / "deep/er/large").stat().st_blocks * 512 >= FILE_MIN_BYTES - 1
        assert not os.listxattr(top / "first")


SIZES = st.sampled_from([1, 1024, 1025, 4095, 4096, 4097, 8191, 8192, 8193, 70_000, 300_000])
FILES = st.builds(data, st.integers(0, 9), SIZES)
NAMES = st.integers(0, 99).map(str)
TREES = st.dictionaries(
    NAMES,
    st.recursive(FILES, lambda below: st.dictionaries(NAMES, below, max_size=8), max_leaves=25),
    max_size=8,
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(trees=st.lists(TREES, min_size=1, max_size=3))
def test_any_trees_in_several_packs(disk_store: Store, tmp_path: Path, trees: list[Tree]) -> None:
    merged = {str(number): tree for number, tree in enumerate(trees)}
    for tree in trees:
        put_tree(disk_store, tree)
    with shown(ensure_image(disk_store, put_tree(disk_store, merged)), tmp_path / "at") as top:
        assert read_tree(top) == plain(merged)


def test_changes_above_an_image_have_packs_of_their_own(disk_store: Store, tmp_path: Path) -> None:
    old = put_tree(disk_store, PACKED)
    changed = {**PACKED, "more": data(7, 9000), "deep": {"er": {"large": data(8, 5000)}}, "row": {}}
    new = put_tree(disk_store, changed)
    changes = tmp_path / "changes"
    write_layer(disk_store, old, new, changes)
    image = ensure_image(disk_store, old)
    assert packs_of(changes) != packs_of(image)
    with shown(image, tmp_path / "at", changes) as top:
        assert read_tree(top) == plain(changed)


def test_what_is_written_above_it(disk_store: Store, tmp_path: Path) -> None:
    with shown(ensure_image(disk_store, put_tree(disk_store, PACKED)), tmp_path / "at") as top:
        (top / "first").chmod(0o600)
        with (top / "more").open("ab") as out:
            out.write(b"appended")
        (top / "deep").rename(top / "moved")
        (top / "block").unlink()
        found = read_tree(top)
    moved = {name: item for name, item in PACKED.items() if name not in ("deep", "block")}
    assert found == plain({**moved, "moved": PACKED["deep"], "more": data(3, 4097) + b"appended"})
    assert (tmp_path / "at/upper/first").stat().st_mode & 0o777 == 0o600


# -- a function of the tree and its packs ---------------------------------------------------


def test_the_same_packs_give_the_same_image(disk_store: Store, tmp_path: Path) -> None:
    root = put_tree(disk_store, PACKED)
    first = ensure_image(disk_store, root)
    whole = first.read_bytes()
    first.unlink()
    assert ensure_image(disk_store, root).read_bytes() == whole
    with init_store(tmp_path / "other") as other:
        assert put_tree(other, PACKED) == root
        assert ensure_image(other, root).read_bytes() == whole


def test_a_mapped_file_has_the_blocks_of_its_sources(disk_store: Store, tmp_path: Path) -> None:
    first = disk_store.put(FIRST).hash
    versions = [changed(FIRST + b"tail", 1, 9), changed(FIRST + b"tail", 1, 9, 20, seed=5)]
    second = put_change(disk_store, versions[0], first)
    put_change(disk_store, versions[1], second)
    tree: Tree = {"first": FIRST, "second": versions[0], "third": versions[1]}
    root = put_tree(disk_store, tree)
    for number in range(2):
        image = ensure_image(disk_store, root)
        paths = [device_path(disk_store.root, name) for name in packs_of(image)]
        assert len(paths) == 3  # patches are files again: gc punches holes into hot packs
        fsck(image, paths)
        with shown(image, tmp_path / f"at{number}") as top:
            assert read_tree(top) == plain(tree)
        images.check(disk_store, DatedTree(root), content=True)
        # Sources in cold packs are brought back.
        put_checkpoint(disk_store, tree)
        image.unlink()
        freeze(disk_store)
    assert not list((disk_store.root / "images").glob("*"))
    (disk_store.root / "packs").rename(disk_store.root / "lost")
    with pytest.raises((NotFound, CorruptBlob)):
        ensure_image(disk_store, root)


# -- or not at all ------------------------------------------------------------------------


def test_a_damaged_pack_is_found_before_it_is_mounted(disk_store: Store) -> None:
    root = put_tree(disk_store, PACKED)
    path = disk_store.root / f"packs/{local(disk_store)[0]}.pack"
    whole = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(whole.replace(b"00000002", b"0000000x", 1))
    path.chmod(0o444)
    ensure_image(disk_store, root, recheck=True)
    with pytest.raises(CorruptBlob, match=Digest.of(data(2, 4096)).hash):
        images.check(disk_store, DatedTree(root), content=True)


def test_a_lost_pack_is_reported(disk_store: Store) -> None:
    root = put_tree(disk_store, PACKED)
    (disk_store.root / f"packs/{local(disk_store)[0]}.pack").unlink()
    with pytest.raises(NotFound, match="pack"):
        ensure_image(disk_store, root)


def test_a_pack_that_is_gone_makes_it_anew(disk_store: Store, tmp_path: Path) -> None:
    """As gc rewrites it; who has the tree mounted reads on."""
    root = put_tree(disk_store, PACKED)
    image = ensure_image(disk_store, root)
    old = packs_of(image)
    with shown(image, tmp_path / "before") as before:
        rewrite(disk_store)
        assert not set(old) & set(local(disk_store))
        with pytest.raises(NotFound), shown(image, tmp_path / "refused"):
            pass
        again = ensure_image(disk_store, root)
        assert packs_of(again) == local(disk_store)
        with shown(again, tmp_path / "after") as after:
            assert read_tree(before) == read_tree(after) == plain(PACKED)


def rewrite(store: Store) -> None:
    """Moves all that is in hot packs to another one, and removes those."""
    assert isinstance(store.backend, DiskBackend)
    before = local(store)
    store.put(data(99, 5000))
    rows = sql(store, "SELECT hash, size FROM blobs WHERE pack IS NOT NULL ORDER BY pack, member")
    moved = [(bytes(key).hex(), int(size)) for key, size in rows]
    store.backend.tiers.move(moved, "hot")
    store.backend.tiers.tidy()
    assert not set(before) & set(local(store))


# -- while gc and packing go on -------------------------------------------------------------


def checkpointed(store: Store, tree: Tree, at: int) -> str:
    head = store.heads.get(put_checkpoint(store, tree, at=at))
    assert head is not None
    return str(head.record["root"])


def blocks(store: Store) -> int:
    return sum(path.stat().st_blocks for path in (store.root / "packs").iterdir())


def test_gc_frees_what_is_gone_and_no_image_shows(disk_store: Store, tmp_path: Path) -> None:
    gone = {str(number): data(100 + number, 50_000) for number in range(10)}
    mixed = put_tree(disk_store, {"kept": PACKED, "gone": gone})
    root = checkpointed(disk_store, PACKED, 1)
    image, lost = ensure_image(disk_store, root), ensure_image(disk_store, mixed)
    assert packs_of(image) == packs_of(lost)
    with shown(image, tmp_path / "mounted") as mounted:
        before = blocks(disk_store)
        age(disk_store)
        assert collect(disk_store).evicted == [f"images/{lost.name}"]
        assert blocks(disk_store) <= before - 10 * 49_152 // 512
        with shown(ensure_image(disk_store, root), tmp_path / "again") as again:
            assert read_tree(again) == read_tree(mounted) == plain(PACKED)


def test_a_tree_that_comes_back_after_gc(disk_store: Store, tmp_path: Path) -> None:
    """Its old image may show ranges that were freed."""
    checkpointed(disk_store, {"other": data(9, 9000), "x": PACKED["block"]}, 1)
    root = put_tree(disk_store, PACKED)
    ensure_image(disk_store, root)
    age(disk_store)
    collect(disk_store)
    assert put_tree(disk_store, PACKED) == root
    with shown(ensure_image(disk_store, root), tmp_path / "at") as top:
        assert read_tree(top) == plain(PACKED)


def test_half_a_pack_is_rewritten_when_gc_is_killed(disk_store: Store, tmp_path: Path) -> None:
    """What has moved is not freed in a pack that is still there: images show it there."""
    assert isinstance(disk_store.backend, DiskBackend)
    root = checkpointed(disk_store, PACKED, 1)
    image = ensure_image(disk_store, root)
    moved = [(Digest.of(data(5, FILE_MIN_BYTES - 1)).hash, FILE_MIN_BYTES - 1)]
    with shown(image, tmp_path / "mounted") as mounted:
        disk_store.backend.tiers.move(moved, "hot")
        assert set(packs_of(image)) < set(local(disk_store))
        collect(disk_store)
        assert read_tree(mounted) == plain(PACKED)
    with shown(ensure_image(disk_store, root), tmp_path / "again") as again:
        assert read_tree(again) == plain(PACKED)


def test_what_is_cold_is_made_hot_first(disk_store: Store, tmp_path: Path) -> None:
    assert isinstance(disk_store.backend, DiskBackend)
    root = put_tree(disk_store, PACKED)
    other = put_tree(disk_store, {**PACKED, "new": data(11, 7000)})
    rows = sql(disk_store, "SELECT hash, size FROM blobs WHERE type IS NULL AND data IS NULL")
    disk_store.backend.tiers.move([(bytes(key).hex(), int(size)) for key, size in rows], "cold")
    disk_store.backend.tiers.tidy()
    with shown(ensure_image(disk_store, root), tmp_path / "at") as top:
        assert read_tree(top) == plain(PACKED)
    write_layer(disk_store, root, other, tmp_path / "changes")
    with shown(ensure_image(disk_store, root), tmp_path / "at", tmp_path / "changes") as top:
        assert read_tree(top) == plain({**PACKED, "new": data(11, 7000)})

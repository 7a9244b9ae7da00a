"""A tree is the same through FUSE and through the kernel alone."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.digest import Digest
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from tests.support.native import Seen, ensure_image, fsck, look, mounted, needs_native, overlaid
from tests.support.served import Mount

pytestmark = needs_native

NAMES = st.binary(min_size=1, max_size=10) | st.integers(1, 255).map(lambda size: b"n" * size)
GOOD = NAMES.filter(lambda name: name not in (b".", b"..") and not set(name) & {0, 0x2F})
PROPERTIES = st.none() | st.builds(
    Properties,
    st.none() | st.tuples(st.integers(0, 1 << 35), st.integers(0, 10**9 - 1)),
    st.none() | st.sampled_from([0o600, 0o4755, 0o444]),
)
DATA = st.sampled_from([0, 1, 100, 1023, 1024, 1025, 4096, 70_000]).map(
    lambda size: bytes(range(256)) * (size // 256) + b"x" * (size % 256)
)
FILES = st.tuples(DATA, st.booleans(), PROPERTIES)
TARGETS = st.sampled_from([1, 59, 4000, 4095]).map(lambda size: b"t" * size) | st.binary(
    min_size=1, max_size=60
).filter(lambda target: b"\0" not in target)
LINKS = st.tuples(TARGETS, PROPERTIES)


def folders(below: st.SearchStrategy[object], size: int) -> st.SearchStrategy[object]:
    return st.tuples(st.dictionaries(GOOD, below, max_size=size), PROPERTIES)


TREES = folders(st.recursive(FILES | LINKS, lambda below: folders(below, 20)), 20)
Item = tuple[object, ...]


def put(batch: Batch, items: dict[bytes, Item], kept: Properties | None) -> Digest:
    entries: list[Entry] = []
    for name, item in items.items():
        match item:
            case (bytes() as target, None | Properties() as own):
                entries.append(Symlink(name, target, own))
            case (dict() as below, None | Properties() as own):
                entries.append(Subdirectory(name, put(batch, below, own)))
            case (bytes() as data, bool() as executable, None | Properties() as own):
                entries.append(File(name, batch.put(data), executable, own))
    return batch.put_node("directory", directory.encode(entries, kept))


def native(store: Store, root: str, work: Path) -> dict[bytes, Seen]:
    work.mkdir(exist_ok=True)
    image = ensure_image(store, root)
    fsck(image)
    with (
        mounted(image, work / "lower") as lower,
        overlaid(lower, store.root / "objects", work / "point") as point,
    ):
        return look(point, nlink=False)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(tree=TREES)
def test_any_tree(mount: Mount, tmp_path: Path, tree: tuple[dict[bytes, Item], Properties]) -> None:
    with mount.store.batch() as batch:
        root = put(batch, *tree).hash
    through_fuse = look(mount.path / "trees" / root, nlink=False)
    assert native(mount.store, root, tmp_path / "native") == through_fuse

"""What several test modules need: trees from literals, host directories, counting backends."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from casfs.backend.protocols import Head, Staged, Swap
from casfs.digest import Digest, TreeDigest, TreeHash
from casfs.store.nodes import directory
from casfs.store.nodes.directory import Entry, File, Properties, Subdirectory, Symlink
from casfs.store.nodes.node import encode
from casfs.store.store import Store
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.report import SnapshotReport

LARGE = bytes(range(256)) * 16  # 4 KiB: on disk a file of its own
ABSENT = "0f" * 32  # no blob hashes to this


class Marked(bytes):
    """Bytes that say what they are; never equal to plain ones."""

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((type(self), bytes(self)))


class Program(Marked):
    """Content of an executable file, where a tree is given as a literal."""


class Private(Marked):
    """Content of a file of which its owner alone may read, where a tree is given as a literal."""


class Link(Marked):
    """A symlink's target, where a tree is given as a literal."""


Tree = Mapping[Any, Any]  # name (str or bytes) → bytes | Program | Link | Tree


def put_tree(store: Store, tree: Tree) -> TreeHash:
    """Store a literal tree; returns its root."""
    with store.batch() as batch:

        def put(level: Tree) -> TreeDigest:
            return batch.put_directory(
                directory.encode([entry(os.fsencode(name), item) for name, item in level.items()])
            )

        def entry(name: bytes, item: Any) -> Entry:
            if isinstance(item, Link):
                return Symlink(name, bytes(item))
            if isinstance(item, bytes):
                own = Properties(unix_mode=0o600) if isinstance(item, Private) else None
                return File(name, batch.put(bytes(item)), isinstance(item, Program), own)
            return Subdirectory(name, put(item))

        return put(tree).hash


def write_tree(root: Path, tree: Tree) -> Path:
    """Make a literal tree below `root` on the host; returns `root`."""
    root.mkdir(exist_ok=True)
    base = os.fsencode(root)
    for name, item in tree.items():
        path = os.path.join(base, os.fsencode(name))
        if isinstance(item, Link):
            os.symlink(bytes(item), path)
        elif isinstance(item, bytes):
            with open(path, "wb") as file:
                file.write(item)
            os.chmod(path, 0o755 if isinstance(item, Program) else 0o644)
        else:
            write_tree(Path(os.fsdecode(path)), item)
    return root


def read_tree(root: Path) -> dict[bytes, Any]:
    """A host directory as a literal tree; what it does not expect becomes its mode."""
    found: dict[bytes, Any] = {}
    with os.scandir(os.fsencode(root)) as entries:
        listed = list(entries)
    for entry in listed:
        mode = entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            found[entry.name] = Link(os.readlink(entry.path))
        elif stat.S_ISDIR(mode):
            found[entry.name] = read_tree(Path(os.fsdecode(entry.path)))
        elif stat.S_ISREG(mode):
            with open(entry.path, "rb") as file:
                content = file.read()
            found[entry.name] = Program(content) if mode & stat.S_IXUSR else content
        else:
            found[entry.name] = mode
    return found


def take(store: Store, root: Path, report: SnapshotReport | None = None) -> TreeHash:
    """Snapshot a whole host directory; returns the tree's root."""
    with store.batch() as batch:
        tree = walker.snapshot(batch, root, IgnoreRules(), report).dated
        batch.commit()
        batch.settle(filter(None, tree))
    return tree.tree


def put_unchecked(store: Store, type: str, payload: Any) -> str:
    """Publish a node past all checks, as only a broken writer would."""
    type_hash = store.registry.head(type).hash
    data = encode(type_hash, payload)
    digest = Digest.of(data)
    store.backend.publish([Staged(digest, data, type=type_hash)])
    return digest.hash


def set_head(store: Store, name: str, hash: str, **record: Any) -> Head:
    """Move a head wherever it stands."""
    new = Head(hash, record)
    store.backend.publish([], [Swap(name, store.heads.get(name), new)])
    return new


def blobs(store: Store) -> set[str]:
    return {hash for _, hash, _ in store.blobs.iterate()}


def private_files(root: Path) -> list[Path]:
    """What writers have in `tmp/` of the store at `root`, their lock files aside."""
    return [path for path in (root / "tmp").rglob("*") if path.is_file() and path.name != "lock"]


def move(store: Store, name: str, count: int = 1) -> None:
    """Move a head some times, in one transaction."""
    hash = store.put(b"1").hash
    old, swaps = store.heads.get(name), []
    for _ in range(count):
        new = Head(hash, {"n": (old.record["n"] if old else 0) + 1})
        swaps.append(Swap(name, old, new))
        old = new
    store.backend.publish([], swaps)

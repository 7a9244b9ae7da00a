"""Remotes for tests of lazy packs: real packs in a directory, with every request recorded."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from casfs.backend.lazy_packs import LazyPack, LazyRemote
from casfs.digest import hash_bytes
from casfs.object_storage.directory import DirectoryStorage
from casfs.packs.writer import PackWriter

Ranges = list[tuple[str, int, int]]


class RecordingStorage(DirectoryStorage):
    """A directory as remote. `requests`: what was asked for; `change` may alter an answer."""

    def __init__(self, root: Path, change: Callable[[bytes], bytes] = bytes) -> None:
        super().__init__(root.as_uri(), root)
        self.requests: Ranges = []
        self.change = change

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        self.requests.append((key, offset, size))
        return self.change(super().get_range(key, offset, size))

    def get_tail(self, key: str, size: int) -> tuple[bytes, int]:
        self.requests.append((key, -size, size))
        data, total = super().get_tail(key, size)
        return self.change(data), total


def contents(count: int, size: int, seed: int = 0) -> list[bytes]:
    """Returns texts of about `size` bytes, which compress to about half."""
    source = random.Random(seed)
    return [source.randbytes(source.randint(1, size)).hex().encode() for _ in range(count)]


def make_pack(root: Path, members: list[bytes], frame_bytes: int = 16 << 10) -> tuple[str, int]:
    """Writes a pack of plain blobs below the remote `root`; returns its name and size."""
    (root / "packs").mkdir(parents=True, exist_ok=True)
    temp = root / "new"
    with temp.open("wb") as out:
        writer = PackWriter(out, frame_bytes=frame_bytes)
        for data in members:
            writer.add(hash_bytes(data), data)
        name = writer.finish()
    temp.rename(root / "packs" / f"{name}.pack")
    return name, (root / "packs" / f"{name}.pack").stat().st_size


def lazy_remote(store: Path, storage: DirectoryStorage, limit: int = 0) -> LazyRemote:
    return LazyRemote(store, "origin", limit, lambda: storage)


def open_lazy(
    store: Path, storage: DirectoryStorage, pack: tuple[str, int], limit: int = 0
) -> LazyPack:
    return LazyPack(lazy_remote(store, storage, limit), pack[0])

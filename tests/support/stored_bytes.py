"""What a store holds, seen from outside: every byte of its files, and every blob."""

from __future__ import annotations

from pathlib import Path

from casfs.store.store import Store


def files_with(root: Path, text: bytes) -> list[str]:
    """Returns the files below `root` in which `text` is, or in whose names; locks are empty."""
    return [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if text in bytes(path) or (path.is_file() and text in path.read_bytes())
    ]


def blobs(root: Path) -> dict[str, bytes]:
    """Returns every blob of the store at `root`, decompressed, by hash."""
    with Store.open(root) as store:
        hashes = [hash for _, hash, _ in store.blobs.iterate()]
        return {hash: store.get(hash) for hash in hashes}


def assert_nowhere(root: Path, *texts: bytes) -> None:
    """Fails where one of `texts` is in a file or in a blob of the store at `root`."""
    for text in texts:
        assert files_with(root, text) == []
        assert [hash for hash, data in blobs(root).items() if text in data] == []

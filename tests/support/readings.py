"""All that a store shows, in every reading: what an attacker with a copy looks through."""

from __future__ import annotations

import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from casfs.errors import CasfsError
from casfs.store.store import Store


def texts(store: Store, *, whole: bool = False) -> Iterator[tuple[str, bytes]]:
    """Yields each blob that is shown, and the git objects in it, with its hash. `whole`: hidden
    ones, too."""
    shown = store.shown(with_local=whole)
    for _, hash, _ in store.blobs.iterate():
        try:
            data = shown.get(hash)
        except CasfsError:  # hidden, purged
            continue
        yield hash, data
        yield from ((hash, text) for text in git_objects(data))


def git_objects(data: bytes) -> Iterator[bytes]:
    """Yields the git objects in a file: a loose object, or a pack."""
    with suppress(zlib.error):
        yield zlib.decompressobj().decompress(data)
    if (start := data.find(b"PACK\0\0\0\2")) >= 0:  # a bundle has lines before it
        data = data[start:]
        for format in ("sha1", "sha256"):
            with tempfile.TemporaryDirectory() as folder:
                init = ["git", "init", "-q", f"--object-format={format}", folder]
                subprocess.run(init, check=True)
                unpack = ["git", "-C", folder, "unpack-objects", "-q"]
                subprocess.run(unpack, input=data, capture_output=True, check=False)
                for path in Path(folder, ".git/objects").glob("??/*"):
                    yield zlib.decompress(path.read_bytes())


def leaks(store: Store, *secrets: bytes, whole: bool = False) -> list[tuple[bytes, str]]:
    """Returns which secrets a store shows, and the blobs that have them."""
    return [
        (secret, hash)
        for hash, text in texts(store, whole=whole)
        for secret in secrets
        if secret in text
    ]

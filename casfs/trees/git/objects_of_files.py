"""Which loose objects of a recorded directory are of its private files.

A repository that a thread begins with is not read: it is the person's. But what git keeps of a file
that is private now, as after `git stash -u`, stays here as the file does.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import closing

from casfs.digest import TreeHash
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.git.index import GIT
from casfs.trees.git.objects import FORMATS

MAX_BYTES = 16 << 20  # of a file
PIECE_BYTES = 1 << 20


def objects_of_files(store: Store, full: TreeHash, paths: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the paths of the loose objects of the files `paths` of the tree `full`, in the
    repositories that these are in."""
    git_name = os.fsencode(GIT)
    for path in paths:
        above = path.split(b"/")[:-1]
        tops = [b"/".join([*above[:length], git_name]) for length in range(len(above) + 1)]
        repositories = [top for top in tops if tree.find(store, full, top + b"/objects")]
        entry = tree.find(store, full, path) if repositories else None
        if isinstance(entry, File) and 0 < entry.digest.size_bytes <= MAX_BYTES:
            for object_id in blob_ids(store, entry.digest.hash):
                name = f"/objects/{object_id[:2]}/{object_id[2:]}".encode()
                for top in repositories:
                    if tree.find(store, full, top + name) is not None:
                        yield top + name


def blob_ids(store: Store, hash: str) -> list[str]:
    """Returns the ids that git gives to a stored file, in hex: by SHA-1 and by SHA-256. Raises as
    `Store.get`."""
    header = b"blob %d\0" % store.blobs.info([hash])[hash].size
    hashers = [hashlib.new(name, header, usedforsecurity=False) for name in FORMATS.values()]
    with closing(store.blobs.open(hash)) as file:
        while piece := file.read(PIECE_BYTES):
            for hasher in hashers:
                hasher.update(piece)
    return [hasher.hexdigest() for hasher in hashers]

"""The probe of object storage: whether one of several writers wins a put-if-absent.

Some servers look for the key first and then write: of two writers at once both win, and a push
would be lost. So a remote is probed when it is added.
"""

from __future__ import annotations

import secrets
from functools import partial
from threading import Barrier

from casfs.errors import Refused
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.retrying import parallel

WRITERS = 16  # the second finds connections that are open
ROUNDS = 2


def probe(storage: ObjectStorage) -> None:
    """Raises Refused, naming the server, where not one writer wins each of several races."""
    for _ in range(ROUNDS):
        key = f"probe/{secrets.token_hex(8)}"
        start = Barrier(WRITERS)

        def write(content: bytes, key: str = key, start: Barrier = start) -> bool:
            start.wait(timeout=60)
            return storage.put_if_absent(key, content)

        contents = [secrets.token_bytes(64) for _ in range(WRITERS)]
        try:
            won = list(parallel([partial(write, content) for content in contents], WRITERS))
            left = storage.get(key)
        finally:
            storage.delete(key)
        if won.count(True) != 1 or left != contents[won.index(True)]:
            raise Refused(
                f"{storage.url}: {won.count(True)} of {WRITERS} writers created one object at "
                f"once, so pushes could be lost; use another server than {storage.server()}"
            )

"""The names that people give to threads: valid, and no two threads have the same.

Threads are created by one process, the daemon, so a lock of this process keeps a name from being
given twice.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from casfs.digest import is_hash
from casfs.errors import Conflict, Invalid
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.threads import threads

LOCK = threading.Lock()


@contextmanager
def one_at_a_time(name: str | None) -> Iterator[None]:
    """Held while a thread is created with a name. Raises Invalid."""
    if name is None:
        yield
        return
    if (
        not re.fullmatch(head_kinds.THREAD_NAME, name)
        or re.fullmatch(head_kinds.THREAD_ID, name.upper())
        or is_hash(name)
    ):
        raise Invalid(
            f"invalid thread name {name!r}: use 1 to 64 letters, digits, blanks and ._-,'+(), a"
            " letter or digit first, and not an id or a hash"
        )
    with LOCK:
        yield


def fields(store: Store, name: str | None) -> dict[str, str]:
    """Returns the record's field of a new thread's name. Raises Conflict where it is taken."""
    if name is None:
        return {}
    for thread in threads.with_field(store, "name", [name]):
        raise Conflict(f"the name {name!r} is taken by thread {thread.id}; choose another")
    return {"name": name}

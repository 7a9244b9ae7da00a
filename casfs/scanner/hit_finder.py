"""Where in a text a secret may be: one pass over the bytes for all rules.

The library has one state a thread of the process, and its database is built at the first use. It
is the only module that knows the library.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from contextlib import suppress
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import TYPE_CHECKING

from casfs.digest import Digest
from casfs.scanner import rules
from casfs.scanner.rules import RULES

if TYPE_CHECKING:
    import hyperscan

Hit = tuple[int, int]  # the end of the hit in bytes, the index of its rule


class _ThreadState(threading.local):
    """The library's working memory, which two threads cannot share."""

    def __init__(self) -> None:
        import hyperscan

        self.scratch = hyperscan.Scratch(_database())


def hits(data: bytes) -> list[Hit]:
    """Returns all hits, sorted."""
    found: list[Hit] = []

    def add(rule: int, start: int, end: int, flags: int, context: object) -> None:
        found.append((end, rule))

    _database().scan(data, match_event_handler=add, scratch=_thread_state().scratch)
    found.sort()
    return found


@cache
def _thread_state() -> _ThreadState:
    return _ThreadState()


@cache
def _database() -> hyperscan.Database:
    """Returns the database of all rules. Building it takes 100 ms, so it is kept beside the byte
    code of the rules, where only who may change the program may write."""
    import hyperscan

    expressions = [rule.expression.encode() for rule in RULES]
    key = Digest.of(b"\0".join(expressions)).hash.encode()
    path = Path(cache_from_source(rules.__file__)).with_suffix(".database")
    with suppress(OSError, hyperscan.error):  # as of another processor
        saved = path.read_bytes()
        if saved.startswith(key):
            return hyperscan.loadb(saved.removeprefix(key), mode=hyperscan.HS_MODE_BLOCK)
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=expressions, ids=range(len(RULES)), elements=len(RULES))
    if not sys.dont_write_bytecode:
        _save(path, key + hyperscan.dumpb(database))
    return database


def _save(path: Path, data: bytes) -> None:
    """Best effort: an error is ignored, as for byte code."""
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        fd, name = tempfile.mkstemp(dir=path.parent)
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o644)  # as byte code
            file.write(data)
        os.replace(name, path)

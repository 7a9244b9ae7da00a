"""Where in a text a secret may be: one pass over the bytes for all rules.

The library has one state a thread of the process, and its database is built at the first use. It
is the only module that knows the library.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from casfs.digest import hash_bytes
from casfs.scanner.rules import RULES
from casfs.scanner.spellings import SIGNS
from casfs.system import cache_directory

if TYPE_CHECKING:
    import hyperscan

Hit = tuple[int, int]  # the end of the hit in bytes, the index of its rule
EXPRESSIONS = [*(rule.expression for rule in RULES), *SIGNS.values()]
SPELLINGS = dict(enumerate(SIGNS, start=len(RULES)))


class _ThreadState(threading.local):
    """The library's working memory, which two threads cannot share."""

    def __init__(self) -> None:
        import hyperscan

        self.scratch = hyperscan.Scratch(_database())


def hits(data: bytes) -> tuple[list[Hit], list[str]]:
    """Returns all hits, sorted, and the spellings that the text has signs of."""
    rule_hits: list[Hit] = []

    def add(rule: int, start: int, end: int, flags: int, context: object) -> None:
        rule_hits.append((end, rule))

    _database().scan(data, match_event_handler=add, scratch=_thread_state().scratch)
    if not rule_hits:
        return [], []
    signs = [SPELLINGS[rule] for _, rule in rule_hits if rule in SPELLINGS]
    return sorted(hit for hit in rule_hits if hit[1] < len(RULES)), signs


@cache
def _thread_state() -> _ThreadState:
    return _ThreadState()


@cache
def _database() -> hyperscan.Database:
    """Returns the database of all rules. Building it takes 100 ms, so it is kept in the user's
    cache directory: beside the byte code it would be made anew by each process where that cannot
    be written, and it fits one kind of processor only."""
    import hyperscan

    expressions = [expression.encode() for expression in EXPRESSIONS]
    rules_hash = hash_bytes(b"\0".join(expressions))
    name = f"scanner-{rules_hash[:16]}.database"
    with suppress(hyperscan.error):  # as of another processor
        saved = cache_directory.read(name)
        if saved is not None:
            return hyperscan.loadb(saved, mode=hyperscan.HS_MODE_BLOCK)
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    count = len(expressions)
    flags = [hyperscan.HS_FLAG_SINGLEMATCH if id in SPELLINGS else 0 for id in range(count)]
    database.compile(expressions=expressions, ids=range(count), elements=count, flags=flags)
    cache_directory.write(name, hyperscan.dumpb(database))
    return database

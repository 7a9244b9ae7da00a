"""Finds a thread by what a person types: its id, a part of it, its name, or `@last`."""

from __future__ import annotations

from casfs.backend.sqlite_statements import is_storable
from casfs.errors import Conflict, NotFound
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import HEADS, ID_LENGTH, Thread, ThreadId, head_name, of_head

LAST = "@last"
TIME_CHARS = 10  # of an id: its time; the rest is random
MIN_PART_CHARS = 4


def find(store: Store, text: str) -> Thread:
    """Returns the thread with this id or name, or whose id alone begins with `text`, or has it in
    its random end, in any case; `@last`: the newest that
    was started here, and that no other called. Raises NotFound, Conflict (ambiguous)."""
    candidates = matches(store, text)
    if len(candidates) > 1:
        some = ", ".join(thread.id for thread in candidates[:3])
        raise Conflict(
            f"{text} is ambiguous: {some}{' …' * (len(candidates) > 3)}; give more of the id"
        )
    if not candidates:
        raise NotFound(f"no thread {text!r}; see `casfs thread list`")
    return candidates[0]


def matches(store: Store, text: str) -> list[Thread]:
    """Returns the threads that `text` may name; those with this name where there are any."""
    upper = text.upper()
    name = head_name(ThreadId(upper))
    if len(upper) == ID_LENGTH and (head := store.heads.get(name)):
        return [of_head(name, head)]
    if text == LAST:
        for newest in store.heads.list(HEADS, reverse=True):
            thread = of_head(*newest)
            if not thread.fields.get("parent") and "origin" not in thread.fields:
                return [thread]
        return []
    if not text or not is_storable(text):
        return []
    near = [*threads.newest_first(store, [threads.field_text("name", text), upper])][::-1]
    named = [candidate for candidate in near if candidate.fields.get("name") == text]
    return named or [candidate for candidate in near if _has(candidate.id, upper)]


def _has(id: ThreadId, part: str) -> bool:
    return id.startswith(part) or (len(part) >= MIN_PART_CHARS and part in id[TIME_CHARS:])

"""Full-text search over what threads said, as `casfs search`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from starlette.responses import Response

from casfs.maintenance.search import Hit, Index
from casfs.store.store import Store
from casfs.threads import lookup
from casfs.web.site import Call, time_limit

PAGE = 25
MAX_HITS = 10_000
LIMIT_S = 5.0
LATER = "not all nodes are in the search index yet: load this page again to go on with it"


@dataclass(frozen=True)
class Hits:
    """A window of hits from index `first` on, the best first, of a step the best one alone;
    `has_more`: there are some after it."""

    hits: list[Hit]
    first: int
    has_more: bool


def show(call: Call) -> Response:
    text, type, thread = (call.query.get(name, "").strip() for name in ("q", "type", "thread"))
    hits = (
        search(call.store, text, type=type, thread=thread, first=call.index("first"))
        if text
        else None
    )
    ids = {hit.thread for hit in hits.hits} if hits else set()
    rows = {row.id: row for row in call.site.threads.rows() if row.id in ids} if ids else {}
    types = sorted(call.store.registry.names())
    return call.page(
        "search.html",
        found=hits,
        rows=rows,
        text=text,
        type=type,
        thread=thread,
        types=types,
        size=PAGE,
    )


def search(store: Store, text: str, type: str = "", thread: str = "", first: int = 0) -> Hits:
    """Returns the nodes that have all words of `text`; `type`, `thread`: of these alone. Raises
    Refused while the index is being made, NotFound, Conflict (the thread)."""
    id = lookup.find(store, thread).id if thread else None
    first = min(first, MAX_HITS)
    with Index(store) as index, time_limit(LIMIT_S, LATER):
        hits = index.search(text, type=type or None, thread=id, limit=MAX_HITS)
        page_hits = list(islice(_by_step(hits), first, first + PAGE + 1))
    return Hits(page_hits[:PAGE], first, len(page_hits) > PAGE)


def _by_step(hits: Iterator[Hit]) -> Iterator[Hit]:
    """Yields the first hit of each step, and all that are of none."""
    known = set()
    for hit in hits:
        key = (hit.thread, hit.step) if hit.step else hit.hash
        if key not in known:
            known.add(key)
            yield hit

"""The history of a file, or of a directory, over the steps of a thread."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise

from starlette.responses import Response

from casfs.digest import TreeDigest, TreeHash
from casfs.history.blame import blame
from casfs.history.versions import find
from casfs.store.nodes.directory import Entry, Subdirectory
from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.threads import Thread, ThreadId
from casfs.trees import tree
from casfs.trees.tree import Change
from casfs.web.compare import CHANGED, KINDS, MAX_LINES, kind_of
from casfs.web.site import Call

WINDOW = 500  # steps that a page looks at


@dataclass(frozen=True)
class Step:
    """A step that changed what is at the path."""

    index: int
    role: str
    completed_ms: int
    kind: str
    change: Change


@dataclass(frozen=True)
class History:
    """The changes in a window of steps, from index `first` to `last` of `total`, newest first."""

    id: ThreadId
    path: bytes
    steps: list[Step]
    first: int
    last: int
    total: int


def show(call: Call) -> Response:
    thread = lookup.find(call.store, call.path["id"])
    path = b"/".join(tree.split_path(call.octets("path")))
    model = history(call.store, thread, path=path, upto=call.index("upto") or None)
    lines = None
    if call.query.get("blame"):
        lines = blame(
            find(call.store, f"{thread.id}@{model.last}")[0], path, first=1, last=MAX_LINES
        )
    return call.page("file_history.html", found=model, kinds=KINDS, lines=lines)


def history(store: Store, thread: Thread, path: bytes, upto: int | None = None) -> History:
    """Returns what a window of steps, the newest or that up to the index `upto`, changed at `path`
    (empty: the root). Raises NotFound."""
    total = threads.length(store, thread)
    last = min(upto or total, total)
    first = max(1, last - WINDOW + 1)
    changes = list(_changes(store, thread, path=path, first=first, last=last)) if total else []
    return History(thread.id, path, steps=changes, first=first, last=last, total=total)


def _changes(store: Store, thread: Thread, path: bytes, first: int, last: int) -> Iterator[Step]:
    """Yields the steps; equal trees are not looked into."""
    newest = threads.step_at(store, thread, last).hash
    nodes = list(islice(threads.backwards_from(store, newest), last - first + 2))
    trees = [node.payload["workspace"] for node in nodes]
    if first == 1:
        trees.append(threads.start(store, thread).payload["workspace"])
    for node, (new, old) in zip(nodes, pairwise(trees), strict=False):
        if new == old:
            continue
        change = Change(path, _entry(store, old, path), _entry(store, new, path))
        if change.old != change.new:
            step = node.payload
            both = isinstance(change.old, Subdirectory) and isinstance(change.new, Subdirectory)
            kind = CHANGED if both else kind_of(change)
            yield Step(
                step["index"],
                step["role"],
                completed_ms=step["completedAt"],
                kind=kind,
                change=change,
            )


def _entry(store: Store, root: TreeHash | None, path: bytes) -> Entry | None:
    if root is None:
        return None
    return tree.find(store, root, path) if path else Subdirectory(b".", TreeDigest(root, 0))

"""The root of the mount: which views there are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NoReturn

from casfs.backend.derived import newest_move
from casfs.backend.protocols import Backend
from casfs.errors import CasfsError
from casfs.fuse.views.blobs import blobs
from casfs.fuse.views.change_times import Follower
from casfs.fuse.views.events import EventLog, Events
from casfs.fuse.views.nodes import file_name, nodes
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import Reader
from casfs.fuse.views.thread_index import Active, Index, history
from casfs.fuse.views.threads import Threads
from casfs.fuse.views.trees import Trees
from casfs.fuse.views.vnode import (
    Changing,
    Directory,
    Link,
    Live,
    Maker,
    Static,
    Text,
    Vnode,
    identity,
)

WORKFLOWS = "workflows/"
ROOT = identity(b"/")
README = b"""\
This is a casfs store, shown as read-only files. Nothing here can be changed or lost.

blobs/HASH                any stored bytes; found by name, not listed
trees/NAME/ID/            every checkpoint as a plain directory; trees/NAME/latest is the newest
trees/HASH/               any tree by its root; found by name, not listed
threads/ID/               a run of a workflow: status, input.md, thread.json, end.json
threads/ID/running/       the step in flight, as long as there is one: role, attempt, since
threads/ID/steps/N-ROLE/  one step: output.md, meta.json, step.json, changes.diff, detail/
nodes/HASH/               any node, its fields as files; found by name, not listed
workflows/NAME            the registered workflows
threads.json, history/    the active threads; those that have ended, by date
.casfs/stats.json         what this mount was asked for so far; .casfs/events: what changes

Try: grep -rn WORD threads/*/steps/*/output.md     cp -a trees/NAME/latest/ DIR
"""


def root(reader: Reader, stats: Stats) -> Directory:
    """The root directory of a mount of the reader's store."""
    stats.cache = reader.counts
    index, log = Index(reader), EventLog(reader.store.backend)
    live = Static(
        identity(b"/.casfs"),
        {
            b"stats.json": partial(Live, make=partial(_now, stats)),
            b"events": partial(Events, log=log),
        },
    )
    return Static(
        ROOT,
        {
            b"README.txt": partial(Text, data=README),
            b"blobs": partial(blobs, reader=reader),
            b"trees": partial(Trees, reader=reader),
            b"threads": partial(Threads, reader=reader),
            b"nodes": partial(nodes, reader=reader),
            b"workflows": partial(_workflows, reader=reader),
            b"threads.json": partial(Active, reader=reader, index=index),
            b"history": partial(history, reader=reader, index=index),
            b".casfs": lambda _: live,
        },
    )


class Unreadable(Directory):
    """The root while the store cannot be read: whoever asks for anything gets the reason."""

    __slots__ = ("_error",)
    fixed = False

    def __init__(self, error: CasfsError) -> None:
        super().__init__(ROOT)
        self._error = error

    def lookup(self, name: bytes) -> NoReturn:
        raise type(self._error)(str(self._error))

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        raise type(self._error)(str(self._error))


Name = tuple[tuple[bytes, ...], bytes]


def gone(backend: Backend) -> Callable[[], list[Name]]:
    """What tells, each time it is called, which names of `Directory.watched` have gone since:
    (path of the directory, name)."""
    follower = Follower(backend, newest_move(backend.heads))

    def news() -> list[Name]:
        return [name for move in follower.news() if move.hash is None for name in _names(move.name)]

    return news


def _names(head: str) -> Iterator[Name]:
    """Where a head can be seen by name; with its last checkpoint `trees/<name>` goes as well."""
    kind, _, rest = os.fsencode(head).partition(b"/")
    if kind == b"threads":
        yield (b"threads",), rest
    elif kind == b"checkpoints":
        name, _, id = rest.partition(b"/")
        yield (b"trees", name), id
        yield (b"trees",), name


def _now(stats: Stats) -> tuple[bytes, int]:
    return stats.report(), time.time_ns()


def _workflows(key: bytes, reader: Reader) -> Changing:
    def find() -> dict[bytes, Maker]:
        return {
            file_name(name[len(WORKFLOWS) :]): partial(_workflow, head.hash)
            for name, head in reader.store.heads.list(WORKFLOWS)
        }

    return Changing(
        key,
        find=partial(reader.summary, "workflows", WORKFLOWS, find),
        changed=lambda: reader.moves.newest(WORKFLOWS).ns,
    )


def _workflow(hash: str, key: bytes) -> Link:
    """A name that moves is another link each time."""
    return Link(identity(key + hash.encode("ascii")), b"../nodes/" + hash.encode("ascii"))

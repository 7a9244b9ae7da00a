"""The root of the mount: which views there are."""

from __future__ import annotations

import time
from functools import partial

from ..store import Store
from .blobs import blobs
from .nodes import file_name, nodes
from .reader import Reader
from .stats import Stats
from .threads import Threads
from .trees import Trees
from .vnode import Changing, Directory, Link, Live, Maker, Static, Text, identity

WORKFLOWS = "workflows/"
README = b"""\
This is a casfs store, shown as read-only files. Nothing here can be changed or lost.

blobs/HASH                any stored bytes; found by name, not listed
trees/NAME/ID/            every checkpoint as a plain directory; trees/NAME/latest is the newest
trees/HASH/               any tree by its root; found by name, not listed
threads/ID/               a run of a workflow: status, input.md, thread.json, end.json
threads/ID/steps/N-ROLE/  one step: output.md, meta.json, step.json, changes.diff, detail/
nodes/HASH/               any node, its fields as files; found by name, not listed
workflows/NAME            the registered workflows
.casfs/stats.json         what this mount was asked for so far

Try: grep -rn WORD threads/*/steps/*/output.md     cp -a trees/NAME/latest/ DIR
"""


def root(reader: Reader, stats: Stats) -> Directory:
    """The root directory of a mount of the reader's store."""
    stats.cache = reader.counts
    live = Static(identity(b"/.casfs"), {b"stats.json": partial(Live, make=partial(_now, stats))})
    return Static(
        identity(b"/"),
        {
            b"README.txt": partial(Text, data=README),
            b"blobs": partial(blobs, reader=reader),
            b"trees": partial(Trees, reader=reader),
            b"threads": partial(Threads, reader=reader),
            b"nodes": partial(nodes, reader=reader),
            b"workflows": partial(Changing, find=partial(_workflows, reader.store)),
            b".casfs": lambda _: live,
        },
    )


def _now(stats: Stats) -> tuple[bytes, int]:
    return stats.report(), time.time_ns()


def _workflows(store: Store) -> dict[bytes, Maker]:
    return {
        file_name(name[len(WORKFLOWS) :]): partial(_workflow, head.hash)
        for name, head in store.heads.list(WORKFLOWS)
    }


def _workflow(hash: str, key: bytes) -> Link:
    """A name that moves is another link each time."""
    return Link(identity(key + hash.encode("ascii")), b"../nodes/" + hash.encode("ascii"))

"""The root of the mount: its README and its views."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from typing import NoReturn

from casfs.errors import CasfsError
from casfs.fuse.views.actions import Actions
from casfs.fuse.views.blobs import BlobFile, BlobReader
from casfs.fuse.views.directories import HashDirectory, LiveDirectory, StaticDirectory, VnodeFactory
from casfs.fuse.views.events import EventLog, EventsFile
from casfs.fuse.views.files import LiveFile, TextFile
from casfs.fuse.views.nodes import file_name, nodes
from casfs.fuse.views.referrers import ReferrerIndex
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.thread_index import ActiveThreads, ThreadIndex, history
from casfs.fuse.views.threads import Threads
from casfs.fuse.views.trees import Trees
from casfs.fuse.views.vnode import READ_FILE, Y2000_NS, Attr, Directory, Link, Vnode, make_key
from casfs.store.nodes import head_kinds

WORKFLOWS = "workflows/"
ROOT_KEY = make_key(b"/")
README = b"""\
This is a casfs store, shown as read-only files. Nothing here can be changed or lost.

blobs/HASH                any stored bytes; found by name, not listed
trees/NAME/ID/            every checkpoint as a plain directory; trees/NAME/latest is the newest
trees/HASH/               any tree by its root; found by name, not listed
threads/ID/               a run of a workflow: status, input.md, thread.json, end.json
threads/ID/running/       the pending step: role, attempt, since, prompt.md, stdout, tools, turns/
threads/ID/attempts/      the failed attempts at it
threads/ID/steps/N-ROLE/  one step: prompt.md, output.md, meta.json, changes.diff, detail/
nodes/HASH/               any node, its fields as files, and referrers/; found by name, not listed
workflows/NAME            the registered workflows
actions/KEY/              a cached result of a command or step: key, result, outputs, used-by/
threads.json, history/    the active threads; those that have ended, by date
.casfs/stats.json         what this mount was asked for so far; .casfs/events: what changes

Try: grep -rn WORD threads/*/steps/*/output.md     cp -a trees/NAME/latest/ DIR
"""


def root(reader: StoreReader, stats: Stats) -> Directory:
    """Returns the root directory of a mount of the reader's store."""
    stats.cache = reader.cache_sizes
    index = ThreadIndex(reader)
    log = EventLog(reader.store.backend)
    referrers = ReferrerIndex(reader.store)
    casfs = StaticDirectory(
        make_key(b"/.casfs"),
        {
            b"stats.json": partial(LiveFile, make=lambda: (stats.report(), time.time_ns())),
            b"events": partial(EventsFile, log=log),
            b"objects": partial(_objects, reader=reader.blobs),
        },
    )
    return StaticDirectory(
        ROOT_KEY,
        {
            b"README.txt": partial(TextFile, data=README),
            b"blobs": partial(_blobs, reader=reader.blobs),
            b"trees": partial(Trees, reader=reader),
            b"threads": partial(Threads, reader=reader),
            b"nodes": partial(nodes, reader=reader, index=referrers),
            b"workflows": partial(_workflows, reader=reader),
            b"actions": partial(Actions, reader=reader, index=referrers),
            b"threads.json": partial(ActiveThreads, reader=reader, index=index),
            b"history": partial(history, reader=reader, index=index),
            b".casfs": lambda _: casfs,
        },
    )


class UnreadableRoot(Directory):
    """The root while the store cannot be read: every request raises the error."""

    __slots__ = ("_error",)
    fixed = False

    def __init__(self, error: CasfsError) -> None:
        super().__init__(ROOT_KEY)
        self._error = error

    def lookup(self, name: bytes) -> NoReturn:
        raise type(self._error)(str(self._error))

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        raise type(self._error)(str(self._error))


def _objects(key: bytes, reader: BlobReader) -> StaticDirectory:
    """Any blob at the path that its file has, or would have, in the store: a layer of native mounts
    (`casfs.workspaces.image_mount`)."""
    shards = (f"{number:02x}".encode() for number in range(256))
    return StaticDirectory(
        key, {shard: partial(_blobs, reader=reader, prefix=shard) for shard in shards}
    )


def _blobs(key: bytes, reader: BlobReader, prefix: bytes = b"") -> HashDirectory:
    """Any blob of the store, by hash."""

    def find(key: bytes, hash: str) -> Vnode | None:
        info = reader.info([hash]).get(hash)
        if info is None:
            return None
        return BlobFile(key, reader, hash=hash, attr=Attr(READ_FILE, info.size, Y2000_NS))

    return HashDirectory(key, find, prefix)


def _workflows(key: bytes, reader: StoreReader) -> LiveDirectory:
    def find() -> dict[bytes, VnodeFactory]:
        return {
            file_name(name[len(WORKFLOWS) :]): partial(_workflow, head.hash)
            for name, head in head_kinds.sound(reader.store.heads, WORKFLOWS)
        }

    return LiveDirectory(
        key,
        find=partial(reader.aggregate, "workflows", WORKFLOWS, find),
        changed=lambda: reader.change_times.latest(WORKFLOWS).mtime_ns,
    )


def _workflow(hash: str, key: bytes) -> Link:
    """The key depends on the hash: a head that moves becomes another link."""
    return Link(make_key(key + hash.encode("ascii")), b"../nodes/" + hash.encode("ascii"))

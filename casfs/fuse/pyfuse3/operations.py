"""The pyfuse3 transport: decodes requests and encodes replies; `casfs.fuse.session` answers.

pyfuse3 ends the mount when anything but FUSEError leaves a handler, hence `_handler` around
each of them. It passes only a handle to `read` and `readdir`, so the kernel must send a request
for every open and cannot cache listings; benchmarks/mount.md has what that costs.

Handlers run one after another in one thread, and between two awaits nothing else runs;
only slow work leaves the thread: the first read of a large blob, what is in a remote, and what a
new listing needs first. A file handle is
the inode number: the kernel keeps an inode for as long as it is open. Handles of live
files are numbers above all inodes: each is a snapshot of the content, so that offsets into it
stay meaningful.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FUSEError

from casfs.backend.lazy_packs import NotLocal, waiting
from casfs.errors import Failed
from casfs.fuse.inodes import MAX_INODE
from casfs.fuse.kernel.protocol import STAT_BLOCK
from casfs.fuse.session import FS_BLOCK, MAX_NAME_BYTES, Entry, Session
from casfs.fuse.views.vnode import File

FETCHES = 8  # at once
P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[Concatenate["Operations", P], T]
Wrapped = Callable[Concatenate["Operations", P], Coroutine[Any, Any, T]]


def _handler(method: Handler[P, T]) -> Wrapped[P, T]:
    """Counts the request, and converts any exception to FUSEError."""
    kind = method.__name__

    @functools.wraps(method)
    async def handle(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.session.stats.requests[kind] += 1
        try:
            return await self._fetching(functools.partial(method, self, *args, **kwargs))
        except FUSEError:
            raise
        except Exception as error:
            raise FUSEError(self.session.errno_for(kind, error)) from None

    return handle


def _refused(kind: str) -> Any:
    """Returns a handler that answers EROFS; most of these the kernel answers by itself."""

    async def refuse(self: Operations, *_: Any) -> None:
        self.session.stats.requests[kind] += 1
        raise FUSEError(errno.EROFS)

    return refuse


class Operations(pyfuse3.Operations):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.initialised = trio.Event()  # INIT was received
        self.stopped = False  # by a signal
        self._handles = itertools.count(MAX_INODE)
        self._contents: dict[int, bytes] = {}
        self._preparing: dict[bytes, trio.Lock] = {}
        self._listings = trio.CapacityLimiter(1)
        self._fetches = trio.CapacityLimiter(FETCHES)

    def init(self) -> None:
        self.initialised.set()

    async def _fetching(self, action: Callable[[], T]) -> T:
        """Calls `action` once all that it needs is here."""
        while True:
            try:
                return action()
            except NotLocal as absent:
                await trio.to_thread.run_sync(absent.fetch, limiter=self._fetches)

    # -- names and attributes -----------------------------------------------------------

    @_handler
    def lookup(self, parent: int, name: bytes, ctx: object) -> EntryAttributes:
        return self._encode(self.session.lookup(parent, name))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self.session.stats.requests["forget"] += 1
        for ino, lookups in inode_list:
            self.session.forget(ino, lookups)

    @_handler
    def getattr(self, inode: int, ctx: object) -> EntryAttributes:
        return self._encode(self.session.getattr(inode))

    @_handler
    def readlink(self, inode: int, ctx: object) -> bytes:
        return self.session.readlink(inode)

    @_handler
    def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        self.session.access(inode, mode, ctx.uid, ctx.gid)
        return True

    @_handler
    def statfs(self, ctx: object) -> pyfuse3.StatvfsData:
        space = self.session.statfs()
        reply = pyfuse3.StatvfsData()
        reply.f_bsize = reply.f_frsize = FS_BLOCK
        reply.f_namemax = MAX_NAME_BYTES
        reply.f_blocks = space.blocks
        reply.f_files = space.files
        return reply

    @_handler
    def getxattr(self, inode: int, name: bytes, ctx: object) -> bytes:
        return self.session.getxattr(inode, name)

    @_handler
    def listxattr(self, inode: int, ctx: object) -> Sequence[bytes]:
        """Lists none: an overlay would copy the attribute up, where it becomes stale."""
        if not self.session.xattr:
            raise FUSEError(errno.ENOSYS)
        return ()

    # -- files --------------------------------------------------------------------------

    @_handler
    def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise FUSEError(errno.EROFS)
        handle = inode
        file = self.session.file(inode)
        if file.live and not file.append_only:
            handle = next(self._handles)
            self._contents[handle] = file.read(0, sys.maxsize)
        fh = pyfuse3.FileHandleT(handle)
        return pyfuse3.FileInfo(fh=fh, direct_io=file.live, keep_cache=not file.live)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        self.session.stats.requests["read"] += 1
        try:
            if fh >= MAX_INODE:
                data = self._contents[fh][off : off + size]
                self.session.stats.bytes_served += len(data)
                return data
            file = await self._fetching(functools.partial(self.session.file, fh))
            if not file.ready:
                await self._prepare(file)
            return await self._fetching(functools.partial(self.session.read, file, off, size))
        except Exception as error:
            raise FUSEError(self.session.errno_for("read", error)) from None

    async def _prepare(self, file: File) -> None:
        """Verifies a large blob in a worker thread; single-flight."""
        lock = self._preparing.setdefault(file.key, trio.Lock())
        try:
            async with lock:
                if not file.ready:
                    await trio.to_thread.run_sync(file.prepare)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._preparing.pop(file.key, None)

    @_handler
    def release(self, fh: int) -> None:
        self._contents.pop(fh, None)

    # -- directories --------------------------------------------------------------------

    @_handler
    def opendir(self, inode: int, ctx: object) -> pyfuse3.FileHandleT:
        self.session.directory(inode)
        return pyfuse3.FileHandleT(inode)

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        self.session.stats.requests["readdir"] += 1
        try:
            directory = await self._fetching(functools.partial(self.session.directory, fh))
            if not directory.ready and not start_id:
                await trio.to_thread.run_sync(directory.prepare, limiter=self._listings)
            await self._fetching(functools.partial(self._list, fh, start_id, token))
        except Exception as error:
            raise FUSEError(self.session.errno_for("readdir", error)) from None

    def _list(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Raises NotLocal where the first name is not here."""
        listing = self.session.listing(fh, start_id)
        count = 0
        try:
            for item in listing:
                entry = self._encode(self.session.listing_entry(listing, item))
                name = pyfuse3.FileNameT(item.name)
                if not pyfuse3.readdir_reply(token, name, entry, item.offset):
                    listing.unread(item)
                    self.session.save_cursor(listing)
                    return
                self.session.count_lookup(listing, item)
                count += 1
        except NotLocal:  # the next request begins a new listing there
            if not count:
                raise

    @_handler
    def releasedir(self, fh: int) -> None:
        pass

    def _encode(self, entry: Entry) -> EntryAttributes:
        attr = entry.attr
        encoded = EntryAttributes()
        encoded.st_ino = pyfuse3.InodeT(entry.ino)
        encoded.st_mode = pyfuse3.ModeT(attr.mode)
        encoded.st_nlink = attr.nlink
        encoded.st_uid = self.session.uid
        encoded.st_gid = self.session.gid
        encoded.st_size = attr.size
        encoded.st_blocks = -(-attr.size // STAT_BLOCK)
        encoded.st_atime_ns = encoded.st_mtime_ns = encoded.st_ctime_ns = attr.mtime_ns
        encoded.attr_timeout = entry.attr_timeout
        encoded.entry_timeout = entry.entry_timeout
        return encoded


for _kind in (
    "setattr mknod mkdir unlink rmdir symlink rename link create write setxattr removexattr".split()
):
    setattr(Operations, _kind, _refused(_kind))


# -- running ----------------------------------------------------------------------------


def serve(
    session: Session, mountpoint: str, options: set[str], on_ready: Callable[[], None]
) -> bool:
    """Mounts, and serves until unmounted (False) or SIGTERM (True); the mount is dead then, and
    must be unmounted. Raises Failed."""
    stopped: bool = trio.run(_serve, Operations(session), mountpoint, options, on_ready)
    return stopped


async def _serve(
    operations: Operations, mountpoint: str, options: set[str], on_ready: Callable[[], None]
) -> bool:
    waiting.allowed = False
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        try:
            pyfuse3.init(operations, mountpoint, options)
        except RuntimeError as error:
            raise Failed(f"cannot mount at {mountpoint}: {error}") from None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop, operations, signals)
                nursery.start_soon(_announce, operations, on_ready)
                await pyfuse3.main()
                nursery.cancel_scope.cancel()
        finally:
            pyfuse3.close(unmount=False)  # it would unmount by path, where another mount may be
    return operations.stopped


async def _stop(operations: Operations, signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        operations.stopped = True
        pyfuse3.terminate()


async def _announce(operations: Operations, on_ready: Callable[[], None]) -> None:
    await operations.initialised.wait()
    on_ready()

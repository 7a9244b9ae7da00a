"""pyfuse3 as a transport: it decodes and encodes, `casfs.fuse.session` answers.

pyfuse3 ends the mount when anything but FUSEError leaves a handler, hence `_handler` around
each of them. It hands `read` and `readdir` only a handle, so the kernel must ask to open
everything and keeps no listing; what that costs is in benchmarks/mount.md.

Handlers run one after another in one thread, and between two awaits nothing else runs;
only the first read of a large blob leaves the thread, to be verified. A file handle is
the inode number: the kernel keeps an inode for as long as it is open. Handles of live
files are numbers above all inodes: each has the content as it was at one moment, so that
offsets into it mean something.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FUSEError

from ..errors import Failed
from .inodes import LIMIT
from .session import FS_BLOCK, MAX_NAME, Entry, Session
from .vnode import File

BLOCK = 512  # the unit of st_blocks

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[Concatenate["Operations", P], Awaitable[T]]
Wrapped = Callable[Concatenate["Operations", P], Coroutine[Any, Any, T]]


def _handler(method: Handler[P, T]) -> Wrapped[P, T]:
    """Count the request, and let nothing out but FUSEError."""
    kind = method.__name__

    @functools.wraps(method)
    async def handle(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.session.stats.requests[kind] += 1
        try:
            return await method(self, *args, **kwargs)
        except FUSEError:
            raise
        except Exception as error:
            raise FUSEError(self.session.failed(kind, error)) from None

    return handle


def _refused(kind: str) -> Any:
    """A handler that answers EROFS; most of these the kernel answers by itself."""

    async def refuse(self: Operations, *_: Any) -> None:
        self.session.stats.requests[kind] += 1
        raise FUSEError(errno.EROFS)

    return refuse


class Operations(pyfuse3.Operations):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session
        self.answers = trio.Event()  # the kernel has spoken to us
        self.stopped = False  # by a signal
        self._handles = itertools.count(LIMIT)
        self._contents: dict[int, bytes] = {}
        self._preparing: dict[bytes, trio.Lock] = {}

    def init(self) -> None:
        self.answers.set()

    # -- names and attributes -----------------------------------------------------------

    @_handler
    async def lookup(self, parent: int, name: bytes, ctx: object) -> EntryAttributes:
        return self._encoded(self.session.lookup(parent, name))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self.session.stats.requests["forget"] += 1
        for ino, lookups in inode_list:
            self.session.forget(ino, lookups)

    @_handler
    async def getattr(self, inode: int, ctx: object) -> EntryAttributes:
        return self._encoded(self.session.getattr(inode))

    @_handler
    async def readlink(self, inode: int, ctx: object) -> bytes:
        return self.session.readlink(inode)

    @_handler
    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        self.session.access(inode, mode, ctx.uid, ctx.gid)
        return True

    @_handler
    async def statfs(self, ctx: object) -> pyfuse3.StatvfsData:
        space = self.session.statfs()
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = FS_BLOCK
        answer.f_namemax = MAX_NAME
        answer.f_blocks, answer.f_files = space.blocks, space.files
        return answer

    @_handler
    async def getxattr(self, inode: int, name: bytes, ctx: object) -> bytes:
        return self.session.getxattr(inode, name)

    @_handler
    async def listxattr(self, inode: int, ctx: object) -> Sequence[bytes]:
        """None is listed: an overlay would copy it up stale."""
        if not self.session.xattr:
            raise FUSEError(errno.ENOSYS)
        return ()

    # -- files --------------------------------------------------------------------------

    @_handler
    async def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise FUSEError(errno.EROFS)
        file = self.session.file(inode)
        if not file.live or file.grows:
            handle = pyfuse3.FileHandleT(inode)
            return pyfuse3.FileInfo(fh=handle, direct_io=file.grows, keep_cache=not file.grows)
        handle = next(self._handles)
        self._contents[handle] = self.session.content(inode)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle), direct_io=True, keep_cache=False)

    @_handler
    async def read(self, fh: int, off: int, size: int) -> bytes:
        if fh >= LIMIT:
            data = self._contents[fh][off : off + size]
            self.session.stats.bytes_served += len(data)
            return data
        file = self.session.file(fh)
        if not file.ready:
            await self._prepare(file)
        return self.session.read(file, off, size)

    async def _prepare(self, file: File) -> None:
        """Verify a large blob beside the loop; whoever else wants the same one waits."""
        lock = self._preparing.setdefault(file.key, trio.Lock())
        try:
            async with lock:
                if not file.ready:
                    await trio.to_thread.run_sync(file.prepare)
        finally:
            if not lock.statistics().tasks_waiting and not lock.locked():
                self._preparing.pop(file.key, None)

    @_handler
    async def release(self, fh: int) -> None:
        self._contents.pop(fh, None)

    # -- directories --------------------------------------------------------------------

    @_handler
    async def opendir(self, inode: int, ctx: object) -> pyfuse3.FileHandleT:
        self.session.directory(inode)
        return pyfuse3.FileHandleT(inode)

    @_handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self.session.listing(fh, start_id)
        for item in listing:
            entry = self._encoded(self.session.listed(listing, item))
            name = pyfuse3.FileNameT(item.name)
            if not pyfuse3.readdir_reply(token, name, entry, item.offset):
                listing.back(item)
                self.session.leave(listing)
                break
            self.session.hold(listing, item)

    @_handler
    async def releasedir(self, fh: int) -> None:
        pass

    # -- what changes something ---------------------------------------------------------

    setattr = _refused("setattr")
    mknod = _refused("mknod")
    mkdir = _refused("mkdir")
    unlink = _refused("unlink")
    rmdir = _refused("rmdir")
    symlink = _refused("symlink")
    rename = _refused("rename")
    link = _refused("link")
    create = _refused("create")
    write = _refused("write")
    setxattr = _refused("setxattr")
    removexattr = _refused("removexattr")

    def _encoded(self, told: Entry) -> EntryAttributes:
        attr = told.attr
        entry = EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(told.ino)
        entry.st_mode = pyfuse3.ModeT(attr.mode)
        entry.st_nlink = attr.nlink
        entry.st_uid = self.session.uid
        entry.st_gid = self.session.gid
        entry.st_size = attr.size
        entry.st_blocks = -(-attr.size // BLOCK)
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = attr.mtime_ns
        entry.attr_timeout = told.attr_timeout
        entry.entry_timeout = told.entry_timeout
        return entry


# -- running ----------------------------------------------------------------------------


def serve(
    session: Session, mountpoint: str, options: set[str], on_ready: Callable[[], None]
) -> bool:
    """Mount, serve until unmounted (False) or SIGTERM comes (True); what is mounted then is
    dead, and to be unmounted. Raises Failed."""
    stopped: bool = trio.run(_serve, Operations(session), mountpoint, options, on_ready)
    return stopped


async def _serve(
    operations: Operations, mountpoint: str, options: set[str], on_ready: Callable[[], None]
) -> bool:
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
            pyfuse3.close(unmount=False)  # by path: that may be another's by now
    return operations.stopped


async def _stop(operations: Operations, signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        operations.stopped = True
        pyfuse3.terminate()


async def _announce(operations: Operations, on_ready: Callable[[], None]) -> None:
    """Whoever calls from now on is answered, if he waits for the kernel's first word."""
    await operations.answers.wait()
    on_ready()

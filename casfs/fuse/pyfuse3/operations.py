"""pyfuse3 as a transport: it decodes and encodes, `casfs.fuse.session` answers.

pyfuse3 ends the mount when anything but FUSEError leaves a handler, hence `_handler` around
each of them. It hands `read` and `readdir` only a handle, so the kernel must ask to open
everything and keeps no listing; what that costs is in benchmarks/mount.md. So what is asked
at every pass is answered from what was told before: listings (`casfs.fuse.pyfuse3.listing_cache`),
and that a file is none that changes.

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
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FUSEError

from casfs.errors import Failed
from casfs.fuse.inodes import LIMIT
from casfs.fuse.kernel.protocol import BLOCK
from casfs.fuse.pyfuse3.listing_cache import Listings
from casfs.fuse.session import FS_BLOCK, MAX_NAME, Entry, Session
from casfs.fuse.views.vnode import File

TOLD = 1 << 17  # names in the listings that are kept, of some 400 bytes each
P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[Concatenate["Operations", P], T]
Wrapped = Callable[Concatenate["Operations", P], Coroutine[Any, Any, T]]


def _handler(method: Handler[P, T]) -> Wrapped[P, T]:
    """Count the request, and let nothing out but FUSEError."""
    kind = method.__name__

    @functools.wraps(method)
    async def handle(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.session.stats.requests[kind] += 1
        try:
            return method(self, *args, **kwargs)
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
        self._told: Listings[EntryAttributes] = Listings(TOLD)
        self._live: set[int] = set()  # whose attributes are told for no time at all

    def init(self) -> None:
        self.answers.set()

    # -- names and attributes -----------------------------------------------------------

    @_handler
    def lookup(self, parent: int, name: bytes, ctx: object) -> EntryAttributes:
        return self._encoded(self.session.lookup(parent, name))

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self.session.stats.requests["forget"] += 1
        for ino, lookups in inode_list:
            self.session.forget(ino, lookups)
            self._told.drop(ino)
            if ino in self._live and self.session.inodes.table.check(ino) is None:
                self._live.discard(ino)

    @_handler
    def getattr(self, inode: int, ctx: object) -> EntryAttributes:
        return self._encoded(self.session.getattr(inode))

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
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = FS_BLOCK
        answer.f_namemax = MAX_NAME
        answer.f_blocks, answer.f_files = space.blocks, space.files
        return answer

    @_handler
    def getxattr(self, inode: int, name: bytes, ctx: object) -> bytes:
        return self.session.getxattr(inode, name)

    @_handler
    def listxattr(self, inode: int, ctx: object) -> Sequence[bytes]:
        """None is listed: an overlay would copy it up stale."""
        if not self.session.xattr:
            raise FUSEError(errno.ENOSYS)
        return ()

    # -- files --------------------------------------------------------------------------

    @_handler
    def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise FUSEError(errno.EROFS)
        handle, grows = inode, False
        if inode in self._live:  # what else there is will be looked up by who reads it
            file = self.session.file(inode)
            grows = file.grows
            if file.live and not grows:
                handle = next(self._handles)
                self._contents[handle] = self.session.content(inode)
        direct = grows or handle != inode
        fh = pyfuse3.FileHandleT(handle)
        return pyfuse3.FileInfo(fh=fh, direct_io=direct, keep_cache=not direct)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        self.session.stats.requests["read"] += 1
        try:
            if fh >= LIMIT:
                data = self._contents[fh][off : off + size]
                self.session.stats.bytes_served += len(data)
                return data
            file = self.session.file(fh)
            if not file.ready:
                await self._prepare(file)
            return self.session.read(file, off, size)
        except Exception as error:
            raise FUSEError(self.session.failed("read", error)) from None

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
    def release(self, fh: int) -> None:
        self._contents.pop(fh, None)

    # -- directories --------------------------------------------------------------------

    @_handler
    def opendir(self, inode: int, ctx: object) -> pyfuse3.FileHandleT:
        if not self._told.complete(inode):
            self.session.directory(inode)
        return pyfuse3.FileHandleT(inode)

    @_handler
    def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        go_on = self._tell_again(fh, start_id, token)
        if go_on is None:
            return
        listing = self.session.listing(fh, go_on)
        for item in listing:
            told = self.session.listed(listing, item)
            entry = self._encoded(told)
            name = pyfuse3.FileNameT(item.name)
            if not pyfuse3.readdir_reply(token, name, entry, item.offset):
                listing.back(item)
                self.session.leave(listing)
                return
            self.session.hold(listing, item)
            self._told.add(listing, item, told, entry)
        self._told.end(listing)

    def _tell_again(self, ino: int, offset: int, token: pyfuse3.ReaddirToken) -> int | None:
        """Answer with what was told of a directory before. From where to go on; None when
        there is no room for more, or there is no more."""
        table, reply = self.session.inodes.table, pyfuse3.readdir_reply
        for told in itertools.islice(self._told.begun(ino), offset, None):
            name, entry, below, check = told
            if check is not None and table.check(below) not in (None, check):
                self._told.drop(ino)  # the number is another's by now
                return offset
            offset += 1
            if not reply(token, name, entry, offset):
                return None
            if check is not None:
                table.hold(below, check, ino, name)
        return None if self._told.complete(ino) else offset

    @_handler
    def releasedir(self, fh: int) -> None:
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
        if told.attr_timeout == 0.0:
            self._live.add(told.ino)
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

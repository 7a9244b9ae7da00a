"""The thin adapter between the kernel (through pyfuse3) and vnodes.

It translates: inode numbers to vnodes, vnodes to attributes, errors to errno. What a
directory holds is decided elsewhere; so is what may be cached, here that only becomes a
timeout. pyfuse3 ends the mount when anything but FUSEError leaves a handler, hence
`_handler` around each of them.

Handlers run one after another in one thread, and between two awaits nothing else runs;
only the first read of a large blob leaves the thread, to be verified. A file handle is
the inode number: the kernel keeps an inode for as long as it is open. Handles of live
files and of directories are numbers above all inodes: each has the content or listing as
it was at one moment, so that offsets into it mean something.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FUSEError

from ..errors import Failed
from ..log import Log
from .errors import OURS, errno_of
from .inodes import LIMIT, Inodes
from .stats import Stats
from .vnode import Broken, Directory, File, Link, Vnode

FOREVER = 10.0**9  # seconds
MOMENT = 1.0  # seconds that a name which vanished, or a directory's mtime, may be stale
BLOCK = 512  # the unit of st_blocks
FS_BLOCK = 4096
MAX_NAME = 255
XATTR = b"user.blake3"

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[Concatenate["Operations", P], Awaitable[T]]
Wrapped = Callable[Concatenate["Operations", P], Coroutine[Any, Any, T]]


def _handler(method: Handler[P, T]) -> Wrapped[P, T]:
    """Count the request; let nothing out but FUSEError, and log what is our fault."""
    kind = method.__name__

    @functools.wraps(method)
    async def handle(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> T:
        self.stats.requests[kind] += 1
        try:
            return await method(self, *args, **kwargs)
        except FUSEError:
            raise
        except Exception as error:
            raise FUSEError(self.failed(kind, error)) from None

    return handle


def _refused(kind: str) -> Any:
    """A handler that answers EROFS; most of these the kernel answers by itself."""

    async def refuse(self: Operations, *_: Any) -> None:
        self.stats.requests[kind] += 1
        raise FUSEError(errno.EROFS)

    return refuse


class Operations(pyfuse3.Operations):
    def __init__(
        self, root: Directory, stats: Stats, log: Log, *, store: Path | None, xattr: bool
    ) -> None:
        super().__init__()
        self.stats = stats
        self.answers = trio.Event()  # the kernel has spoken to us
        self._inodes = Inodes(root)
        self._log = log
        self._store = store
        self._xattr = xattr
        self._uid, self._gid = os.getuid(), os.getgid()
        self._handles = itertools.count(LIMIT)
        self._contents: dict[int, bytes] = {}
        self._directories: dict[int, Directory] = {}
        self._listings: dict[int, list[tuple[bytes, Vnode]]] = {}
        self._preparing: dict[bytes, trio.Lock] = {}
        counts = stats.cache
        stats.cache = lambda: {"inodes": len(self._inodes), **counts()}

    def failed(self, kind: str, error: Exception) -> int:
        """The errno for `error`; what is our fault is logged."""
        code = errno_of(error)
        if code in OURS:
            name = type(error).__name__
            self._log("request failed", request=kind, error=name, message=str(error))
        return code

    def init(self) -> None:
        self.answers.set()

    # -- names and attributes -----------------------------------------------------------

    @_handler
    async def lookup(self, parent: int, name: bytes, ctx: object) -> EntryAttributes:
        directory = self._directory(parent)
        if len(name) > MAX_NAME:  # the kernel allows more
            raise FUSEError(errno.ENAMETOOLONG)
        vnode = directory.lookup(name)
        if vnode is not None:
            vnode = self._inodes.known(vnode)
            entry = self._entry(directory, name, vnode)
            self._inodes.hold(vnode)
            return entry
        if not directory.fixed:
            raise FUSEError(errno.ENOENT)
        nothing = EntryAttributes()
        nothing.st_ino = pyfuse3.InodeT(0)
        nothing.entry_timeout = FOREVER
        return nothing

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self.stats.requests["forget"] += 1
        for ino, lookups in inode_list:
            self._inodes.forget(ino, lookups)

    @_handler
    async def getattr(self, inode: int, ctx: object) -> EntryAttributes:
        vnode = self._vnode(inode)
        if vnode.live:
            vnode.refresh()
        return self._attributes(vnode)

    @_handler
    async def readlink(self, inode: int, ctx: object) -> bytes:
        vnode = self._vnode(inode)
        if not isinstance(vnode, Link):
            raise FUSEError(errno.EINVAL)
        return vnode.target

    @_handler
    async def access(self, inode: int, mode: int, ctx: object) -> bool:
        if mode & os.W_OK:
            raise FUSEError(errno.EROFS)
        wanted = 0o111 * bool(mode & os.X_OK) or 0o444
        return bool(self._vnode(inode).attr().mode & wanted)

    @_handler
    async def statfs(self, ctx: object) -> pyfuse3.StatvfsData:
        """What the store's disk holds is used, nothing is free: there is nothing to fill."""
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = answer.f_frsize = FS_BLOCK
        answer.f_namemax = MAX_NAME
        if self._store is not None:
            disk = os.statvfs(self._store)
            answer.f_blocks = (disk.f_blocks - disk.f_bfree) * disk.f_frsize // FS_BLOCK
            answer.f_files = disk.f_files - disk.f_ffree
        return answer

    @_handler
    async def getxattr(self, inode: int, name: bytes, ctx: object) -> bytes:
        if not self._xattr:
            raise FUSEError(errno.ENOSYS)  # the kernel will not ask again
        digest = self._vnode(inode).digest if name == XATTR else None
        if digest is None:
            raise FUSEError(errno.ENODATA)
        return digest.encode("ascii")

    # -- files --------------------------------------------------------------------------

    @_handler
    async def open(self, inode: int, flags: int, ctx: object) -> pyfuse3.FileInfo:
        vnode = self._vnode(inode)
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise FUSEError(errno.EROFS)
        if not isinstance(vnode, File):
            raise FUSEError(errno.EISDIR)
        if not vnode.live:
            return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(inode), keep_cache=True)
        handle = next(self._handles)
        self._contents[handle] = vnode.read(0, LIMIT)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle), direct_io=True, keep_cache=False)

    @_handler
    async def read(self, fh: int, off: int, size: int) -> bytes:
        if fh >= LIMIT:
            data = self._contents[fh][off : off + size]
        else:
            file = self._vnode(fh)
            assert isinstance(file, File)
            if not file.ready:
                await self._prepare(file)
            data = file.read(off, size)
        self.stats.bytes_served += len(data)
        return data

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
        handle = next(self._handles)
        self._directories[handle] = self._directory(inode)
        return pyfuse3.FileHandleT(handle)

    @_handler
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Position n is after the n-th name; a listing is taken anew at position 0."""
        directory = self._directories[fh]
        if start_id == 0 or fh not in self._listings:
            self._listings[fh] = list(directory.entries())
        listing = self._listings[fh]
        for place in range(start_id, len(listing)):
            name, vnode = listing[place]
            vnode = self._inodes.known(vnode)
            entry = self._entry(directory, name, vnode)
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), entry, place + 1):
                break
            self._inodes.hold(vnode)

    @_handler
    async def releasedir(self, fh: int) -> None:
        self._directories.pop(fh, None)
        self._listings.pop(fh, None)

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

    # -- translation --------------------------------------------------------------------

    def _vnode(self, inode: int) -> Vnode:
        vnode = self._inodes.get(inode)
        if vnode is None:
            raise FUSEError(errno.ESTALE)
        return vnode

    def _directory(self, inode: int) -> Directory:
        vnode = self._vnode(inode)
        if not isinstance(vnode, Directory):
            raise FUSEError(errno.ENOTDIR)
        return vnode

    def _entry(self, directory: Directory, name: bytes, vnode: Vnode) -> EntryAttributes:
        entry = self._attributes(vnode)
        if isinstance(vnode, Broken) or not directory.binds(name):
            entry.entry_timeout = 0
        else:
            entry.entry_timeout = FOREVER if directory.fixed else MOMENT
        return entry

    def _attributes(self, vnode: Vnode) -> EntryAttributes:
        attr = vnode.attr()
        entry = EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(vnode.ino)
        entry.st_mode = pyfuse3.ModeT(attr.mode)
        entry.st_nlink = attr.nlink
        entry.st_uid = self._uid
        entry.st_gid = self._gid
        entry.st_size = attr.size
        entry.st_blocks = -(-attr.size // BLOCK)
        entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = attr.mtime_ns
        if vnode.live:
            entry.attr_timeout = MOMENT if isinstance(vnode, Directory) else 0
        else:
            entry.attr_timeout = FOREVER
        return entry


# -- running ----------------------------------------------------------------------------


async def run(
    operations: Operations, mountpoint: str, options: set[str], on_ready: Callable[[], None]
) -> None:
    """Mount, serve until unmounted or told to stop by a signal, unmount. Raises Failed."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        try:
            pyfuse3.init(operations, mountpoint, options)
        except RuntimeError as error:
            raise Failed(f"cannot mount at {mountpoint}: {error}") from None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_stop, signals)
                nursery.start_soon(_announce, operations, mountpoint, on_ready)
                await pyfuse3.main()
                nursery.cancel_scope.cancel()
        finally:
            pyfuse3.close(unmount=True)


async def _stop(signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        pyfuse3.terminate()


async def _announce(operations: Operations, mountpoint: str, on_ready: Callable[[], None]) -> None:
    """Ready is when a system call on the mount comes back."""
    await operations.answers.wait()
    with suppress(OSError):  # unmounted already: then nobody waits
        await trio.to_thread.run_sync(os.stat, mountpoint, abandon_on_cancel=True)
    on_ready()

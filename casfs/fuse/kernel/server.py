"""A transport of our own: it speaks the FUSE protocol on /dev/fuse and needs no library.

One thread reads a request, asks `casfs.fuse.session` and writes the answer. OPEN and OPENDIR
are refused with ENOSYS, once: from then on the kernel opens files and keeps listings by
itself, and looks at the mtime of what is live to know whether that still holds
(FUSE_AUTO_INVAL_DATA). So a second look at anything that cannot change costs no request.

After an answer the loop stays awake for a moment: to sleep and be woken costs more than
the time that most callers need until their next request. Only the first read of a large blob
leaves the loop (`casfs.fuse.kernel.verify_pool`). Changes are told by `casfs.fuse.kernel.notifier`.

What was negotiated is left in the table's note: a successor on the same descriptor goes on
from there, and asks the kernel to send again what its predecessor had taken and not
answered (FUSE_NOTIFY_RESEND, Linux 6.9; for older ones `casfs.fuse.kernel.replies`). An inode is
counted before the answer leaves, so that a death in between leaves it held too long rather
than too short.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from casfs.errors import Failed
from casfs.fuse.kernel import protocol
from casfs.fuse.kernel.init import Negotiated, Unsupported, negotiate
from casfs.fuse.kernel.notifier import Watcher
from casfs.fuse.kernel.replies import Answers
from casfs.fuse.kernel.verify_pool import Verifier
from casfs.fuse.session import FS_BLOCK, MAX_NAME, Entry, Session
from casfs.fuse.views.errors import Denied
from casfs.fuse.views.root import Name
from casfs.system.log import Log

BUFFER = 1 << 17  # bytes of a request; the longest are lists of inodes to be forgotten
LONG = 1 << 17  # bytes; a longer answer is spliced, which costs less than copying it
AWAKE = 50e-6  # seconds: to fall asleep and be woken takes longer than most wait for the next
READABLE = 0x41  # POLLIN | POLLRDNORM
REFUSED = frozenset(
    "setattr symlink mknod mkdir unlink rmdir rename link write setxattr removexattr create"
    " fallocate rename2 copy_file_range copy_file_range_64 tmpfile".split()
)
SILENT = frozenset(["forget", "batch_forget", "interrupt", "notify_reply"])  # have no answer


class Request(NamedTuple):
    unique: int
    ino: int
    uid: int
    gid: int
    body: memoryview


class _Stop(BaseException):
    """Raised by `stop` out of waiting for a request."""


class Transport:
    def __init__(
        self, session: Session, fd: int, log: Log, gone: Callable[[], list[Name]] = list
    ) -> None:
        """`fd`: /dev/fuse, mounted or about to be; `gone`: as `casfs.fuse.views.gone` makes it,
        where the session is `watched`."""
        self._session = session
        self._fd = fd
        self._log = log
        self._reading = self._stopping = False
        self._awake = AWAKE if len(os.sched_getaffinity(0)) > 1 else 0.0
        self._answers = Answers(fd, session.inodes.table.taken)
        self._verifier = Verifier(session, self._answers)
        self._watcher = Watcher(session, gone, self._answers.notify)
        self._handlers: dict[int, tuple[str, Callable[[Request], bytes | None]]] = {
            code: (kind, getattr(self, f"_on_{kind}", self._refused(kind)))
            for code, kind in protocol.OPCODES.items()
        }

    def serve(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Until unmounted, or `stop`. Raises Unsupported, Failed."""
        self._on_ready = on_ready
        self._watcher.start()
        try:
            if self._session.inodes.table.note:
                self._succeed()
            self._loop()
        except _Stop:
            pass
        finally:
            self._watcher.close()
            self._verifier.close()
            self._answers.close()

    def stop(self) -> None:
        """End `serve` after the answer that it is at; for a handler of a signal, which runs in
        its thread."""
        self._stopping = True
        if self._reading:
            self._reading = False
            raise _Stop

    def _succeed(self) -> None:
        resends = Negotiated(*map(int, self._session.inodes.table.note.split())).resends
        self._answers.noting = not resends
        if resends:
            with suppress(OSError):
                self._answers.notify(protocol.NOTIFY_RESEND, b"")
        else:
            self._answers.fail_taken()
        self._on_ready()

    def _loop(self) -> None:
        buffer = bytearray(BUFFER)
        view, buffers, fd = memoryview(buffer), [buffer], self._fd
        unpack, handlers, answers = protocol.in_header.unpack_from, self._handlers, self._answers
        counts = self._session.stats.requests
        least = protocol.in_header.size
        sleeping, until, now = select.poll(), 0.0, time.perf_counter
        sleeping.register(fd, select.POLLIN)
        os.set_blocking(fd, False)
        while not self._stopping:
            self._reading = True
            try:
                size = os.readv(fd, buffers)
                self._reading = False
            except BlockingIOError:
                if now() > until:
                    sleeping.poll()
                continue
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno == errno.ENOENT:  # taken back meanwhile
                    continue
                raise Failed(f"cannot read from the kernel: {error.strerror}") from error
            if size == 0:
                return
            if size < least:
                continue
            _, opcode, unique, ino, uid, gid, *_ = unpack(buffer)
            kind, handler = handlers.get(opcode, UNKNOWN)
            counts[kind] += 1
            answers.take(unique)
            self._answer(kind, handler, Request(unique, ino, uid, gid, view[least:size]))
            until = now() + self._awake

    def _answer(
        self, kind: str, handler: Callable[[Request], bytes | None], request: Request
    ) -> None:
        try:
            body = handler(request)
            if body is not None:
                self._answers.reply(request.unique, body)
        except Unsupported:
            self._answers.error(request.unique, errno.EPROTO)
            raise
        except Exception as error:
            code = self._session.failed(kind, error)
            if kind not in SILENT:
                self._answers.error(request.unique, code)

    # -- the connection -----------------------------------------------------------------------

    def _on_init(self, request: Request) -> None:
        answer, agreed = negotiate(request.body)
        if agreed is not None:
            self._session.inodes.table.note = b" ".join(b"%d" % number for number in agreed)
            self._answers.noting = not agreed.resends
        self._answers.reply(request.unique, answer)
        if agreed is not None:
            self._on_ready()

    def _on_destroy(self, request: Request) -> bytes:
        return b""

    def _on_interrupt(self, request: Request) -> None:
        """Nothing here takes long enough to be worth breaking off."""

    def _on_notify_reply(self, request: Request) -> None:
        """Never asked for."""

    def _refused(self, kind: str) -> Callable[[Request], bytes]:
        code = errno.EROFS if kind in REFUSED else errno.ENOSYS

        def refuse(request: Request) -> bytes:
            raise Denied(code)

        return refuse

    # -- names and attributes -----------------------------------------------------------------

    def _on_lookup(self, request: Request) -> bytes:
        entry = self._session.lookup(request.ino, _text(request.body))
        return self._entry(entry, entry.ino)

    def _entry(self, entry: Entry, nodeid: int) -> bytes:
        session = self._session
        attributes = protocol.pack_attr(entry.ino, entry.attr, session.uid, session.gid)
        return protocol.pack_entry(nodeid, entry.entry_timeout, entry.attr_timeout, attributes)

    def _on_forget(self, request: Request) -> None:
        (lookups,) = protocol.forget_in.unpack_from(request.body)
        self._session.forget(request.ino, lookups)

    def _on_batch_forget(self, request: Request) -> None:
        (count, _), at = (
            protocol.batch_forget_in.unpack_from(request.body),
            protocol.batch_forget_in.size,
        )
        pairs = request.body[at : at + count * protocol.forget_one.size]
        for ino, lookups in protocol.forget_one.iter_unpack(pairs):
            self._session.forget(ino, lookups)

    def _on_getattr(self, request: Request) -> bytes:
        entry = self._session.getattr(request.ino)
        attributes = protocol.pack_attr(entry.ino, entry.attr, self._session.uid, self._session.gid)
        return protocol.attr_out.pack(*protocol.timeout(entry.attr_timeout), 0) + attributes

    def _on_statx(self, request: Request) -> bytes:
        entry = self._session.getattr(request.ino)
        attributes = protocol.pack_statx(
            entry.ino, entry.attr, self._session.uid, self._session.gid
        )
        return protocol.statx_out.pack(*protocol.timeout(entry.attr_timeout), 0) + attributes

    def _on_readlink(self, request: Request) -> bytes:
        return self._session.readlink(request.ino)

    def _on_access(self, request: Request) -> bytes:
        mask, _ = protocol.access_in.unpack_from(request.body)
        self._session.access(request.ino, mask, request.uid, request.gid)
        return b""

    def _on_statfs(self, request: Request) -> bytes:
        space = self._session.statfs()
        return protocol.statfs_out.pack(
            space.blocks, 0, 0, space.files, 0, FS_BLOCK, MAX_NAME, FS_BLOCK, 0
        )

    def _on_getxattr(self, request: Request) -> bytes:
        size, _ = protocol.getxattr_in.unpack_from(request.body)
        name = _text(request.body[protocol.getxattr_in.size :])
        return _sized(self._session.getxattr(request.ino, name), size)

    def _on_listxattr(self, request: Request) -> bytes:
        """None is listed: an overlay would copy it up stale."""
        if not self._session.xattr:
            raise Denied(errno.ENOSYS)
        size, _ = protocol.getxattr_in.unpack_from(request.body)
        return _sized(b"", size)

    # -- files --------------------------------------------------------------------------------

    def _on_read(self, request: Request) -> bytes | None:
        _, offset, size, *_ = protocol.read_in.unpack_from(request.body)
        session = self._session
        file = session.file(request.ino)
        if not file.ready:
            self._verifier.read(request.unique, file, offset, size)
            return None
        extent = file.extent(offset, size) if size > LONG else None
        sent = None if extent is None else self._answers.splice(request.unique, extent)
        if sent is None:
            return session.read(file, offset, size)
        session.stats.bytes_served += sent
        return None

    def _on_lseek(self, request: Request) -> bytes:
        _, offset, whence, _ = protocol.lseek_in.unpack_from(request.body)
        return protocol.lseek_out.pack(self._session.seek(request.ino, offset, whence))

    # -- directories --------------------------------------------------------------------------

    def _on_readdir(self, request: Request) -> bytes:
        return self._listed(request, plus=False)

    def _on_readdirplus(self, request: Request) -> bytes:
        return self._listed(request, plus=True)

    def _listed(self, request: Request, *, plus: bool) -> bytes:
        _, offset, size, *_ = protocol.read_in.unpack_from(request.body)
        session, parts, left = self._session, [], size
        owner = session.uid, session.gid
        listing = session.listing(request.ino, offset)
        for item in listing:
            offset, name, vnode, held = item
            entry = session.listed(listing, item)
            if plus:
                nodeid = vnode.ino if held else 0
                part = protocol.pack_direntplus(nodeid, entry, offset, name, owner)
            else:
                part = protocol.pack_dirent(vnode.ino, offset, entry.attr.mode >> 12 & 15, name)
            left -= len(part)
            if left < 0:
                listing.back(item)
                break
            parts.append(part)
            if plus:
                session.hold(listing, item)
        if parts:
            session.leave(listing)
        return b"".join(parts)

    def _on_poll(self, request: Request) -> bytes:
        _, kh, flags, events = protocol.poll_in.unpack_from(request.body)
        wait = bool(flags & protocol.POLL_SCHEDULE_NOTIFY)
        ready = self._watcher.poll(kh, self._session.vnode(request.ino), wait=wait)
        return protocol.poll_out.pack(events & READABLE if ready else 0, 0)


def _unknown(request: Request) -> bytes:
    raise Denied(errno.ENOSYS)


UNKNOWN = "unknown", _unknown


def _text(body: memoryview) -> bytes:
    """A name as the kernel sends it, up to its NUL."""
    name, nul, _ = bytes(body).partition(b"\0")
    if not nul:
        raise Denied(errno.EINVAL)
    return name


def _sized(value: bytes, size: int) -> bytes:
    """An attribute's value, or its length when the caller has no room yet."""
    if size == 0:
        return protocol.getxattr_out.pack(len(value), 0)
    if len(value) > size:
        raise Denied(errno.ERANGE)
    return value

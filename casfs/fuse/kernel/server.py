"""The built-in transport: serves the FUSE protocol on /dev/fuse, without a library.

One worker thread reads a request, calls `casfs.fuse.session` and writes the reply. OPEN and
OPENDIR are refused with ENOSYS, once: from then on the kernel opens files without a request and
caches listings, and checks the mtime of live ones to know whether that cache is valid
(FUSE_AUTO_INVAL_DATA). So a second access to anything immutable costs no request.

After a reply the loop polls for SPIN_S without sleeping: a wake-up takes longer than most
callers need until their next request. What takes long leaves the loop: the first read of a large
blob, a listing that must be prepared, what is in a remote or in a shared store only
(`casfs.fuse.kernel.worker_pool`). One thread at a time uses the session. Notifications are sent by
`casfs.fuse.kernel.notifier`.

The result of INIT is kept in the inode table: a successor on the same descriptor goes on from
there, and has the kernel resend the requests that its predecessor had read and not answered
(FUSE_NOTIFY_RESEND, Linux 6.9; for older kernels see `casfs.fuse.kernel.replies`). A lookup is
counted before the reply is written, so that a death in between errs on the high side.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from casfs.backend.lazy_packs import NotLocal, waiting, without_waiting
from casfs.errors import Failed
from casfs.fuse.kernel import attribute_requests, directory_requests, protocol
from casfs.fuse.kernel.init_handshake import Negotiated, Unsupported, negotiate
from casfs.fuse.kernel.notifier import Notifier
from casfs.fuse.kernel.protocol import Request
from casfs.fuse.kernel.replies import Replies
from casfs.fuse.kernel.worker_pool import Answer, WorkerPool
from casfs.fuse.session import Session
from casfs.fuse.views.errors import Denied
from casfs.fuse.views.invalidation import Dentry
from casfs.system.log import Log

REQUEST_BYTES = 1 << 17  # the longest requests are BATCH_FORGET
SPLICE_BYTES = 1 << 17  # a longer reply is spliced, which costs less than copying it
SPIN_S = 50e-6  # a wake-up takes longer than most callers need until their next request
VERIFY_THREADS = 2
FETCH_THREADS = 8
READABLE = 0x41  # POLLIN | POLLRDNORM
READ_ONLY = frozenset(  # answered with EROFS
    "setattr symlink mknod mkdir unlink rmdir rename link write setxattr removexattr create"
    " fallocate rename2 copy_file_range copy_file_range_64 tmpfile".split()
)
NO_REPLY = frozenset(["forget", "batch_forget", "interrupt", "notify_reply"])

Handler = Callable[[Request], bytes | None]  # None: answered already, or not at all


class _Stop(BaseException):
    """Raised by `stop` to leave the wait for a request."""


class FuseServer:
    def __init__(
        self, session: Session, fd: int, log: Log, invalidated: Callable[[], list[Dentry]] = list
    ) -> None:
        """`fd`: /dev/fuse, mounted or about to be; `invalidated`: as returned by
        `casfs.fuse.views.invalidation`, if the session `invalidates`."""
        self._session = session
        self._fd = fd
        self._log = log
        self._reading = self._stopping = False
        self._spin_s = SPIN_S if len(os.sched_getaffinity(0)) > 1 else 0.0
        self._replies = Replies(fd, session.inodes.table)
        self._session_lock = threading.Lock()
        self._fetches = fetches = WorkerPool(
            session, self._replies, kind="read", threads=FETCH_THREADS
        )
        self._reads = WorkerPool(
            session, self._replies, kind="read", threads=VERIFY_THREADS, remote=fetches
        )
        self._listings = WorkerPool(
            session, self._replies, kind="readdir", threads=1, remote=fetches
        )
        self._notifier = Notifier(session, invalidated, self._replies.notify)
        handlers: dict[str, Handler] = {
            "init": self._init,
            "destroy": lambda request: b"",
            "interrupt": self._interrupt,
            "notify_reply": lambda request: None,
            "read": self._read,
            "lseek": self._lseek,
            "poll": self._poll,
        }
        for module in (attribute_requests, directory_requests):
            for kind, handler in module.HANDLERS.items():
                handlers[kind] = partial(handler, session)
        for kind, handler in directory_requests.HANDLERS.items():
            handlers[kind] = partial(self._list, partial(handler, session))
        self._handlers = {
            code: (kind, handlers.get(kind, _read_only if kind in READ_ONLY else _unsupported))
            for code, kind in protocol.OPCODES.items()
        }

    def serve(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Serves until unmounted, or `stop`. Raises Unsupported, Failed."""
        self._on_ready = on_ready
        self._notifier.start()
        waiting.allowed = False
        try:
            if self._session.inodes.table.transport_state:
                self._resume()
            self._loop()
        except _Stop:
            pass
        finally:
            self._notifier.close()
            waiting.allowed = True
            self._reads.close()
            self._fetches.close()
            self._listings.close()
            self._replies.close()

    def stop(self) -> None:
        """Ends `serve` after the reply in progress; for a signal handler in its thread."""
        self._stopping = True
        if self._reading:
            self._reading = False
            raise _Stop

    def _resume(self) -> None:
        """Continues after a predecessor's INIT."""
        state = self._session.inodes.table.transport_state
        resends = Negotiated(*map(int, state.split())).resends
        self._replies.lists_deferred = not resends
        if resends:
            with suppress(OSError):
                self._replies.notify(protocol.NOTIFY_RESEND, b"")
        else:
            self._replies.fail_unanswered()
        self._on_ready()

    def _loop(self) -> None:
        header = self._session.inodes.table.request_header
        body = memoryview(bytearray(REQUEST_BYTES))
        buffers = [header, body]
        fd = self._fd
        unpack = protocol.in_header.unpack
        handlers = self._handlers
        counts = self._session.stats.requests
        header_size = protocol.in_header.size
        poller = select.poll()
        spin_until = 0.0
        clock = time.perf_counter
        poller.register(fd, select.POLLIN)
        os.set_blocking(fd, False)
        while not self._stopping:
            self._reading = True
            try:
                size = os.readv(fd, buffers)
                self._reading = False
            except BlockingIOError:
                if clock() > spin_until:
                    poller.poll()
                continue
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno == errno.ENOENT:  # the request was interrupted
                    continue
                raise Failed(f"cannot read from the kernel: {error.strerror}") from error
            if size == 0:
                return
            if size < header_size:
                continue
            _, opcode, unique, ino, uid, gid, *_ = unpack(header)
            kind, handler = handlers.get(opcode, UNKNOWN)
            counts[kind] += 1
            self._answer(
                kind,
                handler,
                Request(unique, ino, uid=uid, gid=gid, body=body[: size - header_size]),
            )
            spin_until = clock() + self._spin_s

    def _answer(self, kind: str, handler: Handler, request: Request) -> None:
        try:
            with self._session_lock:
                body = handler(request)
            if body is not None:
                self._replies.reply(request.unique, body)
        except NotLocal as absent:
            self._fetch(
                request.unique, request.unique, absent=absent, answer=self._later(handler, request)
            )
        except Unsupported:
            self._replies.error(request.unique, errno.EPROTO)
            raise
        except Exception as error:
            code = self._session.errno_for(kind, error)
            if kind not in NO_REPLY:
                self._replies.error(request.unique, code)

    def _init(self, request: Request) -> None:
        reply, agreed = negotiate(request.body)
        if agreed is not None:
            state = b" ".join(b"%d" % number for number in agreed)
            self._session.inodes.table.transport_state = state
            self._replies.lists_deferred = not agreed.resends
        self._replies.reply(request.unique, reply)
        if agreed is not None:
            self._on_ready()

    # -- files --------------------------------------------------------------------------------

    def _read(self, request: Request) -> bytes | None:
        _, offset, size, *_ = protocol.read_in.unpack_from(request.body)
        session = self._session
        file = session.file(request.ino)
        if not file.ready:
            self._reads.run(
                request.unique,
                file.ino,
                lambda wanted: file.prepare(),
                lambda: session.read(file, offset, size),
            )
            return None
        try:
            extent = file.extent(offset, size) if size > SPLICE_BYTES else None
            sent = None if extent is None else self._replies.splice(request.unique, extent)
            if sent is None:
                return session.read(file, offset, size)
        except NotLocal as absent:
            answer = partial(session.read, file, offset, size)
            self._fetch(request.unique, request.ino, absent=absent, answer=answer)
            return None
        session.stats.bytes_served += sent
        return None

    def _later(self, handler: Handler, request: Request) -> Answer:
        """Returns what answers a request in another thread, where it does not wait either, as it
        holds the session."""
        kept = request._replace(body=memoryview(bytes(request.body)))  # the buffer is used again

        def answer() -> bytes | None:
            with self._session_lock, without_waiting():
                return handler(kept)

        return answer

    def _fetch(self, unique: int, key: int, absent: NotLocal, answer: Answer) -> None:
        """Answers once what is absent was fetched."""
        fetch = absent.fetch
        self._fetches.run(unique, key, lambda wanted: fetch(), answer)

    def _list(self, handler: Callable[[Request], bytes], request: Request) -> bytes | None:
        _, offset, *_ = protocol.read_in.unpack_from(request.body)
        directory = self._session.directory(request.ino)
        if directory.ready or offset:
            return handler(request)
        answer = self._later(handler, request)
        self._listings.run(request.unique, request.unique, directory.prepare, answer)
        return None

    def _interrupt(self, request: Request) -> None:
        """A caller that waits for a name or a listing got a signal. Reads are not interrupted: few
        programs expect that of files."""
        (unique,) = protocol.interrupt_in.unpack_from(request.body)
        self._listings.interrupt(unique)
        self._fetches.interrupt(unique)

    def _lseek(self, request: Request) -> bytes | None:
        _, offset, whence, _ = protocol.lseek_in.unpack_from(request.body)

        def seek() -> bytes:
            return protocol.lseek_out.pack(self._session.seek(request.ino, offset, whence))

        try:
            return seek()
        except NotLocal as absent:
            self._fetch(request.unique, request.ino, absent=absent, answer=seek)
            return None

    def _poll(self, request: Request) -> bytes:
        _, kh, flags, events = protocol.poll_in.unpack_from(request.body)
        wait = bool(flags & protocol.POLL_SCHEDULE_NOTIFY)
        ready = self._notifier.poll(kh, self._session.vnode(request.ino), wait=wait)
        return protocol.poll_out.pack(events & READABLE if ready else 0, 0)


def _read_only(request: Request) -> bytes:
    raise Denied(errno.EROFS)


def _unsupported(request: Request) -> bytes:
    raise Denied(errno.ENOSYS)


UNKNOWN = "unknown", _unsupported

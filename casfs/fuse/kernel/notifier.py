"""Notifications to the kernel, from a worker thread: removed names, and polled files that grew.

It looks for both every INTERVAL_S. The serving loop never notifies: the kernel may wait for a
reply of that very loop before it accepts a notification (deadlock).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from casfs.fuse.kernel import protocol
from casfs.fuse.session import Session
from casfs.fuse.views.invalidation import EVERYTHING, Dentry
from casfs.fuse.views.vnode import Vnode

INTERVAL_S = 0.1
MAX_POLLED = 1024  # open files


class Notifier:
    def __init__(
        self,
        session: Session,
        invalidated: Callable[[], list[Dentry]],
        notify: Callable[[int, bytes], None],
    ) -> None:
        """`invalidated`: returns the dentries removed since its last call; `notify`: sends a
        code and a body, raises OSError."""
        self._session = session
        self._invalidated = invalidated
        self._notify = notify
        self._polled: OrderedDict[int, tuple[Vnode, int]] = OrderedDict()  # by kh; size at poll
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="casfs-notify", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def poll(self, kh: int, vnode: Vnode, *, wait: bool) -> bool:
        """Returns whether an open file is readable: at its first poll, and when it has grown
        since its last one. `wait`: wake the caller when it becomes readable."""
        size = vnode.attr().size
        with self._lock:
            _, last_size = self._polled.get(kh, (vnode, -1))
            ready = not vnode.live or size != last_size
            if vnode.live and (ready or wait):
                self._polled[kh] = vnode, size
                self._polled.move_to_end(kh)
                if len(self._polled) > MAX_POLLED:
                    self._polled.popitem(last=False)
        return ready

    def _run(self) -> None:
        failing = False
        while not self._closed.wait(INTERVAL_S):
            try:
                self._invalidate_dentries()
                self._wake_pollers()
                failing = False
            except Exception as error:  # the mount goes on; notifications are late
                if not failing:  # log an error that lasts once
                    self._session.errno_for("notify", error)
                failing = True

    def _invalidate_dentries(self) -> None:
        for path, name in self._invalidated():
            if (path, name) == EVERYTHING:
                self._invalidate_everything()
                continue
            body = protocol.pack_inval_entry(self._session.directory_number(path), name)
            with suppress(OSError):  # usually the kernel does not have the dentry
                self._notify(protocol.NOTIFY_INVAL_ENTRY, body)

    def _invalidate_everything(self) -> None:
        """Has the kernel drop all contents and listings, and the names of files. A directory that
        has known inodes keeps its name: a workspace may be mounted over it."""
        for inode in self._session.inodes.table.snapshot():
            with suppress(OSError):  # usually the kernel has no page of it
                self._notify(protocol.NOTIFY_INVAL_INODE, protocol.pack_inval_inode(inode.ino))
            if inode.children == 0 and inode.parent:
                body = protocol.pack_inval_entry(inode.parent, inode.name)
                with suppress(OSError):
                    self._notify(protocol.NOTIFY_INVAL_ENTRY, body)

    def _wake_pollers(self) -> None:
        """A woken poller polls again, which registers it anew; one that does not has closed the
        file."""
        with self._lock:
            polled = list(self._polled.items())
        for kh, (vnode, size) in polled:
            if vnode.attr().size != size:
                with self._lock:
                    self._polled.pop(kh, None)
                with suppress(OSError):
                    self._notify(protocol.NOTIFY_POLL, protocol.notify_poll_wakeup_out.pack(kh))

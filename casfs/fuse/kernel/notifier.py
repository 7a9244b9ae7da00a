"""What tells the kernel of changes by itself, in a thread of its own.

A few times a second it looks for names that have gone, which the kernel keeps for ever
otherwise, and for files that somebody polls and that have grown. The serving loop never
notifies: the kernel may wait for an answer of that very loop before it takes a notification.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

from casfs.fuse.kernel import protocol
from casfs.fuse.session import Session
from casfs.fuse.views.root import Name
from casfs.fuse.views.vnode import Vnode

OFTEN = 0.1  # seconds between two looks
POLLED = 1024  # open files that are remembered


class Watcher:
    def __init__(
        self,
        session: Session,
        gone: Callable[[], list[Name]],
        notify: Callable[[int, bytes], None],
    ) -> None:
        """`notify`: sends a code and a body, raises OSError."""
        self._session = session
        self._gone = gone
        self._notify = notify
        self._polled: OrderedDict[int, tuple[Vnode, int]] = OrderedDict()  # by kh: size then
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="casfs-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def poll(self, kh: int, vnode: Vnode, *, wait: bool) -> bool:
        """Is an open file readable? It is when it has grown since it was last polled; at first it
        is as well, whoever asks can find out that nothing is there. `wait`: tell him later."""
        size = vnode.attr().size
        with self._lock:
            _, seen = self._polled.get(kh, (vnode, -1))
            ready = not vnode.live or size != seen
            if vnode.live and (ready or wait):
                self._polled[kh] = vnode, size
                self._polled.move_to_end(kh)
                if len(self._polled) > POLLED:
                    self._polled.popitem(last=False)
        return ready

    def _run(self) -> None:
        failing = False
        while not self._over.wait(OFTEN):
            try:
                self._tell()
                self._wake()
                failing = False
            except Exception as error:  # the mount goes on, only later in telling
                if not failing:  # once, however long that lasts
                    self._session.failed("watch", error)
                failing = True

    def _tell(self) -> None:
        for path, name in self._gone():
            told = protocol.pack_inval_entry(self._session.place(path), name)
            with suppress(OSError):  # mostly the kernel does not know it
                self._notify(protocol.NOTIFY_INVAL_ENTRY, told)

    def _wake(self) -> None:
        """Who was told asks again, and is new then; who does not has closed the file."""
        with self._lock:
            polled = list(self._polled.items())
        for kh, (vnode, size) in polled:
            if vnode.attr().size != size:
                with self._lock:
                    self._polled.pop(kh, None)
                with suppress(OSError):
                    self._notify(protocol.NOTIFY_POLL, protocol.notify_poll_wakeup_out.pack(kh))

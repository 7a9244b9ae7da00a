"""The directories below a followed one whose events the kernel reports, by path.

A path is b"" for the followed directory, else begins with a slash. The source of events is replaced
at each look at everything, which adds again each directory that it lists.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from casfs.errors import Failed
from casfs.system import directory_events
from casfs.system.directory_events import Event, EventSource, Key
from casfs.system.files import closing_fd
from casfs.system.paths import open_directory, printable

ABOVE = b".."  # the path of the directory that holds the followed one


class FollowedPaths:
    """`source` is None until `open`."""

    def __init__(self, *, fanotify: bool) -> None:
        self.source: EventSource | None = None
        self._fanotify = fanotify
        self._forget()

    def _forget(self) -> None:
        self._paths: dict[Key, bytes] = {}
        self._keys: dict[bytes, Key] = {}
        self._left_out: set[bytes] = set()

    def open(self, top: int) -> int:
        """Begins anew with the followed directory alone; returns a descriptor that is readable when
        there are events. Raises Failed."""
        self.close()
        self.source = directory_events.open_source(top if self._fanotify else None)
        self.add(b"", top)
        return self.source.fd

    def close(self) -> None:
        if self.source is not None:
            os.close(self.source.fd)  # which also ends its registration in an epoll
            self.source = None
        self._forget()

    def read(self) -> Iterator[tuple[bytes | None, Event]]:
        """Yields events, each with the path of its directory; None where events were lost. Nothing
        of directories that are not followed: fanotify reports a whole file system."""
        for event in self.source.read() if self.source else ():
            path = None if event.key is None else self._paths.get(event.key)
            if event.key is None or path is not None:
                yield path, event

    def is_left_out(self, path: bytes) -> bool:
        """Returns whether a directory is followed only for what says that it is left out."""
        return path in self._left_out

    def add(self, path: bytes, fd: int) -> None:
        """Raises Failed."""
        assert self.source is not None
        try:
            key = self.source.add(fd)
        except OSError as error:
            self._fanotify = False  # a file system below has none: the next look does without
            raise Failed(f"cannot watch {printable(path)}: {error.strerror}") from None
        if self._keys.get(path) != key:
            self.remove(path)
        self._paths[key] = path
        self._keys[path] = key
        self._left_out.discard(path)

    def add_above(self, fd: int) -> None:
        """Adds the directory that holds the followed one. Raises Failed, OSError."""
        assert self.source is not None
        # "/" is above itself, and its own events count.
        self._paths.setdefault(self.source.add(fd), ABOVE)

    def add_left_out(self, path: bytes, top: int) -> bool:
        """Adds a directory that is left out for what is inside: that may be deleted. Returns
        whether it is new: what was deleted before that had no event."""
        is_known = self.is_left_out(path)
        with suppress(OSError), closing_fd(open_directory(top, path[1:].split(b"/"))) as fd:
            self.add(path, fd)
            self._left_out.add(path)
            return not is_known
        return False

    def remove(self, path: bytes) -> None:
        key = self._keys.pop(path, None)
        # A directory that was moved keeps its key, and is followed by its new path already.
        if key is not None and self.source is not None and self._paths.get(key) == path:
            del self._paths[key]
            self.source.remove(key)

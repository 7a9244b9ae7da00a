"""Who records a directory that nobody else follows, as a daemon with one user of it has them."""

from __future__ import annotations

from pathlib import Path

from casfs.checkpoints.followed_directory import FollowedDirectory
from casfs.checkpoints.watch import Watch
from casfs.checkpoints.watch_list import WatchSpec
from casfs.store.store import Store
from engine.sessions.session_directory import SessionDirectory


class OwnSessionDirectory(SessionDirectory):
    def __init__(self, store: Store, path: Path, max_bytes: int | None) -> None:
        super().__init__(store, FollowedDirectory(store, path), max_bytes)

    def close(self) -> None:
        self.release()
        self._followed.close()


class OwnWatch(Watch):
    def __init__(self, store: Store, spec: WatchSpec, *, fanotify: bool = True) -> None:
        directory = FollowedDirectory(store, Path(spec.directory), fanotify=fanotify)
        super().__init__(store, spec, directory)
        self.fd = directory.fd

    def close(self) -> None:
        with self._directory.lock:
            self._directory.close()

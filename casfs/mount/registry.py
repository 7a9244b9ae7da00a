"""What is known of a mount that is being served: `mounts/<name>.json` in the store.

    {"mount": path, "device": "0:40", "transport": …, "keeper": pid, "server": pid,
     "serves": bool, "starts": n, "generation": n}

The keeper writes it, and keeps it locked; its server inherits the lock. So a record whose
lock is free belongs to nobody any more, and is removed by whoever comes across it. `starts`
counts serving processes, `generation` programs (`casfs mount --replace`). It says nothing
that is needed to serve or to unmount: where it cannot be written, nobody is told.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.errors import Failed
from casfs.system.locks import try_lock
from casfs.system.log import Log
from casfs.system.mounts import Mounted
from casfs.system.processes import Identity, parent

FOLDER = "mounts"
SUFFIX = ".json"
PATIENCE = 30.0  # seconds for a process to do what it has been told
MOMENT = 1.0  # seconds between letting go of everything and being gone
LOOK = 0.005  # seconds between two looks
TRIES = 5  # to read what is being written
FIELDS = ("mount", "device", "transport", "keeper", "server", "serves", "starts", "generation")


class Held:
    """A record in its keeper's hands."""

    def __init__(self, path: Path, fd: int, log: Log) -> None:
        self.path, self.fd = path, fd
        self._log = log

    @classmethod
    def make(cls, root: Path, log: Log) -> Held | None:
        """None where there is no room for it."""
        path = root / FOLDER / os.urandom(6).hex()  # not seen by others before it is locked
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try_lock(fd)
            path = path.rename(path.with_suffix(SUFFIX))
        except OSError as error:
            log("mount not recorded", path=path, error=str(error))
            return None
        return cls(path, fd, log)

    @classmethod
    def inherit(cls, left: Mapping[str, Any], log: Log) -> Held:
        """What a predecessor of this process held."""
        os.set_inheritable(left["fd"], False)
        return cls(Path(left["path"]), left["fd"], log)

    def write(self, **fields: object) -> None:
        assert fields.keys() == set(FIELDS)
        data = json.dumps(fields).encode()
        try:
            os.pwrite(self.fd, data, 0)
            os.ftruncate(self.fd, len(data))
        except OSError as error:
            self._log("mount not recorded", path=self.path, error=str(error))

    def remove(self) -> None:
        """The lock stays, until all who have it are gone: others wait for that."""
        with suppress(OSError):
            self.path.unlink()


@dataclass(frozen=True, slots=True)
class Record:
    """A record as others see it."""

    path: Path
    mount: Path
    device: str
    transport: str
    keeper: int
    server: int
    serves: bool
    starts: int
    generation: int

    def __str__(self) -> str:
        keeper = f"keeper {self.keeper}" if self.kept else "no keeper"
        return f"{self.transport}, server {self.server}, {keeper}"

    @property
    def kept(self) -> bool:
        """Has the server a keeper, who would start another one? A keeper that was killed
        leaves a server that goes on alone."""
        return parent(self.server) == self.keeper

    def shows(self, found: Mounted) -> bool:
        return (self.mount, self.device) == (found.point, found.device)

    def again(self) -> Record | None:
        """The record as it is now; None when it is gone."""
        return _read(self.path)

    def as_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in FIELDS}
        return {**values, "mount": str(self.mount)}

    @contextmanager
    def watched(self) -> Iterator[Callable[[], None]]:
        """Gives what returns when the keeper and the server are gone, or raises Failed."""
        processes = [Identity.of(self.keeper), Identity.of(self.server)]
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield lambda: None
            return

        def wait() -> None:
            until(
                lambda: try_lock(fd, shared=True),
                f"{self.mount} is unmounted, but pid {self.server} goes on",
            )
            until(lambda: not any(one.lives() for one in processes), seconds=MOMENT)

        try:
            yield wait
        finally:
            os.close(fd)


def listing(root: Path) -> list[Record]:
    """Of every mount of the store that is being served; in the order of their names."""
    try:
        paths = sorted((root / FOLDER).glob(f"*{SUFFIX}"))
    except OSError:
        return []
    found = (_read(path) for path in paths)
    return [one for one in found if one is not None]


def _read(path: Path) -> Record | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # gone meanwhile, or another user's
        return None
    try:
        for _ in range(TRIES):
            if try_lock(fd, shared=True):
                path.unlink(missing_ok=True)
                return None
            with suppress(ValueError, KeyError):
                values = json.loads(os.read(fd, 1 << 16))
                values["mount"] = Path(values["mount"])
                return Record(path, **{name: values[name] for name in FIELDS})
            os.lseek(fd, 0, os.SEEK_SET)
            time.sleep(LOOK)
    except OSError:
        pass
    finally:
        os.close(fd)
    return None


def until(
    done: Callable[[], bool], complaint: str | None = None, *, seconds: float = PATIENCE
) -> None:
    """Wait for another process. Raises Failed with the complaint, if there is one."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            if complaint:
                raise Failed(complaint)
            return
        time.sleep(LOOK)

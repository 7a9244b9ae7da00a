"""The mount registry: the state of each mount that is being served, `mounts/<name>.json`.

    {"mount": path, "device": "0:40", "transport": …, "keeper": pid, "server": pid,
     "serves": bool, "starts": n, "generation": n, "version": of the program}

`keeper` is the supervisor's pid and `server` the worker's. The supervisor writes the file and
holds a lock on it, which its worker inherits; a file whose lock is free is stale, and removed
by the next reader. `starts` counts workers, `generation` programs (`casfs mount --replace`).
Nothing in it is needed to serve or to unmount: if it cannot be written, the mount goes
unregistered.
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
from casfs.system.files import closing_fd
from casfs.system.locks import try_lock
from casfs.system.log import Log
from casfs.system.mounts import Mounted
from casfs.system.processes import Identity, parent

FOLDER = "mounts"
SUFFIX = ".json"
WAIT_TIMEOUT_S = 30.0  # for another process to do what it was asked for
EXIT_TIMEOUT_S = 1.0  # from the release of the lock to the end of the process
POLL_INTERVAL_S = 0.005
READ_ATTEMPTS = 5  # a read may meet a write
FIELDS = "mount device transport supervisor worker serves starts generation version".split()
JSON_KEYS = {name: {"supervisor": "keeper", "worker": "server"}.get(name, name) for name in FIELDS}


class MountStateFile:
    """The state file of one mount, locked by its supervisor."""

    def __init__(self, path: Path, fd: int, log: Log) -> None:
        self.path = path
        self.fd = fd
        self._log = log

    @classmethod
    def create(cls, root: Path, log: Log) -> MountStateFile | None:
        """Returns None if the file cannot be created."""
        path = root / FOLDER / os.urandom(6).hex()  # invisible to readers until it is locked
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try_lock(fd)
            path = path.rename(path.with_suffix(SUFFIX))
        except OSError as error:
            log("mount not registered", path=path, error=str(error))
            return None
        return cls(path, fd, log)

    @classmethod
    def inherit(cls, inherited: Mapping[str, Any], log: Log) -> MountStateFile:
        """Takes over the file that was open and locked before this program was executed."""
        os.set_inheritable(inherited["fd"], False)
        return cls(Path(inherited["path"]), inherited["fd"], log)

    def write(self, **state: object) -> None:
        """`state`: a value for each attribute in JSON_KEYS."""
        data = json.dumps({key: state[name] for name, key in JSON_KEYS.items()}).encode()
        try:
            os.pwrite(self.fd, data, 0)
            os.ftruncate(self.fd, len(data))
        except OSError as error:
            self._log("mount not registered", path=self.path, error=str(error))

    def remove(self) -> None:
        """Unlinks the file. The lock stays until every process that inherited it has ended:
        `MountState.end_waiter` waits for that."""
        with suppress(OSError):
            self.path.unlink()


@dataclass(frozen=True, slots=True)
class MountState:
    """What a state file says. `supervisor` and `worker` are pids."""

    path: Path
    mount: Path
    device: str
    transport: str
    supervisor: int
    worker: int
    serves: bool
    starts: int
    generation: int
    version: str

    def __str__(self) -> str:
        supervisor = f"supervisor {self.supervisor}" if self.supervised else "no supervisor"
        version = self.version or "unknown"
        return f"{self.transport}, worker {self.worker}, {supervisor}, version {version}"

    @property
    def supervised(self) -> bool:
        """Whether the worker's supervisor, which would restart it, is still its parent. A
        worker whose supervisor was killed goes on alone."""
        return parent(self.worker) == self.supervisor

    def is_of(self, mounted: Mounted) -> bool:
        return (self.mount, self.device) == (mounted.point, mounted.device)

    def reload(self) -> MountState | None:
        """Returns the current state; None if the mount is no longer served."""
        return _read(self.path)

    @contextmanager
    def end_waiter(self) -> Iterator[Callable[[], None]]:
        """Yields a function that returns when the supervisor and the worker have ended, and
        raises Failed on timeout."""
        processes = [Identity.of(self.supervisor), Identity.of(self.worker)]
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            yield lambda: None
            return

        def wait() -> None:
            message = f"{self.mount} is unmounted, but its worker (pid {self.worker}) still runs"
            wait_until(lambda: try_lock(fd, shared=True), message)
            wait_until(
                lambda: not any(process.lives() for process in processes), seconds=EXIT_TIMEOUT_S
            )

        with closing_fd(fd):
            yield wait


def listing(root: Path) -> list[MountState]:
    """Returns the state of every mount of the store that is being served, by file name."""
    try:
        paths = sorted((root / FOLDER).glob(f"*{SUFFIX}"))
    except OSError:
        return []
    states = (_read(path) for path in paths)
    return [state for state in states if state is not None]


def _read(path: Path) -> MountState | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # removed meanwhile, or another user's
        return None
    try:
        for _ in range(READ_ATTEMPTS):
            if try_lock(fd, shared=True):
                path.unlink(missing_ok=True)
                return None
            with suppress(ValueError, KeyError):
                values = json.loads(os.read(fd, 1 << 16))
                values |= {"mount": Path(values["mount"]), "version": values.get("version", "")}
                return MountState(path, **{name: values[key] for name, key in JSON_KEYS.items()})
            os.lseek(fd, 0, os.SEEK_SET)
            time.sleep(POLL_INTERVAL_S)
    except OSError:
        pass
    finally:
        os.close(fd)
    return None


def wait_until(
    done: Callable[[], bool], message: str | None = None, *, seconds: float = WAIT_TIMEOUT_S
) -> None:
    """Polls until `done`. On timeout raises Failed with the message, or returns if there is
    none."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            if message:
                raise Failed(message)
            return
        time.sleep(POLL_INTERVAL_S)

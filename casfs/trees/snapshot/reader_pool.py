"""Processes that read files for a snapshot, when there are many.

Reading a small file is a handful of system calls with a little Python around each. Threads
would spend their time waiting for one another's interpreter; processes do not. Each gets the
workspace's root as a descriptor and portions of file names by pipe, finds directories from
there without following a link, and writes what is new into the private directory of the
process that it works for. So the files stay when it ends, and when its master dies it sees
the end of its pipe, and what it wrote is an orphan like any other.

The pipe carries `marshal`ed tuples of plain values: both ends are this program, and 50,000
pickled objects would cost more than reading the files.
"""

from __future__ import annotations

import marshal
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, Generic, TypeVar

from casfs.backend.disk import DiskBackend
from casfs.backend.protocols import BlobInfo, Staged
from casfs.digest import Digest
from casfs.errors import CasfsError, Failed
from casfs.trees.snapshot.file_reader import DIR_FLAGS, Intake, Read, Stat, discard

AHEAD = 3  # portions that one process has been given; they must fit into a pipe's buffer
READY = 256  # portions that wait to be taken over
MOST = 4  # processes

Key = TypeVar("Key")
Asked = tuple[Key, bytes, list[bytes]]


class Readers(Generic[Key]):
    """`root_fd`: the workspace's root, shown in messages as `shown`; `private`: of the store.

    `submit` portions, then take `results` until all have come, in any order; those of one
    process come in the order in which they were asked for. `close` in a finally.
    """

    def __init__(self, private: Path, root_fd: int, shown: str) -> None:
        self._waiting: queue.SimpleQueue[Asked[Key] | None] = queue.SimpleQueue()
        self._done: queue.Queue[tuple[Key, bytes] | CasfsError] = queue.Queue(READY)
        self._open = 0
        self._stopped = threading.Event()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._threads: list[threading.Thread] = []
        for _ in range(max(2, min(MOST, os.cpu_count() or 2))):
            self._start(private, root_fd, shown)

    def _start(self, private: Path, root_fd: int, shown: str) -> None:
        ours, theirs = Pipe()
        arguments = [str(private), str(root_fd), str(theirs.fileno()), shown]
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {__name__} import main; main()", *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=(root_fd, theirs.fileno()),
            )
        )
        theirs.close()
        thread = threading.Thread(target=self._feed, args=(ours,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def submit(self, key: Key, path: bytes, names: list[bytes]) -> None:
        """Ask for files of the directory `path`, which is relative to the root."""
        self._open += 1
        self._waiting.put((key, path, names))

    def results(self, most: int) -> Iterator[tuple[Key, list[Read]]]:
        """What has been read, until at most so many portions are on their way.
        Raises Failed, or what a reader raised."""
        while self._open > most:
            result = self._done.get()
            if isinstance(result, CasfsError):
                raise result
            self._open -= 1
            yield result[0], _unpacked(result[1])

    def close(self, drop: Callable[[list[Read]], None]) -> None:
        """End the processes; `drop` gets what was read and not taken over."""
        self._stopped.set()
        for _ in self._threads:
            self._waiting.put(None)
        while any(thread.is_alive() for thread in self._threads) or not self._done.empty():
            try:
                result = self._done.get(timeout=0.01)
            except queue.Empty:
                continue
            if not isinstance(result, CasfsError):
                with suppress(CasfsError):
                    drop(_unpacked(result[1]))
        for process in self._processes:
            process.wait()

    # -- a thread for each process, which mostly waits -----------------------------------------

    def _feed(self, pipe: Connection[Any, Any]) -> None:
        keys: list[Key] = []
        try:
            with pipe:
                while self._ask(pipe, keys):
                    answer = pipe.recv_bytes()
                    self._done.put((keys.pop(0), answer))
        except (EOFError, OSError):
            self._done.put(Failed("a process that was to read files ended; try again"))

    def _ask(self, pipe: Connection[Any, Any], keys: list[Key]) -> bool:
        """Keep the process busy; False when nothing is left to be done, or to be waited for."""
        while len(keys) < AHEAD and not self._stopped.is_set():
            try:
                asked = self._waiting.get(block=not keys)
            except queue.Empty:
                break
            if asked is None:
                break
            key, path, names = asked
            pipe.send_bytes(marshal.dumps((path, names)))
            keys.append(key)
        return bool(keys)


def main() -> None:
    """A helper: `PRIVATE ROOT_FD PIPE_FD SHOWN` as arguments."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the master decides when to stop
    private, root_fd, pipe_fd, shown = sys.argv[1:]
    backend = DiskBackend.assisting(Path(private))
    staged: set[str] = set()  # by this process: no file is written twice
    intake = Intake(backend.blobs, staged.__contains__)
    pipe: Connection[Any, Any] = Connection(int(pipe_fd))
    with pipe, suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            path, names = marshal.loads(pipe.recv_bytes())
            done, fault = _portion(intake, int(root_fd), path, names, shown)
            staged.update(one.digest.hash for one in done)
            try:
                pipe.send_bytes(marshal.dumps((fault, [_packed(one) for one in done])))
            except OSError:
                discard(backend.blobs, done)
                raise


def _portion(
    intake: Intake, root: int, path: bytes, names: list[bytes], shown: str
) -> tuple[list[Read], str | None]:
    """What was read, or what went wrong."""
    where = shown + path.decode("utf-8", "replace")
    try:
        fd = _descend(root, path)
    except FileNotFoundError:
        return [], None  # the directory has vanished, and all files with it
    except OSError as error:
        return [], f"cannot read {where}: {error.strerror}"
    try:
        return intake.read(fd, names, where), None
    except CasfsError as error:
        return [], str(error)
    finally:
        os.close(fd)


def _packed(one: Read) -> tuple[Any, ...]:
    staged = one.staged and (one.staged.data, one.staged.temp)
    info = one.info and (one.info.size, one.info.type)
    return one.name, one.digest.hash, one.digest.size_bytes, tuple(one.stat), staged, info


def _unpacked(answer: bytes) -> list[Read]:
    """Raises Failed with what went wrong."""
    fault, items = marshal.loads(answer)
    if fault is not None:
        raise Failed(fault)
    done = []
    for name, hash, size, seen, staged, info in items:
        digest = Digest(hash, size)
        one = Read(name, digest, Stat(*seen))
        if staged:
            one.staged = Staged(digest, *staged)
        if info:
            one.info = BlobInfo(*info)
        done.append(one)
    return done


def _descend(root: int, path: bytes) -> int:
    """Open a directory below `root`, one name after the other, never through a link."""
    fd = os.dup(root)
    for name in path.split(b"/"):
        if name:
            try:
                inner = os.open(name, DIR_FLAGS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
    return fd

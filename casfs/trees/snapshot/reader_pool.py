"""Worker processes that read the files of a large snapshot.

Reading a small file is a handful of system calls with a little Python around each, so worker
threads would contend for the interpreter lock; processes do not. Each worker inherits the
workspace's root as a descriptor and gets batches of file names by pipe. It opens directories
from that root without following a link, and stages new content in the private directory of
the process that it works for: staged files outlive the worker. What is neither short nor long it
appends to a hot pack, in the order of reading; these blobs are handed on once the pack is complete,
all at once. A worker whose parent dies
reads EOF from its pipe and exits; what it staged is orphaned staging like any other.

The pipe carries `marshal`ed tuples of plain values: both ends are this program, and 50,000
pickled objects would cost more than reading the files.
"""

from __future__ import annotations

import json
import marshal
import os
import signal
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from casfs.backend.disk import DiskBackend
from casfs.backend.hot_packs import Group
from casfs.backend.protocols import BlobInfo, Blobs, Staged
from casfs.digest import Digest
from casfs.errors import CasfsError, Failed
from casfs.scanner import Scanner
from casfs.system import cycles, interruption
from casfs.system.paths import open_directory
from casfs.trees.snapshot.file_reader import FileReader, ReadFile, discard
from casfs.trees.snapshot.file_stat import Stat
from casfs.trees.snapshot.report import Hit

MAX_WORKER_PROCESSES = 4
MAX_FEW_BLOBS = 20_000
INTERVAL_S = 0.2  # between two questions whether the results are still wanted
PIPES_PER_WORKER = 3  # it goes on reading while its answers wait for the interpreter lock here

Key = TypeVar("Key")


class ReaderPool(Generic[Key]):
    """`root_fd`: the recorded directory; `private`: the store's private directory of this process;
    `scanner`: looks for secrets, in the workers. `submit` batches, then take `results` until all
    have come, in the order of submission. `close` in a finally. One worker thread waits for each
    process."""

    def __init__(self, private: Path, root_fd: int, scanner: Scanner | None = None) -> None:
        self._allowed = None if scanner is None else sorted(scanner.allowed)
        count = max(1, min(MAX_WORKER_PROCESSES, (os.cpu_count() or 2) - 1))
        self._threads = ThreadPoolExecutor(count * PIPES_PER_WORKER)
        self._idle: SimpleQueue[Connection[Any, Any]] = SimpleQueue()
        self._pending: deque[tuple[list[Key], Future[bytes]]] = deque()
        # Of an answer that came: what `results` has not yielded yet.
        self._answered: deque[tuple[Key, list[ReadFile]]] = deque()
        self._members: defaultdict[tuple[int, int], list[tuple[Digest, int]]] = defaultdict(list)
        self._groups: dict[tuple[int, int], Group] = {}  # by process and number
        self._processes = [self._start(private, root_fd) for _ in range(count)]

    def _start(self, private: Path, root_fd: int) -> subprocess.Popen[bytes]:
        pairs = [Pipe() for _ in range(PIPES_PER_WORKER)]
        worker_fds = [pipe.fileno() for _, pipe in pairs]
        allowed = json.dumps(self._allowed)
        arguments = [str(private), str(root_fd), allowed, *map(str, worker_fds)]
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {__name__} import main; main()", *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=(root_fd, *worker_fds),
        )
        for ours, pipe in pairs:
            pipe.close()
            self._idle.put(ours)
        return process

    def submit(self, batch: Sequence[tuple[Key, bytes, list[bytes]]]) -> None:
        """Ask for files: (key of the result, directory relative to the root, names)."""
        keys = [key for key, _, _ in batch]
        requests = [(path, names) for _, path, names in batch]
        self._pending.append((keys, self._threads.submit(self._request, requests)))

    def _request(self, requests: list[tuple[bytes, list[bytes]]]) -> bytes:
        pipe = self._idle.get()
        try:
            pipe.send_bytes(marshal.dumps(requests))
            return pipe.recv_bytes()
        except (EOFError, OSError):
            raise Failed("a reader process ended; try again") from None
        finally:
            self._idle.put(pipe)

    def results(self, max_pending: int) -> Iterator[tuple[Key, list[ReadFile]]]:
        """Yields results until at most `max_pending` batches are outstanding. Raises Failed, or
        what a worker raised."""
        while True:
            while self._answered:
                yield self._answered.popleft()
            if len(self._pending) <= max_pending:
                return
            keys, future = self._pending[0]
            while not future.done():
                with suppress(TimeoutError):
                    future.exception(INTERVAL_S)
                interruption.check()
            answer = future.result()
            self._pending.popleft()
            self._answered.extend(zip(keys, self._unpacked(answer), strict=True))

    def packs(self, *, is_last: bool) -> Iterator[list[Staged]]:
        """Yields the blobs of each group that is complete by now; `is_last`: after the last result,
        of all groups."""
        if is_last:
            for _ in range(self._idle.qsize()):  # each pipe in turn
                self._unpacked(self._request([]))
        for key, group in [*self._groups.items()]:
            if len(self._members[key]) == group.size:
                del self._groups[key]
                yield [group.staged(*member) for member in self._members.pop(key)]

    def _unpacked(self, answer: bytes) -> list[list[ReadFile]]:
        """Raises Failed with the worker's error."""
        error, batch, process, groups = marshal.loads(answer)
        for group in groups:
            self._groups[process, group[0]] = Group(*group)
        file_lists = [self._files(items, process) for items in batch]
        if error is not None:
            discard(read_file for done in file_lists for read_file in done)
            raise Failed(error)
        return file_lists

    def _files(self, items: list[Any], process: int) -> list[ReadFile]:
        done = []
        for name, hash, size, seen, marked, staged, info, hot, hits, purged, unread in items:
            digest = Digest(hash, size)
            read_file = ReadFile(
                name, digest, stat=Stat(*seen), has_xattrs=marked, is_purged=purged, error=unread
            )
            read_file.hits = tuple(Hit(*hit) for hit in hits)
            if staged:
                read_file.staged = Staged(digest, *staged)
            if info:
                read_file.info = BlobInfo(*info)
            if hot:
                self._members[process, hot[0]].append((digest, hot[1]))
            done.append(read_file)
        return done

    def close(self) -> None:
        """End the workers, whatever they are reading, and drop the results that were not taken."""
        for process in self._processes:
            process.terminate()
        self._threads.shutdown(cancel_futures=True)
        while not self._idle.empty():
            self._idle.get().close()
        for process in self._processes:
            process.wait()
        discard(read_file for _, done in self._answered for read_file in done)
        for _, future in self._pending:
            if not future.cancelled() and future.exception() is None:
                with suppress(CasfsError):
                    discard(
                        read_file for done in self._unpacked(future.result()) for read_file in done
                    )
        for group in self._groups.values():
            group.discard()


def main() -> None:
    """A worker: `PRIVATE ROOT_FD ALLOWED PIPE_FD...` as arguments; ALLOWED is JSON: null where
    nothing is scanned."""
    cycles.search_rarely()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # what is staged is discarded
    private, root_fd, allowed, *pipe_fds = sys.argv[1:]
    hashes = json.loads(allowed)
    scanner = None if hashes is None else Scanner(hashes)
    backend = DiskBackend.for_worker(Path(private))
    staged: set[str] = set()  # by this process: no file is written twice
    packs = backend.hot_packs()
    reader = FileReader(
        backend.blobs,
        staged.__contains__,
        packs=packs,
        scanner=scanner,
        stored=few_stored(backend.blobs),
    )
    pipes: list[Connection[Any, Any]] = [Connection(int(fd)) for fd in pipe_fds]
    with suppress(EOFError, BrokenPipeError, ConnectionResetError), closing(packs):
        while True:
            for pipe in wait(pipes):
                assert isinstance(pipe, Connection)
                file_lists: list[list[ReadFile]] = []
                error = None
                try:
                    requests = marshal.loads(pipe.recv_bytes())
                    for path, names in requests:
                        done, error = _read_batch(reader, int(root_fd), path=path, names=names)
                        file_lists.append(done)
                        staged.update(
                            read_file.digest.hash
                            for read_file in done
                            if not (read_file.is_purged or read_file.error)
                        )
                        if error is not None:
                            break
                    if not requests:
                        packs.complete()
                    items = [[_packed(read_file) for read_file in done] for done in file_lists]
                    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
                    groups = [tuple(group) for group in packs.groups]
                    pipe.send_bytes(marshal.dumps((error, items, os.getpid(), groups)))
                    packs.groups.clear()
                except BaseException:
                    discard(read_file for done in file_lists for read_file in done)
                    raise
                finally:  # what was sent is the parent's, which may end this process at once
                    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def few_stored(blobs: Blobs) -> set[str] | None:
    """Returns the hashes of a store that is nearly empty; None of any other."""
    hashes = {hash for _, hash, _ in islice(blobs.iterate(), MAX_FEW_BLOBS + 1)}
    return hashes if len(hashes) <= MAX_FEW_BLOBS else None


def _read_batch(
    reader: FileReader, root: int, path: bytes, names: list[bytes]
) -> tuple[list[ReadFile], str | None]:
    """Returns the files, or the message of an error of the store."""
    try:
        fd = open_directory(root, filter(None, path.split(b"/")))
    except FileNotFoundError:
        return [], None  # the directory has vanished with all its files
    except OSError as error:
        return [ReadFile.unreadable(name, error) for name in names], None
    try:
        return reader.read(fd, names), None
    except CasfsError as error:
        return [], str(error)
    except OSError as error:
        return [], f"cannot write the store: {error.strerror}"
    finally:
        os.close(fd)


def _packed(read_file: ReadFile) -> tuple[Any, ...]:
    staged = read_file.staged and (read_file.staged.data, read_file.staged.temp)
    info = read_file.info and (read_file.info.size, read_file.info.type)
    hash = read_file.digest.hash
    size = read_file.digest.size_bytes
    hits = [tuple(hit) for hit in read_file.hits]
    stat = tuple(read_file.stat)
    marked = read_file.has_xattrs
    return (
        read_file.name,
        hash,
        size,
        stat,
        marked,
        staged,
        info,
        read_file.hot,
        hits,
        read_file.is_purged,
        read_file.error,
    )

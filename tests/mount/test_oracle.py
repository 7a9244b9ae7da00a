"""Any calls that only read, in any order, on a checkpoint and on a plain copy of it: the same
results, the same errors.

Not compared is what a file system may choose: inode numbers, times, sizes and link counts of
directories, the order of a listing, where the holes of a sparse file are (only that they hold
no data).
"""

from __future__ import annotations

import errno
import mmap
import os
import select
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, multiple, rule
from hypothesis.stateful import run_state_machine_as_test as explore

from tests.support.helpers import Link, Program, write_tree
from tests.support.lasting import ROOT_ONLY, lasting, read_only, record
from tests.support.native import needs_native, shown_natively
from tests.support.served import BY_EACH

DEPTH = 5  # directories between the root of the tree and where paths begin
PAGE = mmap.PAGESIZE
LARGE = (1 << 20) + 4321  # bytes
SPARSE = 3 * (1 << 20) + 17
LONGEST_NAME, TOO_LONG_NAME = b"n" * 255, b"n" * 256
HELD = {
    b"text": b"some text\n" * 700,
    b"large": bytes(range(251)) * (LARGE // 251) + b"e" * (LARGE % 251),
    b"nothing": b"",
    b"page": b"p" * PAGE,
    b"program": Program(b"#!/bin/sh\n"),
    b"folder": {b"text": b"other text\n", b"more": {b"deep": b"x"}, b"up": Link(b"../text")},
    b"empty": {},
    b"many": {b"%d" % number: b"%d" % number for number in range(300)},
    LONGEST_NAME: b"a long name\n",
    b"\xff\xfe": b"a name of bytes\n",
    b"link": Link(b"text"),
    b"to-folder": Link(b"folder/more/.."),
    b"to-nothing": Link(b"none"),
    b"to-itself": Link(b"to-itself"),
    b"to-sparse": Link(b"./sparse"),
}
NAMES = [
    *HELD, b"sparse", b"deep", b"more", b"up", b"7", b"none", b".", b"..", b"", TOO_LONG_NAME,
    b"\xff", b"text\n", b"Text",
]  # fmt: skip
FLAGS = {
    "plain": os.O_RDONLY,
    "directory": os.O_DIRECTORY,
    "no link": os.O_NOFOLLOW,
    "path": os.O_PATH,
    "path of a link": os.O_PATH | os.O_NOFOLLOW,
    "at once": os.O_NONBLOCK,
    "no time": os.O_NOATIME,
    "synced": os.O_SYNC,
    "create": os.O_CREAT,
    "create anew": os.O_CREAT | os.O_EXCL,
    "append": os.O_APPEND,
    "write": os.O_WRONLY,
    "both": os.O_RDWR,
    "truncate": os.O_TRUNC,
    "direct": os.O_DIRECT,
}
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=DEPTH).map(b"/".join)
sizes = st.sampled_from([0, 1, 9, PAGE - 1, PAGE, 7000, 70_000, 1 << 18, LARGE, 1 << 22])
places = st.one_of(sizes, st.integers(-3, LARGE + 3))


def plant(root: Path) -> None:
    inner = root / "a/b/c/d/e"
    inner.mkdir(parents=True)
    write_tree(inner, HELD)
    with (inner / "sparse").open("wb") as sparse:
        sparse.write(b"first\n")
        sparse.seek(SPARSE - 5)
        sparse.write(b"last\n")
    for top, _, _ in os.walk(root):
        os.chmod(top, 0o755)


class Both(NamedTuple):
    """Something of the mount, and the same of the copy."""

    shown: Any
    plain: Any


def result(call: Callable[[Any], Any], on: Any) -> Any:
    try:
        return call(on)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except ValueError:
        return "refused by Python"


def compared(found: os.stat_result) -> tuple[Any, ...]:
    mine = (found.st_mode, found.st_uid, found.st_gid)
    return mine if stat.S_ISDIR(found.st_mode) else (*mine, found.st_size, found.st_nlink)


def scanned(path: bytes) -> list[tuple[Any, ...]]:
    with os.scandir(path) as entries:
        return sorted(
            (one.name, one.is_dir(), one.is_file(), one.is_symlink(),
             compared(one.stat(follow_symlinks=False)))
            for one in entries
        )  # fmt: skip


def mapped(fd: int, size: int, offset: int) -> bytes:
    with mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ, offset=offset) as area:
        return area[:]


def polled(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0)[0][1] & select.POLLIN)


def sent(fd: int, size: int, offset: int) -> bytes:
    target = os.memfd_create("sent")
    try:
        os.sendfile(target, fd, offset, size)
        return os.pread(target, 1 << 23, 0)
    finally:
        os.close(target)


class Reading(RuleBasedStateMachine):
    files = Bundle("files")

    def __init__(self, shown: Path, plain: Path, left_out: int = 0) -> None:
        """`left_out`: a flag that no file is opened with."""
        super().__init__()
        self.left_out = left_out
        self.roots = Both(os.fsencode(shown) + b"/", os.fsencode(plain) + b"/")
        self.held: list[int] = []

    def same(self, path: bytes, call: Callable[[bytes], Any]) -> None:
        shown, plain = (result(call, root + path) for root in self.roots)
        assert shown == plain, path

    def alike(self, both: Both, call: Callable[[int], Any]) -> Any:
        shown, plain = (result(call, fd) for fd in both)
        assert shown == plain
        return shown

    # -- by path --------------------------------------------------------------------------

    @rule(path=paths, follow=st.booleans())
    def stat(self, path: bytes, follow: bool) -> None:
        self.same(path, lambda at: compared(os.stat(at, follow_symlinks=follow)))

    @rule(path=paths)
    def list(self, path: bytes) -> None:
        self.same(path, lambda at: sorted(os.listdir(at)))

    @rule(path=paths)
    def scan(self, path: bytes) -> None:
        self.same(path, scanned)

    @rule(path=paths)
    def readlink(self, path: bytes) -> None:
        self.same(path, os.readlink)

    @rule(path=paths, mode=st.integers(0, 7), effective=st.booleans(), follow=st.booleans())
    def access(self, path: bytes, mode: int, effective: bool, follow: bool) -> None:
        self.same(
            path, lambda at: os.access(at, mode, effective_ids=effective, follow_symlinks=follow)
        )

    @rule(path=paths)
    def statvfs(self, path: bytes) -> None:
        def numbers(at: bytes) -> tuple[int, int]:
            found = os.statvfs(at)
            assert found.f_bavail <= found.f_bfree <= found.f_blocks
            return found.f_namemax, found.f_flag & (os.ST_RDONLY | os.ST_NODEV | os.ST_NOSUID)

        self.same(path, numbers)

    @rule(path=paths, name=st.sampled_from(["user.x", "trusted.x", "security.x"]))
    def getxattr(self, path: bytes, name: str) -> None:
        self.same(path, lambda at: os.getxattr(at, name, follow_symlinks=False))

    @rule(path=paths)
    def listxattr(self, path: bytes) -> None:
        self.same(path, os.listxattr)

    @rule(path=paths)
    def read_all(self, path: bytes) -> None:
        self.same(path, lambda at: Path(os.fsdecode(at)).read_bytes())

    # -- by descriptor --------------------------------------------------------------------

    @rule(target=files, path=paths, flags=st.sampled_from(sorted(FLAGS)))
    def open(self, path: bytes, flags: str) -> Any:
        shown, plain = (
            result(lambda at: os.open(at, FLAGS[flags] & ~self.left_out), at + path)
            for at in self.roots
        )
        self.held += [fd for fd in (shown, plain) if isinstance(fd, int)]
        if isinstance(shown, int) and isinstance(plain, int):
            return Both(shown, plain)
        assert shown == plain, (path, flags)
        return multiple()

    @rule(both=files, size=sizes, offset=places)
    def pread(self, both: Both, size: int, offset: int) -> None:
        self.alike(both, lambda fd: os.pread(fd, size, offset))

    @rule(both=files, size=sizes)
    def read(self, both: Both, size: int) -> None:
        self.alike(both, lambda fd: os.read(fd, size))

    @rule(both=files, whence=st.sampled_from([0, 1, 2]), offset=st.integers(-LARGE, LARGE))
    def seek(self, both: Both, whence: int, offset: int) -> None:
        if not stat.S_ISDIR(os.fstat(both.plain).st_mode):
            self.alike(both, lambda fd: os.lseek(fd, offset, whence))

    @rule(both=files, whence=st.sampled_from([os.SEEK_DATA, os.SEEK_HOLE]), offset=places)
    def seek_what_is_there(self, both: Both, whence: int, offset: int) -> None:
        found = os.fstat(both.plain)
        if stat.S_ISDIR(found.st_mode):
            return
        if found.st_size != SPARSE:
            self.alike(both, lambda fd: os.lseek(fd, offset, whence))
            return
        at = result(lambda fd: os.lseek(fd, offset, whence), both.shown)
        if isinstance(at, int):
            assert offset <= at <= SPARSE
            if whence == os.SEEK_DATA:
                assert not os.pread(both.plain, at - offset, offset).strip(b"\0")
            os.lseek(both.plain, at, os.SEEK_SET)

    @rule(both=files)
    def fstat(self, both: Both) -> None:
        self.alike(both, lambda fd: compared(os.fstat(fd)))

    @rule(both=files)
    def list_what_is_open(self, both: Both) -> None:
        self.alike(both, lambda fd: sorted(os.listdir(fd)))

    @rule(both=files, path=paths)
    def stat_from(self, both: Both, path: bytes) -> None:
        if path[:1] != b"/" and path.count(b"..") <= 1:
            self.alike(both, lambda fd: compared(os.stat(path, dir_fd=fd)))

    @rule(both=files, size=sizes, page=st.integers(0, 3))
    def map(self, both: Both, size: int, page: int) -> None:
        if stat.S_ISREG(os.fstat(both.plain).st_mode):
            self.alike(both, lambda fd: mapped(fd, size, page * PAGE))

    @rule(both=files, size=sizes, offset=places)
    def send(self, both: Both, size: int, offset: int) -> None:
        self.alike(both, lambda fd: sent(fd, size, offset))

    @rule(both=files)
    def poll(self, both: Both) -> None:
        self.alike(both, polled)

    def teardown(self) -> None:
        for fd in self.held:
            os.close(fd)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with read_only(tmp_path_factory.mktemp("plain"), plant) as point:
        yield point


@ROOT_ONLY
@pytest.mark.parametrize("transport", [*BY_EACH, pytest.param("native", marks=needs_native)])
def test_whatever_is_asked(
    tmp_path_factory: pytest.TempPathFactory, plain: Path, transport: str
) -> None:
    natively = ("builtin", "--native", "auto")
    options = natively if transport == "native" else (transport, "--xattr")
    with lasting(tmp_path_factory, *options) as mount:
        tree = record(mount, plain)
        if transport == "native":
            shown_natively(tree)
        explore(
            # By O_DIRECT a disk reads whole blocks, and only those.
            lambda: Reading(
                tree / "a/b/c/d/e",
                plain / "a/b/c/d/e",
                left_out=os.O_DIRECT if transport == "native" else 0,
            ),
            settings=settings(
                max_examples=120,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        assert mount.state().starts == 1

"""Replies to the kernel, and the unanswered requests; over a socket that keeps messages whole."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from casfs.fuse.inode_table import InodeTable
from casfs.fuse.kernel import protocol
from casfs.fuse.kernel.replies import Replies
from casfs.fuse.views.vnode import Extent


class Kernel:
    """The other end, and an inode table that outlives a worker."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.table = InodeTable()

    def replies(self, *, lists_deferred: bool = True) -> Replies:
        made = Replies(self._theirs.fileno(), self.table)
        made.lists_deferred = lists_deferred
        return made

    def read(self, unique: int) -> None:
        """The serving loop has read this request."""
        header = protocol.in_header.pack(40, 1, unique, 1, 0, 0, 0, 0, 0)
        self.table.request_header[:] = header

    def heard(self) -> list[tuple[int, int, bytes]]:
        """(unique, errno, body) of each message."""
        found = []
        with suppress(BlockingIOError):
            while True:
                data = self._ours.recv(1 << 20)
                size, error, unique = protocol.out_header.unpack_from(data)
                assert size == len(data)
                found.append((unique, -error, data[protocol.out_header.size :]))
        return found

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
        self.table.close()


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel()
    try:
        yield kernel
    finally:
        kernel.close()


def test_answers_and_notices(kernel: Kernel) -> None:
    replies = kernel.replies()
    replies.reply(2, b"body")
    replies.error(4, errno.ENOENT)
    replies.notify(protocol.NOTIFY_POLL, b"kh")
    replies.close()
    assert kernel.heard() == [
        (2, 0, b"body"),
        (4, errno.ENOENT, b""),
        (0, -protocol.NOTIFY_POLL, b"kh"),
    ]


def test_pages_of_a_file(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(10_000))
    replies = kernel.replies()
    with (tmp_path / "f").open("rb") as file:
        sent = replies.splice(2, Extent(file.fileno(), 100, 5000, file))
    replies.close()
    assert sent == 5000
    ((unique, error, body),) = kernel.heard()
    assert (unique, error, body) == (2, 0, (tmp_path / "f").read_bytes()[100:5100])


def test_a_successor_fails_unanswered_requests(kernel: Kernel) -> None:
    dead = kernel.replies()
    for unique in (2, 4, 6):
        kernel.read(unique)
        dead.defer(unique)
    kernel.read(8)
    dead.reply(4, b"")
    dead.answered(4)
    dead.close()
    kernel.heard()
    for expected in ([2, 6, 8], []):
        successor = kernel.replies()
        successor.fail_unanswered()
        successor.close()
        assert [(unique, error) for unique, error, _ in sorted(kernel.heard())] == [
            (unique, errno.EIO) for unique in expected
        ]


def test_more_unanswered_requests_than_places(kernel: Kernel) -> None:
    replies = kernel.replies()
    places = len(kernel.table.deferred)
    for unique in range(2, 2 * places + 20, 2):
        kernel.read(unique)
        replies.defer(unique)
    replies.fail_unanswered()
    replies.close()
    assert len(kernel.heard()) == places + 1  # the last one read
    assert not any(kernel.table.deferred)


def test_where_requests_are_resent_none_is_listed(kernel: Kernel) -> None:
    replies = kernel.replies(lists_deferred=False)
    kernel.read(2)
    replies.defer(2)
    replies.close()
    assert not any(kernel.table.deferred)


def test_unanswered_requests_and_inodes_do_not_overlap(kernel: Kernel) -> None:
    kernel.table.transport_state = b"41 5 131072"
    for number in range(2000):
        kernel.table.add_lookup(2 + number, number, 1, b"n%d" % number)
    replies = kernel.replies()
    for unique in range(1, 2 * len(kernel.table.deferred)):
        kernel.read(unique << 40)
        replies.defer(unique << 40)
    replies.close()
    assert kernel.table.transport_state == b"41 5 131072"
    assert all(kernel.table.check(2 + number) == number for number in range(2000))
    successor = InodeTable(os.dup(kernel.table.fd))
    assert len(successor) == 2001
    assert successor.deferred[-1] == len(successor.deferred) << 40
    read = protocol.in_header.unpack(successor.request_header)[2]
    assert read == (2 * len(successor.deferred) - 1) << 40
    successor.close()

"""Answers to the kernel, and notes of what has none; over a socket that keeps messages whole."""

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
    """The other end, and a table of inodes that outlives who answers."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.table = InodeTable()

    def answers(self, *, lists_unanswered: bool = True) -> Replies:
        made = Replies(self._theirs.fileno(), self.table.unanswered)
        made.lists_unanswered = lists_unanswered
        return made

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
    answers = kernel.answers()
    answers.reply(2, b"body")
    answers.error(4, errno.ENOENT)
    answers.notify(protocol.NOTIFY_POLL, b"kh")
    answers.close()
    assert kernel.heard() == [
        (2, 0, b"body"),
        (4, errno.ENOENT, b""),
        (0, -protocol.NOTIFY_POLL, b"kh"),
    ]


def test_pages_of_a_file(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(os.urandom(10_000))
    answers = kernel.answers()
    with (tmp_path / "f").open("rb") as file:
        sent = answers.splice(2, Extent(file.fileno(), 100, 5000, file))
    answers.close()
    assert sent == 5000
    ((unique, error, body),) = kernel.heard()
    assert (unique, error, body) == (2, 0, (tmp_path / "f").read_bytes()[100:5100])


def test_a_successor_fails_what_was_taken(kernel: Kernel) -> None:
    dead = kernel.answers()
    for unique in (2, 4, 6):
        dead.set_current(unique)
        dead.defer(unique)
    dead.set_current(8)
    dead.reply(4, b"")
    dead.answered(4)
    dead.close()
    kernel.heard()
    for expected in ([2, 6, 8], []):
        successor = kernel.answers()
        successor.fail_unanswered()
        successor.close()
        assert [(unique, error) for unique, error, _ in sorted(kernel.heard())] == [
            (unique, errno.EIO) for unique in expected
        ]


def test_more_than_there_are_places_for(kernel: Kernel) -> None:
    answers = kernel.answers()
    places = len(kernel.table.unanswered)
    for unique in range(2, 2 * places + 20, 2):
        answers.set_current(unique)
        answers.defer(unique)
    answers.fail_unanswered()
    answers.close()
    assert len(kernel.heard()) == places
    assert not any(kernel.table.unanswered)


def test_where_requests_are_sent_again_nothing_is_noted(kernel: Kernel) -> None:
    answers = kernel.answers(lists_unanswered=False)
    answers.set_current(2)
    answers.defer(2)
    answers.close()
    assert not any(kernel.table.unanswered)


def test_notes_and_inodes_do_not_touch(kernel: Kernel) -> None:
    kernel.table.transport_state = b"41 5 131072"
    for number in range(2000):
        kernel.table.add_lookup(2 + number, number, 1, b"n%d" % number)
    answers = kernel.answers()
    for unique in range(1, 2 * len(kernel.table.unanswered)):
        answers.set_current(unique << 40)
        answers.defer(unique << 40)
    answers.close()
    assert kernel.table.transport_state == b"41 5 131072"
    assert all(kernel.table.check(2 + number) == number for number in range(2000))
    successor = InodeTable(os.dup(kernel.table.fd))
    assert len(successor) == 2001
    assert successor.unanswered[0] == (2 * len(successor.unanswered) - 1) << 40
    successor.close()

"""The built-in transport, tested as by the kernel, over a socket that keeps messages whole."""

from __future__ import annotations

import errno
import os
import socket
import sqlite3
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.fuse.kernel import init_handshake as negotiations
from casfs.fuse.kernel import protocol
from casfs.fuse.kernel import server as transports
from casfs.fuse.kernel.init_handshake import Unsupported, negotiate
from casfs.fuse.kernel.server import FuseServer
from casfs.fuse.session import Session
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.store.referrers import FILE, Referrers
from casfs.store.store import Store
from casfs.system.log import silent

CODES = {kind: code for code, kind in protocol.OPCODES.items()}
# As several kernels send it: minor version, flags, second flags.
LINUX_4_19 = 27, 0x003FFFFB, None
LINUX_5_4 = 31, 0x03FFFFFB, None
LINUX_5_15 = 34, 0x33FFFFFB, None
LINUX_6_1 = 37, 0x73FFFFFB, 0x0
LINUX_6_12 = 41, 0x73FFFFFB, 0x3FF


def init(kernel: tuple[int, int, int | None], major: int = 7) -> bytes:
    minor, flags, more = kernel
    body = protocol.init_in.pack(major, minor, 131072, flags)
    return body if more is None else body + protocol.init_in_ext.pack(more) + bytes(44)


class Kernel:
    """The other end of the descriptor."""

    def __init__(self, store: Store) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.settimeout(20)
        stats = Stats()
        view = root(StoreReader(store), stats)
        self.session = Session(view, stats, silent, store=None, xattr=True, handles=False)
        self.transport = FuseServer(self.session, self._theirs.fileno(), silent)
        self._unique = 0
        self._thread = threading.Thread(target=self.transport.serve)
        self._thread.start()

    def send(self, opcode: int, ino: int = 1, body: bytes = b"") -> int:
        self._unique += 2
        size = protocol.in_header.size + len(body)
        self.raw(protocol.in_header.pack(size, opcode, self._unique, ino, 0, 0, 1, 0, 0) + body)
        return self._unique

    def raw(self, data: bytes) -> None:
        self._ours.send(data)

    def receive(self) -> tuple[int, int, bytes]:
        data = self._ours.recv(1 << 21)
        size, error, unique = protocol.out_header.unpack_from(data)
        assert size == len(data)
        return unique, -error, data[protocol.out_header.size :]

    def ask(self, kind: str, ino: int = 1, body: bytes = b"") -> tuple[int, bytes]:
        unique = self.send(CODES[kind], ino, body)
        answered, error, data = self.receive()
        assert answered == unique
        return error, data

    def lookup(self, path: str) -> int:
        ino = 1
        for name in path.split("/"):
            error, data = self.ask("lookup", ino, name.encode() + b"\0")
            assert error == 0, name
            (ino,) = struct.unpack_from("=Q", data)
        return ino

    def read(self, ino: int, offset: int = 0, size: int = 131072) -> bytes:
        error, data = self.ask("read", ino, protocol.read_in.pack(0, offset, size, 0, 0, 0, 0))
        assert error == 0
        return data

    def close(self) -> None:
        self._ours.close()
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._theirs.close()


@pytest.fixture
def kernel(store: Store) -> Iterator[Kernel]:
    kernel = Kernel(store)
    try:
        yield kernel
    finally:
        kernel.close()


# -- INIT ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [LINUX_5_4, LINUX_5_15, LINUX_6_1, LINUX_6_12])
def test_what_is_agreed_is_what_both_know(sent: tuple[int, int, int | None]) -> None:
    answer, agreed = negotiate(init(sent))
    assert agreed is not None
    offered = sent[1] | (sent[2] or 0) << 32
    assert agreed.flags == offered & negotiations.WANTED
    assert agreed.flags & negotiations.NEEDED == negotiations.NEEDED
    assert agreed.resends == bool((sent[2] or 0) & 1 << 7)
    fields = protocol.init_out.unpack(answer)
    assert fields[:3] == (7, protocol.KERNEL_MINOR_VERSION, 131072)
    assert fields[3] | fields[10] << 32 == agreed.flags
    assert (fields[6], fields[8]) == (negotiations.MAX_WRITE_BYTES, negotiations.MAX_PAGES)


def test_a_kernel_that_must_open_directories_is_refused() -> None:
    with pytest.raises(Unsupported, match=r"FUSE 7\.27 is too old; use --transport libfuse"):
        negotiate(init(LINUX_4_19))
    with pytest.raises(Unsupported):
        negotiate(init((45, 0x73FFFFFB & ~protocol.NO_OPEN_SUPPORT, 0)))


def test_a_newer_major_version_is_asked_to_speak_ours() -> None:
    answer, agreed = negotiate(init(LINUX_6_12, major=8))
    assert agreed is None
    assert protocol.init_out.unpack(answer)[:2] == (7, protocol.KERNEL_MINOR_VERSION)


def test_the_structures_have_the_sizes_of_the_header() -> None:
    sizes = {
        protocol.in_header: 40,
        protocol.out_header: 16,
        protocol.init_out: 64,
        protocol.attr: 88,
        protocol.entry_out: 40,
        protocol.attr_out: 16,
        protocol.read_in: 40,
        protocol.lseek_in: 24,
        protocol.poll_in: 24,
        protocol.statfs_out: 80,
        protocol.dirent: 24,
        protocol.direntplus: 40 + 88 + 24,
        protocol.statx_out: 32,
        protocol.statx: 256,
    }
    assert {one.format: one.size for one in sizes} == {one.format: n for one, n in sizes.items()}


def test_init_is_answered_and_kept_for_a_successor(kernel: Kernel) -> None:
    error, data = kernel.ask("init", 0, init(LINUX_6_12))
    assert (error, len(data)) == (0, 64)
    note = kernel.session.inodes.table.transport_state.split()
    assert note[0] == b"41"


# -- requests -----------------------------------------------------------------------------------


def test_a_file_is_found_and_read(kernel: Kernel) -> None:
    ino = kernel.lookup("README.txt")
    whole = kernel.read(ino)
    assert whole.startswith(b"This is a casfs store")
    assert kernel.read(ino, 5, 10) == whole[5:15]
    assert kernel.read(ino, len(whole), 10) == b""
    error, data = kernel.ask("getattr", ino, bytes(16))
    seconds, nanos, _ = protocol.attr_out.unpack_from(data)
    fields = protocol.attr.unpack_from(data, protocol.attr_out.size)
    assert (error, fields[0], fields[1], seconds, nanos) == (0, ino, len(whole), 10**9, 0)


def test_opening_is_refused_once_and_for_all(kernel: Kernel) -> None:
    assert kernel.ask("open", 1, bytes(8))[0] == errno.ENOSYS
    assert kernel.ask("opendir", 1, bytes(8))[0] == errno.ENOSYS
    assert kernel.ask("flush", 1, bytes(24))[0] == errno.ENOSYS


@pytest.mark.parametrize("kind", sorted(transports.READ_ONLY))
def test_requests_that_write_are_refused(kernel: Kernel, kind: str) -> None:
    assert kernel.ask(kind, 1, bytes(64))[0] == errno.EROFS


@pytest.mark.parametrize("opcode", [0, 7, 19, 51 + 49, 4096, 1 << 31])
def test_an_unknown_request_is_enosys(kernel: Kernel, opcode: int) -> None:
    unique = kernel.send(opcode, 1, b"anything")
    assert kernel.receive()[:2] == (unique, errno.ENOSYS)


def test_a_fixed_directory_answers_with_a_negative_dentry(kernel: Kernel) -> None:
    error, data = kernel.ask("lookup", 1, b"nothing\0")
    assert (error, protocol.entry_out.unpack_from(data)[:3]) == (0, (0, 0, 10**9))
    trees = kernel.lookup("trees")
    assert kernel.ask("lookup", trees, b"nothing\0")[0] == errno.ENOENT


@pytest.mark.parametrize("plus", [True, False])
@pytest.mark.parametrize("size", [200, 333, 512, 4096, 131072])
def test_a_listing_is_whole_at_any_buffer_size(kernel: Kernel, plus: bool, size: int) -> None:
    kind, skip = ("readdirplus", 128) if plus else ("readdir", 0)
    names, offset = [], 0
    while True:
        body = protocol.read_in.pack(0, offset, size, 0, 0, 0, 0)
        error, data = kernel.ask(kind, 1, body)
        assert error == 0
        assert len(data) <= size
        if not data:
            break
        at = 0
        while at < len(data):
            ino, offset, length, _ = protocol.dirent.unpack_from(data, at + skip)
            start = at + skip + protocol.dirent.size
            names.append(data[start : start + length])
            assert ino != 0
            at = -(-(start + length) // 8) * 8
    expected = [name for name, _ in kernel.session.directory(1).entries()]
    assert names == [b".", b"..", *expected]


def test_a_listing_goes_on_from_any_offset(kernel: Kernel) -> None:
    def names(offset: int) -> bytes:
        error, data = kernel.ask("readdir", 1, protocol.read_in.pack(0, offset, 4096, 0, 0, 0, 0))
        assert error == 0
        return data

    whole = names(0)
    assert whole.endswith(names(4))
    assert whole.endswith(names(2))
    assert names(10_000) == b""


def test_lookups_are_counted_and_forgotten(kernel: Kernel) -> None:
    ino = kernel.lookup("README.txt")
    kernel.lookup("README.txt")
    kernel.send(CODES["forget"], ino, protocol.forget_in.pack(1))
    assert kernel.ask("getattr", ino, bytes(16))[0] == 0
    pairs = protocol.forget_one.pack(ino, 1) + protocol.forget_one.pack(12345, 9)
    kernel.send(CODES["batch_forget"], 0, protocol.batch_forget_in.pack(2, 0) + pairs)
    assert kernel.ask("getattr", ino, bytes(16))[0] == errno.ESTALE


def test_extended_attributes(kernel: Kernel, store: Store) -> None:
    hash = store.put(b"content").hash
    ino = kernel.lookup(f"blobs/{hash}")

    def ask(name: bytes, size: int) -> tuple[int, bytes]:
        return kernel.ask("getxattr", ino, protocol.getxattr_in.pack(size, 0) + name + b"\0")

    assert ask(b"user.blake3", 0) == (0, protocol.getxattr_out.pack(64, 0))
    assert ask(b"user.blake3", 64) == (0, hash.encode())
    assert ask(b"user.blake3", 63)[0] == errno.ERANGE
    assert ask(b"user.other", 64)[0] == errno.ENODATA
    assert kernel.ask("listxattr", ino, protocol.getxattr_in.pack(64, 0)) == (0, b"")


def test_statfs_statx_and_access(kernel: Kernel) -> None:
    ino = kernel.lookup("README.txt")
    assert len(kernel.ask("statfs")[1]) == protocol.statfs_out.size
    error, data = kernel.ask("statx", ino, bytes(24))
    assert (error, len(data)) == (0, protocol.statx_out.size + protocol.statx.size)
    mode = protocol.statx.unpack_from(data, protocol.statx_out.size)[6]
    assert mode == 0o100444
    for mask, expected in ((os.R_OK, 0), (os.W_OK, errno.EROFS), (os.X_OK, errno.EACCES)):
        assert kernel.ask("access", ino, protocol.access_in.pack(mask, 0))[0] == expected


def test_a_live_file_shows_its_content_at_the_last_getattr(
    kernel: Kernel,
) -> None:
    ino = kernel.lookup(".casfs/stats.json")
    for _ in range(3):
        error, data = kernel.ask("getattr", ino, bytes(16))
        assert (error, protocol.attr_out.unpack_from(data)[0]) == (0, 0)
        size = protocol.attr.unpack_from(data, protocol.attr_out.size)[1]
        content = kernel.read(ino)
        assert len(content) == size
        assert content.endswith(b"}\n")


def test_a_large_blob_is_verified_beside_the_loop(kernel: Kernel, store: Store) -> None:
    data = os.urandom(3 << 20)
    ino = kernel.lookup(f"blobs/{store.put(data).hash}")
    body = [protocol.read_in.pack(0, at << 20, 1 << 16, 0, 0, 0, 0) for at in range(3)]
    asked = {kernel.send(CODES["read"], ino, one): at for at, one in enumerate(body)}
    found = {}
    for _ in range(3):
        unique, error, piece = kernel.receive()
        assert error == 0
        found[asked[unique]] = piece
    assert [found[at] for at in range(3)] == [data[at << 20 :][: 1 << 16] for at in range(3)]


# -- listings that must be prepared -------------------------------------------------------------


@pytest.fixture
def indexing(disk_store: Store) -> Iterator[tuple[Kernel, int, str, sqlite3.Connection]]:
    """A kernel, the inode of a `referrers/` with one name, that name, and a connection that can
    keep the index from catching up."""
    child = disk_store.put_node("content", {"text": "child", "artifacts": []}).hash
    Referrers(disk_store).close()
    parent = disk_store.put_node("content", {"text": "parent", "artifacts": [child]}).hash
    lock = sqlite3.connect((disk_store.root or Path()) / FILE, isolation_level=None)
    kernel = Kernel(disk_store)
    try:
        yield kernel, kernel.lookup(f"nodes/{child}/referrers"), parent, lock
    finally:
        lock.close()
        kernel.close()


LIST = protocol.read_in.pack(0, 0, 4096, 0, 0, 0, 0)


def test_while_an_index_catches_up_other_requests_are_answered(
    indexing: tuple[Kernel, int, str, sqlite3.Connection],
) -> None:
    kernel, ino, parent, lock = indexing
    lock.execute("BEGIN IMMEDIATE")
    listing = kernel.send(CODES["readdirplus"], ino, LIST)
    for _ in range(20):
        assert kernel.lookup("README.txt")
        assert kernel.ask("getattr", ino, bytes(16))[0] == 0
        assert kernel.lookup(f"nodes/{parent}")
        assert kernel.ask("lookup", ino, parent.encode() + b"\0")[0] == 0
    lock.execute("ROLLBACK")
    unique, error, data = kernel.receive()
    assert (unique, error) == (listing, 0)
    assert data.count(parent.encode()) == 1


def test_a_listing_that_waits_can_be_interrupted(
    indexing: tuple[Kernel, int, str, sqlite3.Connection],
) -> None:
    kernel, ino, parent, lock = indexing
    lock.execute("BEGIN IMMEDIATE")
    listings = [kernel.send(CODES["readdir"], ino, LIST) for _ in range(2)]
    kernel.send(CODES["interrupt"], 0, protocol.interrupt_in.pack(listings[0]))
    assert kernel.receive() == (listings[0], errno.EINTR, b"")
    assert kernel.lookup("README.txt")
    lock.execute("ROLLBACK")
    unique, error, data = kernel.receive()
    assert (unique, error) == (listings[1], 0)
    assert parent.encode() in data
    kernel.send(CODES["interrupt"], 0, protocol.interrupt_in.pack(listings[1]))  # answered already
    assert kernel.lookup("README.txt")


# -- whatever comes -----------------------------------------------------------------------------

BODIES = st.binary(max_size=200)
NUMBERS = st.one_of(st.integers(0, 60), st.integers(0, 2**64 - 1))
REQUESTS = st.integers(0, 60).filter(lambda opcode: opcode != CODES["init"])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(REQUESTS, NUMBERS, BODIES), max_size=20))
def test_no_request_ends_the_loop(kernel: Kernel, requests: list[tuple[int, int, bytes]]) -> None:
    for opcode, ino, body in requests:
        unique = kernel.send(opcode, ino, body)
        if protocol.OPCODES.get(opcode) not in transports.NO_REPLY:
            answered, error, _ = kernel.receive()
            assert answered == unique
            assert 0 <= error < 4096
    assert kernel.lookup("README.txt")


@given(BODIES)
def test_a_short_message_is_ignored(data: bytes) -> None:
    store = Store.memory()
    kernel = Kernel(store)
    try:
        kernel.raw(data[: protocol.in_header.size - 1] or b"x")
        assert kernel.lookup("README.txt")
    finally:
        kernel.close()

"""The small kinds of vnodes that the views are composed of."""

from __future__ import annotations

from functools import partial

import pytest

from casfs.errors import CorruptBlob
from casfs.fuse.views.directories import HashDirectory, LiveDirectory, StaticDirectory, parse_hash
from casfs.fuse.views.files import BrokenFile, ComputedFile, LiveFile, TextFile
from casfs.fuse.views.vnode import Vnode, child_key, make_key

KEY = make_key(b"test")
HASH = "ab" * 32


def test_a_key_depends_on_the_whole_path() -> None:
    keys = {
        child_key(child_key(KEY, b"a"), b"b"),
        child_key(child_key(KEY, b"b"), b"a"),
        child_key(KEY, b"ab"),
    }
    assert len(keys) == 3
    assert child_key(KEY, b"a") == child_key(KEY, b"a")


def test_a_text_is_read_at_any_offset() -> None:
    text = TextFile(KEY, b"0123456789")
    assert text.attr().size == 10
    assert not text.live, "poll() never waits for what does not grow"
    assert not text.append_only
    assert [text.read(0, 4), text.read(8, 10), text.read(10, 1), text.read(99, 1)] == [
        b"0123", b"89", b"", b"",
    ]  # fmt: skip


def test_computed_content_is_not_held_but_its_size_is() -> None:
    calls = []

    def make() -> bytes:
        calls.append(1)
        return b"content"

    file = ComputedFile(KEY, make)
    assert (file.attr().size, len(calls)) == (7, 1)
    assert file.attr().size == 7
    assert len(calls) == 1
    assert file.read(2, 3) == b"nte"
    assert len(calls) == 2


def test_a_live_file_shows_what_is_so_now() -> None:
    value = [b"one"]
    file = LiveFile(KEY, lambda: (value[0], 5))
    assert file.live
    assert (file.attr().size, file.attr().mtime_ns, file.read(0, 9)) == (3, 5, b"one")
    value[0] = b"three"
    assert (file.attr().size, file.read(0, 9)) == (5, b"three")


def test_a_static_directory_makes_its_children_when_asked() -> None:
    directory = StaticDirectory(
        KEY, {b"b": partial(TextFile, data=b"1"), b"a": partial(TextFile, data=b"2")}
    )
    assert directory.fixed
    assert directory.binds(b"b")
    assert [name for name, _ in directory.entries()] == [b"b", b"a"]
    child = directory.lookup(b"a")
    assert child is not None
    assert child.key == child_key(KEY, b"a")
    assert directory.lookup(b"c") is None


def test_directories_hold_no_children() -> None:
    directory = LiveDirectory(KEY, lambda: {b"a": partial(TextFile, data=b"1")}, lambda: 5)
    assert directory.lookup(b"a") is not directory.lookup(b"a")


def test_a_changing_directory_promises_nothing() -> None:
    names = {b"a": partial(TextFile, data=b"1")}
    times = [5, 6]
    directory = LiveDirectory(KEY, lambda: names, lambda: times.pop(0))
    assert directory.live
    assert not directory.fixed
    assert not directory.binds(b"a")
    names[b"b"] = partial(TextFile, data=b"2")
    assert [name for name, _ in directory.entries()] == [b"a", b"b"]
    assert [directory.attr().mtime_ns for _ in range(2)] == [5, 6]


def test_by_digest_knows_only_hashes_and_lists_nothing() -> None:
    asked = []

    def find(key: bytes, hash: str) -> Vnode | None:
        asked.append(hash)
        return TextFile(key, b"x") if hash == HASH else None

    directory = HashDirectory(KEY, find)
    assert list(directory.entries()) == []
    assert directory.lookup(HASH.encode()) is not None
    assert directory.lookup(b"cd" * 32) is None
    for name in (b"README", HASH.upper().encode(), HASH.encode()[:-1], b"\xff" * 64):
        assert directory.lookup(name) is None
    assert asked == [HASH, "cd" * 32]
    assert not directory.fixed, "a blob may come"
    assert directory.binds(HASH.encode()), "and is what it is"


def test_one_broken_child_does_not_break_the_listing() -> None:
    def fails(key: bytes) -> Vnode:
        raise CorruptBlob("blob x: damaged")

    directory = StaticDirectory(KEY, {b"bad": fails, b"good": partial(TextFile, data=b"1")})
    found = dict(directory.entries())
    assert list(found) == [b"bad", b"good"]
    broken = found[b"bad"]
    assert isinstance(broken, BrokenFile)
    assert broken.live, "it may be repaired"
    with pytest.raises(CorruptBlob, match="blob x: damaged"):
        broken.read(0, 1)
    with pytest.raises(CorruptBlob):
        directory.lookup(b"bad")


def test_parse_hash() -> None:
    assert parse_hash(HASH.encode()) == HASH
    assert parse_hash(HASH.encode() + b"\n") is None

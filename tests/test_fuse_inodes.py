"""Inode numbers and the table of what the kernel remembers."""

from __future__ import annotations

from casfs.fuse.inodes import LIMIT, ROOT, Inodes, number
from casfs.fuse.vnode import Live, Text, Vnode, identity


def text(name: bytes, data: bytes = b"") -> Text:
    return Text(identity(name), data)


def told(table: Inodes, vnode: Vnode) -> Vnode:
    known = table.known(vnode)
    table.hold(known)
    return known


def clash(first: bytes, tail: bytes) -> Text:
    """A vnode whose number is that of `first`, under another key."""
    return Text(identity(first)[:8] + tail.ljust(8, b"\0"), tail)


def test_numbers_are_in_range_and_depend_on_the_key_only() -> None:
    keys = [identity(b"%d" % n) for n in range(10_000)] + [b"\0" * 16, b"\xff" * 16]
    numbers = [number(key) for key in keys]
    assert all(ROOT < one < LIMIT for one in numbers)
    assert len(set(numbers)) == len(keys)
    assert numbers == [number(key) for key in keys]


def test_the_root_has_number_1_and_is_never_forgotten() -> None:
    root = text(b"root")
    table = Inodes(root)
    assert table.get(1) is root
    table.forget(1, 10**9)
    assert table.get(1) is root


def test_a_vnode_is_held_until_all_its_lookups_are_given_back() -> None:
    table = Inodes(text(b"root"))
    first = told(table, text(b"a"))
    again = told(table, text(b"a"))
    assert again is first
    assert len(table) == 2
    table.forget(first.ino, 1)
    assert table.get(first.ino) is first
    table.forget(first.ino, 1)
    assert table.get(first.ino) is None
    assert len(table) == 1


def test_what_the_kernel_was_not_told_is_not_held() -> None:
    table = Inodes(text(b"root"))
    vnode = table.known(text(b"a"))
    assert vnode.ino == number(identity(b"a"))
    assert table.get(vnode.ino) is None


def test_forgetting_what_is_not_held_does_nothing() -> None:
    table = Inodes(text(b"root"))
    table.forget(12345, 1)
    assert len(table) == 1


def test_the_newer_object_of_a_live_vnode_takes_over() -> None:
    table = Inodes(text(b"root"))
    key = identity(b"status")
    old = told(table, Live(key, lambda: (b"old", 0)))
    new = told(table, Live(key, lambda: (b"new", 0)))
    assert table.get(old.ino) is new
    assert (new.ino, new.lookups) == (old.ino, 2)


def test_two_keys_never_share_a_number() -> None:
    table = Inodes(text(b"root"))
    first = told(table, text(b"a"))
    second = told(table, clash(b"a", b"2"))
    third = told(table, clash(b"a", b"3"))
    assert len({first.ino, second.ino, third.ino}) == 3
    assert [table.get(v.ino) for v in (first, second, third)] == [first, second, third]
    assert told(table, clash(b"a", b"2")) is second


def test_a_moved_vnode_keeps_its_number_while_it_is_held() -> None:
    table = Inodes(text(b"root"))
    first = told(table, text(b"a"))
    second = told(table, clash(b"a", b"2"))
    table.forget(first.ino, 1)
    assert told(table, clash(b"a", b"2")) is second
    table.forget(second.ino, 2)
    assert len(table) == 1
    assert table.known(clash(b"a", b"2")).ino == number(identity(b"a"))


def test_probing_wraps_inside_the_range() -> None:
    table = Inodes(text(b"root"))
    last = LIMIT - 1
    key = (last - 2).to_bytes(8, "big")
    first = told(table, Text(key + b"\0" * 8, b""))
    second = told(table, Text(key + b"\1" * 8, b""))
    assert first.ino == last
    assert second.ino == 2

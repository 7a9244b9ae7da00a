"""Inode numbers, and vnodes that are made again."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from casfs.fuse import inodes
from casfs.fuse.inode_table import ROOT
from casfs.fuse.inodes import MAX_INODE, Inodes, inode_number, key_check
from casfs.fuse.views.files import LiveFile, TextFile
from casfs.fuse.views.vnode import Attr, Directory, PlainEntry, Vnode, child_key, make_key


class Folder(Directory):
    """Entries given by name; made afresh at each look, as the real ones are."""

    fixed = False

    def __init__(self, key: bytes, files: dict[bytes, bytes], folders: dict[bytes, Folder]) -> None:
        super().__init__(key)
        self.files = files
        self.folders = folders
        self.looks = 0

    def lookup(self, name: bytes) -> Vnode | None:
        self.looks += 1
        if name in self.folders:
            return self.folders[name]
        return TextFile(child_key(self.key, name), self.files[name]) if name in self.files else None

    def entries(self) -> Iterable[tuple[bytes, Vnode]]:
        raise NotImplementedError

    def vnode_of(self, entry: PlainEntry) -> Vnode:
        vnode: Vnode = entry.source
        return vnode


@pytest.fixture
def root() -> Folder:
    inner = Folder(child_key(make_key(b"/"), b"d"), {b"f": b"deep"}, {})
    return Folder(make_key(b"/"), {b"a": b"1", b"b": b"2"}, {b"d": inner})


def look_up(table: Inodes, parent: Directory, name: bytes) -> Vnode:
    vnode = parent.lookup(name)
    assert vnode is not None
    known = table.intern(vnode)
    table.add_lookup(known, parent.ino, name)
    return known


def clash(key: bytes, tail: bytes) -> TextFile:
    """A vnode whose inode_number is that of `key`, under another key."""
    return TextFile(key[:8] + tail.ljust(8, b"\0"), tail)


def test_numbers_are_in_range_and_depend_on_the_key_only() -> None:
    keys = [make_key(b"%d" % n) for n in range(10_000)] + [b"\0" * 16, b"\xff" * 16]
    numbers = [inode_number(key) for key in keys]
    assert all(ROOT < one < MAX_INODE for one in numbers)
    assert len(set(numbers)) == len(keys)
    assert numbers == [inode_number(key) for key in keys]


def test_the_root_has_number_1_and_is_never_forgotten(root: Folder) -> None:
    table = Inodes(root)
    assert table.get(1) is root
    table.forget(1, 10**9)
    assert table.get(1) is root


def test_an_inode_stays_until_all_its_lookups_are_forgotten(root: Folder) -> None:
    removed: list[int] = []
    table = Inodes(root, on_removed=removed.append)
    first = look_up(table, root, b"a")
    assert look_up(table, root, b"a") is first
    table.forget(first.ino, 1)
    assert table.get(first.ino) is first
    assert removed == []
    table.forget(first.ino, 1)
    assert table.get(first.ino) is None
    assert (len(table), removed) == (1, [first.ino])


def test_a_vnode_without_a_lookup_is_not_in_the_table(root: Folder) -> None:
    table = Inodes(root)
    vnode = table.intern(TextFile(make_key(b"a"), b""))
    assert vnode.ino == inode_number(make_key(b"a"))
    assert table.get(vnode.ino) is None


def test_forgetting_an_unknown_inode_does_nothing(root: Folder) -> None:
    table = Inodes(root)
    table.forget(12345, 1)
    assert len(table) == 1


def test_a_vnode_is_made_again_from_its_name(root: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inodes, "RECENT_VNODES", 1)
    table = Inodes(root)
    folder = look_up(table, root, b"d")
    assert isinstance(folder, Folder)
    deep = look_up(table, folder, b"f")
    look_up(table, root, b"a")
    again = table.get(deep.ino)
    assert isinstance(again, TextFile)
    assert again is not deep
    assert (again.ino, again.key, again.read(0, 9)) == (deep.ino, deep.key, b"deep")


def test_a_successor_makes_everything_again(root: Folder) -> None:
    table = Inodes(root)
    folder = look_up(table, root, b"d")
    assert isinstance(folder, Folder)
    deep = look_up(table, folder, b"f")
    other = Inodes(root, table.table)
    found = other.get(deep.ino)
    assert isinstance(found, TextFile)
    assert found.read(0, 9) == b"deep"


def test_a_directory_is_kept_for_what_is_below_it(root: Folder) -> None:
    table = Inodes(root)
    folder = look_up(table, root, b"d")
    assert isinstance(folder, Folder)
    deep = look_up(table, folder, b"f")
    table.forget(folder.ino, 1)
    assert len(table) == 3
    table.forget(deep.ino, 1)
    assert len(table) == 1


def test_a_name_that_means_something_else_now_is_gone(root: Folder) -> None:
    table = Inodes(root)
    vnode = look_up(table, root, b"a")
    other = Inodes(root, table.table)
    root.key = make_key(b"another root")  # so its entries have other keys
    assert other.get(vnode.ino) is None
    del root.files[b"a"]
    assert other.get(vnode.ino) is None


def test_the_newer_object_of_a_live_vnode_takes_over(root: Folder) -> None:
    table = Inodes(root)
    key = make_key(b"status")
    old = table.intern(LiveFile(key, lambda: (b"old", 0)))
    table.add_lookup(old, ROOT, b"status")
    new = table.intern(LiveFile(key, lambda: (b"new", 0)))
    table.add_lookup(new, ROOT, b"status")
    assert table.get(old.ino) is new
    assert new.ino == old.ino


def test_two_keys_never_share_a_number(root: Folder) -> None:
    table = Inodes(root)
    key = make_key(b"a")
    made = [TextFile(key, b""), clash(key, b"2"), clash(key, b"3")]
    for place, vnode in enumerate(made):
        table.add_lookup(table.intern(vnode), ROOT, b"%d" % place)
    assert len({vnode.ino for vnode in made}) == 3
    assert [table.get(vnode.ino) for vnode in made] == made
    assert table.intern(clash(key, b"2")) is made[1]


def test_a_displaced_vnode_keeps_its_number_while_it_is_in_the_table(root: Folder) -> None:
    table = Inodes(root)
    key = make_key(b"a")
    first, second = TextFile(key, b""), clash(key, b"2")
    table.add_lookup(table.intern(first), ROOT, b"1")
    table.add_lookup(table.intern(second), ROOT, b"2")
    table.forget(first.ino, 1)
    assert table.intern(clash(key, b"2")) is second
    table.forget(second.ino, 1)
    assert len(table) == 1
    assert table.intern(clash(key, b"2")).ino == inode_number(key)


def test_probing_wraps_inside_the_range(root: Folder) -> None:
    table = Inodes(root)
    last = MAX_INODE - 1
    key = (last - 2).to_bytes(8, "big")
    first, second = TextFile(key + b"\0" * 8, b""), TextFile(key + b"\1" * 8, b"")
    table.add_lookup(table.intern(first), ROOT, b"1")
    table.add_lookup(table.intern(second), ROOT, b"2")
    assert (first.ino, second.ino) == (last, 2)
    assert key_check(first.key) != key_check(second.key)


def plain(key: bytes, name: bytes) -> PlainEntry:
    return PlainEntry(name, key, Attr(0o100644, 1, 2), Folder(key, {}, {}), TextFile(key, name))


def test_listed_entries_get_the_numbers_that_vnodes_get(root: Folder) -> None:
    one, other = Inodes(root), Inodes(root)
    keys = {name: child_key(root.key, name) for name in (b"a", b"b")}
    listed = one.listed(ROOT)
    numbers = [listed.add(plain(key, name)) for name, key in keys.items()]
    assert len(one) == 1, "nothing is counted before the reply"
    listed.count()
    assert numbers == [look_up(other, root, name).ino for name in keys]
    rows = [one.table.get(number) for number in numbers]
    assert rows == [other.table.get(number) for number in numbers]
    vnode = one.get(numbers[0])
    assert vnode is not None
    assert (vnode.key, vnode.ino) == (keys[b"a"], numbers[0])
    assert one.get(numbers[0]) is vnode, "made once"


def test_listed_entries_with_one_number_are_told_apart(root: Folder) -> None:
    table = Inodes(root)
    key = child_key(root.key, b"a")
    known = look_up(table, root, b"a")
    listed = table.listed(ROOT)
    clashing = [clash(key, b"%d" % number).key for number in range(3)]
    numbers = [listed.add(plain(other, b"%d" % at)) for at, other in enumerate(clashing)]
    assert len({known.ino, *numbers}) == 4
    listed.drop_last()
    listed.count()
    assert table.table.get(numbers[2]) is None, "it was not sent"
    again = table.listed(ROOT)
    assert [again.add(plain(other, b"%d" % at)) for at, other in enumerate(clashing)] == numbers
    again.count()
    lookups = [table.table.get(number) for number in numbers]
    assert [row.lookups for row in lookups if row is not None] == [2, 2, 1]

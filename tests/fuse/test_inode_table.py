"""The inode table, against a dict."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casfs.fuse import inode_table as tables
from casfs.fuse.inode_table import ROOT, Inode, InodeTable, ListedInode

NAMES = st.integers(0, 255).map(lambda length: b"n" * length)


@dataclass
class Model:
    """The expected table: `held` has the inodes with lookups or children."""

    held: dict[int, Inode]

    def add_lookup(self, ino: int, check: int, parent: int, name: bytes) -> None:
        old = self.held.get(ino)
        if old is None:
            self._child(parent, 1)
            self.held[ino] = Inode(ino, parent, check, 1, 0, name)
        elif old.parent != parent and ino != ROOT:
            self._child(parent, 1)
            self.held[ino] = self.held[ino]._replace(parent=parent, name=name)
            self.held[ino] = self.held[ino]._replace(lookups=self.held[ino].lookups + 1)
            self._let_go(old.parent)
        else:
            self.held[ino] = old._replace(lookups=old.lookups + 1)

    def forget(self, ino: int, lookups: int) -> None:
        old = self.held.get(ino)
        if old is None or ino == ROOT:
            return
        left = max(old.lookups - lookups, 0)
        self.held[ino] = old._replace(lookups=left)
        self._drop(ino)

    def _child(self, ino: int, change: int) -> None:
        if ino in self.held:
            old = self.held[ino]
            self.held[ino] = old._replace(children=old.children + change)

    def _let_go(self, ino: int) -> None:
        self._child(ino, -1)
        self._drop(ino)

    def _drop(self, ino: int) -> None:
        old = self.held.get(ino)
        if old is not None and ino != ROOT and not old.lookups and not old.children:
            del self.held[ino]
            self._let_go(old.parent)


def same(table: InodeTable, model: Model) -> None:
    assert len(table) == len(model.held)
    for ino, inode in model.held.items():
        assert table.get(ino) == inode


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(2, 40), st.integers(0, 3), NAMES, st.integers(1, 3)),
        max_size=120,
    )
)
def test_it_equals_a_dict(steps: list[tuple[bool, int, int, bytes, int]]) -> None:
    """Parents have smaller numbers, as if found on the way down."""
    table, model = InodeTable(), Model({ROOT: Inode(ROOT, 0, 0, 1, 0, b"")})
    try:
        for add, ino, above, name, count in steps:
            if add:
                parent = max(ROOT, ino - 1 - above)
                if parent not in model.held:
                    parent = ROOT
                model.add_lookup(ino, ino * 7, parent, name)
                table.add_lookup(ino, ino * 7, parent, name)
            else:
                before = set(model.held)
                model.forget(ino, count)
                assert set(table.forget(ino, count)) == before - set(model.held)
            same(table, model)
        successor = InodeTable(os.dup(table.fd))
        same(successor, model)
        successor.close()
    finally:
        table.close()


def test_numbers_that_collide_are_kept_apart() -> None:
    table = InodeTable()
    step = 1 << 40
    numbers = [5 + step * place for place in range(50)]
    for ino in numbers:
        table.add_lookup(ino, ino, ROOT, b"%d" % ino)
    for removed in numbers[::2]:
        assert table.forget(removed, 1) == [removed]
    assert [table.get(ino) is not None for ino in numbers] == [False, True] * 25
    table.close()


def test_it_grows_and_gives_everything_back() -> None:
    table = InodeTable()
    base = os.fstat(table.fd).st_blocks
    numbers = [1000 + 7919 * place for place in range(20_000)]
    for ino in numbers:
        table.add_lookup(ino, ino, ROOT, b"a name of some length")
    grown = os.fstat(table.fd).st_blocks * 512
    assert grown / len(numbers) <= 100
    assert all(table.get(ino) is not None for ino in numbers)
    for ino in numbers[:-10]:
        table.forget(ino, 1)
    assert all(table.get(ino) is not None for ino in numbers[-10:])
    for ino in numbers[-10:]:
        table.forget(ino, 1)
    assert len(table) == 1
    left = (os.fstat(table.fd).st_blocks - base) * 512
    assert left <= tables.COMPACT_SLOTS * tables.SLOT_BYTES
    table.close()


def test_a_successor_finds_everything_and_the_transport_state() -> None:
    table = InodeTable()
    table.add_lookup(10, 11, ROOT, b"dir")
    table.add_lookup(20, 21, 10, b"x" * 200)
    table.transport_state = b"41 7"
    successor = InodeTable(os.dup(table.fd))
    assert successor.get(20) == Inode(20, 10, 21, 1, 0, b"x" * 200)
    assert (successor.transport_state, len(successor)) == (b"41 7", 3)
    successor.add_lookup(30, 31, 10, b"y")
    assert successor.forget(20, 1) == [20]
    successor.close()
    table.close()


def test_another_file_is_refused() -> None:
    fd = os.memfd_create("other")
    os.ftruncate(fd, tables.FILE_BYTES)
    with pytest.raises(ValueError, match="not an inode table"):
        InodeTable(fd)
    os.close(fd)


def test_a_full_table_is_an_error_and_stays_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    table = InodeTable()
    monkeypatch.setattr(tables, "MAX_SLOTS", 20)
    for ino in range(2, 20):
        table.add_lookup(ino, ino, ROOT, b"n")
    with pytest.raises(OSError, match="Too many open files in system"):
        table.add_lookup(99, 99, ROOT, b"n")
    assert table.get(99) is None
    assert table.forget(5, 1) == [5]
    table.add_lookup(99, 99, ROOT, b"n")
    assert table.get(99) == Inode(99, ROOT, 99, 1, 0, b"n")
    table.close()


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(20, 400), NAMES), max_size=60, unique_by=lambda x: x[0]),
            st.integers(2, 19),
            st.integers(1, 3),
        ),
        max_size=12,
    )
)
def test_lookups_at_once_equal_those_one_by_one(
    listings: list[tuple[list[tuple[int, bytes]], int, int]],
) -> None:
    """Also in a table with free slots, and one that grows meanwhile."""
    table, model = InodeTable(), Model({ROOT: Inode(ROOT, 0, 0, 1, 0, b"")})
    try:
        for parent in range(2, 20):
            table.add_lookup(parent, parent, ROOT, b"d")
            model.add_lookup(parent, parent, ROOT, b"d")
        for entries, parent, forgotten in listings:
            is_new = {ino: table.check(ino) is None for ino, _ in entries}
            table.add_lookups(
                parent, [ListedInode(ino, ino, name, is_new[ino]) for ino, name in entries]
            )
            for ino, name in sorted(entries, key=lambda entry: not is_new[entry[0]]):
                model.add_lookup(ino, ino, parent, name)
            same(table, model)
            for ino, _ in entries[::2]:
                table.forget(ino, forgotten)
                model.forget(ino, forgotten)
            same(table, model)
    finally:
        table.close()

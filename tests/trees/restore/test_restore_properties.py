"""Times and modes that --preserve kept, and extremes of size and depth."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from casfs.digest import Digest
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Properties, Subdirectory, Symlink
from casfs.store.store import Store
from tests.support.helpers import (
    Link,
    Program,
    put_tree,
    read_tree,
    take,
    write_tree,
)
from tests.support.restores import moved, restore_tree
from tests.trees.restore.test_restore import named

MTIME = (1_000_000_000, 123_456_789)


# -- what --preserve kept ----------------------------------------------------------------------


def preserving(store: Store, content: bytes, seconds: int, mode: int) -> str:
    """A tree in which everything has a time and a mode."""
    own = Properties((seconds, 5), mode)
    with store.batch() as batch:
        digest = batch.put(content)
        inner = batch.put_node(
            "directory", directory.encode([File(b"f", digest, bool(mode & 0o100), own)], own)
        )
        entries: list[Any] = [
            Subdirectory(b"d", inner),
            File(b"f", digest, bool(mode & 0o100), Properties((-seconds, 7), mode)),
            Symlink(b"l", b"f", Properties((seconds, 9))),
        ]
        return batch.put_node("directory", directory.encode(entries, own)).hash


def observed(place: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in (place, *place.rglob("*")):
        info = path.lstat()
        mode = 0 if path.is_symlink() else stat.S_IMODE(info.st_mode)
        found[str(path.relative_to(place))] = (info.st_mtime_ns, mode)
    return found


def expected(seconds: int, mode: int) -> dict[str, tuple[int, int]]:
    s = seconds * 1_000_000_000
    return {
        ".": (s + 5, mode),
        "d": (s + 5, mode),
        "d/f": (s + 5, mode),
        "f": (-s + 7, mode),
        "l": (s + 9, 0),
    }


def test_times_and_modes_are_restored(store: Store, tmp_path: Path) -> None:
    restore_tree(store, preserving(store, b"1", 10, 0o750), tmp_path / "w")
    assert observed(tmp_path / "w") == expected(10, 0o750)


@pytest.mark.parametrize(
    ("content", "seconds", "mode"),
    [(b"2", 10, 0o750), (b"1", 11, 0o750), (b"1", 10, 0o700), (b"1", 10, 0o640), (b"1", 10, 0o550)],
)
def test_times_and_modes_follow_a_change(
    store: Store, tmp_path: Path, content: bytes, seconds: int, mode: int
) -> None:
    mode_of_directories = mode | 0o100
    old = preserving(store, b"1", 10, 0o750)
    new = preserving(store, content, seconds, mode_of_directories)
    restore_tree(store, old, tmp_path / "w")
    done = restore_tree(store, new, tmp_path / "w", base=old)
    assert observed(tmp_path / "w") == expected(seconds, mode_of_directories)
    assert done.outcome.changed == []
    restore_tree(store, old, tmp_path / "w", base=new, verify=True)
    assert observed(tmp_path / "w") == expected(10, 0o750)


def test_modes_that_are_not_kept_any_more_become_the_usual_ones(
    store: Store, tmp_path: Path
) -> None:
    old = preserving(store, b"1", 10, 0o700)
    restore_tree(store, old, tmp_path / "w")
    new = {"d": {"f": Program(b"1")}, "f": b"1", "l": Link(b"f")}
    restore_tree(store, put_tree(store, new), tmp_path / "w", base=old)
    modes = {name: mode for name, (_, mode) in observed(tmp_path / "w").items()}
    assert modes == {".": 0o755, "d": 0o755, "d/f": 0o755, "f": 0o644, "l": 0}


# -- extremes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hole", [(0, 3 << 20), (1 << 20, 8 << 20)])
def test_holes_stay_holes(disk_store: Store, tmp_path: Path, hole: tuple[int, int]) -> None:
    data_at, size = hole
    source = write_tree(tmp_path / "source", {})
    with (source / "sparse").open("wb") as file:
        file.truncate(size)
        file.seek(data_at)
        file.write(b"data")
    place = tmp_path / "w"
    restore_tree(disk_store, put_tree(disk_store, {"sparse": b"full"}), place)
    restore_tree(disk_store, take(disk_store, source), place)
    assert (place / "sparse").read_bytes() == (source / "sparse").read_bytes()
    assert (place / "sparse").stat().st_blocks * 512 <= 2 << 20


def test_names_of_bytes_and_of_255_of_them(store: Store, tmp_path: Path) -> None:
    long, odd = b"\xff" * 255, b'a\n"\\\xfe\t'
    old = {long: {odd: b"1", b"\x01": Link(b"\xff")}, odd: b""}
    new = {long: {odd: {long: b"2"}}, odd: Link(b"\xfe\n")}
    moved(store, tmp_path / "w", old, new)
    assert read_tree(tmp_path / "w") == named(new)


def test_a_tree_200_directories_deep(store: Store, tmp_path: Path) -> None:
    def deep(tree: Any) -> Any:
        for _ in range(200):
            tree = {"d": tree}
        return tree

    place = tmp_path / "w"
    old, new, last = deep({"f": b"1"}), deep({"f": b"2"}), deep(b"file")
    moved(store, place, old, new)
    assert take(store, place) == put_tree(store, new)
    restore_tree(store, put_tree(store, last), place, base=put_tree(store, new), verify=True)
    assert take(store, place) == put_tree(store, last)
    restore_tree(store, put_tree(store, {}), place, base=put_tree(store, last))
    assert read_tree(place) == {}


def test_65000_entries_in_one_directory(store: Store, tmp_path: Path) -> None:
    empty = Digest.of(b"")
    store.put(b"")
    entries = [File(b"%05d" % n, empty) for n in range(65_000)]
    old = store.put_node("directory", directory.encode(entries)).hash
    changed = [*entries[1:], File(b"00000", store.put(b"1"))]
    new = store.put_node("directory", directory.encode(changed)).hash
    place = tmp_path / "w"
    assert restore_tree(store, old, place).files == 65_000
    done = restore_tree(store, new, place, base=old)
    assert (done.files, done.bytes) == (1, 1)
    assert len(os.listdir(place)) == 65_000

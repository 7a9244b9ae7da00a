"""Permissions: kept where they are not the ordinary ones, and never widened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from casfs.store.nodes.directory import File, Properties, Subdirectory
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules
from casfs.trees.snapshot.properties import preserved_names
from casfs.trees.snapshot.report import (
    HARD_LINKS,
    MODES,
    OWNERS,
    XATTRS,
    SnapshotOptions,
    SnapshotReport,
)
from tests.support.helpers import Link, Program, take, write_tree
from tests.support.lasting import ROOT_ONLY
from tests.support.restores import restore_tree

ORDINARY = {
    "README.md": b"# a project\n",
    "run.sh": Program(b"#!/bin/sh\n"),
    "src": {"main.py": b"print(1)\n", "empty": {}},
    "link": Link(b"src/main.py"),
}
ORDINARY_ROOT = "6c050ff48be97f283230d3b20e4e93b555a7c14ab01b6548c1d767405a3c2b47"
FILE_MODES = [(0o644, None), (0o755, None), (0o664, None), (0o775, None), (0o666, None),
              (0o777, None), (0o600, 0o600), (0o640, 0o640), (0o400, 0o400), (0o444, 0o444),
              (0o555, 0o555), (0o700, 0o700), (0o620, 0o600),
              (0o4755, None), (0o6711, 0o711)]  # fmt: skip
DIRECTORY_MODES = [(0o755, None), (0o775, None), (0o1777, None), (0o2755, None), (0o700, 0o700),
                   (0o750, 0o750), (0o555, 0o555), (0o711, 0o711)]  # fmt: skip


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def modes(root: Path) -> dict[str, int]:
    """The permissions of a directory and of all in it but links."""
    found = [root, *root.rglob("*")]
    return {
        str(path.relative_to(root)): path.stat().st_mode & 0o7777
        for path in found
        if not path.is_symlink()
    }


def test_an_ordinary_tree_has_the_hash_that_it_always_had(store: Store, tmp_path: Path) -> None:
    assert take(store, write_tree(tmp_path / "w", ORDINARY)) == ORDINARY_ROOT
    for path in (tmp_path / "w").rglob("*"):  # as made with the umask 0002, or with none
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o022)
    assert take(store, tmp_path / "w") == ORDINARY_ROOT


@pytest.mark.parametrize(("mode", "kept"), FILE_MODES)
def test_modes_of_files(store: Store, tmp_path: Path, mode: int, kept: int | None) -> None:
    (write_tree(tmp_path / "w", {"f": b"1"}) / "f").chmod(mode)
    root = take(store, tmp_path / "w")
    found = tree.load(store, root)[b"f"]
    assert isinstance(found, File)
    assert found.executable == bool(mode & 0o100)
    assert found.properties == (None if kept is None else Properties(unix_mode=kept))
    restore_tree(store, root, tmp_path / "back")
    assert modes(tmp_path / "back")["f"] == mode & 0o755
    assert take(store, tmp_path / "back") == root


@pytest.mark.parametrize(("mode", "kept"), DIRECTORY_MODES)
@pytest.mark.parametrize("at", [".", "d"])
def test_modes_of_directories(
    store: Store, tmp_path: Path, at: str, mode: int, kept: int | None
) -> None:
    write_tree(tmp_path / "w", {"d": {"f": b"1"}})
    (tmp_path / "w" / at).chmod(mode)
    root = take(store, tmp_path / "w")
    below = tree.resolve(store, root, b"d")
    assert isinstance(below, Subdirectory)
    own = tree.directory_properties(store, root if at == "." else below.digest.hash)
    assert own == (None if kept is None else Properties(unix_mode=kept))
    restore_tree(store, root, tmp_path / "back")
    assert modes(tmp_path / "back")[at] == mode & 0o755
    assert take(store, tmp_path / "back") == root


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_restore_does_not_depend_on_the_umask(store: Store, tmp_path: Path, mask: int) -> None:
    write_tree(tmp_path / "w", {"key": b"k", "run": Program(b""), ".ssh": {"id": b""}, "o": b""})
    (tmp_path / "w/key").chmod(0o600)
    (tmp_path / "w/.ssh").chmod(0o700)
    expected = modes(tmp_path / "w")
    root = take(store, tmp_path / "w")
    with umask(mask):
        restore_tree(store, root, tmp_path / "back")
    assert modes(tmp_path / "back") == expected


def test_a_directory_that_was_private_stays_so(store: Store, tmp_path: Path) -> None:
    """An empty directory that somebody made private is not opened by a tree that is not."""
    root = take(store, write_tree(tmp_path / "w", {"f": b""}))
    (tmp_path / "back").mkdir(mode=0o700)
    restore_tree(store, root, tmp_path / "back")
    assert modes(tmp_path / "back") == {".": 0o700, "f": 0o644}


def test_an_incremental_restore_narrows_and_widens_as_the_trees_say(
    disk_store: Store, tmp_path: Path
) -> None:
    store = disk_store
    work = write_tree(tmp_path / "w", {"f": b"1", "d": {"g": b"2"}})
    first = take(store, work)
    (work / "f").chmod(0o600)
    (work / "d").chmod(0o500)
    (work / "d/g").write_bytes(b"3")
    second = take(store, work)
    work.chmod(0o555)
    third = take(store, work)
    assert len({first, second, third}) == 3
    for root, f, d, top in (
        (first, 0o644, 0o755, 0o755),
        (second, 0o600, 0o500, 0o755),
        (third, 0o600, 0o500, 0o555),
        (first, 0o644, 0o755, 0o755),
        (third, 0o600, 0o500, 0o555),
    ):
        restore_tree(store, root, tmp_path / "back")
        found = modes(tmp_path / "back")
        assert (found["f"], found["d"], found["."]) == (f, d, top)
        assert take(store, tmp_path / "back") == root


@pytest.mark.parametrize("preserve", [(), ("mode",), ("mtime",), ("mode", "mtime")])
@pytest.mark.parametrize("private", [False, True])
def test_a_tree_tells_what_it_preserves(
    store: Store, tmp_path: Path, preserve: tuple[str, ...], private: bool
) -> None:
    """A private root does not mean that all modes were preserved."""
    write_tree(tmp_path / "w", {"d": {"e": {"f": b""}}, "l": Link(b"x")})
    if private:
        (tmp_path / "w").chmod(0o700)
        (tmp_path / "w/d").chmod(0o700)
    with store.batch() as batch:
        options = SnapshotOptions(preserve)
        root = walker.snapshot(batch, tmp_path / "w", IgnoreRules(), options=options).node.hash
    assert sorted(preserved_names(store, root)) == sorted(preserve)


def test_a_change_of_mode_shows_in_a_diff(store: Store, tmp_path: Path) -> None:
    work = write_tree(tmp_path / "w", {"f": b"1", "d": {"e": {"g": b""}}})
    first = take(store, work)
    (work / "f").chmod(0o600)
    (work / "d").chmod(0o700)
    (work / "d/e/g").write_bytes(b"1")
    second = take(store, work)
    found = [(one.letter, one.path) for one in tree.diff(store, first, second)]
    assert found == [("T", b"d"), ("M", b"d/e/g"), ("T", b"f")]
    work.chmod(0o700)
    found = [(one.letter, one.path) for one in tree.diff(store, second, take(store, work))]
    assert found == [("T", b".")]


@ROOT_ONLY
def test_the_report_tells_what_a_tree_does_not_keep(store: Store, tmp_path: Path) -> None:
    work = write_tree(tmp_path / "w", {"f": b"1", "s": Program(b""), "d": {"g": b""}})
    os.link(work / "f", work / "f2")
    (work / "s").chmod(0o4755)
    (work / "d").chmod(0o1777)
    os.chown(work / "d/g", 1, 1)
    os.setxattr(work / "s", "user.origin", b"https://example.org/")
    report = SnapshotReport()
    take(store, work, report)
    assert report.not_kept == {HARD_LINKS: 2, MODES: 2, OWNERS: 1, XATTRS: 1}

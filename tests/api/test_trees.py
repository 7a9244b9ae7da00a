"""Trees and checkpoints of the public API."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import casfs
from casfs.checkpoints import checkpoint
from casfs.history import versions
from casfs.store.store import Store
from tests.support.helpers import LARGE, Link, Program, put_tree, read_tree, write_tree
from tests.support.thread_example import make_thread

TREE = {
    "a.txt": b"one\n",
    "link": Link(b"a.txt"),
    "run": Program(b"#!/bin/sh\n"),
    "sub": {"large": LARGE, "empty": {}, b"\xff": b"x"},
}


@pytest.fixture(params=["disk", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[casfs.Store]:
    on_disk = request.param == "disk"
    with casfs.init(tmp_path / "store") if on_disk else casfs.Store.memory() as store:
        yield store


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "source", TREE)


def test_a_listing_says_what_each_entry_is(opened: casfs.Store) -> None:
    root = put_tree(opened, TREE)
    file, link, run, sub = opened.trees.ls(root)
    assert file == casfs.Entry("a.txt", "file", casfs.Digest.of(b"one\n").hash, 4)
    assert link == casfs.Entry("link", "symlink", target="a.txt")
    assert (run.kind, run.executable) == ("file", True)
    assert (sub.kind, sub.size) == ("directory", None)
    below = ["sub/empty", "sub/large", "sub/\udcff"]
    assert [entry.path for entry in opened.trees.ls(root, "sub/")] == below
    assert opened.trees.ls(root, Path("sub")) == opened.trees.ls(root, b"./sub")
    assert [entry.name for entry in opened.trees.ls(sub)] == ["empty", "large", "\udcff"]
    assert opened.trees.stat(root) == casfs.Entry("", "directory", root)
    assert opened.trees.stat(root, "sub//large").path == "sub/large"
    walked = [entry.path for entry in opened.trees.walk(root)]
    assert walked == ["a.txt", "link", "run", "sub", *below]
    assert [entry.path for entry in opened.trees.walk(root, "sub")] == below


def test_a_file_is_read_in_ranges(opened: casfs.Store) -> None:
    root = put_tree(opened, TREE)
    assert opened.trees.read(root, "sub/large") == LARGE
    assert opened.trees.read(root, "sub/large", 100, 7) == LARGE[100:107]
    assert opened.trees.read(root, os.fsdecode(b"sub/\xff")) == b"x"
    with opened.trees.open(root, "sub/large") as file:
        assert file.seek(-3, os.SEEK_END) == len(LARGE) - 3
        assert file.read() == LARGE[-3:]


def test_what_is_not_there_is_named(opened: casfs.Store) -> None:
    root = put_tree(opened, TREE)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: opened.trees.read(root, "nothing"), "nothing: not in tree"),
        (lambda: opened.trees.open(root, "sub"), "sub: not a file, but a directory"),
        (lambda: opened.trees.read(root, "link"), "link: not a file, but a symlink"),
        (lambda: opened.trees.ls(root, "a.txt"), "a.txt: not a directory, but a file"),
        (lambda: opened.trees.ls("nothing"), "neither a hash nor a checkpoint"),
        (lambda: opened.trees.ls(opened.trees.stat(root, "link")), "no tree"),
    ]
    for action, message in refused:
        with pytest.raises(casfs.NotFound, match=message):
            action()


def test_a_checkpoint_is_created_listed_and_found(opened: casfs.Store, source: Path) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    first = opened.checkpoints.create("work", source, "why")
    (source / "a.txt").write_bytes(b"two\n")
    os.mkfifo(source / "fifo")
    warnings: list[str] = []
    second = opened.checkpoints.create("work", str(source), warn=warnings.append)
    assert ["fifo" in line for line in warnings] == [True]
    assert before <= first.created_at < second.created_at <= datetime.now(UTC)
    internal = checkpoint.find(opened, f"work@{first.id}")
    assert first.created_at.timestamp() == pytest.approx(internal.created_at / 1000)
    assert (first.name, first.message, first.root) == ("work", "why", internal.root)
    assert opened.checkpoints.list() == opened.checkpoints.list("work") == [first, second]
    assert opened.checkpoints.list("other") == []
    assert opened.checkpoints.names() == ["work"]
    assert opened.checkpoints.find("work") == second
    assert opened.checkpoints.find(str(first)) == first
    with pytest.raises(casfs.NotFound):
        opened.checkpoints.find("other")
    with pytest.raises(casfs.Invalid):
        opened.checkpoints.create("no name", source)


def test_options_of_a_checkpoint(opened: casfs.Store, source: Path) -> None:
    write_tree(source, {"node_modules": {"m": b"m"}, "package.json": b"{}"})
    os.utime(source / "a.txt", ns=(1, 1_000_000_007))
    assert "node_modules" not in {
        entry.path for entry in opened.trees.ls(opened.checkpoints.create("work", source))
    }
    some = opened.checkpoints.create("some", source, exclude=["*.txt"])
    assert "a.txt" not in {entry.path for entry in opened.trees.ls(some)}
    whole = opened.checkpoints.create(
        "work", source, default_excludes=False, preserve=["mtime", "mode"]
    )
    assert opened.trees.stat(whole, "node_modules/m").size == 1
    kept = opened.trees.stat("work", "a.txt")
    assert (kept.mtime_ns, kept.mode) == (1_000_000_007, 0o644)
    with pytest.raises(casfs.Refused):
        opened.checkpoints.create("work", source, max_bytes=10)


def test_trees_are_compared_and_restored(opened: casfs.Store, source: Path, tmp_path: Path) -> None:
    old = opened.trees.build(source)
    (source / "a.txt").write_bytes(b"two\n")
    (source / "run").unlink()
    new = opened.checkpoints.create("work", source)
    assert opened.trees.resolve(new) == new.root
    changed, deleted = opened.trees.diff(old, "work")
    assert (changed.letter, changed.path) == ("M", "a.txt")
    assert changed.old == opened.trees.stat(old, "a.txt")
    assert changed.new == opened.trees.stat(new, "a.txt")
    assert (deleted.letter, deleted.new) == ("D", None)
    assert b"-one\n+two\n" in opened.trees.patch(old, new)
    added = {change.path for change in opened.trees.diff(None, old)}
    assert added == {"a.txt", "link", "run", "sub/empty", "sub/large", "sub/\udcff"}
    target = tmp_path / "target"
    full = opened.trees.restore(old, target)
    assert (full.root, full.base, full.files, full.deleted) == (old.hash, None, 5, 0)
    (target / "a.txt").write_bytes(b"three\n")
    (target / "mine").write_bytes(b"")
    with pytest.raises(casfs.Refused, match=r"changes would be overwritten: a\.txt"):
        opened.trees.restore(new, str(target))
    again = opened.trees.restore(new, str(target), force=True)
    assert again == casfs.Restored(new.root, old.hash, 1, 4, 1, (), (), operation=2)
    (target / "a.txt").unlink()
    opened.trees.restore(old, target, paths=["a.txt"], parents=True)
    assert (target / "a.txt").read_bytes() == b"one\n"
    opened.trees.restore(new, target, base=old)
    assert read_tree(target) == {**read_tree(source), b"mine": b""}
    opened.trees.restore(new, target, base=new, delete_untracked=True, verify=True)
    assert read_tree(target) == read_tree(source)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/f").write_bytes(b"")
    with pytest.raises(casfs.Refused):
        opened.trees.restore(new, tmp_path / "foreign")


def test_blame_of_what_was_restored_from_a_thread(tmp_path: Path) -> None:
    with casfs.init(tmp_path / "store") as store, Store.open(tmp_path / "store") as inside:
        thread = make_thread(inside, name="fix")
        thread.tree = put_tree(inside, {"f": b"text\n"})
        thread.step("coder", "text")
        store.trees.restore(f"{thread.id}@1", tmp_path / "copy")
        store.checkpoints.create("copy", tmp_path / "copy")
        origin, _ = versions.find(inside, "copy:f")
        assert [place.version.revision for place in origin.called()] == [f"{thread.id}@1"]

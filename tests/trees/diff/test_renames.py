"""Renames are those that git finds; what git does else is explained where it is left out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from random import Random

import pytest

from casfs.history.blame import blame
from casfs.history.log import log
from casfs.history.versions import find
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.diff import renames
from tests.history.oracle import start
from tests.support.fuse import damage
from tests.support.helpers import LARGE, put_tree
from tests.support.programs import needs

HISTORIES = int(os.environ.get("CASFS_RENAME_HISTORIES", "12"))
THREAD = "01JD00000000000000000000AA"
Files = dict[str, bytes]


def git(where: Path, *words: str) -> str:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(where),
        "GIT_CONFIG_NOSYSTEM": "1",
        **{
            f"GIT_{who}_{what}": "x"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        },
    }
    done = subprocess.run(["git", *words], cwd=where, env=env, capture_output=True, check=True)
    return done.stdout.decode()


def commit(where: Path, files: Files) -> str:
    for path in where.iterdir():
        if path.name != ".git":
            path.unlink()
    for name, data in files.items():
        (where / name).write_bytes(data)
    git(where, "add", "-A")
    git(where, "commit", "-q", "--allow-empty", "-m", "x")
    return git(where, "rev-parse", "HEAD").strip()


def renames_by_git(where: Path) -> dict[str, str]:
    shown = git(where, "diff", "-M", "--name-status", "HEAD~1", "HEAD").splitlines()
    rows = [line.split("\t") for line in shown]
    return {row[2]: row[1] for row in rows if row[0].startswith("R")}


def edited(random: Random, files: Files, number: int) -> Files:
    """The files after some were renamed, edited, or both; every line is unique."""
    found = dict(files)
    for turn in range(random.randint(1, 3)):
        name = random.choice(sorted(found))
        lines = found.pop(name).splitlines(keepends=True)
        for _ in range(random.choice([0, 1, 3, 8])):
            at = random.randrange(len(lines) + 1)
            lines.insert(at, b"new %d %d %d\n" % (number, turn, random.randrange(1 << 60)))
        if random.random() < 0.4:
            del lines[: random.randrange(len(lines))]
        to = f"f{number}-{turn}" if random.random() < 0.7 else name
        found[to] = b"".join(lines)
    return found


@needs("git")
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_renames_and_authors_are_those_of_git(tmp_path: Path, store: Store, seed: int) -> None:
    where = tmp_path / "repository"
    where.mkdir()
    random = Random(seed)
    git(where, "init", "-q")
    files = {
        name: b"".join(b"%s line %d of %d\n" % (name.encode(), line, seed) for line in range(20))
        for name in "abcd"
    }
    commits = [commit(where, files)]
    thread = start(store, THREAD, put_tree(store, files))
    for number in range(1, 6):
        before = thread.tree
        files = edited(random, files, number)
        commits.append(commit(where, files))
        thread.tree = put_tree(store, files)
        thread.step("planner", "text")
        found = renames.detect(store, tree.changes(store, before, thread.tree))
        ours = {one.path.decode(): one.source.decode() for one in found if one.source}
        assert ours == renames_by_git(where), (seed, number)
    place, _ = find(store, THREAD)
    for name in files:
        shown = git(where, "blame", "-l", "-s", "--root", "--abbrev=40", name).splitlines()
        theirs = [commits.index(line.split()[0]) for line in shown]
        assert [one.version.index for one in blame(place, name.encode())] == theirs, (seed, name)


def test_a_file_that_is_too_different_is_no_rename(store: Store) -> None:
    lines = [b"line %d\n" % number for number in range(20)]
    other = [b"else %d\n" % number for number in range(20)]

    def letters(kept: int) -> list[str]:
        old = put_tree(store, {"a": b"".join(lines)})
        new = put_tree(store, {"b": b"".join(lines[:kept] + other[kept:])})
        return [one.letter for one in renames.detect(store, tree.changes(store, old, new))]

    assert letters(12) == ["R"]
    assert letters(8) == ["D", "A"]


def test_beyond_the_limit_files_are_deleted_and_added(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = put_tree(store, {"a": b"one\ntwo\nthree\n", "same": b"same\n"})
    new = put_tree(store, {"b": b"one\ntwo\n3\n", "equal": b"same\n"})
    monkeypatch.setattr(renames, "MAX_PIECES", 1)
    found = renames.detect(store, tree.changes(store, old, new))
    assert [(one.letter, one.path) for one in found] == [("D", b"a"), ("A", b"b"), ("R", b"equal")]


def test_the_log_goes_on_before_a_rename(store: Store) -> None:
    lines = [b"line %d\n" % number for number in range(9)]
    thread = start(store, THREAD, put_tree(store, {"a": b"".join(lines)}))
    thread.tree = put_tree(store, {"b": b"".join([*lines, b"new\n"])})
    thread.step("planner", "text")
    found = log(*find(store, f"{THREAD}:b"))
    shown = [(one.change.letter, one.change.source, one.change.path) for one in found]
    assert shown == [("R", b"a", b"b"), ("A", None, b"a")]


def test_what_cannot_be_read_is_deleted_and_added(store: Store) -> None:
    old = put_tree(store, {"a": LARGE})
    new = put_tree(store, {"b": LARGE + b"more"})
    damage(store, store.put(LARGE).hash, None)
    found = renames.detect(store, tree.changes(store, old, new))
    assert [one.letter for one in found] == ["D", "A"]


@needs("git")
def test_many_renames_with_edits_at_once(store: Store, tmp_path: Path) -> None:
    """More pairs than are all compared; every file has lines that all others have, too."""
    before = {
        f"f{number}": b"".join(
            b"common %d\n" % line if line % 3 else b"line %d of %d\n" % (line, number)
            for line in range(40)
        )
        for number in range(300)
    }
    after = {f"g{name}": text.replace(b"line 3 of", b"new of") for name, text in before.items()}
    where = tmp_path / "git"
    where.mkdir()
    git(where, "init", "-q")
    for files in (before, after):
        commit(where, files)
    expected = renames_by_git(where)
    assert len(expected) == 300
    old, new = put_tree(store, before), put_tree(store, after)
    found = renames.detect(store, tree.changes(store, old, new))
    shown = {os.fsdecode(one.path): os.fsdecode(one.source or b"") for one in found}
    assert shown == expected

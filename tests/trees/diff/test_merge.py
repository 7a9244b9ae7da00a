"""Three-way merges of trees, each kind of change against each other."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.diff import merge
from tests.support.helpers import Link, Private, Program, put_tree

TEXT = b"1\n2\n3\n4\n5\n"


def merged(
    store: Store, base: Any, ours: Any, theirs: Any
) -> tuple[str, list[tuple[str, str]], str]:
    """Returns (the merged tree's root, conflicts, letters and paths)."""
    old, mine, new = (put_tree(store, one) for one in (base, ours, theirs))
    done = merge.merge(store, merge.changes(store, old, new), mine, new, "theirs")
    conflicts = [(path.decode(), why) for path, why in done.conflicts]
    changed = " ".join(f"{one.letter} {one.path.decode()}" for one in done.changed)
    return done.root, conflicts, changed


BINARY = b"\0"
KEPT = {"keep": b"k"}


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "result", "changed"),
    [
        (b"a", b"a", b"b", b"b", "M f"),
        (b"a", b"b", b"a", b"b", ""),
        (b"a", b"b", b"b", b"b", ""),
        (b"a", b"a", None, None, "D f"),
        (b"a", None, None, None, ""),
        (None, None, b"a", b"a", "A f"),
        (None, b"a", b"a", b"a", ""),
        (TEXT, TEXT.replace(b"1", b"a"), TEXT.replace(b"5", b"b"), b"a\n2\n3\n4\nb\n", "M f"),
        (b"a", b"b", Program(b"a"), Program(b"b"), "T f"),
        (b"a", Program(b"a"), b"b", Program(b"b"), "M f"),
        (BINARY, BINARY, b"\0b", b"\0b", "M f"),
        (Link(b"a"), Link(b"a"), Link(b"b"), Link(b"b"), "T f"),
        (b"a", b"a", Link(b"b"), Link(b"b"), "T f"),
        (b"a", b"a", {"x": b"1"}, {b"x": b"1"}, "D f A f/x"),
        ({"x": b"1"}, {"x": b"1"}, {"x": b"1", "y": {}}, {b"x": b"1", b"y": {}}, "A f/y"),
        ({"x": b"1"}, {"x": b"1", "z": b""}, None, {b"z": b""}, "D f/x"),
        (None, None, {}, {}, "A f"),
        (None, {}, {"x": {"y": b"1"}}, {b"x": {b"y": b"1"}}, "A f/x/y"),
        (b"a", Private(b"a"), b"b", Private(b"b"), "M f"),
        (b"a", b"b", Private(b"a"), Private(b"b"), "T f"),
        (BINARY, Private(BINARY), b"\0b", Private(b"\0b"), "M f"),
        (Private(b"a"), Private(b"a"), b"a", b"a", "T f"),
    ],
)
def test_without_conflict(
    store: Store, base: Any, ours: Any, theirs: Any, result: Any, changed: str
) -> None:
    sides = [KEPT if one is None else {**KEPT, "f": one} for one in (base, ours, theirs)]
    expected = put_tree(store, KEPT if result is None else {**KEPT, "f": result})
    assert merged(store, *sides) == (expected, [], changed)


@pytest.mark.parametrize(
    ("base", "ours", "theirs", "result", "reason"),
    [
        (b"a\n", b"b\n", b"c\n", b"<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\n", "1 conflict"),
        (None, b"b\n", b"c\n", b"<<<<<<< ours\nb\n=======\nc\n>>>>>>> theirs\n", "1 conflict"),
        (BINARY, b"\0b", b"\0c", b"\0b", "binary"),
        (b"a", None, b"c", b"c", "deleted here, changed in theirs"),
        (b"a", b"b", None, b"b", "changed here, deleted in theirs"),
        (Link(b"a"), Link(b"b"), Link(b"c"), Link(b"b"), "not as text"),
        (b"a", b"b", Link(b"c"), b"b", "not as text"),
        (None, b"a", Program(b"a"), b"a", "executable on one side only"),
        (Program(b"a"), Private(b"a"), b"a", Private(b"a"), "its mode was changed on both sides"),
        (None, {"x": b"1"}, b"a", {b"x": b"1"}, "a directory here, a file in theirs"),
        (None, b"a", {"x": b"1"}, b"a", "a file here, a directory there"),
    ],
)
def test_conflicts(
    store: Store, base: Any, ours: Any, theirs: Any, result: Any, reason: str
) -> None:
    sides = [{} if one is None else {"f": one} for one in (base, ours, theirs)]
    found, conflicts, _ = merged(store, *sides)
    assert found == put_tree(store, {"f": result})
    ((path, why),) = conflicts
    assert path.startswith("f")
    assert reason in why


def test_git_directories_are_left_out(store: Store) -> None:
    old, new = (put_tree(store, {".git": {"index": text}, "f": text}) for text in (b"1", b"2"))
    found = merge.changes(store, old, new)
    assert (found.paths, found.skipped) == ([b"f"], 1)


def test_directories_keep_their_own_properties(store: Store) -> None:
    """What a merge makes of a private directory is private."""
    from casfs.store.nodes import directory
    from casfs.store.nodes.directory import Properties

    inner = put_tree(store, {"f": b"1"})
    entries = tree.load(store, inner).values()
    with store.batch() as batch:
        private = batch.put_directory(directory.encode(entries, Properties(unix_mode=0o700))).hash
    new = put_tree(store, {"f": b"2"})
    done = merge.merge(store, merge.changes(store, inner, new), private, new, "x")
    own = tree.directory_properties(store, done.root)
    assert own is not None
    assert own.unix_mode == 0o700


def test_a_renamed_file_is_one_change(store: Store) -> None:
    old, new = put_tree(store, {"a": b"1\n2\n3\n"}), put_tree(store, {"b": b"1\n2\n3\n4\n"})
    done = merge.merge(store, merge.changes(store, old, new), old, new, "thread")
    assert [(one.letter, one.source, one.path) for one in done.changed] == [("R", b"a", b"b")]

"""Unified diffs of trees, taken apart for a page."""

from __future__ import annotations

import pytest

from casfs.store.store import Store
from casfs.trees.diff import unified_diff
from casfs.web import patch
from casfs.web.patch import FilePatch, parse
from tests.support.helpers import Program, put_tree

OLD = {
    "a": b"one\ntwo\n",
    "gone": b"x\n",
    "mode": b"same\n",
    "bin": b"\0",
    "dash": b"-- a\n++ b\n",
    "sp ace\n": b"1",
}
NEW = {
    "a": b"one\n2\ndiff --git a/x b/x\n",
    "mode": Program(b"same\n"),
    "bin": b"\0\0",
    "dash": b"",
    "sp ace\n": b"2",
    "new": b"<b>\xff"[:3] + b"\n",
}


def files(store: Store) -> dict[str, FilePatch]:
    found = parse(unified_diff.patch(store, put_tree(store, OLD), put_tree(store, NEW)))
    return {one.name: one for one in found}


def test_each_file_has_its_lines(store: Store) -> None:
    found = files(store)
    assert found.keys() == {"a", "gone", "mode", "M bin (binary)", "dash", r"sp ace\n", "new"}
    assert found["a"].lines == [
        ("hunk", "@@ -1,2 +1,3 @@"),
        ("same", " one"),
        ("removed", "-two"),
        ("added", "+2"),
        ("added", "+diff --git a/x b/x"),
    ]
    assert (found["a"].added, found["a"].removed) == (2, 1)
    assert found["dash"].lines[1:] == [("removed", "--- a"), ("removed", "-++ b")]
    assert found["mode"].lines == [("note", "old mode 100644"), ("note", "new mode 100755")]
    assert ("note", "\\ No newline at end of file") in found[r"sp ace\n"].lines
    assert found["M bin (binary)"].lines == []


def test_a_renamed_file_has_both_names(store: Store) -> None:
    old, new = put_tree(store, {"a": b"1\n2\n3\n"}), put_tree(store, {'q"': b"1\n2\n3\n4\n"})
    (file,) = parse(unified_diff.patch(store, old, new))
    assert file.name == 'a → "q\\""'
    assert file.lines[0] == ("note", "similarity index 75%")
    assert (file.added, file.removed) == (1, 0)


def test_nothing_is_no_file() -> None:
    assert parse(b"") == []
    assert [one.name for one in parse(b"... 3 more paths differ\n")] == ["... 3 more paths differ"]


def test_a_large_patch_is_cut_and_counted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "MAX_LINES", 3)
    found = files(store)
    assert sum(len(one.lines) for one in found.values() if one.name != "mode") == 3 + 2
    assert found["a"].cut
    assert (found["a"].added, found["new"].added) == (2, 1)


def test_a_long_line_is_cut() -> None:
    head = b"diff --git a/a b/a\n--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n"
    (file,) = parse(head + b"+" + b"x" * 10_000 + b"\n")
    assert (len(file.lines[1][1]), file.cut) == (patch.MAX_LINE_CHARS, True)

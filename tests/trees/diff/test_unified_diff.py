from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.trees.diff.unified_diff import MAX_FILE_BYTES, patch
from tests.support.helpers import Link, Program, put_tree, read_tree, write_tree


def lines(store: Store, old: Any, new: Any) -> list[str]:
    return patch(store, put_tree(store, old), put_tree(store, new)).decode().splitlines()


def test_equal_trees_have_an_empty_patch(store: Store) -> None:
    root = put_tree(store, {"f": b"1\n"})
    assert patch(store, root, root) == b""
    assert patch(store, None, None) == b""


def test_a_changed_file(store: Store) -> None:
    assert lines(store, {"d": {"f": b"a\nb\nc\n"}}, {"d": {"f": b"a\nx\nc\n"}}) == [
        "diff --git a/d/f b/d/f",
        "--- a/d/f",
        "+++ b/d/f",
        "@@ -1,3 +1,3 @@",
        " a",
        "-b",
        "+x",
        " c",
    ]


def test_a_renamed_file(store: Store) -> None:
    text = b"".join(b"line %d\n" % number for number in range(9))
    assert lines(store, {"a": text}, {"d": {"b": Program(text + b"new\n")}})[:8] == [
        "diff --git a/a b/d/b",
        "old mode 100644",
        "new mode 100755",
        "similarity index 94%",
        "rename from a",
        "rename to d/b",
        "--- a/a",
        "+++ b/d/b",
    ]
    assert lines(store, {"a": b"\0" + text}, {"b": b"\0" + text})[1:] == [
        "similarity index 100%",
        "rename from a",
        "rename to b",
    ]
    assert lines(store, {"a": b"\0" + text}, {"b": b"\0" + text[1:]}) == ["R a -> b (binary)"]


def test_what_is_inside_git_is_no_side_of_a_rename(store: Store) -> None:
    found = lines(store, {".git": {"a": b"x\n"}}, {"b": b"x\n"})
    assert "new file mode 100644" in found
    assert found[-1] == "... 1 paths inside .git differ"


def test_added_and_deleted_files(store: Store) -> None:
    assert lines(store, {"old": b"x\n"}, {"new": b"y\n"}) == [
        "diff --git a/new b/new",
        "new file mode 100644",
        "--- /dev/null",
        "+++ b/new",
        "@@ -0,0 +1 @@",
        "+y",
        "diff --git a/old b/old",
        "deleted file mode 100644",
        "--- a/old",
        "+++ /dev/null",
        "@@ -1 +0,0 @@",
        "-x",
    ]


def test_a_missing_line_feed_at_the_end_is_told(store: Store) -> None:
    assert lines(store, {"f": b"a"}, {"f": b"a\n"})[3:] == [
        "@@ -1 +1 @@",
        "-a",
        "\\ No newline at end of file",
        "+a",
    ]


def test_carriage_returns_and_form_feeds_are_part_of_a_line(store: Store) -> None:
    found = patch(store, put_tree(store, {"f": b"a\r\nb\x0cc\n"}), put_tree(store, {"f": b"a\n"}))
    assert b"-a\r\n-b\x0cc\n+a\n" in found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"d": {}}, ["A d (directory)"]),
        ({"f": b"\0"}, {"f": b"x"}, ["M f (binary)"]),
        ({"f": b"x"}, {"f": b"\0\xff"}, ["M f (binary)"]),
        ({}, {"f": b"x" * (MAX_FILE_BYTES + 1)}, ["A f (too large to show)"]),
    ],
)
def test_what_has_no_lines_is_named(store: Store, old: Any, new: Any, expected: list[str]) -> None:
    assert lines(store, old, new) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"f": b"x"}, {"f": Program(b"x")}, ["old mode 100644", "new mode 100755"]),
        ({"f": Program(b"x")}, {"f": b"x"}, ["old mode 100755", "new mode 100644"]),
        ({}, {"f": b""}, ["new file mode 100644"]),
        ({"f": b""}, {}, ["deleted file mode 100644"]),
        ({}, {"f": Program(b"")}, ["new file mode 100755"]),
    ],
)
def test_a_mode_is_a_header(store: Store, old: Any, new: Any, expected: list[str]) -> None:
    assert lines(store, old, new) == ["diff --git a/f b/f", *expected]


def test_a_symlinks_target_is_its_line(store: Store) -> None:
    found = lines(store, {"l": Link(b"old")}, {"l": Link(b"new")})
    assert found[4] == "-old"
    assert found[6] == "+new"


def test_names_that_are_not_utf8_are_kept(store: Store) -> None:
    found = patch(store, None, put_tree(store, {b"\xff": b"x\n"}))
    assert b"+++ b/\xff\n" in found


def test_the_length_is_bounded_and_what_is_left_out_counted(store: Store) -> None:
    new = {f"f{n:03}": b"line\n" * 20 for n in range(100)}
    whole = patch(store, None, put_tree(store, new))
    cut = patch(store, None, put_tree(store, new), limit=2000)
    assert len(cut) <= 2000
    shown = cut.count(b"+++ ")
    assert 0 < shown < 100
    assert cut.endswith(b"... %d more paths differ\n" % (100 - shown))
    assert whole.startswith(cut[: cut.index(b"... ")])


def test_the_patch_can_be_applied(store: Store, tmp_path: Path) -> None:
    old = {"a": b"1\n2\n3\n" * 9, "d": {"gone": b"x\n"}, "same": b"s\n", "no lf": b"end"}
    new = {"a": b"0\n" + b"1\n2\n3\n" * 8, "d": {"new": b"y\nz"}, "same": b"s\n", "no lf": b"End"}
    long = b"".join(b"line %d\n" % number for number in range(30))
    old |= {"moved": b"\0\1", "x\ty": long, "e": {"z": long + b"z\n"}, "run": long + b"r\n" * 9}
    new |= {"m": b"\0\1", "k": {'q"': long + b"more\n", "run": Program(long + b"r\n" * 8)}}
    new["z"] = b"first\n" + long + b"z\n"
    place = write_tree(tmp_path / "w", old)
    text = patch(store, put_tree(store, old), put_tree(store, new))
    assert text.count(b"rename from ") >= 3
    subprocess.run(["git", "apply", "-"], input=text, cwd=place, check=True)
    assert read_tree(place) == read_tree(write_tree(tmp_path / "new", new))

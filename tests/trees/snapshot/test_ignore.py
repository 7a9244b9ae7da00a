from __future__ import annotations

from pathlib import Path

import pytest

from casfs.errors import Failed, Invalid
from casfs.store.store import Store
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IGNORE_FILE, IgnoreRules
from tests.support.helpers import put_tree, write_tree


def rules(tmp_path: Path, text: str) -> IgnoreRules:
    (tmp_path / IGNORE_FILE).write_text(text)
    return IgnoreRules.of(tmp_path)


def skipped(ignore: IgnoreRules, path: str) -> bool:
    """Whether `path` is left out; a directory's ends with a slash."""
    name = path.rstrip("/")
    raw = name.encode("utf-8", "surrogateescape")
    return ignore.verdict(raw, raw.rpartition(b"/")[2], directory=name != path) is not None


def test_without_defaults_and_file_nothing_is_left_out(tmp_path: Path) -> None:
    assert not skipped(IgnoreRules(), ".git/")
    assert not skipped(IgnoreRules(), "build/")
    assert not skipped(IgnoreRules.of(tmp_path, defaults=False), "build/")


def test_of_a_recorded_directory_a_repository_is_local_even_without_defaults(
    tmp_path: Path,
) -> None:
    verdict = IgnoreRules.of(tmp_path, defaults=False).verdict(b".git", b".git", directory=True)
    assert verdict is not None
    assert verdict.is_local


@pytest.mark.parametrize(
    ("text", "left_out", "kept"),
    [
        ("*.log", ["a.log", "d/a.log", "d.log/"], ["a.logs"]),
        ("out/", ["out/", "a/out/"], ["out", "a/out"]),
        ("/top", ["top", "top/"], ["a/top"]),
        ("a/b", ["a/b"], ["x/a/b", "b"]),
        ("*.log\n!keep.log", ["a.log"], ["keep.log", "d/keep.log"]),
        ("# comment\n\n  \nname", ["name"], ["# comment"]),
        ("**/cache", ["cache", "a/b/cache/"], ["caches"]),
        ("a?c", ["abc"], ["a/c", "ac"]),
        ("\\#odd", ["#odd"], ["odd"]),
        ("ä*", ["äö"], ["a"]),
    ],
)
def test_the_file_has_the_syntax_of_gitignore(
    tmp_path: Path, text: str, left_out: list[str], kept: list[str]
) -> None:
    ignore = rules(tmp_path, text)
    assert [path for path in left_out + kept if skipped(ignore, path)] == left_out


def test_bytes_that_are_not_utf8_are_matched(tmp_path: Path) -> None:
    (tmp_path / IGNORE_FILE).write_bytes(b"\xff*\n")
    ignore = IgnoreRules.of(tmp_path)
    assert skipped(ignore, "\udcff\udcfe")
    assert not skipped(ignore, "\udcfe")


@pytest.mark.parametrize("pattern", ["!", "\\"])
def test_a_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(Invalid, match=IGNORE_FILE):
        rules(tmp_path, f"ok\n{pattern}\n")


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / IGNORE_FILE).mkdir()
    with pytest.raises(Failed, match=IGNORE_FILE):
        IgnoreRules.of(tmp_path)


def test_a_snapshot_heeds_the_rules(store: Store, tmp_path: Path) -> None:
    lines = b"*.tmp\n/only-here\n"
    write_tree(
        tmp_path / "w",
        {
            IGNORE_FILE: lines,
            "a.tmp": b"",
            "only-here": b"",
            "src": {"only-here": b"", "b.tmp": b"", "build": b"a file", "dist": {"x": b""}},
            "node_modules": {"x": b""},
            "package.json": b"",
        },
    )
    with store.batch() as batch:
        root = walker.snapshot(batch, tmp_path / "w", IgnoreRules.of(tmp_path / "w")).node.hash
    kept = {
        IGNORE_FILE: lines,
        "src": {"only-here": b"", "build": b"a file", "dist": {"x": b""}},
        "package.json": b"",
    }
    assert root == put_tree(store, kept)


def test_given_patterns_come_after_the_file(tmp_path: Path) -> None:
    (tmp_path / IGNORE_FILE).write_text("*.log")
    ignore = IgnoreRules.of(tmp_path, patterns=["*.tmp", "!keep.log"])
    assert skipped(ignore, "a.log")
    assert skipped(ignore, "a.tmp")
    assert not skipped(ignore, "keep.log")


@pytest.mark.parametrize("pattern", ["!", "a\nb", "a\\"])
def test_a_given_pattern_that_is_none_is_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(Invalid, match="--exclude"):
        IgnoreRules.of(tmp_path, patterns=[pattern])


def test_a_negated_pattern_keeps_what_is_derived(store: Store, tmp_path: Path) -> None:
    tree = {IGNORE_FILE: b"!node_modules/\n", "node_modules": {"x": b""}, "package.json": b""}
    write_tree(tmp_path / "w", tree)
    with store.batch() as batch:
        root = walker.snapshot(batch, tmp_path / "w", IgnoreRules.of(tmp_path / "w")).node.hash
    assert root == put_tree(store, tree)

"""Patches that git applies, line counts, and what the diff verbs print."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.cli.diff_output import change_json
from casfs.digest import TreeDigest, TreeHash
from casfs.store.nodes.directory import File, Properties, Subdirectory, encode
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.diff import lines as textdiff
from casfs.trees.diff import stat
from casfs.trees.diff.unified_diff import patch
from tests.support.engine import Cli
from tests.support.helpers import Link, Program, Tree, put_tree, read_tree, write_tree
from tests.trees.restore.test_restore import named

# -- git apply --------------------------------------------------------------------------------


def applied(store: Store, place: Path, old: Tree, new: Tree) -> dict[bytes, Any]:
    """The tree `old` after git has applied the patch to `new`."""
    text = patch(store, put_tree(store, old), put_tree(store, new))
    write_tree(place, old)
    if text:
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        done = subprocess.run(command, input=text, cwd=place, capture_output=True, check=False)
        assert done.returncode == 0, (done.stderr, text)
    return read_tree(place)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"f": b"x\n"}, {"f": Program(b"x\n")}),
        ({"f": b"x\n"}, {"f": Program(b"y\n")}),
        ({"f": Program(b"x\n")}, {"f": b"x\n"}),
        ({"k": b"", "f": b"x"}, {"k": b"", "f": b"x\n"}),
        ({"k": b"", "f": b"x\n"}, {"k": b"", "f": b"x"}),
        ({"f": b"a\r\nb\r\n"}, {"f": b"a\r\nc\r\n"}),
        ({"f": b"a\rb\n"}, {"f": b"a\rc\n"}),
        ({"k": b""}, {"k": b"", "f": b""}),
        ({"k": b"", "f": Program(b"")}, {"k": b""}),
        ({"k": b""}, {"k": b"", "l": Link(b"some/where")}),
        ({"k": b"", "l": Link(b"a")}, {"k": b"", "l": Link(b"b")}),
        ({"k": b"", "l": Link(b"a")}, {"k": b""}),
        ({"f": Link(b"a")}, {"f": b"a"}),
        ({"f": b"a\n"}, {"f": Link(b"a")}),
        ({"f": b"a\n"}, {"f": {"g": b"b\n", "h": {"i": Program(b"")}}}),
        ({"f": {"g": b"b\n", "h": {"i": Program(b"")}}}, {"f": b"a\n"}),
        ({"f": Link(b"x")}, {"f": {"g": b"b\n"}}),
        ({"f": {"g": b"b\n"}}, {"f": Link(b"x")}),
        ({"a b": b"1\n", "k": b""}, {"a b": b"2\n", "k": b"", "c d": b"3\n"}),
        ({'q"\\\t\x01\x7f': b"1\n"}, {'q"\\\t\x01\x7f': b"2\n"}),
        ({"line\nfeed": b"1\n"}, {"line\nfeed": b"2\n"}),
        ({"é": b"1\n", b"\xff": b"1\n"}, {"é": b"2\n", b"\xff": b"2\n"}),
        ({"f": b"--- a/x\n+++ b/x\n"}, {"f": b"--- a/x\n+++ b/y\n"}),
    ],
)
def test_git_applies_it(store: Store, tmp_path: Path, old: Tree, new: Tree) -> None:
    assert applied(store, tmp_path / "w", old, new) == named(new)


def test_git_applies_the_text_and_skips_the_rest(store: Store, tmp_path: Path) -> None:
    old: Tree = {"a": b"\0", "b": b"1\n", "c": b"x" * 300_000, "e": {}, "z": b"1\n"}
    new: Tree = {"a": b"\1\0", "b": b"2\n", "c": b"y" * 300_000, "d": {}, "z": b"2\n"}
    found = applied(store, tmp_path / "w", old, new)
    assert (found[b"b"], found[b"z"], found[b"a"]) == (b"2\n", b"2\n", b"\0")


TEXT = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"d\r\n"]), max_size=30)
FILES = st.builds(
    lambda lines, end, kind: kind(b"".join(lines) + end),
    TEXT,
    st.sampled_from([b"", b"end"]),
    st.sampled_from([bytes, Program]),
)
NAMES = st.sampled_from(["a", "b c", "é", "d"])


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
@given(old=st.dictionaries(NAMES, FILES), new=st.dictionaries(NAMES, FILES))
def test_git_applies_any_patch_of_texts(
    store: Store, tmp_path_factory: pytest.TempPathFactory, old: Any, new: Any
) -> None:
    old, new = {**old, "keep": b"k\n"}, {**new, "keep": b"k\n"}
    assert applied(store, tmp_path_factory.mktemp("apply") / "w", old, new) == named(new)


def test_what_git_keeps_for_itself_is_counted(store: Store) -> None:
    new = {".git": {"HEAD": b"ref\n", "objects": {"aa": {"b": b"\0"}}}, "f": b"1\n"}
    found = patch(store, None, put_tree(store, new)).decode()
    assert found.startswith("diff --git a/f b/f\n")
    assert found.endswith("\n... 2 paths inside .git differ\n")


def test_a_time_that_was_kept_is_named(store: Store) -> None:
    def kept(seconds: int) -> str:
        file = File(b"f", store.put(b"1"), properties=Properties((seconds, 0), 0o600))
        return store.put_node("directory", encode([file])).hash

    assert patch(store, kept(1), kept(2)) == b"T f (preserved metadata)\n"


def moded(store: Store, mode: int, content: bytes) -> TreeHash:
    """A tree with a file and a directory of this mode, and a file without any."""
    digest, kept = store.put(content), Properties(unix_mode=mode)
    inner = store.put_node("directory", encode([], kept))
    below = Subdirectory(b"d", TreeDigest(inner.hash, inner.size_bytes))
    files = [File(b"f", digest, properties=kept), File(b"g", store.put(b"1\n"))]
    return TreeHash(store.put_node("directory", encode([*files, below])).hash)


@pytest.mark.parametrize("content", [b"1\n", b"\0"])
def test_a_permission_change_names_both_modes(store: Store, tmp_path: Path, content: bytes) -> None:
    old, new = moded(store, 0o600, content), moded(store, 0o644, content)
    found = patch(store, old, new)
    assert found == (
        b"T d (directory, mode 0600 -> 0644)\n"
        b"diff --git a/f b/f\nold mode 100600\nnew mode 100644\n"
    )
    write_tree(tmp_path / "w", {"f": content, "d": {}})
    command = ["git", "apply", "-"]
    subprocess.run(command, input=found, cwd=tmp_path / "w", check=True, capture_output=True)
    rows = list(stat.path_stats(store, tree.changes(store, old, new)))
    assert [row.modes for row in rows] == [(0o600, 0o644)] * 2


def test_a_mode_that_one_side_has_is_on_both_sides_in_json(store: Store) -> None:
    old = put_tree(store, {"f": Program(b"1\n"), "d": {}})
    changes = tree.changes(store, old, moded(store, 0o600, b"1\n"))
    found = [change_json(store, one) for one in changes]
    sides = {one["path"]: (one["old"], one["new"]) for one in found if one["old"]}
    assert {path: (a["unixMode"], b["unixMode"]) for path, (a, b) in sides.items()} == {
        "d": (0o755, 0o600),
        "f": (0o755, 0o600),
    }


def test_many_binary_files_and_one_huge_path_stay_within_the_limit(store: Store) -> None:
    new = {f"{n:04}{'x' * 200}": b"\0%d" % n for n in range(300)}
    found = patch(store, None, put_tree(store, new), limit=10_000)
    assert len(found) <= 10_000
    shown = found.count(b"(binary)")
    assert found.endswith(b"... %d more paths differ\n" % (300 - shown))


# -- lines --------------------------------------------------------------------------------------


@given(old=TEXT, new=TEXT)
def test_counts_are_those_of_the_lines(old: list[bytes], new: list[bytes]) -> None:
    added, deleted = textdiff.counts(old, new)
    assert len(old) + added - deleted == len(new)


def test_the_hunk_of_an_edit_of_a_large_text_is_small() -> None:
    old = [b"%d\n" % n for n in range(50_000)]
    new = [*old[:25_000], b"new\n", *old[25_001:]]
    assert len(list(textdiff.hunks(old, new))) == 9


# -- equal subtrees -------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["diff", "patch", "stat"])
def test_equal_subtrees_are_never_loaded(
    store: Store, monkeypatch: pytest.MonkeyPatch, view: str
) -> None:
    same = {f"d{n}": {"f": b"same %d\n" % n} for n in range(20)}
    old = put_tree(store, {**same, "x": {"y": {"f": b"1\n"}, "same": {"g": b"1"}}})
    new = put_tree(store, {**same, "x": {"y": {"f": b"2\n"}, "same": {"g": b"1"}}})
    read = []
    get = store.blobs.get

    def counting(hash: str) -> Any:
        read.append(hash)
        return get(hash)

    monkeypatch.setattr(store.blobs, "get", counting)
    if view == "patch":
        assert b"-1\n+2\n" in patch(store, old, new)
    else:
        changes = list(tree.diff(store, old, new))
        assert [change.path for change in changes] == [b"x/y/f"]
        if view == "stat":
            assert [row.lines for row in stat.path_stats(store, changes)] == [(1, 1)]
    assert len(read) == 6 + (0 if view == "diff" else 2)  # root, x and y of each, the two files


def test_stat_counts_lines_and_bytes(store: Store) -> None:
    old = put_tree(store, {"t": b"a\nb\n", "bin": b"\0", "gone": b"1\n", "l": Link(b"a")})
    new = put_tree(store, {"t": b"a\nc\nd\n", "bin": b"\0\0", "l": Link(b"bc"), "e": {}})
    found = {
        row.change.path: (row.lines, row.old_bytes, row.new_bytes)
        for row in stat.path_stats(store, tree.diff(store, old, new))
    }
    assert found == {
        b"t": ((2, 1), 4, 6),
        b"bin": (None, 1, 2),
        b"gone": ((0, 1), 2, 0),
        b"l": ((1, 1), 1, 2),
        b"e": (None, 0, 0),
    }


# -- the verbs ------------------------------------------------------------------------------------


@pytest.fixture
def two(cli: Cli, tmp_path: Path) -> tuple[str, str]:
    """The checkpoints w@… of two states."""
    states: list[Tree] = [{"f": b"1\n", "g": b"x"}, {"f": b"1\n2\n", "d": {"h": b"\0"}}]
    places = [write_tree(tmp_path / f"state{n}", state) for n, state in enumerate(states)]
    first, second = (cli("checkpoint", "create", "w", place).word for place in places)
    return f"w@{first}", f"w@{second}"


@pytest.mark.parametrize("noun", ["tree", "checkpoint"])
def test_diff_prints_its_forms(cli: Cli, two: tuple[str, str], noun: str) -> None:
    assert cli(noun, "diff", *two).text == "A d/h\nM f\nD g\n"
    assert cli(noun, "diff", *two, "--stat").text.splitlines() == [
        " d/h | Bin 0 -> 1 bytes",
        " f   |   1 2 -> 4 bytes +",
        " g   |   1 1 -> 0 bytes -",
        " 3 paths changed, +1 -1 lines, 3 -> 5 bytes",
    ]

    text = cli(noun, "diff", *two, "--patch").text
    assert "+++ b/f\n@@ -1 +1,2 @@\n 1\n+2\n" in text
    assert text.startswith("A d/h (binary)\n")
    both = cli(noun, "diff", *two, "--patch", "--stat").text
    assert both == cli(noun, "diff", *two, "--stat").text + text
    assert "cannot be combined with --json" in cli.refused(
        noun, "diff", *two, "--patch", "--json", code=2
    )


def test_stat_names_modes_and_what_has_no_lines(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "w", {"key": b"1\n", "l": {}})
    (place / "key").chmod(0o600)
    cli("checkpoint", "create", "w", place, "--preserve", "mode")
    (place / "key").chmod(0o644)
    (place / "l").rmdir()
    (place / "l").symlink_to("key")
    (place / "e").mkdir()
    assert cli("diff", place, "--stat").text.splitlines()[:3] == [
        " e   |  dir 0 -> 0 bytes",
        " key |    0 2 -> 2 bytes  mode 0600 -> 0644",
        " l   | link 0 -> 3 bytes",
    ]


def test_diff_as_json(cli: Cli, two: tuple[str, str]) -> None:
    values = cli("tree", "diff", *two, "--json", "--stat").json
    assert [(one["letter"], one["path"], one["linesAdded"]) for one in values] == [
        ("A", "d/h", None),
        ("M", "f", 1),
        ("D", "g", 0),
    ]
    assert values[0]["old"] is None
    old = values[1]["old"]
    assert (old["kind"], old["sizeBytes"], old["executable"]) == ("file", 2, False)
    assert cli("get", old["hash"]).out == b"1\n"
    plain = cli("tree", "diff", *two, "--json").json
    assert [one.keys() for one in plain] == [{"letter", "path", "old", "new"}] * 3


def test_equal_trees_print_nothing(cli: Cli, two: tuple[str, str]) -> None:
    for options in ([], ["--stat"], ["--patch"]):
        assert cli("tree", "diff", two[0], two[0], *options).out == b""


def test_restore_says_what_it_did(cli: Cli, two: tuple[str, str], tmp_path: Path) -> None:
    place = tmp_path / "w"
    done = cli("checkpoint", "restore", two[0], place)
    assert done.text.startswith(
        f"{two[0][2:]} restored to {place}: 2 files written, 3 bytes, 0 deleted, "
    )
    write_tree(place, {"f": b"mine", "mine": b"mine"})
    arguments = ("checkpoint", "restore", two[1], place)
    refused = cli(*arguments, code=4).err
    assert f"{place}: local changes would be overwritten: f; use --force to overwrite" in refused
    planned = cli(*arguments, "--dry-run")
    assert planned.text == "A d/h\nM f\nD g\n"
    assert planned.err == "casfs: warning: f: changed locally; only --force overwrites it\n"
    value = cli(*arguments, "--dry-run", "--json").json
    assert (value["localChanges"], value["dryRun"], value["files"]) == (["f"], True, 0)
    assert value["changes"][0] == {"letter": "A", "path": "d/h"}
    assert read_tree(place) == named({"f": b"mine", "g": b"x", "mine": b"mine"})
    done = cli(*arguments, "--force", "--json")
    value = done.json
    assert (value["files"], value["deleted"], value["changed"]) == (2, 1, [])
    assert value["root"] != value["from"]
    assert (value["operation"], done.err) == (2, "")
    assert read_tree(place) == named({"f": b"1\n2\n", "d": {"h": b"\0"}, "mine": b"mine"})
    assert cli("undo", place).word == f"{place}:"
    assert read_tree(place) == named({"f": b"mine", "g": b"x", "mine": b"mine"})
    assert f"`casfs undo {place}` takes it back" in cli(*arguments, "--force").err


def test_restore_keeps_what_is_foreign_until_told(
    cli: Cli, two: tuple[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "w"
    cli("tree", "restore", two[1], place)
    write_tree(place / "d", {"mine": b"mine"})
    assert "warning: d: kept, " in cli("tree", "restore", two[0], place).err
    assert read_tree(place) == named({"f": b"1\n", "g": b"x", "d": {"mine": b"mine"}})
    said = cli("tree", "restore", two[0], place, "--delete-untracked", "--verify").err
    assert read_tree(place) == named({"f": b"1\n", "g": b"x"})
    assert f"`casfs undo {place}` takes it back" in said
    cli("undo", place)
    assert read_tree(place) == named({"f": b"1\n", "g": b"x", "d": {"mine": b"mine"}})


def test_what_checkpoints_leave_out_is_never_deleted(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "p", {"a": b"1", ".casfsignore": b"*.log\n"})
    cli("checkpoint", "create", "p", place)
    kept = {
        ".git": {"HEAD": b"ref", "objects": {}, "refs": {}},
        "my.log": b"log",
        "s": {"__pycache__": {"c": b"c"}},
    }
    write_tree(place, kept)
    write_tree(place, {"new": {"f": b"only here"}, "s": {"t": b"t"}})
    before = read_tree(place)
    done = cli("checkpoint", "restore", "p", place, "--delete-untracked")
    assert read_tree(place) == named({"a": b"1", ".casfsignore": b"*.log\n", **kept})
    assert "casfs: kept: .git, my.log, s/__pycache__\n" in done.err
    cli("undo", place)
    assert read_tree(place) == before


def test_restore_over_something_unknown_is_refused(
    cli: Cli, two: tuple[str, str], tmp_path: Path
) -> None:
    place = write_tree(tmp_path / "w", {"f": b"1\n", "g": b"x"})
    assert "--base" in cli.refused("checkpoint", "restore", two[1], place, code=4)
    assert read_tree(place) == named({"f": b"1\n", "g": b"x"})
    cli("checkpoint", "restore", two[1], place, "--base", two[0])
    assert read_tree(place) == named({"f": b"1\n2\n", "d": {"h": b"\0"}})


def test_create_records_what_the_directory_holds(cli: Cli, tmp_path: Path) -> None:
    """So `restore NAME .` is undo, also of a file that was recorded and is excluded by now."""
    place = write_tree(tmp_path / "p", {"a": b"1", "s": {"b": b"2"}, ".env": b"k"})
    cli("checkpoint", "create", "p", place)
    (place / "a").write_bytes(b"broken")
    (place / "s" / "b").unlink()
    (place / ".casfsignore").write_bytes(b".env\n")
    (place / ".env").write_bytes(b"other")
    assert (
        "overwritten: .env, a; use --force" in cli("checkpoint", "restore", "p", place, code=4).err
    )
    assert not (place / "s" / "b").exists()
    done = cli("checkpoint", "restore", "p", place, "--force").text
    assert "3 files written, 3 bytes, 0 deleted" in done
    assert read_tree(place) == named(
        {"a": b"1", "s": {"b": b"2"}, ".env": b"k", ".casfsignore": b".env\n"}
    )
    assert "0 files written" in cli("checkpoint", "restore", "p", place).text


def test_only_some_paths_are_restored(cli: Cli, tmp_path: Path) -> None:
    source = {"a": b"1", "s": {"b": b"2", "c": b"3"}, "t": {"d": b"4"}}
    place = write_tree(tmp_path / "p", source)
    cli("checkpoint", "create", "p", place)
    write_tree(place, {"a": b"mine", "s": {"c": b"mine"}})
    (place / "s" / "b").unlink()
    (place / "t" / "d").unlink()
    arguments = ("checkpoint", "restore", "p", place)
    assert "1 files written" in cli(*arguments, "--", "s/b").text
    assert read_tree(place) == named({"a": b"mine", "s": {"b": b"2", "c": b"mine"}, "t": {}})
    assert "overwritten: s/c; use" in cli(*arguments, "--", "s", code=4).err
    assert "no: not in tree" in cli.refused(*arguments, "--", "no", code=3)
    (place / "t").chmod(0o700)
    assert "overwritten: t; use" in cli(*arguments, "--", "t", code=4).err
    (place / "t").chmod(0o755)
    cli(*arguments, "--force", "--", "s", "t/d")
    assert read_tree(place) == named({**source, "a": b"mine"})
    assert "give --delete-untracked, or paths" in cli.refused(
        *arguments, "--delete-untracked", "--", "s", code=2
    )
    foreign = write_tree(tmp_path / "foreign", {"mine": b"m"})
    cli("checkpoint", "restore", "p", foreign, "--", "t/d")
    assert read_tree(foreign) == named({"mine": b"m", "t": {"d": b"4"}})
    cli("checkpoint", "restore", "p", tmp_path / "x" / "new", "--parents", "--", "s/b")
    assert read_tree(tmp_path / "x" / "new") == named({"s": {"b": b"2"}})
    cli("checkpoint", "restore", "p", tmp_path / "x" / "new")
    assert read_tree(tmp_path / "x" / "new") == named(source)


def test_a_dry_run_lists_untracked_paths(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "p", {"a": b"1", "s": {"b": b"2"}})
    cli("checkpoint", "create", "p", place)
    write_tree(place, {"s": {"mine": {"x": b""}}, "also": b""})
    before = read_tree(place)
    arguments = ("checkpoint", "restore", "p", place, "--delete-untracked")
    assert cli(*arguments, "--dry-run").text == "D also\nD s/mine/x\n"
    assert read_tree(place) == before
    assert " 3 deleted" in cli(*arguments).text
    arguments = ("checkpoint", "restore", "p", tmp_path / "no" / "new")
    assert "use --parents" in cli.refused(*arguments, code=3)
    assert cli(*arguments, "--parents", "--dry-run").text == "A a\nA s/b\n"
    assert not (tmp_path / "no").exists()


def test_what_preserve_kept_comes_back(cli: Cli, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", {"d": {"f": b"1"}, "l": Link(b"d"), "e": {}})
    (source / "d" / "f").chmod(0o640)
    (source / "e").chmod(0o700)
    for n, path in enumerate([source / "d" / "f", source / "d", source / "e", source]):
        os.utime(path, ns=(n, 1_500_000_000_000_000_000 + n))
    os.utime(source / "l", ns=(1, 1_400_000_000_000_000_001), follow_symlinks=False)
    cli("checkpoint", "create", "w", source, "--preserve", "mtime,mode")
    cli("checkpoint", "restore", "w", tmp_path / "out")
    cli("checkpoint", "create", "again", tmp_path / "out", "--preserve", "mtime,mode")
    assert len({one["root"] for one in cli("checkpoint", "list", "--json").json}) == 1

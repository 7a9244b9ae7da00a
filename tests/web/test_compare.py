"""Comparing trees in the browser."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from casfs.checkpoints.create import create
from casfs.checkpoints.revisions import Revision
from casfs.digest import TreeHash
from casfs.maintenance import purge
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Properties
from casfs.store.store import Store
from casfs.trees.diff import unified_diff
from casfs.trees.recorded_state import RecordedState
from casfs.web import compare as compares
from casfs.web.compare import Comparison, compare
from tests.support.helpers import Link, Program, put_tree, write_tree
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible

OLD = {
    "same": b"1\n",
    "src": {"a.py": b"one\ntwo\nthree\n", "old.py": b"gone\n", "run": b"#!/bin/sh\n"},
    "docs": {"same": b"x"},
    "to": Link(b"a"),
}
NEW = {
    "same": b"1\n",
    "src": {"a.py": b"one\n2\nthree\nfour", "new.py": b"come\n", "run": Program(b"#!/bin/sh\n")},
    "docs": {"same": b"x"},
    "to": Link(b"b"),
    "bin": bytes(range(256)),
}


def compared(
    store: Store, old: TreeHash, new: TreeHash, path: bytes = b"", **more: object
) -> Comparison:
    revisions = (Revision(RecordedState(old)), Revision(RecordedState(new)))
    return compare(store, *revisions, path, **more)  # type: ignore[arg-type]


def both(store: Store) -> tuple[TreeHash, TreeHash]:
    return put_tree(store, OLD), put_tree(store, NEW)


def test_changes_are_counted_by_kind_and_directory(store: Store) -> None:
    found = compared(store, *both(store))
    assert [(one.change.path, one.kind) for one in found.files] == [
        (b"bin", "added"),
        (b"src/a.py", "changed"),
        (b"src/new.py", "added"),
        (b"src/old.py", "removed"),
        (b"src/run", "mode"),
        (b"to", "changed"),
    ]
    assert found.counts == {"added": 2, "changed": 2, "removed": 1, "mode": 1}
    assert found.directories == [(b"src", {"added": 1, "changed": 1, "removed": 1, "mode": 1})]
    below = compared(store, *both(store), b"src")
    assert (below.total, below.directories, below.parents) == (4, [], [(b"", b"")])
    alone = compared(store, *both(store), b"src/a.py")
    assert [one.change.path for one in alone.files] == [b"src/a.py"]
    assert compared(store, *both(store), b"sr").total == 0


def test_equal_trees_have_no_differences(store: Store) -> None:
    old, _ = both(store)
    found = compared(store, old, old)
    assert (found.total, found.files, found.counts) == (0, [], {})


def test_lines_have_the_numbers_of_both_sides(store: Store) -> None:
    found = compared(store, *both(store), b"src/a.py", view="unified").files[0].diff
    assert found is not None
    assert found.hunks == [
        [
            (1, 1, "one", True),
            (2, None, "two", True),
            (None, 2, "2", True),
            (3, 3, "three", True),
            (None, 4, "four", False),
        ]
    ]
    assert [[(old and old.text, new and new.text) for old, new in rows] for rows in found.rows] == [
        [("one", "one"), ("two", "2"), ("three", "three"), (None, "four")]
    ]


@pytest.mark.parametrize("seed", range(30))
def test_lines_are_those_of_the_unified_diff(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    old = [b"%d\n" % chance.randrange(9) for _ in range(chance.randrange(60))]
    new = [line for line in old if chance.random() < 0.9]
    for _ in range(chance.randrange(6)):
        new.insert(chance.randrange(len(new) + 1), b"new %d\n" % chance.randrange(3))
    trees = [put_tree(store, {"f": b"".join(one)}) for one in (old, new)]
    files = compared(store, *trees, view="unified").files  # type: ignore[misc]
    signs = {"": " ", "removed": "-", "added": "+"}
    ours = [
        f"{signs[line.kind]}{line.text}"
        for one in files
        for hunk in (one.diff.hunks if one.diff else [])
        for line in hunk
    ]
    patch = unified_diff.patch(store, *trees).decode().splitlines()[3:]
    assert ours == [line for line in patch if not line.startswith("@@")]
    for one in files:
        assert one.diff
        for hunk in one.diff.hunks:
            assert [line.text.encode() + b"\n" for line in hunk if line.old] == [
                old[line.old - 1] for line in hunk if line.old
            ]
            assert [line.text.encode() + b"\n" for line in hunk if line.new] == [
                new[line.new - 1] for line in hunk if line.new
            ]


def test_what_has_no_lines_says_why(store: Store) -> None:
    large = b"x\n" * unified_diff.MAX_FILE_BYTES
    old = put_tree(store, {"bin": b"\0", "large": b"x\n", "none": {}})
    new = put_tree(store, {"bin": b"\1\0", "large": large, "other": {}})
    found = compared(store, old, new, view="split").files
    whys = {one.change.path: one.diff.why for one in found if one.diff}
    directory = "directory"
    assert whys == {
        b"bin": "binary", b"large": "too large to show", b"none": directory, b"other": directory,
    }  # fmt: skip


def test_a_page_has_a_bounded_number_of_lines_and_characters(store: Store) -> None:
    text = b"".join(b"%d\n" % n for n in range(compares.MAX_LINES))
    old = put_tree(store, {})
    new = put_tree(store, {"a": text, "b": text, "c": b"y" * 5000})
    files = compared(store, old, new, view="unified").files
    shown = [(sum(map(len, one.diff.hunks)), one.diff.left) for one in files if one.diff]
    assert shown == [(compares.MAX_LINES, 0), (0, compares.MAX_LINES), (0, 1)]
    alone = compared(store, old, new, b"c", view="unified").files[0].diff
    assert alone is not None
    assert alone.hunks[0][0].text == "y" * 2000 + "… (3000 more characters)"


def test_modes_that_were_preserved_are_shown(store: Store) -> None:
    with store.batch() as batch:
        blob = batch.put(b"x")
        roots = [
            batch.put_directory(
                directory.encode([File(b"f", blob, False, Properties(unix_mode=mode))])
            ).hash
            for mode in (0o640, 0o600)
        ]
    found = compared(store, *roots).files[0]
    assert (found.kind, found.modes) == ("mode", (0o640, 0o600))


def test_windows_are_by_index(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    old = put_tree(store, {})
    below = {f"d{n}": {"f": b"x"} for n in range(3)}
    new = put_tree(store, below | {f"f{n:04}": b"" for n in range(250)})
    found = compared(store, old, new, first=200)
    assert (found.first, len(found.files), found.total) == (200, 53, 253)
    assert compared(store, old, new, first=10**12).first == 200
    assert [path for path, _ in found.directories] == [b"d0", b"d1", b"d2"]
    monkeypatch.setattr(compares, "MAX_CHANGES", 100)
    store.cache = type(store.cache)(1000)
    found = compared(store, old, new)
    assert (found.cut, found.total) == (True, 100)


# -- pages ------------------------------------------------------------------------------------


def test_checkpoints_steps_and_hashes_are_compared(
    web: Web, disk_store: Store, tmp_path: Path
) -> None:
    create(disk_store, "work", write_tree(tmp_path / "old", OLD))
    create(disk_store, "work", write_tree(tmp_path / "new", NEW))
    thread = make_thread(disk_store)
    thread.step("planner", "text")
    page = visible(web.get("/compare?a=work~1&b=work").text)
    assert "checkpoint work@" in page
    assert "2 added · 1 removed · 2 changed · 1 mode or time" in page
    assert "changed src/a.py 14B" in page or "changed src/a.py 14" in page
    page = visible(web.get("/compare?a=work&b=work~1&view=unified&path=src/a.py").text)
    assert "all / src / src/a.py" in page
    assert "four no newline at the end" in page
    root = put_tree(disk_store, OLD)
    for one in (f"{thread.id}@1", thread.id, thread.steps[0], root[:12]):
        page = web.get(f"/compare?a={root}&b={one}&view=split").text
        assert f"/trees/{root}.tar.zst" in page
    assert "thread <a" in web.get(f"/compare?a={root}&b={thread.id}@1").text.replace("\n", "")


def test_one_side_alone_asks_for_the_other(web: Web) -> None:
    for query in ("", "?a=x", "?b=x", "?a=+&b=+"):
        assert "Each side is a checkpoint" in web.get(f"/compare{query}").text


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("a=nothing&b=nothing", 404, "neither a hash nor a checkpoint or thread"),
        ("a=work&b=work@{x}", 400, "invalid time"),
        ("a=work&b=work&path=../x", 400, "must not contain"),
        ("a=work&b=work&first=-1", 400, "must be a number"),
    ],
)
def test_what_is_wrong_is_said(
    web: Web, disk_store: Store, tmp_path: Path, query: str, status: int, text: str
) -> None:
    create(disk_store, "work", write_tree(tmp_path / "old", OLD))
    assert text in web.get(f"/compare?{query}", status).text


def test_names_that_are_not_utf8_lead_to_their_files(web: Web, disk_store: Store) -> None:
    old = put_tree(disk_store, {})
    new = put_tree(disk_store, {b"\xff<b>": {b"a\n&\x1b[2J\xfe": b"text \x1b[0m \xe2\x80\xae\n"}})
    base = f"/compare?a={old}&b={new}"
    assert r"\xff&lt;b&gt;/a\n&amp;\x1b[2J\xfe" in web.get(base).text
    page = web.get(f"{base}&view=unified&path=%FF%3Cb%3E/a%0A%26%1B%5B2J%FE").text
    assert r"text \x1b[0m \u202e" in page
    assert "name=%FF%3Cb%3E/a%0A%26%1B%5B2J%FE" in page
    assert not set(page) & {"\x1b", "\u202e"}
    assert "no differences" in web.get(f"{base}&path=%EF%BF%BD").text


def test_what_is_purged_is_in_neither_tree(disk_store: Store) -> None:
    old, new = both(disk_store)
    purge.purge(disk_store, disk_store.put(b"one\ntwo\nthree\n").hash)
    found = {
        one.change.path: one.diff for one in compared(disk_store, old, new, view="split").files
    }
    changed, kept = found[b"src/a.py"], found[b"src/new.py"]
    assert changed is not None
    assert all(line.old is None for hunk in changed.hunks for line in hunk), "it is new"
    assert kept is not None
    assert kept.hunks


def test_a_renamed_file_is_one_difference(disk_store: Store, web: Web) -> None:
    store = disk_store
    old = put_tree(store, {"a.py": b"1\n2\n3\n", "d": {"f": b"same\n"}})
    new = put_tree(store, {"b.py": b"1\n2\n3\n4\n", "f": b"same\n"})
    found = compared(store, old, new)
    assert [(one.change.source, one.change.path, one.kind) for one in found.files] == [
        (b"a.py", b"b.py", "renamed"),
        (b"d/f", b"f", "renamed"),
    ]
    assert [one.kind for one in compared(store, old, new, b"d").files] == ["removed"]
    page = visible(web.get(f"/compare?a={old}&b={new}&view=unified").text)
    assert "a.py → b.py" in page

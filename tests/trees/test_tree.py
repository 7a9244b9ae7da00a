from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from casfs.backend.protocols import Blob
from casfs.errors import Corrupt, Invalid, NotFound
from casfs.store.nodes.directory import File, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.trees import tree
from tests.support.helpers import ABSENT, Link, Program, put_tree, put_unchecked

TREE: dict[Any, Any] = {
    "a": {"b": {"c": b"deep"}, "empty": {}},
    "a.txt": b"text",
    "link": Link(b"a/b"),
    "run": Program(b"#!/bin/sh\n"),
    b"\xff": b"bytes",
}


def letters(store: Store, old: Any, new: Any) -> list[str]:
    a = None if old is None else put_tree(store, old)
    b = None if new is None else put_tree(store, new)
    return [f"{one.letter} {one.path.decode()}" for one in tree.diff(store, a, b)]


# -- load, resolve, walk ------------------------------------------------------------------


def test_entries_are_loaded_in_byte_order(store: Store) -> None:
    entries = tree.load(store, put_tree(store, TREE))
    assert list(entries) == [b"a", b"a.txt", b"link", b"run", b"\xff"]
    assert isinstance(entries[b"a"], Subdirectory)
    assert entries[b"link"] == Symlink(b"link", b"a/b")
    assert isinstance(entries[b"run"], File)
    assert entries[b"run"].executable


def test_only_a_directory_is_loaded(store: Store) -> None:
    content = store.put_node("content", {"text": "", "artifacts": []}).hash
    for hash in (content, store.put(b"blob").hash, ABSENT):
        with pytest.raises(NotFound):
            tree.load(store, hash)


@pytest.mark.parametrize(
    "payload",
    [
        {"files": [], "directories": [], "symlinks": [{"name": "..", "target": "x"}]},
        {"files": [], "directories": [], "symlinks": [{"name": "a/b", "target": "x"}]},
        {"files": [], "directories": [], "symlinks": [{"name": "a", "target_base64": "é"}]},
        {"files": [], "directories": [{"name": "a"}], "symlinks": []},
        {"files": []},
        {"files": 1, "directories": [], "symlinks": []},
        {"files": ["a"], "directories": [], "symlinks": []},
        [],
        None,
    ],
)
def test_a_broken_directory_is_corrupt(store: Store, payload: Any) -> None:
    hash = put_unchecked(store, "directory", payload)
    with pytest.raises(Corrupt, match=hash):
        tree.load(store, hash)


@pytest.mark.parametrize(
    ("path", "name"),
    [(b"a.txt", b"a.txt"), (b"a/b/c", b"c"), (b"/a//b/./c/", b"c"), (b"\xff", b"\xff")],
)
def test_a_path_is_resolved(store: Store, path: bytes, name: bytes) -> None:
    entry = tree.resolve(store, put_tree(store, TREE), path)
    assert entry is not None
    assert entry.name == name


@pytest.mark.parametrize("path", [b"", b"/", b".", b"./"])
def test_the_root_has_no_entry(store: Store, path: bytes) -> None:
    assert tree.resolve(store, put_tree(store, TREE), path) is None


@pytest.mark.parametrize("path", [b"b", b"a/x", b"a.txt/x", b"link/c", b"a/b/c/d", b"A"])
def test_a_path_that_is_not_there(store: Store, path: bytes) -> None:
    with pytest.raises(NotFound):
        tree.resolve(store, put_tree(store, TREE), path)


def test_a_path_goes_never_up(store: Store) -> None:
    with pytest.raises(Invalid, match=r"must not contain \.\."):
        tree.resolve(store, put_tree(store, TREE), b"a/../a.txt")


def test_walk_gives_a_directory_before_what_is_in_it(store: Store) -> None:
    found = [path for path, _ in tree.walk(store, put_tree(store, TREE))]
    inside = [b"a/b", b"a/b/c", b"a/empty"]
    assert found == [b"a", *inside, b"a.txt", b"link", b"run", b"\xff"]
    assert list(tree.walk(store, put_tree(store, {}))) == []


def test_walk_can_begin_below_a_prefix(store: Store) -> None:
    paths = [path for path, _ in tree.walk(store, put_tree(store, {"x": b""}), b"top/")]
    assert paths == [b"top/x"]


# -- diff ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"f": b""}, ["A f"]),
        ({"f": b""}, {}, ["D f"]),
        ({"f": b"1"}, {"f": b"2"}, ["M f"]),
        ({"f": b"1"}, {"f": Program(b"1")}, ["T f"]),
        ({"f": b"1"}, {"f": Program(b"2")}, ["M f"]),
        ({"l": Link(b"1")}, {"l": Link(b"2")}, ["T l"]),
        ({"l": Link(b"1")}, {"l": b"1"}, ["T l"]),
        ({}, {"d": {}}, ["A d"]),
        ({"d": {}}, {}, ["D d"]),
        ({"d": {"x": {}}}, {"d": {}}, ["D d/x"]),
        ({}, {"d": {"f": b""}}, ["A d", "A d/f"]),
        ({"d": {"f": b""}}, {}, ["D d", "D d/f"]),
        ({"e": b""}, {"e": {"f": b""}}, ["T e", "A e/f"]),
        ({"e": {"f": b""}}, {"e": b""}, ["T e", "D e/f"]),
        ({"e": {"f": {"g": b""}}}, {"e": Link(b"x")}, ["T e", "D e/f", "D e/f/g"]),
        ({"e": {}}, {"e": b""}, ["T e"]),
        ({"a": {"x": b"1"}, "b": b"1"}, {"a": {"x": b"2"}, "b": b"2"}, ["M a/x", "M b"]),
        ({"a": b"1", "c": b""}, {"b": b"1", "c": b""}, ["D a", "A b"]),
        (TREE, TREE, []),
        (None, {"d": {"f": b""}}, ["A d", "A d/f"]),
        ({"d": {}}, None, ["D d"]),
        (None, None, []),
    ],
)
def test_diff(store: Store, old: Any, new: Any, expected: list[str]) -> None:
    assert letters(store, old, new) == expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {"d": {"f": b""}}, ["d/f"]),
        ({}, {"d": {"e": {}}}, ["d/e"]),
        ({"d": {"e": {}}}, {}, ["d/e"]),
        ({"e": b""}, {"e": {"f": b""}}, ["e", "e/f"]),
    ],
)
def test_a_person_is_shown_a_directory_only_when_it_is_empty(
    store: Store, old: Any, new: Any, expected: list[str]
) -> None:
    found = tree.changes(store, put_tree(store, old), put_tree(store, new))
    assert [change.path.decode() for change in found] == expected


def test_equal_subtrees_are_never_loaded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    same = {f"d{n}": {"x": {"y": b"%d" % n}} for n in range(5)}
    old = put_tree(store, {"same": same, "deep": {"same": same, "f": b"1"}})
    new = put_tree(store, {"same": same, "deep": {"same": same, "f": b"2"}})
    loaded: list[str] = []
    get = store.blobs.get

    def counting(hash: str) -> Blob:
        loaded.append(hash)
        return get(hash)

    fresh = Store(store.backend, store.root)
    fresh.registry.compiled(store.registry.head("directory").hash)
    monkeypatch.setattr(store.blobs, "get", counting)
    assert [change.path for change in tree.diff(fresh, old, new)] == [b"deep/f"]
    assert len(loaded) == 4  # the two roots, and `deep` on both sides
    assert list(tree.diff(fresh, old, old)) == []
    assert len(list(tree.diff(fresh, old, new))) == 1
    assert len(loaded) == 4


SHARED = Store.memory()  # trees are immutable: examples cannot disturb each other
LEAVES = st.sampled_from([b"1", b"2", Program(b"1"), Link(b"1"), Link(b"2")])
TREES = st.recursive(
    LEAVES, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8
).filter(lambda value: isinstance(value, dict))


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Every path of a literal tree with what is there; a directory is its own mark."""
    found: dict[str, Any] = {}
    for name, item in value.items():
        if isinstance(item, dict):
            found[prefix + name] = dict
            found |= flat(item, f"{prefix}{name}/")
        else:
            found[prefix + name] = (type(item), item)
    return found


@given(TREES, TREES)
def test_diff_names_exactly_the_paths_that_differ(old: Any, new: Any) -> None:
    a, b = flat(old), flat(new)
    found = letters(SHARED, old, new)
    assert {one[2:] for one in found} == {p for p in a.keys() | b.keys() if a.get(p) != b.get(p)}
    assert {one[2:] for one in found if one[0] == "A"} == b.keys() - a.keys()
    assert {one[2:] for one in found if one[0] == "D"} == a.keys() - b.keys()
    assert len(found) == len(set(found))


def test_equal_roots_need_no_look_at_all(store: Store) -> None:
    assert list(tree.diff(store, ABSENT, ABSENT)) == []

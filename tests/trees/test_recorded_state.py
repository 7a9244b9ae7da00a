"""A directory as two trees: the work, and all that is here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from casfs.digest import TimesHash, TreeHash
from casfs.store import local_trees
from casfs.store.local_trees import LocalTree
from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.store import Store
from casfs.trees import recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState, divide, local_paths, local_totals, of_node
from tests.support.helpers import put_tree

NAMES = st.sampled_from(["a", "b", "ab", "a-", "c.d", "é"])
FILES = st.binary(max_size=4)
TREES = st.recursive(
    st.dictionaries(NAMES, FILES, max_size=4),
    lambda inner: st.dictionaries(NAMES, st.one_of(FILES, inner), max_size=4),
    max_leaves=12,
)


def paths(level: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, item in level.items():
        yield above + name
        if isinstance(item, dict):
            yield from paths(item, f"{above}{name}/")


def without(level: dict[str, Any], gone: set[str], above: str = "") -> dict[str, Any]:
    """The tree without these paths, and without what was below them."""
    return {
        name: without(item, gone, f"{above}{name}/") if isinstance(item, dict) else item
        for name, item in level.items()
        if above + name not in gone
    }


def leaves(level: dict[str, Any], above: str = "") -> dict[str, bytes | None]:
    """Files with their content, and empty directories."""
    found: dict[str, bytes | None] = {}
    for name, item in level.items():
        if not isinstance(item, dict):
            found[above + name] = item
        elif item:
            found |= leaves(item, f"{above}{name}/")
        else:
            found[above + name] = None
    return found


def divided(store: Store, full: TreeHash, gone: set[str], **more: Any) -> RecordedState:
    with store.batch() as batch:
        return divide(store, batch, DatedTree(full), [path.encode() for path in gone], **more)


@settings(max_examples=60, deadline=None)
@given(level=TREES, data=st.data())
def test_the_work_is_all_but_the_local_paths(level: dict[str, Any], data: st.DataObject) -> None:
    known = sorted(paths(level))
    gone = data.draw(st.sets(st.sampled_from(known))) if known else set()
    with Store.memory() as store:
        full = put_tree(store, level)
        state = divided(store, full, gone)
        work = without(level, gone)
        assert state.tree == put_tree(store, work)
        assert state.full == full
        assert (state.local is None) == (not gone)
        topmost = {
            path
            for path in gone
            if not any(path.startswith(f"{above}/") for above in gone - {path})
        }
        found = dict(local_paths(store, state.tree, state.full))
        assert {path.decode() for path in found} == topmost
        assert all(tree.find(store, full, path) == entry for path, entry in found.items())
        totals = local_totals(store, state)
        mine = {path: item for path, item in leaves(level).items() if path not in leaves(work)}
        contents = [item for item in mine.values() if item is not None]
        assert (totals.files, totals.bytes) == (len(contents), sum(map(len, contents)))


def test_without_local_paths_there_is_one_tree(store: Store) -> None:
    full = put_tree(store, {"a": b"a"})
    assert divided(store, full, set()) == RecordedState(full)
    assert RecordedState(full).fields == {}
    assert RecordedState(full).full == full


def test_a_path_that_is_not_there_changes_nothing(store: Store) -> None:
    full = put_tree(store, {"a": {"b": b""}})
    assert divided(store, full, {"x", "a/x"}) == RecordedState(full)


def test_the_work_keeps_the_version_before_a_file_became_private(store: Store) -> None:
    base = put_tree(store, {"d": {"conf": b"clean"}, "x": b""})
    full = put_tree(store, {"d": {"conf": b"secret", "new": b"secret"}, "x": b""})
    kept = [b"d/conf", b"d/new"]
    state = divided(store, full, {"d/conf", "d/new"}, base=base, kept=kept)
    assert state == RecordedState(base, TreeHash(full))
    found = dict(local_paths(store, state.tree, state.full))
    assert list(found) == [b"d/conf", b"d/new"]
    conf = found[b"d/conf"]
    assert isinstance(conf, File)
    assert store.get(conf.digest.hash) == b"secret"
    totals = local_totals(store, state)
    assert (totals.entries, totals.files, totals.bytes) == (1, 1, 7), "conf counts in the work"


def test_a_directory_of_private_files_only_stays_in_the_work(store: Store) -> None:
    full = put_tree(store, {"d": {"e": {".env": b"k"}}})
    state = divided(store, full, {"d/e/.env"})
    assert state.tree == put_tree(store, {"d": {"e": {}}})
    assert [path for path, _ in local_paths(store, state.tree, full)] == [b"d/e/.env"]


def test_only_a_file_is_kept(store: Store) -> None:
    base = put_tree(store, {"conf": {"f": b""}})
    full = put_tree(store, {"conf": b"secret", "x": b""})
    state = divided(store, full, {"conf"}, base=base, kept=[b"conf"])
    assert state.tree == put_tree(store, {"x": b""})


def test_empty_directories_count_as_entries(store: Store) -> None:
    full = put_tree(store, {"m": {"e": {}, "f": b"12", "d": {"g": b"3"}}, "x": b""})
    totals = local_totals(store, divided(store, full, {"m"}))
    assert totals == recorded_state.Totals(entries=3, files=2, bytes=3)
    ((path, entry),) = local_paths(store, put_tree(store, {"x": b""}), full)
    assert path == b"m"
    assert isinstance(entry, Subdirectory)


def test_a_node_of_another_store_has_the_work_only(store: Store) -> None:
    work, full = put_tree(store, {"x": b""}), put_tree(store, {"x": b"", ".env": b"k"})
    payload = {"root": work}
    node = store.put(b"stands for a node").hash
    assert of_node(store, node, payload, "root") == RecordedState(work)
    with store.batch() as batch:
        local_trees.put(batch, node, LocalTree(full))
    assert of_node(store, node, payload, "root") == RecordedState(work, full)
    assert of_node(store, node, {"root": None}, "root") is None


def test_what_stays_private_takes_no_path_of_the_work(store: Store) -> None:
    before = put_tree(store, {"d": {".env": b"k", "x": b""}, "e": {".env": b"k"}, ".env": b"k"})
    known = divided(store, before, {"d/.env", "e/.env", ".env"})
    work = RecordedState(put_tree(store, {"d": b"a file now", "new": b""}))
    state = recorded_state.with_local_of(store, work, known)
    whole = {"d": b"a file now", "new": b"", "e": {".env": b"k"}, ".env": b"k"}
    assert (state.tree, state.full) == (work.tree, put_tree(store, whole))


def test_times_of_other_private_files_are_dropped(store: Store) -> None:
    """They are of the tree that the state had of its own."""
    known = divided(store, put_tree(store, {".env": b"k"}), {".env"})
    work, full = put_tree(store, {"x": b""}), put_tree(store, {"x": b"", ".key": b"k"})
    lists: dict[str, list[str]] = {"files": [], "directories": [], "symlinks": []}
    times = TimesHash(store.put_node("times", {"own": None, "newest": None, **lists}).hash)
    state = recorded_state.with_local_of(store, RecordedState(work, full, local_times=times), known)
    assert state.full == put_tree(store, {"x": b"", ".env": b"k"})
    assert state.local_times is None

"""The index of paths says what the trees say, and nothing depends on it."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import pytest

from casfs.errors import NotFound
from casfs.history import path_index, step_versions
from casfs.history.blame import blame
from casfs.history.log import log
from casfs.history.path_entries import entries_of
from casfs.history.step_versions import StepVersions
from casfs.history.versions import Place, find
from casfs.maintenance import fsck, gc
from casfs.store.store import Store
from tests.history.oracle import start
from tests.support.helpers import put_tree
from tests.support.maintenance import age
from tests.support.thread_example import Example

FIRST, SECOND = (f"01JD000000000000000000000{letter}" for letter in "AB")
NAMES = ["a", "b", "caf\udce9"]
PATHS = [b"", b"a", b"b", b"caf\xe9", b"a/a", b"a/b", b"b/a", b"caf\xe9/b", b"a/a/a", b"a/b/a"]


@pytest.fixture(autouse=True)
def indexes_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_versions, "INDEXED_STEPS", 1)


def random_entry(random: Random, depth: int) -> Any:
    if depth < 3 and random.random() < 0.6:
        return random_tree(random, depth + 1)
    return random.choice([b"1\n", b"2\n", b"3\n"])


def random_tree(random: Random, depth: int = 1) -> dict[str, Any]:
    names = random.sample(NAMES, random.randint(0, 3))
    return {name: random_entry(random, depth) for name in names}


def changed_tree(random: Random, tree: dict[str, Any], depth: int = 1) -> dict[str, Any]:
    name = random.choice(NAMES)
    below = tree.get(name)
    if isinstance(below, dict) and random.random() < 0.7:
        return {**tree, name: changed_tree(random, below, depth + 1)}
    if random.random() < 0.3:
        return {key: entry for key, entry in tree.items() if key != name}
    return {**tree, name: random_entry(random, depth)}


def grow(thread: Example, random: Random, steps: int) -> None:
    tree: dict[str, Any] = random_tree(random)
    for number in range(steps):
        tree = tree if random.random() < 0.2 else changed_tree(random, tree)
        is_without = number == 1 and random.random() < 0.5
        thread.tree = None if is_without else put_tree(thread.store, tree)  # type: ignore[assignment]
        thread.step("planner", "text")


def indexed(position: Place) -> StepVersions:
    versions = position.chain.versions
    assert isinstance(versions, StepVersions)
    return versions


def check(store: Store, revision: str) -> None:
    for path in PATHS:
        position, _ = find(store, revision)
        versions = indexed(position)
        entries = entries_of(store, [version.root for version in versions], path)
        assert versions.entries(path) == entries
        differ = [at for at in range(len(entries) - 1) if entries[at] != entries[at + 1]]
        visited = []
        at = 0
        while at < len(entries) - 1:
            visited.append(at)
            at = versions.next_changed(at, path)
        assert set(differ) <= {0, *visited}, path


@pytest.mark.parametrize("seed", range(30))
def test_entries_are_those_of_the_trees(
    store: Store, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(path_index, "STEPS_AT_ONCE", random.choice([1, 3, 1000]))
    thread = start(store, FIRST, put_tree(store, random_tree(random)))
    grow(thread, random, 8)
    check(store, f"{FIRST}@5")
    check(store, FIRST)
    fork = start(store, SECOND, thread.tree)
    fork.start, fork.steps = thread.start, thread.steps[:4]
    grow(fork, random, 5)
    grow(thread, random, 5)
    for revision in (SECOND, FIRST, f"{SECOND}@7", f"{FIRST}@4"):
        check(store, revision)


def test_of_another_path_no_step_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = start(store, FIRST, put_tree(store, {"d": {"f": b"0\n"}, "g": b"0\n"}))
    for number in range(1, 31):
        content = b"%d\n" % number
        thread.tree = put_tree(store, {"d": {"f": content}, "g": b"%d\n" % (number // 10)})
        thread.step("planner", "text")
    find(store, FIRST)
    read: list[str] = []
    get_many = store.blobs.get_many

    def counted(hashes: Any) -> Any:
        read.extend(hashes := list(hashes))
        return get_many(hashes)

    monkeypatch.setattr(store.blobs, "get_many", counted)
    position, path = find(store, f"{FIRST}:g")
    assert [entry.version.revision for entry in log(position, path)] == [
        f"{FIRST}@{index}" for index in (30, 20, 10, 0)
    ]
    assert [line.version.revision for line in blame(position, path)] == [f"{FIRST}@30"]
    # The steps that changed it, those before them, and the trees of the first.
    assert len(set(read).intersection(thread.steps)) == 6
    assert len(set(read)) <= 10


def test_a_tree_that_is_damaged_elsewhere_is_in_nobodys_way(store: Store) -> None:
    thread = start(store, FIRST, put_tree(store, {"d": {"f": b"0\n"}, "g": b"0\n"}))
    lost = put_tree(store, {"f": b"lost\n"})
    thread.tree = put_tree(store, {"d": {"f": b"lost\n"}, "g": b"1\n"})
    thread.step("planner", "text")
    thread.tree = put_tree(store, {"d": {"f": b"2\n"}, "g": b"1\n"})
    thread.step("planner", "text")
    store.blobs.quarantine(lost)  # type: ignore[attr-defined]
    position, path = find(store, f"{FIRST}:g")
    assert [line.version.revision for line in blame(position, path)] == [f"{FIRST}@1"]
    with pytest.raises(NotFound):
        find(store, f"{FIRST}:d/f")[0].entry(b"d/f")


def test_an_index_that_cannot_be_written_is_done_without(disk_store: Store) -> None:
    thread = start(disk_store, FIRST, put_tree(disk_store, {"f": b"0\n"}))
    grow(thread, Random(1), 3)
    (disk_store.root / path_index.FILE).mkdir()
    position, _ = find(disk_store, FIRST)
    assert not isinstance(position.chain.versions, StepVersions)
    assert len(position.chain.versions) == 4


def test_processes_that_index_at_once(disk_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_index, "STEPS_AT_ONCE", 5)
    thread = start(disk_store, FIRST, put_tree(disk_store, {"f": b"0\n"}))
    grow(thread, Random(2), 60)

    def ask(_: int) -> None:
        with Store.open(disk_store.root) as store:
            check(store, FIRST)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(8)))


def test_another_process_that_has_indexed_a_part_meanwhile(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = start(disk_store, FIRST, put_tree(disk_store, {"f": b"0\n"}))
    grow(thread, Random(6), 30)
    changes = path_index._changes

    def slow(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(path_index, "_changes", changes)
        with Store.open(disk_store.root) as other:
            check(other, f"{FIRST}@20")
        return changes(*arguments, **options)

    monkeypatch.setattr(path_index, "_changes", slow)
    check(disk_store, FIRST)
    check(disk_store, FIRST)
    check(disk_store, f"{FIRST}@7")


def test_a_file_that_is_deleted_between_two_questions(disk_store: Store) -> None:
    thread = start(disk_store, FIRST, put_tree(disk_store, {"f": b"0\n"}))
    other = start(disk_store, SECOND, put_tree(disk_store, {"f": b"1\n"}))
    grow(thread, Random(7), 10)
    grow(other, Random(8), 10)
    position, _ = find(disk_store, FIRST)
    path_index.remove(disk_store)
    check(disk_store, SECOND)
    versions = indexed(position)
    roots = [version.root for version in versions]
    for path in PATHS:
        assert versions.entries(path) == entries_of(disk_store, roots, path)


def test_gc_and_fsck_delete_it(disk_store: Store) -> None:
    path = disk_store.root / path_index.FILE
    kept = start(disk_store, FIRST, put_tree(disk_store, {"f": b"0\n"}))
    grow(kept, Random(3), 4)
    gone = start(disk_store, SECOND, put_tree(disk_store, {"f": b"1\n"}))
    grow(gone, Random(4), 4)
    find(disk_store, FIRST)
    find(disk_store, SECOND)
    age(disk_store)
    gc.collect(disk_store)
    assert path.exists()
    with disk_store.batch() as batch:
        batch.swap(gone.name, disk_store.heads.get(gone.name), None)  # type: ignore[arg-type]
    age(disk_store)
    gc.collect(disk_store)
    assert not path.exists()
    check(disk_store, FIRST)
    fsck.check(disk_store)
    assert not path.exists()


def test_a_damaged_file_is_made_anew(disk_store: Store, tmp_path: Path) -> None:
    thread = start(disk_store, FIRST, put_tree(disk_store, {"f": b"0\n"}))
    grow(thread, Random(5), 4)
    check(disk_store, FIRST)
    (disk_store.root / path_index.FILE).write_bytes(b"no database" * 1000)
    check(disk_store, FIRST)
    shutil.copytree(disk_store.root, tmp_path / "copy")
    with Store.open(tmp_path / "copy") as copy:
        check(copy, FIRST)

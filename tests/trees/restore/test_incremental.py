from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.errors import Refused
from casfs.store.store import Store
from casfs.trees.snapshot import stat_cache
from casfs.trees.snapshot.file_reader import FileReader
from tests.support.helpers import (
    LARGE,
    Link,
    Program,
    Tree,
    put_tree,
    read_tree,
    take,
    write_tree,
)
from tests.support.restores import leftovers, moved, restore_tree, restored, take_back_last
from tests.trees.restore.test_restore import NAMES, TREES, named

# -- every kind of change -----------------------------------------------------------------

KINDS: dict[str, Tree] = {
    "nothing": {},
    "file": {"x": b"one"},
    "other file": {"x": b"two"},
    "large file": {"x": LARGE},
    "empty file": {"x": b""},
    "program": {"x": Program(b"one")},
    "link": {"x": Link(b"one")},
    "other link": {"x": Link(b"/nowhere")},
    "empty directory": {"x": {}},
    "directory": {"x": {"f": b"one", "d": {"l": Link(b"f")}}},
    "other directory": {"x": {"f": {"deep": {"er": b"1"}}, "d": b"a file now", "e": {}}},
}


@pytest.mark.parametrize("new", KINDS)
@pytest.mark.parametrize("old", KINDS)
def test_every_change_of_kind(store: Store, tmp_path: Path, old: str, new: str) -> None:
    before = {"d": {**KINDS[old], "same": b"s"}, **KINDS[old]}
    after = {"d": {**KINDS[new], "same": b"s"}, **KINDS[new]}
    done = moved(store, tmp_path / "w", before, after)
    assert read_tree(tmp_path / "w") == named(after)
    assert (done.outcome.changed, done.outcome.kept) == ([], [])
    assert leftovers(tmp_path / "w") == []


def test_what_was_done_is_counted(store: Store, tmp_path: Path) -> None:
    old = {"same": b"s", "gone": b"1", "d": {"a": b"1"}, "m": b"x"}
    new = {"same": b"s", "new": b"four", "m": Program(b"x"), "e": {"b": b"12"}}
    done = moved(store, tmp_path / "w", old, new)
    assert (done.files, done.bytes, done.outcome.deleted) == (3, 6, 3)
    assert done.old == put_tree(store, old)
    assert restore_tree(store, put_tree(store, old), tmp_path / "w2").old is None


def test_what_is_missing_comes_back_and_is_counted(disk_store: Store, tmp_path: Path) -> None:
    tree = {"a": {"f": b"1", "g": {"h": b"2"}}, "e": {}, "l": Link(b"x"), "same": b"s"}
    root, place = put_tree(disk_store, tree), tmp_path / "w"
    restore_tree(disk_store, root, place)
    shutil.rmtree(place / "a" / "g")
    (place / "e").rmdir()
    (place / "l").unlink()
    done = restore_tree(disk_store, root, place)
    assert read_tree(place) == named(tree)
    assert (done.files, done.bytes, done.outcome.deleted, done.local) == (2, 1, 0, [])


def test_only_what_was_touched_is_read(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right after a restore as well: its own stat cache is not racy."""
    tree = {"a": {"f": b"1", "g": b"2"}, "b": {"f": b"1"}}
    root, place = put_tree(disk_store, tree), tmp_path / "w"
    restore_tree(disk_store, root, place)
    read: list[bytes] = []
    original = FileReader._file

    def noting(self: FileReader, fd: int, name: bytes, base: str | None) -> Any:
        read.append(name)
        return original(self, fd, name, base)

    monkeypatch.setattr(FileReader, "_file", noting)
    assert restore_tree(disk_store, root, place).files == 0
    assert read == []
    (place / "a" / "g").write_bytes(b"3")
    with pytest.raises(Refused, match="local changes would be overwritten: a/g; use --force"):
        restore_tree(disk_store, root, place)
    assert read == [b"g"]


def test_verify_reads_every_file(disk_store: Store, tmp_path: Path) -> None:
    """A byte that was changed on the disk, below the file system, changes no stat."""
    root, place = put_tree(disk_store, {"f": LARGE, "g": b"1"}), tmp_path / "w"
    restore_tree(disk_store, root, place)
    with closing(sqlite3.connect(disk_store.root / "index.db", isolation_level=None)) as db:
        ((names, stats),) = db.execute("SELECT names, stats FROM dated_directories").fetchall()
        (place / "f").write_bytes(b"x" * len(LARGE))
        printed = stat_cache.pack_stat((place / "f").stat())
        db.execute("UPDATE dated_directories SET stats = ?", (printed + stats[len(printed) :],))
    assert names == b"f\0g"
    assert restore_tree(disk_store, root, place).files == 0
    with pytest.raises(Refused, match="overwritten: f;"):
        restore_tree(disk_store, root, place, verify=True)
    restore_tree(disk_store, root, place, verify=True, force=True)
    assert (place / "f").read_bytes() == LARGE


# -- what somebody changed or brought ---------------------------------------------------------


@pytest.mark.parametrize(
    "here",
    [b"mine", Program(b"one"), Link(b"one"), Link(b"/etc"), {}, {"f": b"one"}, None],
)
@pytest.mark.parametrize("new", ["nothing", "other file", "link", "directory"])
def test_what_was_changed_here_is_refused_and_can_be_had_back(
    store: Store, tmp_path: Path, here: Any, new: str
) -> None:
    place = tmp_path / "w"
    old = {"x": b"one", "d": {}}
    restore_tree(store, put_tree(store, old), place)
    (place / "x").unlink()
    if here is not None:
        write_tree(place, {"x": here})
    after = {**KINDS[new], "d": {}}
    arguments = (store, put_tree(store, after), place)
    before, base = read_tree(place), put_tree(store, old)
    is_theirs = here is None or named({"x": here}) == named(KINDS[new])
    if new == "directory" and isinstance(here, dict):
        is_theirs = True  # nothing of it is overwritten
    is_blocked = here == {"f": b"one"} and new in ("other file", "link")
    if not is_theirs:
        said = "local changes would be overwritten: x; use --force"
        if is_blocked:
            said = "x: a directory with untracked files is where .*, or use --force"
        with pytest.raises(Refused, match=said):
            restore_tree(*arguments, base=base)
        assert read_tree(place) == before
    if new == "nothing" and here == {"f": b"one"}:
        done = restored(*arguments, base=base, force=True)
        assert done.outcome.kept == [b"x"]
        return
    done = restored(*arguments, base=base, force=True)
    assert read_tree(place) == named(after)
    assert done.outcome.changed == []
    assert done.local == ([] if is_theirs else [b"x"])
    if done.operation is not None:
        take_back_last(store, place)
        assert read_tree(place) == before


def test_modes_are_local_changes(disk_store: Store, tmp_path: Path) -> None:
    """A mode that was made narrower is not made wider without a word; group's write bit is none."""
    root, place = put_tree(disk_store, {"a": b"1", "b": b"1", "c": b"1"}), tmp_path / "w"
    restore_tree(disk_store, root, place)
    (place / "a").chmod(0o755)
    (place / "c").chmod(0o664)
    with pytest.raises(Refused, match="overwritten: a; use"):
        restore_tree(disk_store, root, place)


def test_a_list_of_local_changes_is_bounded(disk_store: Store, tmp_path: Path) -> None:
    tree = {f"f{n}": b"1" for n in range(9)}
    root, place = put_tree(disk_store, tree), tmp_path / "w"
    restore_tree(disk_store, root, place)
    for name in tree:
        (place / name).write_bytes(b"mine")
    with pytest.raises(Refused, match=r"overwritten: f0, f1, f2, f3, f4 \(and 4 more\); use"):
        restore_tree(disk_store, root, place)


def test_untracked_files_and_the_directories_that_hold_them_stay(
    store: Store, tmp_path: Path
) -> None:
    old = {"gone": {"f": b"1", "below": {"g": b"2"}, "e": {}}, "stays": {"f": b"1"}}
    new = {"stays": {"f": b"2"}}
    place = tmp_path / "w"
    restore_tree(store, put_tree(store, old), place)
    write_tree(place / "gone" / "below", {"mine": b"m"})
    write_tree(place / "stays", {"node_modules": {"x": b"m"}, "mine": Link(b"m")})
    done = restore_tree(store, put_tree(store, new), place, base=put_tree(store, old))
    assert done.outcome.kept == [b"gone/below", b"gone"]
    assert done.outcome.changed == []
    assert read_tree(place) == named(
        {
            "gone": {"below": {"mine": b"m"}},
            "stays": {"f": b"2", "node_modules": {"x": b"m"}, "mine": Link(b"m")},
        }
    )


def test_untracked_files_are_deleted_when_that_is_asked_for(store: Store, tmp_path: Path) -> None:
    old = {"gone": {"f": b"1"}, "same": {"d": {"f": b"1"}}, "x": {"f": b"1"}}
    new = {"same": {"d": {"f": b"1"}}, "x": b"file"}
    place = tmp_path / "w"
    restore_tree(store, put_tree(store, old), place)
    for at in ("", "gone", "same/d", "x"):
        write_tree(place / at, {"mine": b"m", "dir": {"mine": b"m", "l": Link(b"/etc")}})
    done = restore_tree(
        store, put_tree(store, new), place, base=put_tree(store, old), delete_untracked=True
    )
    assert read_tree(place) == named(new)
    assert done.outcome.deleted == 4 * 4 + 4
    assert Path("/etc").exists()


def test_an_untracked_directory_in_the_way_of_a_file_is_refused_before_anything_is_written(
    disk_store: Store, tmp_path: Path
) -> None:
    old, new = {"x": {"f": b"1"}, "y": b"1"}, {"x": b"file", "y": b"2"}
    place = tmp_path / "w"
    restore_tree(disk_store, put_tree(disk_store, old), place)
    write_tree(place / "x", {"mine": b"m"})
    before = read_tree(place)
    for dry_run in (False, True):
        with pytest.raises(Refused, match="move it away, or use --force"):
            restore_tree(disk_store, put_tree(disk_store, new), place, dry_run=dry_run)
    assert read_tree(place) == before, "refused before anything is written"
    write_tree(place / "x", {"__pycache__": {"c": b"c"}})
    for forced in ({"force": True}, {"delete_untracked": True}):
        with pytest.raises(Refused, match="x: a directory with files that checkpoints leave out"):
            restore_tree(disk_store, put_tree(disk_store, new), place, **forced)
    (place / "x" / "__pycache__" / "c").unlink()
    (place / "x" / "__pycache__").rmdir()
    assert read_tree(place) == before
    (place / "x" / "mine").unlink()
    done = restore_tree(disk_store, put_tree(disk_store, new), place)
    assert read_tree(place) == named(new)
    assert done.outcome.changed == []


def test_a_directory_of_somebody_is_merged_into(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "w"
    restore_tree(store, put_tree(store, {}), place, base=None)
    write_tree(place, {"d": {"mine": b"m", "f": b"mine too", "sub": {}}})
    new = {"d": {"f": b"theirs", "sub": {"g": b"1"}}}
    arguments = (store, put_tree(store, new), place)
    done = restore_tree(*arguments, base=put_tree(store, {}), force=True)
    assert done.local == [b"d/f"]
    assert read_tree(place) == named({"d": {"mine": b"m", "f": b"theirs", "sub": {"g": b"1"}}})


@pytest.mark.parametrize("where", ["d", "d/e", "d/e/f"])
@pytest.mark.parametrize("new", [{"d": {"e": {"f": b"new"}}}, {"d": {"e": {}}}, {"d": {}}, {}])
def test_a_planted_link_is_replaced_and_never_followed(
    store: Store, tmp_path: Path, where: str, new: Tree
) -> None:
    outside = write_tree(tmp_path / "outside", {"e": {"f": b"mine"}, "f": b"mine"})
    before = read_tree(outside)
    old = {"d": {"e": {"f": b"old"}}}
    place = tmp_path / "w"
    restore_tree(store, put_tree(store, old), place)
    planted = place / where
    if planted.is_dir():
        shutil.rmtree(planted)
    else:
        planted.unlink()
    planted.symlink_to(outside / "f" if where.endswith("f") else outside)
    arguments = (store, put_tree(store, new), place)
    with pytest.raises(Refused, match=f"overwritten: {where};"):
        restore_tree(*arguments, base=put_tree(store, old))
    done = restore_tree(*arguments, base=put_tree(store, old), force=True)
    assert read_tree(outside) == before
    assert read_tree(place) == named(new)
    assert done.local == [os.fsencode(where)]


def test_a_hard_link_to_somewhere_else_is_cut(store: Store, tmp_path: Path) -> None:
    """Neither the content nor the mode of a file outside may change."""
    place = tmp_path / "w"
    old = {"content": b"1", "mode": b"2"}
    restore_tree(store, put_tree(store, old), place)
    for name in old:
        os.link(place / name, tmp_path / f"outside-{name}")
    new = {"content": b"new", "mode": Program(b"2")}
    restore_tree(store, put_tree(store, new), place, base=put_tree(store, old))
    assert read_tree(place) == named(new)
    assert (tmp_path / "outside-content").read_bytes() == b"1"
    assert stat.S_IMODE((tmp_path / "outside-mode").stat().st_mode) == 0o644


@pytest.mark.parametrize("new", ["nothing", "other file", "link", "directory"])
def test_a_fifo_in_the_way_does_not_block(store: Store, tmp_path: Path, new: str) -> None:
    place = tmp_path / "w"
    restore_tree(store, put_tree(store, KINDS["file"]), place)
    (place / "x").unlink()
    os.mkfifo(place / "x")
    done = restore_tree(
        store, put_tree(store, KINDS[new]), place, base=put_tree(store, KINDS["file"])
    )
    if new == "nothing":  # it is in neither tree
        assert os.listdir(place) == ["x"]
        return
    assert (done.outcome.changed, done.outcome.aside) == ([b"x"], {b"x": b"x.casfs-aside"})
    (place / "x.casfs-aside").unlink()  # it is there still: nothing could give it back
    assert read_tree(place) == named(KINDS[new])


def test_equal_size_and_time_prove_nothing(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "w"
    restore_tree(store, put_tree(store, {"f": b"old"}), place)
    times = (place / "f").stat()
    (place / "f").write_bytes(b"OLD")
    os.utime(place / "f", ns=(times.st_atime_ns, times.st_mtime_ns))
    new = put_tree(store, {"f": b"new"})
    with pytest.raises(Refused, match="overwritten: f;"):
        restore_tree(store, new, place, base=put_tree(store, {"f": b"old"}))


# -- any pair of trees --------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(old=TREES, new=TREES)
def test_any_tree_becomes_any_other(
    store: Store, tmp_path_factory: pytest.TempPathFactory, old: Any, new: Any
) -> None:
    place = tmp_path_factory.mktemp("pair") / "w"
    done = moved(store, place, old, new)
    assert take(store, place) == put_tree(store, new)
    assert (done.outcome.changed, done.outcome.kept) == ([], [])
    back = restore_tree(store, put_tree(store, old), place, base=put_tree(store, new), verify=True)
    assert take(store, place) == put_tree(store, old)
    assert back.outcome.changed == []


def paths(tree: dict[bytes, Any], prefix: bytes = b"") -> dict[bytes, Any]:
    found = {}
    for name, item in tree.items():
        found[prefix + name] = item
        if isinstance(item, dict):
            found |= paths(item, prefix + name + b"/")
    return found


def directories(tree: dict[bytes, Any]) -> list[bytes]:
    return [b"", *(path for path, item in paths(tree).items() if isinstance(item, dict))]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(data=st.data(), old=TREES, new=TREES)
def test_untracked_entries_are_untouched(
    store: Store, tmp_path_factory: pytest.TempPathFactory, data: Any, old: Any, new: Any
) -> None:
    place = tmp_path_factory.mktemp("untracked") / "w"
    restore_tree(store, put_tree(store, old), place)
    where = data.draw(st.lists(st.sampled_from(directories(old)), max_size=3, unique=True))
    name = data.draw(NAMES.map(lambda name: b"~untracked" + name))
    mine = [os.path.join(os.fsencode(place), path, name) for path in where]
    for path in mine:
        with open(path, "wb") as file:
            file.write(b"mine")
    blocked = False
    try:
        done = restore_tree(store, put_tree(store, new), place, base=put_tree(store, old))
        assert done.outcome.changed == []
    except Refused:
        blocked = True
    for path in mine:
        assert Path(os.fsdecode(path)).read_bytes() == b"mine"
    after = paths(new)
    in_the_way = any(not isinstance(after.get(up, {}), dict) for at in where for up in above(at))
    assert blocked == in_the_way
    for path in mine:
        os.unlink(path)
    restore_tree(
        store, put_tree(store, new), place, base=put_tree(store, old), delete_untracked=True
    )
    assert take(store, place) == put_tree(store, new)


def above(path: bytes) -> list[bytes]:
    """A path and what leads to it; nothing for the root."""
    parts = path.split(b"/") if path else []
    return [b"/".join(parts[:n]) for n in range(1, len(parts) + 1)]

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.digest import Digest
from casfs.errors import Conflict, Failed, NotFound, Refused
from casfs.nodes import directory
from casfs.nodes.directory import File, Properties, Subdirectory, Symlink
from casfs.store import Store
from casfs.system import locks, rmtree
from casfs.trees.restore import host_entries, incremental, write
from casfs.trees.restore import restore as restoring
from casfs.trees.restore.restore import RestoreResult, restore
from casfs.trees.restore.restore_state import RestoreStates
from tests.support.helpers import (
    ABSENT,
    LARGE,
    Link,
    Program,
    Tree,
    put_tree,
    read_tree,
    take,
    write_tree,
)
from tests.trees.restore.test_restore import NAMES, TREES, named

MTIME = (1_000_000_000, 123_456_789)


def moved(store: Store, place: Path, old: Tree, new: Tree, **options: Any) -> RestoreResult:
    """Restore `old`, then `new` on top; what the second one did."""
    restore(store, put_tree(store, old), place)
    return restore(store, put_tree(store, new), place, base=put_tree(store, old), **options)


def leftovers(place: Path) -> list[Path]:
    return list(place.parent.rglob(".casfs.*"))


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
    assert restore(store, put_tree(store, old), tmp_path / "w2").old is None


def test_only_what_differs_is_touched(store: Store, tmp_path: Path) -> None:
    """Neither read nor looked at: a path that is equal in both trees stays as it is."""
    old = {"a": {"f": b"1"}, "b": {"f": b"1"}}
    place = tmp_path / "w"
    restore(store, put_tree(store, old), place)
    (place / "a" / "f").write_bytes(b"changed by hand")
    new = {"a": {"f": b"1"}, "b": {"f": b"2"}}
    done = restore(store, put_tree(store, new), place, base=put_tree(store, old))
    assert done.outcome.changed == []
    assert (place / "a" / "f").read_bytes() == b"changed by hand"


def test_verify_looks_at_every_path(store: Store, tmp_path: Path) -> None:
    old = {"a": {"f": b"1", "g": b"2", "l": Link(b"x")}, "b": {"f": b"1"}, "e": {}}
    place = tmp_path / "w"
    restore(store, put_tree(store, old), place)
    (place / "a" / "f").write_bytes(b"9")
    (place / "a" / "g").chmod(0o755)
    (place / "a" / "l").unlink()
    shutil.rmtree(place / "e")
    root = put_tree(store, old)
    done = restore(store, root, place, base=root, verify=True)
    assert done.outcome.changed == [b"a/f", b"a/g", b"a/l", b"e"]
    assert read_tree(place) == named(old)


# -- what somebody changed or brought ---------------------------------------------------------


@pytest.mark.parametrize(
    "here",
    [b"mine", Program(b"one"), Link(b"one"), Link(b"/etc"), {}, {"f": b"one"}, None],
)
@pytest.mark.parametrize("new", ["nothing", "other file", "link", "directory"])
def test_what_was_changed_here_is_reported_and_brought_to_the_new_state(
    store: Store, tmp_path: Path, here: Any, new: str
) -> None:
    place = tmp_path / "w"
    old = {"x": b"one", "d": {}}
    restore(store, put_tree(store, old), place)
    (place / "x").unlink()
    if here is not None:
        write_tree(place, {"x": here})
    after = {**KINDS[new], "d": {}}
    arguments = (store, put_tree(store, after), place)
    if new != "directory" and here == {"f": b"one"}:
        if new != "nothing":
            with pytest.raises(Refused, match="x: a directory with files that are in no tree"):
                restore(*arguments, base=put_tree(store, old))
            return
        done = restore(*arguments, base=put_tree(store, old))
        assert done.outcome.kept == [b"x"]
        return
    done = restore(*arguments, base=put_tree(store, old))
    assert read_tree(place) == named(after)
    as_it_should_be = named({} if here is None else {"x": here}) == named(KINDS[new])
    assert done.outcome.changed == ([] if as_it_should_be else [b"x"])


def test_foreign_files_and_the_directories_that_hold_them_stay(
    store: Store, tmp_path: Path
) -> None:
    old = {"gone": {"f": b"1", "below": {"g": b"2"}, "e": {}}, "stays": {"f": b"1"}}
    new = {"stays": {"f": b"2"}}
    place = tmp_path / "w"
    restore(store, put_tree(store, old), place)
    write_tree(place / "gone" / "below", {"mine": b"m"})
    write_tree(place / "stays", {"node_modules": {"x": b"m"}, "mine": Link(b"m")})
    done = restore(store, put_tree(store, new), place, base=put_tree(store, old))
    assert done.outcome.kept == [b"gone/below", b"gone"]
    assert done.outcome.changed == []
    assert read_tree(place) == named(
        {
            "gone": {"below": {"mine": b"m"}},
            "stays": {"f": b"2", "node_modules": {"x": b"m"}, "mine": Link(b"m")},
        }
    )


def test_foreign_files_go_when_that_is_asked_for(store: Store, tmp_path: Path) -> None:
    old = {"gone": {"f": b"1"}, "same": {"d": {"f": b"1"}}, "x": {"f": b"1"}}
    new = {"same": {"d": {"f": b"1"}}, "x": b"file"}
    place = tmp_path / "w"
    restore(store, put_tree(store, old), place)
    for at in ("", "gone", "same/d", "x"):
        write_tree(place / at, {"mine": b"m", "dir": {"mine": b"m", "l": Link(b"/etc")}})
    done = restore(
        store, put_tree(store, new), place, base=put_tree(store, old), delete_untracked=True
    )
    assert read_tree(place) == named(new)
    assert done.outcome.deleted == 4 * 4 + 4
    assert Path("/etc").exists()


def test_a_foreign_directory_in_the_way_of_a_file_is_refused_and_can_be_completed(
    disk_store: Store, tmp_path: Path
) -> None:
    old, new = {"x": {"f": b"1"}, "y": b"1"}, {"x": b"file", "y": b"2"}
    place = tmp_path / "w"
    restore(disk_store, put_tree(disk_store, old), place)
    write_tree(place / "x", {"mine": b"m"})
    with pytest.raises(Refused, match="--delete-untracked"):
        restore(disk_store, put_tree(disk_store, new), place)
    assert read_tree(place) == named({"x": {"mine": b"m"}, "y": b"2"})
    (place / "x" / "mine").unlink()
    done = restore(disk_store, put_tree(disk_store, new), place)
    assert read_tree(place) == named(new)
    assert done.outcome.changed == []


def test_a_directory_of_somebody_is_merged_into(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "w"
    restore(store, put_tree(store, {}), place, base=None)
    write_tree(place, {"d": {"mine": b"m", "f": b"mine too", "sub": {}}})
    new = {"d": {"f": b"theirs", "sub": {"g": b"1"}}}
    done = restore(store, put_tree(store, new), place, base=put_tree(store, {}))
    assert done.outcome.changed == [b"d", b"d/f", b"d/sub"]
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
    restore(store, put_tree(store, old), place)
    planted = place / where
    if planted.is_dir():
        shutil.rmtree(planted)
    else:
        planted.unlink()
    planted.symlink_to(outside / "f" if where.endswith("f") else outside)
    done = restore(store, put_tree(store, new), place, base=put_tree(store, old))
    assert read_tree(outside) == before
    assert read_tree(place) == named(new)
    assert os.fsencode(where) in done.outcome.changed


def test_a_hard_link_to_somewhere_else_is_cut(store: Store, tmp_path: Path) -> None:
    """Neither the content nor the mode of a file outside may change."""
    place = tmp_path / "w"
    old = {"content": b"1", "mode": b"2"}
    restore(store, put_tree(store, old), place)
    for name in old:
        os.link(place / name, tmp_path / f"outside-{name}")
    new = {"content": b"new", "mode": Program(b"2")}
    restore(store, put_tree(store, new), place, base=put_tree(store, old))
    assert read_tree(place) == named(new)
    assert (tmp_path / "outside-content").read_bytes() == b"1"
    assert stat.S_IMODE((tmp_path / "outside-mode").stat().st_mode) == 0o644


@pytest.mark.parametrize("new", ["nothing", "other file", "link", "directory"])
def test_a_fifo_in_the_way_does_not_block(store: Store, tmp_path: Path, new: str) -> None:
    place = tmp_path / "w"
    restore(store, put_tree(store, KINDS["file"]), place)
    (place / "x").unlink()
    os.mkfifo(place / "x")
    done = restore(store, put_tree(store, KINDS[new]), place, base=put_tree(store, KINDS["file"]))
    assert done.outcome.changed == [b"x"]
    assert read_tree(place) == named(KINDS[new])


def test_equal_size_and_time_prove_nothing(store: Store, tmp_path: Path) -> None:
    place = tmp_path / "w"
    restore(store, put_tree(store, {"f": b"old"}), place)
    times = (place / "f").stat()
    (place / "f").write_bytes(b"OLD")
    os.utime(place / "f", ns=(times.st_atime_ns, times.st_mtime_ns))
    new = put_tree(store, {"f": b"new"})
    assert restore(store, new, place, base=put_tree(store, {"f": b"old"})).outcome.changed == [b"f"]


# -- the store's own record ---------------------------------------------------------------------


def test_a_directory_that_was_restored_is_known_again(disk_store: Store, tmp_path: Path) -> None:
    place = tmp_path / "w"
    trees: list[Tree] = [{"f": b"1", "d": {}}, {"f": b"2"}, {"g": b"3"}, {"g": b"3"}]
    for tree in trees:
        restore(disk_store, put_tree(disk_store, tree), place)
        assert read_tree(place) == named(tree)
    assert os.listdir(disk_store.root / "locks") == []  # type: ignore[operator]


def test_a_directory_is_known_by_any_path_to_it(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    restore(disk_store, put_tree(disk_store, {"f": b"1"}), tmp_path / "link" / "w")
    monkeypatch.chdir(tmp_path / "real")
    restore(disk_store, put_tree(disk_store, {"f": b"2"}), Path("w"))
    monkeypatch.chdir(tmp_path / "real" / "w")
    restore(disk_store, put_tree(disk_store, {"f": b"3"}), Path())
    assert read_tree(tmp_path / "real" / "w") == {b"f": b"3"}


@pytest.mark.parametrize("kind", ["never restored", "another directory", "broken", "collected"])
def test_what_is_not_known_is_refused(disk_store: Store, tmp_path: Path, kind: str) -> None:
    place = tmp_path / "w"
    if kind != "never restored":
        restore(disk_store, put_tree(disk_store, {"f": b"1"}), place)
    assert disk_store.root is not None
    [*records] = (disk_store.root / "restored").glob("*.json")
    if kind == "another directory":
        place.rename(tmp_path / "moved")
    elif kind == "broken":
        records[0].write_text('{"path": 1}')
    elif kind == "collected":
        value = json.loads(records[0].read_text())
        records[0].write_text(json.dumps({**value, "roots": [ABSENT]}))
    write_tree(place, {"mine": b"m"})
    before = read_tree(place)
    with pytest.raises(Refused, match="empty directory"):
        restore(disk_store, put_tree(disk_store, {"f": b"2"}), place)
    assert read_tree(place) == before


def test_a_store_in_memory_needs_from(store: Store, tmp_path: Path) -> None:
    root = put_tree(store, {"f": b"1"})
    restore(store, root, tmp_path / "w")
    with pytest.raises(Refused, match="--base"):
        restore(store, root, tmp_path / "w")


def test_from_that_is_no_tree(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        restore(store, put_tree(store, {}), tmp_path / "w", base=ABSENT)
    assert not (tmp_path / "w").exists()


def test_records_of_directories_that_are_gone_are_forgotten(
    disk_store: Store, tmp_path: Path
) -> None:
    assert disk_store.root is not None
    root = put_tree(disk_store, {})
    for n in range(3):
        restore(disk_store, root, tmp_path / f"w{n}")
    (tmp_path / "w0").rmdir()
    (tmp_path / "w1").rmdir()
    restore(disk_store, root, tmp_path / "w3")
    assert len(os.listdir(disk_store.root / "restored")) == 2


def test_one_restore_at_a_time(disk_store: Store, tmp_path: Path) -> None:
    name = f"restore-{RestoreStates.key(tmp_path / 'w')[:32]}"
    with (
        locks.held(disk_store.root, name, lambda: None),
        pytest.raises(Conflict, match="under way"),
    ):
        restore(disk_store, put_tree(disk_store, {}), tmp_path / "w")


def test_the_store_itself_is_no_target(disk_store: Store, tmp_path: Path) -> None:
    root = put_tree(disk_store, {"store.db": b""})
    assert disk_store.root is not None
    with pytest.raises(Refused, match="the store itself"):
        restore(disk_store, root, disk_store.root, base=root)
    with pytest.raises(Refused, match="the store itself"):
        restore(disk_store, root, tmp_path, base=root, delete_untracked=True)


def test_an_empty_directory_that_we_stand_in_is_filled_as_it_is(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tree(tmp_path / "w", {})
    inode = place.stat().st_ino
    monkeypatch.chdir(place)
    tree = {"f": b"1", "d": {"g": b"2"}}
    restore(disk_store, put_tree(disk_store, tree), Path("."))
    assert read_tree(Path()) == named(tree)
    assert place.stat().st_ino == inode


# -- interruption -----------------------------------------------------------------------------


class Killed(BaseException):
    """As if the process had been killed: nothing that would still clean up succeeds."""


class Mortal:
    """The os module, until `left` changes of the file system have been made."""

    CHANGES = ("open", "mkdir", "rmdir", "unlink", "rename", "symlink", "fchmod", "utime")

    def __init__(self, left: int) -> None:
        self.left = left

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CHANGES:
            return real

        def until_killed(*args: Any, **keywords: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise Killed
            return real(*args, **keywords)

        return until_killed


MODULES = (host_entries, incremental, write, restoring)


@pytest.fixture
def dies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def after(left: int) -> None:
        mortal = Mortal(left)
        for module in MODULES:
            monkeypatch.setattr(module, "os", mortal)

    yield after
    monkeypatch.undo()


def lives(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in MODULES:
        monkeypatch.setattr(module, "os", os)


BEFORE: Tree = {
    "becomes dir": b"file",
    "becomes file": {"f": b"1", "d": {"g": b"2"}},
    "changed": {"a": b"1", "b": Program(b"2"), "l": Link(b"1")},
    "gone": {"f": b"1", "d": {"e": {}}},
    "same": {"f": b"same"},
}
AFTER: Tree = {
    "becomes dir": {"f": b"1", "d": {"g": b"2", "large": LARGE}},
    "becomes file": b"file",
    "changed": {"a": b"3", "b": b"2", "l": Link(b"2")},
    "new": {"f": b"1", "d": {"e": {}, "l": Link(b"x")}},
    "same": {"f": b"same"},
}


@pytest.mark.parametrize("then", ["the same", "back", "somewhere else"])
def test_interrupted_at_any_operation_and_run_again_it_completes(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Any, then: str
) -> None:
    old, new = put_tree(disk_store, BEFORE), put_tree(disk_store, AFTER)
    last = {"the same": AFTER, "back": BEFORE, "somewhere else": {"new": b"f", "same": {}}}[then]
    wanted = put_tree(disk_store, last)
    for count in range(1000):
        place = tmp_path / f"w{count}"
        restore(disk_store, old, place)
        write_tree(place / "same", {"mine": b"m"})
        dies(count)
        try:
            restore(disk_store, new, place)
        except Killed:
            lives(monkeypatch)
        else:
            break
        done = restore(disk_store, wanted, place)
        expected = named(last)
        expected[b"same"] = {**expected[b"same"], b"mine": b"m"}
        assert read_tree(place) == expected, count
        assert (done.outcome.changed, done.outcome.kept) == ([], []), count
    assert count > 30


def test_a_full_restore_that_was_killed_is_run_again(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Any
) -> None:
    root = put_tree(disk_store, AFTER)
    for count in range(1000):
        place = write_tree(tmp_path / f"p{count}", {}) / "w"
        with monkeypatch.context() as patch:
            patch.setattr(rmtree, "delete", lambda path: None)
            dies(count)
            try:
                restore(disk_store, root, place)
            except Killed:
                lives(monkeypatch)
            else:
                break
        restore(disk_store, root, place)
        assert read_tree(place.parent) == {b"w": named(AFTER)}, count
    assert count > 30


def test_filling_a_directory_as_it_is_that_was_killed_is_run_again(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: Any
) -> None:
    root = put_tree(disk_store, AFTER)
    for count in range(1000):
        place = write_tree(tmp_path / f"w{count}", {})
        monkeypatch.chdir(place)
        dies(count)
        try:
            restore(disk_store, root, Path())
        except Killed:
            lives(monkeypatch)
        else:
            break
        restore(disk_store, root, Path())
        assert read_tree(place) == named(AFTER), count
    assert count > 30


def test_an_error_leaves_nothing_of_ours_and_can_be_completed(
    disk_store: Store, tmp_path: Path
) -> None:
    old = put_tree(disk_store, {"a": b"1", "d": {"f": b"1"}})
    place = tmp_path / "w"
    restore(disk_store, old, place)
    new = put_tree(disk_store, {"a": b"2", "d": {"f": LARGE}, "new": {"g": LARGE}})
    assert disk_store.root is not None
    hash = disk_store.put(LARGE).hash
    file = disk_store.root / "objects" / hash[:2] / hash[2:]
    file.rename(file.with_suffix(".away"))
    with pytest.raises(NotFound):
        restore(disk_store, new, place)
    assert leftovers(place) == []
    file.with_suffix(".away").rename(file)
    restore(disk_store, new, place)
    assert read_tree(place) == named({"a": b"2", "d": {"f": LARGE}, "new": {"g": LARGE}})


@pytest.mark.parametrize("there", [{}, {"d": {}}, {"d": {"x": b""}}])
def test_the_message_names_the_path(store: Store, tmp_path: Path, there: Tree) -> None:
    too_long = put_tree(store, {"d": {"x": Link(b"x" * 5000)}})
    restore(store, put_tree(store, there), tmp_path / "w")
    with pytest.raises(Failed, match=r"w at d/x: File name too long"):
        restore(store, too_long, tmp_path / "w", base=put_tree(store, there))
    assert leftovers(tmp_path / "w") == []


# -- what --preserve kept ----------------------------------------------------------------------


def preserving(store: Store, content: bytes, seconds: int, mode: int) -> str:
    """A tree in which everything has a time and a mode."""
    own = Properties((seconds, 5), mode)
    with store.batch() as batch:
        digest = batch.put(content)
        inner = batch.put_node(
            "directory", directory.encode([File(b"f", digest, bool(mode & 0o100), own)], own)
        )
        entries: list[Any] = [
            Subdirectory(b"d", inner),
            File(b"f", digest, bool(mode & 0o100), Properties((-seconds, 7), mode)),
            Symlink(b"l", b"f", Properties((seconds, 9))),
        ]
        return batch.put_node("directory", directory.encode(entries, own)).hash


def observed(place: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in (place, *place.rglob("*")):
        info = path.lstat()
        mode = 0 if path.is_symlink() else stat.S_IMODE(info.st_mode)
        found[str(path.relative_to(place))] = (info.st_mtime_ns, mode)
    return found


def expected(seconds: int, mode: int) -> dict[str, tuple[int, int]]:
    s = seconds * 1_000_000_000
    return {
        ".": (s + 5, mode),
        "d": (s + 5, mode),
        "d/f": (s + 5, mode),
        "f": (-s + 7, mode),
        "l": (s + 9, 0),
    }


def test_times_and_modes_are_restored(store: Store, tmp_path: Path) -> None:
    restore(store, preserving(store, b"1", 10, 0o750), tmp_path / "w")
    assert observed(tmp_path / "w") == expected(10, 0o750)


@pytest.mark.parametrize(
    ("content", "seconds", "mode"),
    [(b"2", 10, 0o750), (b"1", 11, 0o750), (b"1", 10, 0o700), (b"1", 10, 0o640), (b"1", 10, 0o550)],
)
def test_times_and_modes_follow_a_change(
    store: Store, tmp_path: Path, content: bytes, seconds: int, mode: int
) -> None:
    mode_of_directories = mode | 0o100
    old = preserving(store, b"1", 10, 0o750)
    new = preserving(store, content, seconds, mode_of_directories)
    restore(store, old, tmp_path / "w")
    done = restore(store, new, tmp_path / "w", base=old)
    assert observed(tmp_path / "w") == expected(seconds, mode_of_directories)
    assert done.outcome.changed == []
    restore(store, old, tmp_path / "w", base=new, verify=True)
    assert observed(tmp_path / "w") == expected(10, 0o750)


def test_modes_that_are_not_kept_any_more_become_the_usual_ones(
    store: Store, tmp_path: Path
) -> None:
    old = preserving(store, b"1", 10, 0o700)
    restore(store, old, tmp_path / "w")
    new = {"d": {"f": Program(b"1")}, "f": b"1", "l": Link(b"f")}
    restore(store, put_tree(store, new), tmp_path / "w", base=old)
    modes = {name: mode for name, (_, mode) in observed(tmp_path / "w").items()}
    assert modes == {".": 0o755, "d": 0o755, "d/f": 0o755, "f": 0o644, "l": 0}


# -- extremes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("hole", [(0, 3 << 20), (1 << 20, 8 << 20)])
def test_holes_stay_holes(disk_store: Store, tmp_path: Path, hole: tuple[int, int]) -> None:
    data_at, size = hole
    source = write_tree(tmp_path / "source", {})
    with (source / "sparse").open("wb") as file:
        file.truncate(size)
        file.seek(data_at)
        file.write(b"data")
    place = tmp_path / "w"
    restore(disk_store, put_tree(disk_store, {"sparse": b"full"}), place)
    restore(disk_store, take(disk_store, source), place)
    assert (place / "sparse").read_bytes() == (source / "sparse").read_bytes()
    assert (place / "sparse").stat().st_blocks * 512 <= 2 << 20


def test_names_of_bytes_and_of_255_of_them(store: Store, tmp_path: Path) -> None:
    long, odd = b"\xff" * 255, b'a\n"\\\xfe\t'
    old = {long: {odd: b"1", b"\x01": Link(b"\xff")}, odd: b""}
    new = {long: {odd: {long: b"2"}}, odd: Link(b"\xfe\n")}
    moved(store, tmp_path / "w", old, new)
    assert read_tree(tmp_path / "w") == named(new)


def test_a_tree_200_directories_deep(store: Store, tmp_path: Path) -> None:
    def deep(tree: Any) -> Any:
        for _ in range(200):
            tree = {"d": tree}
        return tree

    place = tmp_path / "w"
    old, new, last = deep({"f": b"1"}), deep({"f": b"2"}), deep(b"file")
    moved(store, place, old, new)
    assert take(store, place) == put_tree(store, new)
    restore(store, put_tree(store, last), place, base=put_tree(store, new), verify=True)
    assert take(store, place) == put_tree(store, last)
    restore(store, put_tree(store, {}), place, base=put_tree(store, last))
    assert read_tree(place) == {}


def test_65000_entries_in_one_directory(store: Store, tmp_path: Path) -> None:
    empty = Digest.of(b"")
    store.put(b"")
    entries = [File(b"%05d" % n, empty) for n in range(65_000)]
    old = store.put_node("directory", directory.encode(entries)).hash
    changed = [*entries[1:], File(b"00000", store.put(b"1"))]
    new = store.put_node("directory", directory.encode(changed)).hash
    place = tmp_path / "w"
    assert restore(store, old, place).files == 65_000
    done = restore(store, new, place, base=old)
    assert (done.files, done.bytes) == (1, 1)
    assert len(os.listdir(place)) == 65_000


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
    back = restore(store, put_tree(store, old), place, base=put_tree(store, new), verify=True)
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
def test_what_is_foreign_is_untouched(
    store: Store, tmp_path_factory: pytest.TempPathFactory, data: Any, old: Any, new: Any
) -> None:
    place = tmp_path_factory.mktemp("foreign") / "w"
    restore(store, put_tree(store, old), place)
    where = data.draw(st.lists(st.sampled_from(directories(old)), max_size=3, unique=True))
    name = data.draw(NAMES.map(lambda name: b"~foreign" + name))
    mine = [os.path.join(os.fsencode(place), path, name) for path in where]
    for path in mine:
        with open(path, "wb") as file:
            file.write(b"mine")
    blocked = False
    try:
        done = restore(store, put_tree(store, new), place, base=put_tree(store, old))
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
    restore(store, put_tree(store, new), place, base=put_tree(store, old), delete_untracked=True)
    assert take(store, place) == put_tree(store, new)


def above(path: bytes) -> list[bytes]:
    """A path and what leads to it; nothing for the root."""
    parts = path.split(b"/") if path else []
    return [b"/".join(parts[:n]) for n in range(1, len(parts) + 1)]

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from casfs.errors import Refused
from casfs.store import Store
from casfs.trees.restore.restore import restore
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
from tests.support.restores import leftovers, moved
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
            with pytest.raises(Refused, match="x: a directory with untracked files is where"):
                restore(*arguments, base=put_tree(store, old))
            return
        done = restore(*arguments, base=put_tree(store, old))
        assert done.outcome.kept == [b"x"]
        return
    done = restore(*arguments, base=put_tree(store, old))
    assert read_tree(place) == named(after)
    as_it_should_be = named({} if here is None else {"x": here}) == named(KINDS[new])
    assert done.outcome.changed == ([] if as_it_should_be else [b"x"])


def test_untracked_files_and_the_directories_that_hold_them_stay(
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


def test_untracked_files_are_deleted_when_that_is_asked_for(store: Store, tmp_path: Path) -> None:
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


def test_an_untracked_directory_in_the_way_of_a_file_is_refused_and_can_be_completed(
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
def test_untracked_entries_are_untouched(
    store: Store, tmp_path_factory: pytest.TempPathFactory, data: Any, old: Any, new: Any
) -> None:
    place = tmp_path_factory.mktemp("untracked") / "w"
    restore(store, put_tree(store, old), place)
    where = data.draw(st.lists(st.sampled_from(directories(old)), max_size=3, unique=True))
    name = data.draw(NAMES.map(lambda name: b"~untracked" + name))
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

"""Uppers made by hand: every mark that an overlay may leave, in each of its forms."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from casfs.digest import Digest
from casfs.errors import Corrupt, Failed, NotFound
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Properties
from casfs.store.store import Store
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.snapshot.report import SnapshotReport
from casfs.workspaces import overlay_snapshot
from casfs.workspaces.overlay_markers import PREFIX
from tests.support.block_maps import FIRST, is_mapped
from tests.support.block_maps import changed as changed_blob
from tests.support.helpers import LARGE, Link, Program, put_tree, read_tree, take, write_tree

BASE = {
    "a": {"f": b"f of a", "g": b"g of a", "deep": {"x": b"x", "y": LARGE}},
    "b": {"f": b"f of b"},
    "file": b"file",
    "run": Program(b"run"),
    "link": Link(b"target"),
    "empty": {},
}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may set trusted attributes")
Commit = Callable[..., dict[bytes, object]]


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    path = tmp_path / "upper"
    path.mkdir()
    return path


@pytest.fixture
def commit(disk_store: Store, upper: Path, tmp_path: Path) -> Commit:
    """What the overlay of `upper` over BASE holds, as a literal tree."""

    def run(
        marks_by_files: bool = False, report: SnapshotReport | None = None
    ) -> dict[bytes, object]:
        base = DatedTree(put_tree(disk_store, BASE))
        with disk_store.batch() as batch:
            root = overlay_snapshot.snapshot(
                disk_store, batch, base, upper, report, marks_by_files
            ).tree
        return literal(disk_store, root)

    return run


def literal(store: Store, root: str) -> dict[bytes, object]:
    found: dict[bytes, object] = {}
    for name, entry in tree.load(store, root).items():
        if isinstance(entry, File):
            data = store.get(entry.digest.hash)
            found[name] = Program(data) if entry.executable else data
        elif isinstance(entry, directory.Symlink):
            found[name] = Link(entry.target)
        else:
            found[name] = literal(store, entry.digest.hash)
    return found


def changed(path: str, *value: object) -> dict[bytes, object]:
    """BASE with another value at a path, or without it."""

    def copied(level: dict[str, object]) -> dict[bytes, object]:
        return {
            name.encode(): copied(item) if isinstance(item, dict) else item
            for name, item in level.items()
        }

    found = copied(dict(BASE))
    *folders, name = path.encode().split(b"/")
    level = found
    for folder in folders:
        level = level[folder]  # type: ignore[assignment]
    level.pop(name, None)
    if value:
        level[name] = value[0]
    return found


def mark(path: Path, prefix: str, name: str, value: bytes = b"") -> None:
    try:
        os.setxattr(path, prefix + name, value)
    except OSError as error:
        pytest.skip(f"no attributes {prefix}* here: {error.strerror}")


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o000, 0)


def test_an_empty_upper_changes_nothing(commit: Commit, disk_store: Store) -> None:
    assert commit() == changed("none")


def test_plain_files_and_links(commit: Commit, upper: Path) -> None:
    write_tree(upper, {"a": {"f": b"new", "run": Program(b"x"), "l": Link(b"..")}, "file": b""})
    wanted = changed("file", b"")
    wanted[b"a"] |= {b"f": b"new", b"run": Program(b"x"), b"l": Link(b"..")}  # type: ignore[operator]
    assert commit() == wanted


def test_a_large_file_that_changed_a_little_is_stored_as_its_differences(
    disk_store: Store, upper: Path
) -> None:
    base = DatedTree(put_tree(disk_store, {"large": FIRST}))
    (upper / "large").write_bytes(changed_blob(FIRST, 3))
    with disk_store.batch() as batch:
        root = overlay_snapshot.snapshot(disk_store, batch, base, upper).tree
    assert literal(disk_store, root) == {b"large": changed_blob(FIRST, 3)}
    assert is_mapped(disk_store, Digest.of(changed_blob(FIRST, 3)).hash)


def test_a_file_becomes_a_directory_and_back(commit: Commit, upper: Path) -> None:
    write_tree(upper, {"file": {"in": b"in"}, "b": b"now a file", "link": {}, "run": Link(b"x")})
    found = commit()
    assert found[b"file"] == {b"in": b"in"}
    assert (found[b"b"], found[b"link"], found[b"run"]) == (b"now a file", {}, Link(b"x"))


def test_whiteouts(commit: Commit, upper: Path) -> None:
    (upper / "a/deep").mkdir(parents=True)
    whiteout(upper / "a/deep/x")
    whiteout(upper / "nothing-below")
    assert commit() == changed("a/deep/x")


@as_root
def test_whiteouts_by_attribute(commit: Commit, upper: Path) -> None:
    (upper / "a").mkdir()
    for name in ("f", "g"):
        (upper / "a" / name).touch()
        mark(upper / "a" / name, PREFIX, "whiteout")
    (upper / "a/g").write_text("no whiteout: it has content")
    mark(upper / "a", PREFIX, "opaque", b"x")
    wanted = changed("a/f")
    wanted[b"a"][b"g"] = b"no whiteout: it has content"  # type: ignore[index]
    assert commit() == wanted


@as_root
def test_an_empty_file_is_no_whiteout_where_none_are_meant(commit: Commit, upper: Path) -> None:
    (upper / "file").touch()
    mark(upper / "file", PREFIX, "whiteout")
    assert commit() == changed("file", b"")


@as_root
def test_opaque_directories(commit: Commit, upper: Path) -> None:
    write_tree(upper, {"a": {"new": b"new", "deep": {"z": b"z"}}})
    mark(upper / "a", PREFIX, "opaque", b"y")
    assert commit() == changed("a", {b"new": b"new", b"deep": {b"z": b"z"}})


@as_root
@pytest.mark.parametrize(
    ("redirect", "place"),
    [(b"deep", "a/renamed"), (b"/a/deep", "a/renamed"), (b"/a/deep", "moved")],
)
def test_renamed_directories(commit: Commit, upper: Path, redirect: bytes, place: str) -> None:
    (upper / place).mkdir(parents=True)
    (upper / place / "x").write_text("changed")
    mark(upper / place, PREFIX, "redirect", redirect)
    (upper / "a").mkdir(exist_ok=True)
    whiteout(upper / "a/deep")
    wanted = changed("a/deep")
    folder, _, name = place.encode().rpartition(b"/")
    at = wanted[folder] if folder else wanted
    at[name] = {b"x": b"changed", b"y": LARGE}  # type: ignore[index]
    assert commit() == wanted


@as_root
def test_below_a_renamed_directory_names_are_those_of_the_old_place(
    commit: Commit, upper: Path
) -> None:
    (upper / "moved/deep2").mkdir(parents=True)
    whiteout(upper / "moved/f")
    whiteout(upper / "moved/deep")
    mark(upper / "moved", PREFIX, "redirect", b"/a")
    mark(upper / "moved/deep2", PREFIX, "redirect", b"deep")
    wanted = changed("moved", {b"g": b"g of a", b"deep2": {b"x": b"x", b"y": LARGE}})
    assert commit() == wanted


@as_root
def test_opaque_beats_redirect_and_a_redirect_to_nothing_is_empty(
    commit: Commit, upper: Path
) -> None:
    for name in ("opaque", "nowhere"):
        (upper / name).mkdir()
    mark(upper / "opaque", PREFIX, "redirect", b"/a")
    mark(upper / "opaque", PREFIX, "opaque", b"y")
    mark(upper / "nowhere", PREFIX, "redirect", b"/no/such")
    found = commit()
    assert (found[b"opaque"], found[b"nowhere"]) == ({}, {})


@as_root
def test_files_of_which_only_the_mode_changed(commit: Commit, upper: Path) -> None:
    """Their content is not in the upper: what is there is a hole of that length."""
    (upper / "a/deep").mkdir(parents=True)
    for path, redirect in (
        ("file", None), ("run", None), ("a/deep/y2", b"y"), ("far", b"/a/deep/y"), ("a/f", b"g"),
    ):  # fmt: skip
        (upper / path).write_bytes(bytes(10))
        (upper / path).chmod(0o644 if path == "run" else 0o755)
        mark(upper / path, PREFIX, "metacopy")
        if redirect:
            mark(upper / path, PREFIX, "redirect", redirect)
    found = commit()
    wanted = changed("file", Program(b"file"))
    wanted |= {b"run": b"run", b"far": Program(LARGE)}
    wanted[b"a"][b"f"] = Program(b"g of a")  # type: ignore[index]
    wanted[b"a"][b"deep"][b"y2"] = Program(LARGE)  # type: ignore[index]
    assert found == wanted


@as_root
def test_a_redirect_that_stayed_on_a_copied_file_means_nothing(commit: Commit, upper: Path) -> None:
    (upper / "file").write_bytes(b"all here")
    mark(upper / "file", PREFIX, "redirect", b"/a/f")
    assert commit() == changed("file", b"all here")


@as_root
def test_content_that_the_tree_does_not_have_is_corrupt(commit: Commit, upper: Path) -> None:
    (upper / "none").touch()
    mark(upper / "none", PREFIX, "metacopy")
    with pytest.raises(Corrupt, match="none: its content is not in tree"):
        commit()


def test_marks_of_somebody_else_mean_nothing(commit: Commit, upper: Path) -> None:
    """In root's overlay an agent may set user attributes, and names are only names."""
    write_tree(upper, {"a": {".wh.f": b"", ".wh..wh..opq": b""}, "b": {}, ".wh.file": b"a file"})
    mark(upper / "b", "user.overlay.", "opaque", b"y")
    mark(upper / "a", "user.overlay.", "redirect", b"/b")
    wanted = changed(".wh.file", b"a file")
    wanted[b"a"] |= {b".wh.f": b"", b".wh..wh..opq": b""}  # type: ignore[operator]
    assert commit() == wanted


def test_marks_by_name(commit: Commit, upper: Path) -> None:
    write_tree(
        upper,
        {
            "a": {".wh..wh..opq": b"", "f": b"only"},
            "b": {".wh.f": b""},
            ".wh.link": b"",
            ".wh.+again": b"",
            "+again": b"made after it was deleted",
            ".wh..wh.plnk": b"reserved",
        },
    )
    wanted = changed("a", {b"f": b"only"})
    wanted |= {b"b": {}, b"+again": b"made after it was deleted"}
    del wanted[b"link"]
    assert commit(marks_by_files=True) == wanted


def test_what_a_tree_cannot_hold_is_left_out_by_name(commit: Commit, upper: Path) -> None:
    os.mkfifo(upper / "file")
    if os.geteuid() == 0:
        os.mknod(upper / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    report = SnapshotReport()
    assert commit(report=report) == changed("file")
    assert any(f"{upper}/file: left out" in warning for warning in report.warnings)
    assert len(report.warnings) == 1 + (os.geteuid() == 0)


def test_hard_links_are_files_of_equal_content(commit: Commit, upper: Path) -> None:
    (upper / "one").write_bytes(LARGE)
    os.link(upper / "one", upper / "two")
    report = SnapshotReport()
    found = commit(report=report)
    assert found[b"one"] == found[b"two"] == LARGE
    assert (report.files, report.bytes, report.read) == (2, 2 * len(LARGE), 2)


def test_names_that_are_bytes(commit: Commit, upper: Path) -> None:
    name = b"caf\xe9"
    (upper / os.fsdecode(name)).mkdir()
    (upper / os.fsdecode(name) / ("n" * 255)).write_bytes(b"long")
    assert commit()[name] == {b"n" * 255: b"long"}


def test_what_the_base_keeps_is_kept(disk_store: Store, upper: Path) -> None:
    """A tree made with --preserve stays one: what is new has its times and modes too."""
    old = Properties((5, 7), 0o600)
    with disk_store.batch() as batch:
        kept = File(b"kept", batch.put(b"kept"), False, old)
        base = batch.put_node("directory", directory.encode([kept], Properties((9, 0), 0o750)))
    (upper / "new").write_bytes(b"new")
    (upper / "new").chmod(0o640)
    os.utime(upper / "new", ns=(0, 3_000_000_004))
    upper.chmod(0o700)
    os.utime(upper, ns=(0, 11_000_000_000))
    with disk_store.batch() as batch:
        root = overlay_snapshot.snapshot(disk_store, batch, DatedTree(base.hash), upper).tree
    found = tree.load(disk_store, root)
    assert found[b"kept"] == kept
    assert found[b"new"].properties == Properties((3, 4), 0o640)  # type: ignore[union-attr]
    assert tree.directory_properties(disk_store, root) == Properties((11, 0), 0o700)


def test_a_wide_upper_is_the_directory_itself(
    disk_store: Store, upper: Path, tmp_path: Path
) -> None:
    base = DatedTree(put_tree(disk_store, {}))
    write_tree(upper, {f"d{n}": {f"f{m}": b"%d" % m for m in range(30)} for n in range(10)})
    with disk_store.batch() as batch:
        root = overlay_snapshot.snapshot(disk_store, batch, base, upper).tree
    assert root == take(disk_store, upper)
    assert literal(disk_store, root) == read_tree(upper)


def test_what_is_not_there(disk_store: Store, upper: Path, tmp_path: Path) -> None:
    base = DatedTree(put_tree(disk_store, BASE))
    with disk_store.batch() as batch, pytest.raises(NotFound, match="no directory"):
        overlay_snapshot.snapshot(disk_store, batch, base, tmp_path / "none")
    with disk_store.batch() as batch, pytest.raises(NotFound):
        overlay_snapshot.snapshot(disk_store, batch, DatedTree("0f" * 32), upper)


def test_too_deep(disk_store: Store, upper: Path) -> None:
    base = DatedTree(put_tree(disk_store, {}))
    deep = upper
    for _ in range(260):
        deep = deep / "d"
    deep.mkdir(parents=True)
    with disk_store.batch() as batch, pytest.raises(Failed, match="directories deep"):
        overlay_snapshot.snapshot(disk_store, batch, base, upper)


@as_root
def test_content_in_the_objects(commit: Commit, upper: Path, disk_store: Store) -> None:
    """Over an image a redirect may lead past the tree."""
    hash = disk_store.put(LARGE).hash
    path = upper / "new"
    path.write_bytes(b"")
    os.truncate(path, len(LARGE))
    path.chmod(0o755)
    mark(path, PREFIX, "metacopy")
    mark(path, PREFIX, "redirect", f"/{hash[:2]}/{hash[2:]}".encode())
    assert commit()[b"new"] == Program(LARGE)
    os.truncate(path, 1)
    with pytest.raises(Corrupt, match="is not in tree"):
        commit()

"""Files below one directory: what is reached, and what never is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from casfs.errors import CasfsError, Failed, Invalid, NotFound, Refused
from engine.llm.workspace_files import Entry, WorkspaceFiles

LIMIT = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = tmp_path / "root"
    (made / "src/deep").mkdir(parents=True)
    (made / "a.txt").write_text("a\n")
    (made / "src/b.txt").write_text("b\n")
    (made / "src/deep/c.txt").write_text("c\n")
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret\n")
    return made


@pytest.fixture
def files(root: Path) -> WorkspaceFiles:
    return WorkspaceFiles(root)


def link(root: Path, name: str, target: str) -> None:
    (root / name).symlink_to(target)


# -- inside -------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["src/b.txt", "./src/b.txt", "src//b.txt", "src/./b.txt"])
def test_read(path: str, files: WorkspaceFiles) -> None:
    assert files.read(path, LIMIT) == b"b\n"


def test_no_more_is_read_than_asked_for(root: Path, files: WorkspaceFiles) -> None:
    (root / "big").write_bytes(b"x" * 1000)
    assert files.read("big", 10) == b"x" * 10


def test_a_file_is_replaced_and_keeps_its_mode(root: Path, files: WorkspaceFiles) -> None:
    (root / "a.txt").chmod(0o751)
    files.write("a.txt", b"new")
    assert (root / "a.txt").read_bytes() == b"new"
    assert stat.S_IMODE((root / "a.txt").stat().st_mode) == 0o751
    assert os.listdir(root).count("a.txt") == 1
    assert not [name for name in os.listdir(root) if name.startswith(".casfs")]


def test_a_new_file_with_the_directories_it_needs(root: Path, files: WorkspaceFiles) -> None:
    files.write("new/more/file", b"x")
    assert (root / "new/more/file").read_bytes() == b"x"
    assert stat.S_IMODE((root / "new/more/file").stat().st_mode) == 0o644


def test_a_hard_link_outside_is_not_written_through(root: Path, files: WorkspaceFiles) -> None:
    os.link(root.parent / "secret", root / "hard")
    files.write("hard", b"new")
    assert (root.parent / "secret").read_text() == "secret\n"
    assert (root / "hard").read_bytes() == b"new"


def test_entries(root: Path, files: WorkspaceFiles) -> None:
    link(root, "link", "a.txt")
    os.mkfifo(root / "pipe")
    assert files.entries(".") == [
        Entry("a.txt", "file", 2),
        Entry("link", "link", 5),
        Entry("pipe", "other", 0),
        Entry("src", "directory", (root / "src").stat().st_size),
    ]
    assert [one.name for one in files.entries("src")] == ["b.txt", "deep"]


def test_walk(root: Path, files: WorkspaceFiles) -> None:
    (root / ".git").mkdir()
    (root / ".git/config").write_text("x")
    (root / "big").write_bytes(b"x" * 100)
    link(root, "src/away", "..")
    os.mkfifo(root / "src/pipe")
    assert [path for path, _ in files.walk(".", 50)] == [
        "a.txt",
        "src/b.txt",
        "src/deep/c.txt",
    ]
    assert list(files.walk("src/deep", 50)) == [("src/deep/c.txt", b"c\n")]
    assert list(files.walk("a.txt", 50)) == [("a.txt", b"a\n")]


@pytest.mark.parametrize(
    ("name", "target", "path", "content"),
    [
        ("link", "a.txt", "link", b"a\n"),
        ("src/up", "../a.txt", "src/up", b"a\n"),
        ("dir", "src", "dir/b.txt", b"b\n"),
        ("src/deep/up", "../../src/deep", "src/deep/up/up/c.txt", b"c\n"),
        ("round", "src/../src/./deep//", "round/c.txt", b"c\n"),
    ],
)
def test_a_link_inside_is_followed(
    name: str, target: str, path: str, content: bytes, root: Path, files: WorkspaceFiles
) -> None:
    link(root, name, target)
    assert files.read(path, LIMIT) == content
    files.write(path, b"changed")
    assert files.read(path, LIMIT) == b"changed"
    assert (root / name).is_symlink()


# -- outside ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["..", "../secret", "src/../../secret", "src/../a.txt", "/etc/passwd", "//etc", "/"]
)
def test_paths_that_are_refused(path: str, files: WorkspaceFiles) -> None:
    for use in (lambda: files.read(path, LIMIT), lambda: files.write(path, b"x")):
        with pytest.raises(Refused, match="only paths below the workspace"):
            use()
    with pytest.raises(Refused):
        files.entries(path)
    with pytest.raises(Refused):
        list(files.walk(path, LIMIT))


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("../secret", "link"),
        ("/etc/passwd", "link"),
        ("../outside", "link/secret"),
        ("..", "link/secret"),
        ("/", "link/etc/passwd"),
        ("src/../../secret", "link"),
        ("link", "link"),
    ],
)
def test_links_that_lead_out_are_refused(
    target: str, path: str, root: Path, files: WorkspaceFiles
) -> None:
    link(root, "link", target)
    for use in (lambda: files.read(path, LIMIT), lambda: files.write(path, b"x")):
        with pytest.raises(Refused, match=r"a link out|leads out"):
            use()
    with pytest.raises(Refused):
        files.entries(path)
    assert (root.parent / "secret").read_text() == "secret\n"
    assert (root.parent / "outside/secret").read_text() == "secret\n"


def test_links_through_links_lead_nowhere_else(root: Path, files: WorkspaceFiles) -> None:
    link(root, "one", "src/two")
    link(root, "src/two", "../../secret")
    with pytest.raises(Refused):
        files.read("one", LIMIT)


def test_a_link_whose_target_is_new(root: Path, files: WorkspaceFiles) -> None:
    link(root, "later", "src/later.txt")
    files.write("later", b"x")
    assert (root / "src/later.txt").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("gone", NotFound),
        ("gone/more", NotFound),
        ("a.txt/more", Failed),
        ("src", Refused),
        ("pipe", Refused),
        (".", CasfsError),
        ("nul\0", Invalid),
    ],
)
def test_what_cannot_be_read(
    path: str, error: type[CasfsError], root: Path, files: WorkspaceFiles
) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(error):
        files.read(path, LIMIT)


@pytest.mark.parametrize("path", ["src", ".", "pipe", "a.txt/more"])
def test_what_cannot_be_written(path: str, root: Path, files: WorkspaceFiles) -> None:
    os.mkfifo(root / "pipe")
    before = sorted(os.listdir(root))
    with pytest.raises(CasfsError):
        files.write(path, b"x")
    assert sorted(os.listdir(root)) == before


def test_no_descriptor_stays_open(root: Path, files: WorkspaceFiles) -> None:
    link(root, "link", "../secret")
    before = len(os.listdir("/proc/self/fd"))
    files.read("src/deep/c.txt", LIMIT)
    files.write("src/x", b"")
    list(files.walk(".", LIMIT))
    for path in ("link", "gone", "a.txt/x", ".."):
        with pytest.raises(CasfsError):
            files.read(path, LIMIT)
    assert len(os.listdir("/proc/self/fd")) == before

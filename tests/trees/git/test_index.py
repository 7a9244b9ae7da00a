"""Which files git tracks, read from its index: as `git ls-files` says."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from casfs.errors import Invalid
from casfs.trees.git.index import TrackedFiles, entries

OWNER = ("-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")
NAMES = st.binary(min_size=1, max_size=40).filter(
    lambda name: not set(name) & set(b"/\0\n") and name.lower() not in (b".", b"..", b".git")
)
LONG = b"n" * 250
PATHS = st.lists(st.one_of(NAMES, st.just(LONG)), min_size=1, max_size=3).map(b"/".join)


def git(directory: Path, *arguments: str | bytes, data: bytes = b"") -> bytes:
    command = ["git", "-C", directory, *OWNER, *arguments]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def repository(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    git(place, "init", "-q")
    return place


def commit(place: Path) -> None:
    git(place, "commit", "-q", "--allow-empty", "-m", "all")


def listed(place: Path) -> set[bytes]:
    return set(filter(None, git(place, "ls-files", "-z").split(b"\0")))


@settings(max_examples=30, deadline=None)
@given(paths=st.lists(PATHS, min_size=1, max_size=25), version=st.sampled_from(["2", "4"]))
def test_any_name_is_read_as_git_reads_it(paths: list[bytes], version: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = repository(Path(folder, "r"))
        made = []
        for path in paths:
            file = os.path.join(os.fsencode(place), path)
            try:
                os.makedirs(os.path.dirname(file), exist_ok=True)
                Path(os.fsdecode(file)).write_bytes(b"")
            except OSError:  # a file is where a directory would have to be
                continue
            made.append(path)
        given_paths = b"\0".join(made[::2])
        git(
            place,
            "--literal-pathspecs",
            "add",
            "-f",
            "--pathspec-from-file=-",
            "--pathspec-file-nul",
            data=given_paths,
        )
        git(place, "update-index", "--index-version", version)
        wanted = listed(place)
        tracked = TrackedFiles(place, above=False)
        found = {path for path in made if tracked.has(path)}
        assert found == wanted


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_every_version_of_the_index(tmp_path: Path, version: str) -> None:
    place = repository(tmp_path / "r")
    for name in ("a", "b", "untracked"):
        (place / name).write_text(name)
    git(place, "add", "a")
    git(place, "update-index", "--index-version", version)
    git(place, "add", "--intent-to-add", "b")  # which needs the flags of version 3
    number = int.from_bytes((place / ".git/index").read_bytes()[4:8], "big")
    assert number == (4 if version == "4" else 3)
    tracked = TrackedFiles(place, above=False)
    assert [tracked.has(name) for name in (b"a", b"b", b"untracked")] == [True, True, False]


def test_a_repository_without_an_index_tracks_nothing(tmp_path: Path) -> None:
    place = repository(tmp_path / "r")
    assert TrackedFiles(place, above=False).has(b"a") is False
    assert TrackedFiles(tmp_path, above=False).has(b"r/a") is False
    assert TrackedFiles(tmp_path, above=False).has(b"a") is None


def test_a_subdirectory_of_a_repository(tmp_path: Path) -> None:
    place = repository(tmp_path / "r")
    (place / "d/e").mkdir(parents=True)
    (place / "d/e/f").touch()
    git(place, "add", "d/e/f")
    inner = TrackedFiles(place / "d", above=True)
    assert (inner.has(b"e/f"), inner.has(b"e/g"), inner.has(b"f")) == (True, False, False)
    assert TrackedFiles(place / "d", above=False).has(b"e/f") is None
    (tmp_path / "link").symlink_to(place / "d")
    assert TrackedFiles(tmp_path / "link", above=True).has(b"e/f") is True


def test_a_linked_work_tree(tmp_path: Path) -> None:
    place = repository(tmp_path / "r")
    (place / "f").touch()
    git(place, "add", "f")
    commit(place)
    git(place, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    (tmp_path / "linked/own").touch()
    git(tmp_path / "linked", "add", "own")
    tracked = TrackedFiles(tmp_path / "linked", above=False)
    assert [tracked.has(name) for name in (b"f", b"own", b"g")] == [True, True, False]
    assert TrackedFiles(place, above=False).has(b"own") is False


def test_a_submodule_is_asked_for_its_own_files(tmp_path: Path) -> None:
    part = repository(tmp_path / "part")
    (part / "f").touch()
    git(part, "add", "f")
    commit(part)
    place = repository(tmp_path / "r")
    git(place, "submodule", "--quiet", "add", str(part), "sub")
    (place / "sub/g").touch()
    tracked = TrackedFiles(place, above=False)
    assert [tracked.has(name) for name in (b"sub/f", b"sub/g", b".gitmodules", b"x")] == [
        True, False, True, False,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:10],
        lambda data: b"CRID" + data[4:],
        lambda data: data[:4] + b"\0\0\0\x09" + data[8:],
        lambda data: data[:8] + b"\xff\xff\xff\xff" + data[12:],
    ],
)
def test_a_damaged_index_is_refused(tmp_path: Path, damage: object) -> None:
    place = repository(tmp_path / "r")
    (place / "f").touch()
    git(place, "add", "f")
    index = place / ".git/index"
    index.write_bytes(damage(index.read_bytes()))  # type: ignore[operator]
    with pytest.raises(Invalid, match=r"r/\.git/index is damaged: .* `git reset`"):
        TrackedFiles(place, above=False).has(b"f")


def test_what_an_agent_makes_of_a_repository_is_harmless(tmp_path: Path) -> None:
    """A fifo would block, and a directory is no file."""
    fifo, folder = (repository(tmp_path / name) for name in ("fifo", "folder"))
    os.mkfifo(fifo / ".git/index")
    with pytest.raises(Invalid, match="damaged"):
        TrackedFiles(fifo, above=False).has(b"f")
    os.mkdir(folder / ".git/index")
    assert TrackedFiles(folder, above=False).has(b"f") is None
    loop = tmp_path / "loop"
    loop.mkdir()
    (loop / ".git").write_text("gitdir: .git\n")
    assert TrackedFiles(loop, above=False).has(b"f") is None


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_a_split_index_is_read_with_the_shared_one(tmp_path: Path, object_format: str) -> None:
    place = tmp_path / "r"
    git(tmp_path, "init", "-q", f"--object-format={object_format}", str(place))
    for number in range(300):
        (place / f"f{number}").write_text(str(number))
    git(place, "add", "-A")
    git(place, "update-index", "--split-index")
    git(place, "rm", "-q", "--cached", "f7", "f100")
    for name in ("f20", "f64", "new"):
        (place / name).write_text("other")
    git(place, "add", "f20", "f64", "new")
    assert list(place.glob(".git/sharedindex.*"))
    data = (place / ".git/index").read_bytes()
    found = entries(data, "index", lambda name: (place / ".git" / name).read_bytes())
    rows = [line.split(b"\t") for line in git(place, "ls-files", "-s").splitlines()]
    assert found == {path: bytes.fromhex(row.split()[1].decode()) for row, path in rows}
    assert TrackedFiles(place, above=False).has(b"f7") is False
    (place / ".git").joinpath(next(place.glob(".git/sharedindex.*")).name).unlink()
    with pytest.raises(Invalid, match="damaged"):
        TrackedFiles(place, above=False).has(b"f7")

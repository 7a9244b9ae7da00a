"""How many requests of which kind the usual commands make: for the kernel's first look at a
checkpoint, and for any later one.

This does not depend on the machine's speed. The commands start inside the checkpoint, whose
names and attributes can be cached indefinitely; what it costs to come there by path is a test of
its own. Whatever is not in a budget must not be asked at all.

By our own transport no second look asks for anything that is shown, but:

    access    chdir(2) and access(2) always ask: one for the shell's own `cd`, find's, git's
    lseek     grep asks for the holes of files above some 96 KiB, and no kernel keeps that
    statfs    as little; fts(3) may ask it once for each kind of file system
    getattr   git stats each directory above its own, of which two are live

pyfuse3 must be asked to open and to list, each time, and for the targets of links.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.lasting import (
    CACHES,
    PLAIN,
    ROOT_ONLY,
    asked,
    kernel_caches,
    opened,
    record,
)
from tests.support.served import Mount

LARGE = 400_000  # bytes
ABOVE = 2  # live directories on the way to a checkpoint: trees/ and trees/<name>/
COMMANDS: dict[str, list[str]] = {
    "ls": ["ls", "-AlR", "."],
    "find": ["find", "."],
    "grep": ["grep", "-r", "needle", "."],
    "cat": ["cat", "d0/e0/f0", "d0/e0/f1", "d1/e1/f2"],
    "cp": ["cp", "-a", ".", "COPY"],
    "tar": ["tar", "-c", "-f", "COPY", "."],
    "git": ["git", "status", "--porcelain"],
}
CAT = 3
CACHED_TRIES = 5
GIT_COMMIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]
Budget = dict[str, tuple[int, int]]  # least and most, by kind


@dataclass
class Planted:
    root: Path
    directories: int
    files: int
    empty: int
    links: int
    work: tuple[int, int]  # directories and files outside .git

    @property
    def reads(self) -> tuple[int, int]:
        """To read all: one for each file that has content, a few more for a long one."""
        return self.files - self.empty, self.files - self.empty + 4


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    root = tmp_path_factory.mktemp("planted") / "tree"
    for one in range(4):
        for two in range(3):
            inner = root / f"d{one}" / f"e{two}"
            inner.mkdir(parents=True)
            for number in range(6):
                (inner / f"f{number}").write_text(f"needle {one} {two} {number}\n" * 80)
            (inner / "link").symlink_to("f0")
    (root / "large").write_bytes(b"a needle in hay\n" * (LARGE // 16))
    (root / "empty").mkdir()
    for command in (["git", "init", "-q"], ["git", "add", "-A"], GIT_COMMIT):
        subprocess.run(command, cwd=root, env=PLAIN, check=True)
    (root / "large").write_bytes(b"a needle in hay\n" * (LARGE // 16) + b"changed\n")
    (root / "untracked").touch()

    def outside(path: Path) -> bool:
        return ".git" not in path.relative_to(root).parts

    paths = [path for path in root.rglob("*") if not path.is_symlink()]
    folders = [path for path in paths if path.is_dir()]
    files = [path for path in paths if path.is_file()]
    return Planted(
        root,
        directories=1 + len(folders),
        files=len(files),
        empty=sum(1 for path in files if not path.stat().st_size),
        links=sum(1 for path in root.rglob("*") if path.is_symlink()),
        work=(1 + sum(map(outside, folders)), sum(map(outside, files))),
    )


@pytest.fixture(scope="module")
def mount(lasting_mount: Mount) -> Mount:
    return lasting_mount


@pytest.fixture(scope="module")
def tree(mount: Mount, planted: Planted) -> Path:
    where = record(mount, planted.root)
    with opened(where) as fd:  # that no extended attributes are answered is asked once
        for command in (["ls", "-l"], ["cp", "-a", "empty", f"{mount.path.parent}/once"]):
            asked(mount, fd, command)
    return where


def command(name: str, copy: Path) -> list[str]:
    return [str(copy) if part == "COPY" else part for part in COMMANDS[name]]


def check(made: Mapping[str, int], budget: Budget) -> None:
    assert made.keys() <= budget.keys(), (made, budget)
    for kind, (least, most) in budget.items():
        assert least <= made.get(kind, 0) <= most, (kind, made, budget)


def check_cached(made: Callable[[int], Mapping[str, int]], budget: Budget) -> None:
    """Checks one of a few passes: the kernel may evict a page or an entry at any time."""
    for again in range(CACHED_TRIES - 1):
        with suppress(AssertionError):
            check(made(again), budget)
            return
    check(made(CACHED_TRIES), budget)


def exactly(**counts: int) -> Budget:
    return {kind: (count, count) for kind, count in counts.items()}


# -- what each costs once all has been seen -----------------------------------------------


def later(name: str, transport: str, planted: Planted) -> Budget:
    if transport == "builtin":
        budget = exactly(access=2 if name == "find" else 1)
        if name == "git":
            budget = {"access": (1, 12), "getattr": (0, ABOVE)}
        if name == "grep":
            budget["lseek"] = (0, 2)
        return budget | {"statfs": (0, 2)}
    return _opening(name, planted) | {"statfs": (0, 2)}


def _opening(name: str, planted: Planted) -> Budget:
    """What pyfuse3 is asked at each pass: to open, list, release and follow."""
    folders, files, links = planted.directories, planted.files, planted.links
    listing = exactly(opendir=folders, readdir=2 * folders, releasedir=folders)
    again = exactly(opendir=folders + 1, readdir=2 * folders, releasedir=folders + 1)
    reading = exactly(open=files, release=files)
    following = exactly(readlink=links)
    if name == "git":
        work = planted.work
        return {
            "opendir": (work[0], folders),
            "releasedir": (work[0], folders),
            "readdir": (2 * work[0], 2 * folders),
            "open": (work[1] - 1, files),  # one is not tracked
            "release": (work[1] - 1, files),
            "readlink": (links, 2 * links),
            "lookup": (0, ABOVE + 2),  # the way there, by path: a moment is over at times
            "getattr": (0, ABOVE + 2),
        }
    filled = files - planted.empty
    return {
        "ls": listing | following,
        "find": again,  # the first of all is opened twice
        "grep": again | reading | {"lseek": (0, 2)},
        "cat": exactly(open=CAT, release=CAT),
        "cp": listing | reading | following,
        "tar": listing | following | exactly(open=filled, release=filled),
    }[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_later_pass(
    mount: Mount, tree: Path, planted: Planted, name: str, tmp_path: Path
) -> None:
    budget = later(name, mount.transport, planted)
    with kernel_caches(), opened(tree) as fd:
        asked(mount, fd, command(name, tmp_path / "first"))
        for number in ("second", "third"):
            check_cached(
                lambda again, number=number: asked(
                    mount, fd, command(name, tmp_path / f"{number}-{again}")
                ),
                budget,
            )


# -- what it costs to see all for the first time ------------------------------------------


def first(name: str, transport: str, planted: Planted) -> Budget:
    """On top of what each pass costs."""
    listing: Budget = {}
    if transport == "builtin":
        folders = 2 * planted.directories  # the second answer says that there is no more
        listing = exactly(readdirplus=folders)
    following = exactly(readlink=planted.links) if transport == "builtin" else {}
    reading: Budget = {"read": planted.reads}
    walked = 7  # names on the way to the files of `cat`
    return {
        "ls": listing | following,
        "find": listing,
        "grep": listing | reading,
        "cat": {"lookup": (walked, walked), "read": (CAT, CAT)},
        "cp": listing | reading | following,
        "tar": listing | reading | following,
        "git": {
            "lookup": (1, 2 * planted.files + 20),
            "getattr": (0, ABOVE + 2),
            "read": (planted.work[1] - 1, planted.files + 4),
            "readlink": (planted.links, 2 * planted.links),
            "readdirplus": (0, 2 * planted.directories),
        },
    }[name]


@ROOT_ONLY
@pytest.mark.parametrize("name", COMMANDS)
def test_a_first_pass(
    mount: Mount, tree: Path, planted: Planted, name: str, tmp_path: Path
) -> None:
    with kernel_caches():
        CACHES.write_text("3\n")
        with opened(tree) as fd:
            made = asked(mount, fd, command(name, tmp_path / "copy"))
    budget = later(name, mount.transport, planted) | first(name, mount.transport, planted)
    check(made, budget)


# -- by path ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ls", "find", "grep", "tar"])
def test_a_later_pass_by_path(
    mount: Mount, tree: Path, planted: Planted, name: str, tmp_path: Path
) -> None:
    """Walking to a checkpoint asks nothing of our transport. Of pyfuse3 the attributes of the
    live directories on the way, and their names, when they were last told a second ago."""
    where = [str(tree) if part == "." else part for part in command(name, tmp_path / "copy")]
    budget = later(name, mount.transport, planted)
    if mount.transport == "builtin":
        budget |= {"access": (0, 2)}
    else:
        walks = planted.directories + planted.files
        budget |= {"getattr": (0, ABOVE * walks), "lookup": (0, ABOVE * walks)}
    with kernel_caches(), opened(tree) as fd:
        asked(mount, fd, where)
        check_cached(lambda _: asked(mount, fd, where), budget)

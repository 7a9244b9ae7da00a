"""POSIX calls in every kind of writable workspace end as on the file system of the store.

Each case is a sequence of calls after POSIX.1-2017's pages of open, rename, link, unlink, mkdir,
rmdir, symlink, truncate and the like; a call's outcome is its result or the name of its errno.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.system import mounts
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle, overlay_mount, strategies
from tests.support.helpers import Link, put_tree, write_tree
from tests.support.new_store import init_store
from tests.support.programs import needs_device
from tests.support.served import Mount, serving
from tests.support.strategies import able

TREE = {
    "file": b"content",
    "other": b"another",
    "dir": {"in": b"inside", "deep": {"x": b"x"}},
    "empty": {},
    "link": Link(b"file"),
    "dangling": Link(b"none"),
    "loop": Link(b"loop"),
    "to-dir": Link(b"dir"),
}
LONG = "n" * 256
Call = tuple[Any, ...]
WRITE, CREATE, EXCLUSIVE = os.O_WRONLY, os.O_WRONLY | os.O_CREAT, os.O_CREAT | os.O_EXCL


def opened(path: str, flags: int, mode: int = 0o666) -> str:
    fd = os.open(path, flags, mode)
    try:
        return oct(os.fstat(fd).st_mode)
    finally:
        os.close(fd)


def shown(path: str) -> tuple[int, int, int]:
    found = os.lstat(path)
    size = found.st_size if not stat.S_ISDIR(found.st_mode) else 0
    return stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode), size


def appended(path: str, text: bytes) -> bytes:
    fd = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        os.write(fd, text)
        return os.pread(fd, 100, 0)
    finally:
        os.close(fd)


def unlinked_while_open(path: str) -> bytes:
    fd = os.open(path, os.O_RDWR)
    try:
        os.unlink(path)
        os.write(fd, b"late")
        return os.pread(fd, 100, 0)
    finally:
        os.close(fd)


CASES: dict[str, list[Call]] = {
    "open, nothing there": [(opened, "none", os.O_RDONLY), (opened, "none/x", CREATE)],
    "open, a directory": [(opened, "dir", WRITE), (opened, "dir", CREATE), (opened, "dir", 0)],
    "open, below a file": [(opened, "file/x", CREATE), (shown, "file/x")],
    "open exclusively": [
        (opened, "file", WRITE | EXCLUSIVE), (opened, "dangling", WRITE | EXCLUSIVE),
        (opened, "new", WRITE | EXCLUSIVE), (opened, "new", WRITE | EXCLUSIVE),
    ],
    "open, no follow": [(opened, "link", os.O_NOFOLLOW), (opened, "file", os.O_DIRECTORY)],
    "open, a loop": [(opened, "loop", 0), (os.stat, "loop"), (opened, "loop/x", CREATE)],
    "open, through a dangling link": [(opened, "dangling", CREATE), (shown, "none")],
    "open, truncated": [(opened, "file", WRITE | os.O_TRUNC), (shown, "file")],
    "names too long": [
        (opened, LONG, CREATE), (os.mkdir, LONG), (os.rename, "file", LONG),
        (os.symlink, "x", LONG), (os.link, "file", LONG), (os.unlink, LONG), (shown, LONG),
    ],
    "mkdir": [(os.mkdir, "dir"), (os.mkdir, "file"), (os.mkdir, "link"), (os.mkdir, "none/x"),
              (os.mkdir, "new", 0o700), (shown, "new")],
    "rmdir": [(os.rmdir, "dir"), (os.rmdir, "file"), (os.rmdir, "to-dir"), (os.rmdir, "none"),
              (os.rmdir, "empty"), (os.rmdir, "empty"), (os.rmdir, "dir/.")],
    "a directory emptied": [(os.unlink, "dir/deep/x"), (os.rmdir, "dir/deep"),
                            (os.unlink, "dir/in"), (os.rmdir, "dir"), (os.mkdir, "dir"),
                            (os.listdir, "dir")],
    "unlink": [(os.unlink, "dir"), (os.unlink, "none"), (os.unlink, "file/x"), (os.unlink, "link"),
               (shown, "link"), (shown, "file"), (os.unlink, "file"), (os.unlink, "file")],
    "rename of files": [(os.rename, "none", "x"), (os.rename, "file", "dir"),
                        (os.rename, "file", "none/x"), (os.rename, "file", "other"),
                        (shown, "other"), (shown, "file"), (os.rename, "other", "other/x")],
    "rename of directories": [(os.rename, "dir", "file"), (os.rename, "dir", "dir/deep/y"),
                              (os.rename, "empty", "dir"), (os.rename, "dir", "empty"),
                              (shown, "dir"), (os.listdir, "empty/deep"),
                              (os.rename, "empty/deep", "moved"), (os.listdir, "moved")],
    "rename of links": [(os.rename, "link", "file"), (os.readlink, "file"), (shown, "link")],
    "link": [(os.link, "file", "other"), (os.link, "none", "x"), (os.link, "dir", "x"),
             (os.link, "file", "hard"), (shown, "hard")],
    "symlink": [(os.symlink, "x", "file"), (os.symlink, "x", "none/y"), (os.symlink, "", "y"),
                (os.symlink, "dir", "s"), (os.readlink, "s"), (os.readlink, "file"),
                (os.listdir, "s/deep")],
    "truncate": [(os.truncate, "file", 3), (shown, "file"), (os.truncate, "file", 5000),
                 (shown, "file"), (os.truncate, "dir", 0), (os.truncate, "none", 0),
                 (os.truncate, "file", -1)],
    "chmod": [(os.chmod, "file", 0o600), (shown, "file"), (os.chmod, "none", 0o600),
              (os.chmod, "dir", 0o711), (shown, "dir"), (os.chmod, "dangling", 0o600)],
    "times": [(os.utime, "file", (1, 2)), (os.utime, "none", (1, 2)), (os.utime, "dir", (5, 6))],
    "append and read": [(appended, "file", b"!"), (appended, "link", b"?"), (shown, "file")],
    "unlink while open": [(unlinked_while_open, "file"), (shown, "file")],
    "fifo": [(os.mkfifo, "file"), (os.mkfifo, "pipe", 0o640), (shown, "pipe"), (os.unlink, "pipe")],
    "listings": [(os.listdir, "none"), (os.listdir, "file"), (os.listdir, "to-dir")],
    "attributes": [(os.getxattr, "file", "user.none"), (os.setxattr, "file", "user.a", b"1"),
                   (os.getxattr, "file", "user.a"), (os.removexattr, "file", "user.b")],
}  # fmt: skip


DEVIATIONS: dict[tuple[str, str], dict[int, Any]] = {
    ("names too long", strategies.FUSE): {5: "ENOENT", 6: "ENOENT"},
    ("rename of directories", strategies.FUSE): {  # as across file systems; mv copies
        **{2: "EXDEV", 3: "EXDEV", 4: (stat.S_IFDIR, 0o755, 0)},
        **dict.fromkeys((5, 6, 7), "ENOENT"),
    },
    # of a file that is still the mount's, which has no attributes
    ("attributes", strategies.OVERLAY): {0: "ENOTSUP"},
    ("attributes", strategies.FUSE): {0: "ENOTSUP"},
}


def outcomes(calls: list[Call], top: Path) -> list[Any]:
    before = Path.cwd()
    os.chdir(top)
    try:
        return [outcome(*call) for call in calls]
    finally:
        os.chdir(before)


def outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        found = function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return sorted(found) if isinstance(found, list) else found


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    folder = tmp_path_factory.mktemp("posix")
    with init_store(folder / "store") as store, serving(store, folder / "mnt") as mount:
        yield mount


@needs_device
@pytest.mark.parametrize(
    "strategy",
    [able(one.name) for one in strategies.STRATEGIES.values() if one.mount or not one.layered],
)
@pytest.mark.parametrize("case", CASES)
def test_calls_end_as_on_the_file_system_below(
    mount: Mount, tmp_path: Path, strategy: str, case: str
) -> None:
    plain = write_tree(tmp_path / "plain", TREE)
    work = tmp_path / "work"
    chosen = strategies.STRATEGIES[strategy]
    root = put_tree(mount.store, TREE)
    lifecycle.open(
        mount.store,
        RecordedState(root),
        work,
        chosen,
        lambda root: mount.path / "trees" / root.name,
    )
    try:
        wanted = dict(enumerate(outcomes(CASES[case], plain)))
        wanted |= DEVIATIONS.get((case, strategy), {})
        assert dict(enumerate(outcomes(CASES[case], work))) == wanted
    finally:
        if mounts.mounted_at(work):
            overlay_mount.unmount(work, lazy=True)

"""A random script of file operations: made on one directory, played again on another.

Also a program: `python operations.py DIR` plays the script on stdin, for a directory that
only another process can see.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
import sys
from collections.abc import Callable
from typing import Any

Operation = list[Any]  # its name, then paths relative to the directory, and numbers
NAMES = [*"abcde", "ü", "with space", "caf\udce9", ".hidden", "UPPER", "longer-name.txt"]


def script(seed: int, count: int, top: str, *, links: bool = True) -> list[Operation]:
    """Make a script that fits what is in `top`, playing it there on the way. Without `links`
    there are no hard links: where a directory is renamed by copying they do not survive."""
    dice = random.Random(seed)
    done = []
    while len(done) < count:
        operation = _choose(dice, top)
        if operation is not None and (links or operation[0] != "link"):
            play(top, operation)
            done.append(operation)
    return done


def play(top: str, operation: Operation) -> None:
    name, *arguments = operation
    paths = [os.path.join(top, one) if isinstance(one, str) else one for one in arguments]
    if name == "symlink":
        paths[1] = arguments[1]  # a target is no path of ours
    DO[name](*paths)


def _choose(dice: random.Random, top: str) -> Operation | None:
    """The next operation; None where the one thought of has nothing to work on."""
    files, folders, links = _below(top)
    new = os.path.join(dice.choice(["", *folders]), dice.choice(NAMES) + dice.choice(["", "2"]))
    fresh = not os.path.lexists(os.path.join(top, new))
    name = dice.choice(list(DO))
    size = dice.choice([0, 1, 100, 5000, 70_000])
    if name in ("create", "mkdir", "fifo", "symlink"):
        if not fresh:
            return None
        return [
            name,
            new,
            *{"create": [size], "symlink": ["../" + dice.choice(NAMES)]}.get(name, []),
        ]
    if name in ("write", "append", "patch", "truncate"):
        return [name, dice.choice(files), size] if files else None
    if name in ("chmod", "file_to_dir", "touch"):
        return [name, dice.choice(files)] if files else None
    if name == "link":
        return [name, dice.choice(files), new] if files and fresh else None
    if name == "replace":
        return [name, *dice.sample(files, 2)] if len(files) > 1 else None
    if name == "rename":
        old = dice.choice([*files, *links, *folders] or [""])
        inside = new == old or new.startswith(old + "/")
        return [name, old, new] if old and fresh and not inside else None
    if name == "unlink":
        return [name, dice.choice([*files, *links])] if files or links else None
    if name in ("rmtree", "dir_to_file"):
        return [name, dice.choice(folders)] if folders and dice.random() < 0.4 else None
    return [name, dice.choice(folders)] if folders else None


def _below(top: str) -> tuple[list[str], list[str], list[str]]:
    """(files, directories, links), relative and sorted."""
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    for folder, _, _ in os.walk(top):
        for entry in os.scandir(folder):
            mode = entry.stat(follow_symlinks=False).st_mode
            place = {stat.S_IFREG: 0, stat.S_IFDIR: 1, stat.S_IFLNK: 2}.get(stat.S_IFMT(mode))
            if place is not None:
                found[place].append(os.path.relpath(entry.path, top))
    return sorted(found[0]), sorted(found[1]), sorted(found[2])


def _data(path: str, size: int) -> bytes:
    """Content that is often the same under other names."""
    return (b"same\n" if size < 1000 else b"%d\n" % size) * size


def _create(path: str, size: int) -> None:
    with open(path, "xb") as file:
        file.write(_data(path, size))


def _write(path: str, size: int) -> None:
    with open(path, "wb") as file:
        file.write(_data(path, size))


def _append(path: str, size: int) -> None:
    with open(path, "ab") as file:
        file.write(_data(path, size))


def _patch(path: str, size: int) -> None:
    with open(path, "r+b") as file:
        file.seek(size // 2)
        file.write(b"patch")


def _rename(old: str, new: str) -> None:
    """As mv: an overlay may not be able to rename a directory."""
    try:
        os.rename(old, new)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copytree(old, new, symlinks=True, copy_function=_copy)
        shutil.rmtree(old)


def _copy(old: str, new: str) -> None:
    if stat.S_ISFIFO(os.lstat(old).st_mode):
        os.mkfifo(new)
    else:
        shutil.copy2(old, new, follow_symlinks=False)


def _chmod(path: str) -> None:
    os.chmod(path, os.lstat(path).st_mode ^ 0o111)


def _file_to_dir(path: str) -> None:
    os.unlink(path)
    os.mkdir(path)


def _dir_to_file(path: str) -> None:
    shutil.rmtree(path)
    _create(path, 100)


def _rmdir(path: str) -> None:
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise


DO: dict[str, Callable[..., object]] = {
    "create": _create,
    "write": _write,
    "append": _append,
    "patch": _patch,
    "truncate": os.truncate,
    "chmod": _chmod,
    "touch": os.utime,
    "rename": _rename,
    "replace": os.replace,
    "unlink": os.unlink,
    "rmdir": _rmdir,
    "rmtree": shutil.rmtree,
    "mkdir": os.mkdir,
    "symlink": lambda path, target: os.symlink(target, path),
    "link": os.link,
    "fifo": os.mkfifo,
    "file_to_dir": _file_to_dir,
    "dir_to_file": _dir_to_file,
}


if __name__ == "__main__":
    for line in json.load(sys.stdin):
        play(sys.argv[1], line)

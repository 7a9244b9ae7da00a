"""Robust deletion of directory trees, also write-protected ones."""

from __future__ import annotations

import os
from pathlib import Path

from casfs.errors import Failed
from casfs.system.files import closing_fd

DIR_HANDLE = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def delete(path: Path) -> None:
    """Deletes a file or tree, write-protected directories included. Links are not followed.
    Several may delete it at once.

    Raises Failed.
    """
    try:
        if path.is_dir() and not path.is_symlink():
            _delete_directory(path)
        else:  # rmtree would open it, and wait at a fifo
            path.unlink(missing_ok=True)
    except NotADirectoryError:  # a parent is a file: there is nothing at that path
        return
    except OSError as error:
        raise Failed(f"cannot remove {path}: {error.strerror}") from None


def empty(path: Path) -> None:
    """Deletes the content of a directory, if there is one; not of what a link leads to. Raises
    Failed."""
    if path.is_symlink():
        raise Failed(f"cannot empty {path}: it is a link")
    try:
        names = os.listdir(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Failed(f"cannot empty {path}: {error.strerror}") from None
    for name in names:
        delete(path / name)


def _delete_directory(path: Path, tries: int = 100) -> None:
    import shutil  # 4 ms, and most commands that may delete a directory do not

    try:
        shutil.rmtree(path)
    except FileNotFoundError:  # another deletes it too
        if not tries:
            raise
        if path.is_dir():
            _delete_directory(path, tries - 1)
    except PermissionError:
        _make_writable(path)
        shutil.rmtree(path)


def _make_writable(top: Path) -> None:
    """Makes all directories writable: others keep their content from being removed. By descriptor:
    an agent that is still there could swap in a link, and the mode of what it leads to would
    change."""
    top.chmod(0o700)
    for _, below, _, fd in os.fwalk(top):  # a directory is listed after its parent's loop
        for name in below:
            try:
                handle = os.open(name, DIR_HANDLE, dir_fd=fd)
            except (FileNotFoundError, NotADirectoryError):  # a link
                continue
            with closing_fd(handle):
                os.chmod(f"/proc/self/fd/{handle}", 0o700)

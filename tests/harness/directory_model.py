"""What a directory holds at a moment, as plain values: the model of `tests.harness.taken_back`."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.repositories import seen_by_git

Entry = tuple[str, bytes]  # the kind with the x bit, and the content or target
Files = Mapping[str, Entry]
EMPTY = ("directory", b"")  # a directory without entries
REPOSITORY = ("repository", b"")  # a nested one, of which only that it is there counts
MODE_BITS = 0o755  # that count; of a directory they are by its path with a slash behind it


@dataclass(frozen=True)
class Seen:
    """A directory at a moment: its files without what is in `.git`, and what git sees."""

    files: Files
    git: tuple[str, ...] | None


def look(directory: Path) -> Seen:
    files: dict[str, Entry] = {}
    for folder, folders, names in os.walk(directory):
        top = Path(folder)
        if ".git" in folders:
            folders.remove(".git")
            if top != directory:  # so it is not empty
                files[str(top.relative_to(directory) / ".git")] = REPOSITORY
        for name in [*names, *(name for name in folders if (top / name).is_symlink())]:
            path = top / name
            where = str(path.relative_to(directory))
            if path.is_symlink():
                files[where] = ("link", os.readlink(path).encode())
            elif path.is_file():
                files[where] = (f"file {path.stat().st_mode & MODE_BITS:o}", path.read_bytes())
        mode = top.stat().st_mode & MODE_BITS
        if mode != MODE_BITS:
            files[f"{top.relative_to(directory)}/"] = (f"directory {mode:o}", b"")
        if not names and not folders and not (top / ".git").exists() and top != directory:
            files[str(top.relative_to(directory))] = EMPTY
    is_repository = (directory / ".git/HEAD").exists()
    return Seen(files, seen_by_git(directory) if is_repository else None)


def paths_of(names: Collection[str]) -> set[str]:
    return {name.rstrip("/") for name in names}


def has_mode_in(path: str, *moments: Seen) -> bool:
    """Whether it is a directory at each moment: one that is replaced has no mode to keep."""
    return all(has_directory(path.rstrip("/"), seen) for seen in moments)


def has_directory(path: str, seen: Seen) -> bool:
    return seen.files.get(path) == EMPTY or is_above(path, seen)


def is_above(path: str, seen: Seen) -> bool:
    """Whether it is a directory that has files."""
    return any(name.startswith(f"{path}/") for name in seen.files)


def is_merge(was: Entry | None, there: Entry | None, result: Entry | None) -> bool:
    """Whether a text has lines of both sides alone."""
    if was is None or there is None or result is None:
        return False
    lines = {*was[1].splitlines(), *there[1].splitlines()}
    return {*result[1].splitlines()} <= lines


def changed(first: Files, second: Files) -> set[str]:
    names: Collection[str] = first.keys() | second.keys()
    return {name for name in names if first.get(name) != second.get(name)}

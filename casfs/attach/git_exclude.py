"""Keeps the settings that `attach` writes into a project out of its repository: they have paths of
this machine, and an agent's `git add -A` would share them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from casfs.errors import CasfsError, Failed
from casfs.system.files import os_errors, replacing
from casfs.system.git_program import git

SPECIAL = re.compile(r"([\\*?\[]|\s$)")  # in a pattern of git


def is_seen(file: Path, project: Path, env: Mapping[str, str]) -> bool:
    """Returns whether git would add a file of a project; False without git, or a repository."""
    path = os.fspath(file.relative_to(project))
    try:
        return not git(["-C", str(project), "check-ignore", "--", path], env, expected=(0, 1))
    except Failed:
        return False


def add(file: Path, project: Path, env: Mapping[str, str]) -> str:
    """Has git ignore a file of a project, as far as it can be done; returns the pattern for
    `remove`, empty where something else ignores it."""
    with suppress(CasfsError):
        prefix = git(["-C", str(project), "rev-parse", "--show-prefix"], env).removesuffix("\n")
        path = prefix + os.fspath(file.relative_to(project))
        if "\n" in path:  # which no pattern can have
            return ""
        pattern = "/" + SPECIAL.sub(r"\\\1", path)
        excluding = _excluding(project, env)
        before = _read(excluding)
        if os.fsencode(pattern) in before.split(b"\n"):  # of another work tree, or left by a crash
            return pattern
        if is_seen(file, project, env):
            begin = b"" if before.endswith(b"\n") or not before else b"\n"
            _write(excluding, before + begin + os.fsencode(pattern) + b"\n")
            return pattern
    return ""


def remove(pattern: str, project: Path, projects: Iterable[Path], env: Mapping[str, str]) -> None:
    """Takes a pattern out again, as far as it can be done. `projects`: others with this pattern: in
    work trees of one repository it is one line."""
    with suppress(CasfsError):  # the repository is gone
        excluding = _excluding(project, env)
        for other in projects:
            with suppress(CasfsError):
                if _excluding(other, env) == excluding:
                    return
        before = _read(excluding)
        lines = [line for line in before.split(b"\n") if line != os.fsencode(pattern)]
        after = b"\n".join(lines)
        if after != before:
            _write(excluding, after)


def _excluding(project: Path, env: Mapping[str, str]) -> Path:
    """Returns the file with patterns that are not shared. Raises Failed."""
    said = git(["-C", str(project), "rev-parse", "--git-path", "info/exclude"], env)
    return Path(os.path.realpath(project / said.removesuffix("\n")))


def _read(file: Path) -> bytes:
    with os_errors(f"cannot read {file}"):
        return file.read_bytes() if file.exists() else b""


def _write(file: Path, data: bytes) -> None:
    with os_errors(f"cannot write {file}"):
        file.parent.mkdir(exist_ok=True)
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0o644
        with replacing(file, durable=True) as new:
            os.fchmod(new.fileno(), mode)
            new.write(data)

"""Keeps the settings that `attach` writes into a project out of its repository: they have paths of
this machine, and an agent's `git add -A` would share them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from casfs.errors import Failed
from casfs.system.files import os_errors, replacing
from casfs.system.git_program import git

SPECIAL = re.compile(r"([\\*?\[]|\s$)")  # in a pattern of git


def add(file: Path, project: Path, env: Mapping[str, str]) -> str:
    """Has git ignore a file of a project where it does not yet; returns the pattern for `remove`,
    empty where none was needed, or no repository is there. Raises Failed."""
    path = os.fspath(file.relative_to(project))
    try:
        if git(["-C", str(project), "check-ignore", "--", path], env, expected=(0, 1)):
            return ""
        prefix = git(["-C", str(project), "rev-parse", "--show-prefix"], env).removesuffix("\n")
    except Failed:  # no git, or no repository
        return ""
    pattern = "/" + SPECIAL.sub(r"\\\1", prefix + path)
    excluding = _excluding(project, env)
    before = _lines(excluding)
    with os_errors(f"cannot write {excluding}"):
        excluding.parent.mkdir(exist_ok=True)
    _write(excluding, [*before, pattern])
    return pattern


def remove(pattern: str, project: Path, env: Mapping[str, str]) -> None:
    """Takes a pattern out again. Raises Failed."""
    try:
        excluding = _excluding(project, env)
    except Failed:  # the repository is gone
        return
    before = _lines(excluding)
    after = [line for line in before if line != pattern]
    if after != before:
        _write(excluding, after)


def _excluding(project: Path, env: Mapping[str, str]) -> Path:
    """Returns the file with patterns that are not shared. Raises Failed."""
    said = git(["-C", str(project), "rev-parse", "--git-path", "info/exclude"], env)
    return project / said.removesuffix("\n")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise Failed(f"cannot read {file}: {error.strerror}") from None


def _write(file: Path, lines: list[str]) -> None:
    with os_errors(f"cannot write {file}"), replacing(file, durable=True) as new:
        new.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))

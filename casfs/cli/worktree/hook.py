"""`worktree hook`: has Claude Code make and remove its worktrees by casfs.

Run by the hooks of `casfs attach claude --worktrees`, with JSON on stdin. Claude takes the last
line of stdout for the directory. Another exit code than 0 ends what it was to do, and it shows
stderr.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from casfs.cli import implicit_mount
from casfs.cli.common import open_store, store_root
from casfs.cli.output import echo, warn
from casfs.cli.worktree import by_daemon, common
from casfs.cli.worktree.creating import create
from casfs.digest import hash_bytes
from casfs.errors import Invalid, Refused
from casfs.store.store import Store
from casfs.trees.restore.target import listed
from casfs.worktrees import git_questions, removal, worktree
from casfs.worktrees.creation import Wanted

FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]+|\.\.+")


@click.command()
@click.argument("event", type=click.Choice(["create", "remove"]))
def hook(event: str) -> None:
    """Make or remove a worktree for an agent, which says by JSON on stdin which.

    \b
    casfs worktree hook create </tmp/event.json
    """
    payload = _payload()
    with open_store() as store, implicit_mount.kept(store_root()):
        if event == "create":
            echo(str(_create(store, payload)))
        else:
            _remove(store, payload)


def _payload() -> dict[str, Any]:
    try:
        payload = json.load(sys.stdin)
    except ValueError:
        payload = None
    if not isinstance(payload, dict):
        raise Invalid("stdin is not a JSON object, as a hook of claude gets it")
    return payload


def _field(payload: dict[str, Any], name: str) -> str:
    value = payload.get(name)
    if not isinstance(value, str) or not value:
        raise Invalid(f"the hook was given no {name}")
    return value


def _create(store: Store, payload: dict[str, Any]) -> Path:
    """Returns the directory of a worktree, made if it is not there: claude goes on in one by its
    name."""
    wanted = _field(payload, "name")
    name = FORBIDDEN.sub("-", wanted).strip("-.")
    if name != wanted:  # another name may have become the same
        name = f"{name}-{hash_bytes(wanted.encode())[:6]}"
    directory = Path(_field(payload, "cwd"))
    project = common.project_at(store, directory)
    for existing in worktree.listing(store, project):
        if existing.name == name:
            common.mount(store, existing)
            return existing.path
    # As claude names the branches of its own worktrees; one of that name may be left of an earlier.
    branch = f"worktree-{name}"
    is_in_git = git_questions.is_in_git(project)
    for number in itertools.count(2):
        if not is_in_git or not git_questions.tip(project, branch, os.environ):
            break
        branch = f"worktree-{name}-{number}"
    summary = by_daemon.create(store.root, directory, name=name, branch=branch)
    if summary is None:
        summary = create(store, directory, Wanted(name, branch=branch)).summary
    return Path(summary["directory"])


def _remove(store: Store, payload: dict[str, Any]) -> None:
    directory = _field(payload, "worktree_path")
    removed = worktree.at(store, Path(os.path.realpath(directory)))
    if removed is None:
        return  # one that git has made
    try:
        removal.refuse_loss(store, removed, os.environ)
        # Claude removes without asking: files that git ignores would be lost.
        if paths := removal.ignored_changes(store, removed, os.environ):
            kept = removal.keep(store, removed)
            warn(f"git ignores {listed(paths)}: kept in {kept.name}@{kept.id}")
        removal.remove(store, removed, os.environ, force=True)
    except Refused as error:
        warn(str(error))

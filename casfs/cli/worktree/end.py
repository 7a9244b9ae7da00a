"""`worktree apply`, `rm` and `prune`: what becomes of the changes in a worktree."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import click

from casfs.cli import implicit_mount
from casfs.cli.applied import report_applied
from casfs.cli.common import open_store
from casfs.cli.output import echo_lines, echo_result, json_option, warn
from casfs.cli.worktree import common
from casfs.errors import Failed
from casfs.sessions import caller
from casfs.worktrees import applying, git_questions, removal
from casfs.worktrees.applying import Applying
from casfs.worktrees.git_link import GitLink


@click.command()
@click.argument("name")
@click.option("--to", "target", metavar="DIR", help="By default the project.")
@click.option("--check", is_flag=True, help="Print what would be changed; change nothing.")
@click.option("--ignored", is_flag=True, help="Also what git ignores, but for derived directories.")
@json_option
def apply(name: str, target: str | None, check: bool, ignored: bool) -> int:
    """Bring what was changed in a worktree to its project, or another directory, by a three-way
    merge.

    Files alone: commits stay on the worktree's branch. What git ignores stays, too: what was built,
    and an .env. Exit 1 where both changed the same: in text the conflict is marked as by git, and
    each is named. `casfs undo` takes it back.

    \b
    casfs worktree apply try --check
    casfs worktree apply try --to ../other
    """
    with open_store() as store:
        source = common.find(store, name)
        directory = source.project if target is None else Path(target)
        actor = caller.actor(store, os.environ)
        options = Applying(directory, check=check, with_ignored=ignored, actor=actor)
        done = applying.apply(store, source, options, os.environ)
    code = report_applied(done, {"worktree": name}, str(directory), check=check)
    if target is None and source.link is not None:
        with suppress(Failed):  # git cannot be asked: what is applied is applied
            _say_which_way(source.link, source.project)
    return code


def _say_which_way(link: GitLink, project: Path) -> None:
    """Files that were applied stand in the way of a merge of the commits that have them."""
    if git_questions.has_unmerged_commits(link, project, os.environ):
        branch = link.current_branch
        warn(
            f"branch {branch} has commits of its own; `git merge {branch}` brings these: before an"
            " apply, or once what it brought is committed or undone (`casfs undo`)"
        )


@click.command()
@click.argument("name")
@click.option("--keep", is_flag=True, help="Record its content as checkpoint worktree-NAME first.")
@click.option("--force", is_flag=True, help="Also where changes are lost.")
@json_option
def rm(name: str, keep: bool, force: bool) -> None:
    """Remove a worktree.

    Refused while programs run in it, and where changes would be lost: those that are neither
    applied nor committed. Its branch goes with it where it has no commit of its own. NAME may be
    its directory, too.

    \b
    casfs worktree rm try
    casfs worktree rm try --keep
    """
    with open_store() as store:
        removed = common.find(store, name)
        checked_out = removed.summary["branch"]
        kept = removal.keep(store, removed) if keep else None
        is_branch_gone = removal.remove(store, removed, os.environ, force=force, is_kept=keep)
        implicit_mount.end_unused(store, os.environ)
    value = {
        "removed": removed.name,
        "branch": None if is_branch_gone else checked_out,
        "checkpoint": None if kept is None else f"{kept.name}@{kept.id}",
    }
    branch = f"; branch {value['branch']} stays" if value["branch"] else ""
    checkpoint = f"; kept as {value['checkpoint']}" if kept else ""
    echo_result(value, f"{removed.name} removed{branch}{checkpoint}")


@click.command()
@json_option
def prune() -> None:
    """Remove the worktrees of the project that hold nothing of their own.

    Those in which nothing was changed but what git ignores, whose branch has no commit of its own,
    and in which no program runs. Each that stays is named, with the reason.

    \b
    casfs worktree prune
    """
    with open_store() as store:
        project = common.current_project(store)
        removed, staying = removal.remove_unused(store, project, os.environ)
        implicit_mount.end_unused(store, os.environ)
    names = [gone.name for gone in removed]
    lines = [f"{name} removed" for name in names]
    lines += [f"{name} stays: {reason}" for name, reason in staying.items()]
    echo_lines({"removed": names, "staying": staying}, lines)

"""Removes worktrees, and loses nothing of what was done in them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import create_of_state
from casfs.errors import CasfsError, Refused
from casfs.store.store import Store
from casfs.system import mounts, processes
from casfs.trees import recorded_state
from casfs.trees.diff import merge
from casfs.trees.restore.target import listed
from casfs.trees.scratch_store import ScratchStore
from casfs.workspaces import lifecycle, registry
from casfs.worktrees import applied, git_questions, git_worktree, nested
from casfs.worktrees.worktree import Worktree, check_directory, default_folder, listing, record


def remove(
    store: Store,
    worktree: Worktree,
    env: Mapping[str, str],
    *,
    force: bool = False,
    is_kept: bool = False,
) -> bool:
    """Removes a worktree; its branch stays where it has commits of its own. Returns whether the
    branch is gone, too. `is_kept`: its files are recorded. Raises Refused where programs run in it,
    and, unless `force`, where something would be lost."""
    check_directory(worktree)
    if not force:
        refuse_loss(store, worktree, env, is_kept=is_kept)
    if worktree.project in mounts.points_anywhere(worktree.workspace.source):
        raise Refused(f"programs see {worktree.path} at {worktree.project} (--in-place); end them")
    # Of a mount the kernel says so.
    if not worktree.workspace.strategy.layered and processes.are_in(worktree.path):
        raise Refused(f"{worktree.path} is busy: leave it and end the programs in it")
    lifecycle.close(store, worktree.workspace, force=True)
    if worktree.path.parent == default_folder(worktree.project):
        with suppress(OSError):  # others are in it
            worktree.path.parent.rmdir()
    # Where this is interrupted, git has a locked work tree that the next `add` there forgets.
    return worktree.link is None or git_worktree.remove(worktree.link, worktree.path, env)


def remove_unused(
    store: Store, project: Path, env: Mapping[str, str]
) -> tuple[list[Worktree], dict[str, str]]:
    """Removes the worktrees of a project that nothing uses and that hold nothing of their own.
    Returns them, and why the others stay, by name."""
    removed: list[Worktree] = []
    staying: dict[str, str] = {}
    for worktree in listing(store, project):
        try:
            if worktree.link is not None and git_questions.has_own_commits(worktree.link, env):
                raise Refused(f"branch {worktree.link.current_branch} has commits of its own")
            remove(store, worktree, env)
            removed.append(worktree)
        except CasfsError as error:
            staying[worktree.name] = str(error)
    return removed, staying


def keep(store: Store, worktree: Worktree) -> Checkpoint:
    """Records what a worktree holds as a checkpoint. Raises Failed."""
    registry.check_open(worktree.workspace)
    name = f"worktree-{worktree.name}"
    message = f"worktree {worktree.name} of {worktree.project.name}"
    return create_of_state(store, name, record(store, worktree), message)


def ignored_changes(store: Store, worktree: Worktree, env: Mapping[str, str]) -> list[bytes]:
    """Returns the paths that were changed in a worktree and that git ignores, so that no
    commit has them. What is derived does not count. Raises Failed."""
    if worktree.link is None:
        return []
    scratch = ScratchStore(store)
    state = record(scratch, worktree)
    before = applied.base(scratch, worktree, with_left=False)
    changes = merge.changes(scratch, before, recorded_state.with_private(scratch, state))
    ours = [path for path in changes.new if nested.is_of_top(scratch, state.full, path)]
    return sorted(git_questions.ignored(worktree.link, worktree.path, ours, env))


def refuse_loss(
    store: Store, worktree: Worktree, env: Mapping[str, str], *, is_kept: bool = False
) -> None:
    """Raises Refused where something would be lost by a removal. `is_kept`: its files are
    recorded."""
    registry.check_open(worktree.workspace)
    name = worktree.name
    if not is_kept and (paths := unsaved(store, worktree, env)):
        raise Refused(
            f"worktree {name} has changes that are neither applied nor committed: {listed(paths)};"
            f" `casfs worktree apply {name}`, or rm --keep or --force"
        )
    if worktree.link is None:
        return
    if git_questions.has_lost_commits(worktree.link, worktree.path, env):
        raise Refused(
            f"worktree {name} has commits that are on no branch; make one there (git switch -c),"
            " or rm --force"
        )
    if git_questions.has_submodules_of_its_own(worktree.link):
        raise Refused(
            f"worktree {name} has cloned submodules, whose commits may be nowhere else; push them,"
            " then rm --force"
        )


def unsaved(store: Store, worktree: Worktree, env: Mapping[str, str]) -> list[bytes]:
    """Returns the paths that were changed in a worktree, and are neither applied nor committed as
    they are. What git ignores counts only where it is private, what is derived or deleted never;
    an inner repository with other commits counts. Raises Failed."""
    scratch = ScratchStore(store)
    state = record(scratch, worktree)
    recorded = worktree.workspace.recorded
    before = applied.base(scratch, worktree, with_left=False)
    after = recorded_state.with_private(scratch, state)
    changes = merge.changes(scratch, before, after)
    repositories = [*nested.changed(scratch, recorded.full, state.full)]
    if worktree.link is None:
        return sorted({*changes.paths, *repositories})
    paths = [*changes.new]
    ours = [path for path in paths if nested.is_of_top(scratch, state.full, path)]
    saved = git_questions.committed(worktree.link, worktree.path, env)
    private = recorded_state.private_files(scratch, state).keys()
    saved |= set(git_questions.ignored(worktree.link, worktree.path, ours, env)) - private
    staged = git_questions.staged_alone(worktree.link, worktree.path, worktree.project, env)
    # What the outer repository says holds for its own paths alone.
    return sorted(({*paths, *repositories} - saved.intersection(ours)) | staged)

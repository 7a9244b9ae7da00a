"""Creates worktrees."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.attach import attachments
from casfs.checkpoints.revisions import resolve
from casfs.directories.projects import work_tree_of
from casfs.errors import Conflict, Failed, Refused
from casfs.store.store import Store
from casfs.system import locks
from casfs.system.home import refuse_home_or_root
from casfs.system.paths import printable
from casfs.system.sizes import readable
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import layers, lifecycle, registry
from casfs.workspaces.registry import Workspace
from casfs.worktrees import (
    environment,
    git_questions,
    git_worktree,
    links,
    nested,
    project_files,
    relocation,
    worktree,
)
from casfs.worktrees.git_link import Lock, is_linked
from casfs.worktrees.git_worktree import GitSource
from casfs.worktrees.project_files import ProjectLook
from casfs.worktrees.worktree import Worktree

LOCK = "worktree"
MAX_LOOKS = 3
LARGE_BYTES = 64 << 20  # what the store has grown by is said from there on
Look = Callable[[Path], ProjectLook]  # a project as it is now
Warn = Callable[[str], None]
# Opens a workspace of a state at a directory, over the image of this tree where there is one, with
# these fields in its record.
OpenWorkspace = Callable[
    [RecordedState, Path, DatedTree | None, Mapping[str, Any]],
    Workspace,
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """`name`: None for a new one; `revision`: None for the directory as it is now; `branch`: None
    for that of the worktree's name; `path`: None for the default; `with_all`: whatever
    `.worktreeinclude` says; `relocate`: what has the project's path inside is to have its own;
    None: only where it would import the project's files."""

    name: str | None = None
    revision: str | None = None
    branch: str | None = None
    path: str | None = None
    with_all: bool = False
    relocate: bool | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """What a worktree begins as. `top`: the project, or the worktree `inside`; `git`: None without
    git."""

    project: Path
    top: Path
    inside: Worktree | None
    git: GitSource | None


def create(
    store: Store,
    directory: Path,
    wanted: Wanted,
    env: Mapping[str, str],
    *,
    look: Look,
    open_workspace: OpenWorkspace,
    warn: Warn,
) -> Worktree:
    """Creates a worktree of the project that `directory` is in; in a worktree, one that begins as
    that is. `warn`: called with a line about what is not as in the project. Raises Refused (no
    commit, the name, the branch, the directory), Conflict, NotFound, Failed; then nothing is left
    of it."""
    source = _source(store, directory, env)
    if wanted.name is not None:  # before a look, which may take long
        with locks.held(store.root, LOCK, waiting=lambda: None):
            _new_path(store, source, wanted, worktree.listing(store), name=wanted.name, env=env)
    if wanted.revision is not None:
        state = project_files.without_git(store, resolve(store, wanted.revision).state)
        git_source = source.git
    else:
        state, git_source = _state(store, source, env, look=look, warn=warn)
    # No two take the same name, or the same ports; and a second one begins over the first's image.
    with locks.held(store.root, LOCK, waiting=lambda: None):
        worktrees = worktree.listing(store)
        name = wanted.name if wanted.name is not None else _new_name(worktrees, source, env)
        path = _new_path(store, source, wanted, worktrees, name=name, env=env)
        branch = name if wanted.branch is None else wanted.branch
        port = worktree.free_ports(worktrees, path)
        if source.git is not None and not wanted.with_all:
            state = project_files.only_included(
                store, state, _kept(store, source, env), _ignored_by_git(store, source, state, env)
            )
        state = environment.with_env(store, state, name=name, branch=branch, port=port)
        fields = {"name": name, "project": str(source.project), "portBase": port}
        image = similar_image(store, worktrees, source.project, state)

        def opened(git_fields: Mapping[str, Any]) -> Workspace:
            return open_workspace(state, path, image, {**fields, **git_fields})

        if git_source is None:
            created = Worktree(opened({}))
        else:
            created = _add_of_git(
                store, git_source, path, name=name, branch=branch, env=env, opened=opened
            )
    _relocate(store, source, created, state=state, wanted=wanted, warn=warn)
    for line in links.warnings(store, state, source.top, created.path):
        warn(line)
    return created


def _kept(store: Store, source: _Source, env: Mapping[str, str]) -> list[bytes]:
    """Returns the paths without which less would happen in a worktree than in the project: the
    hooks of agents that are attached to it, and those of git."""
    settings = [
        os.fsencode(os.path.relpath(attachment.file, source.project))
        for attachment in attachments.load(store.root).attached
        if attachment.directory == str(source.project)
    ]
    return [*settings, *filter(None, [git_questions.hooks_directory(source.top, env)])]


def _ignored_by_git(
    store: Store, source: _Source, state: RecordedState, env: Mapping[str, str]
) -> Callable[[Iterable[bytes]], Collection[bytes]]:
    def ignored(paths: Iterable[bytes]) -> Collection[bytes]:
        # Git refuses to be asked about what is in a submodule.
        ours = [path for path in paths if nested.is_of_top(store, state.full, path)]
        return git_questions.ignored_in(source.top, ours, env)

    return ignored


def _relocate(
    store: Store,
    source: _Source,
    created: Worktree,
    *,
    state: RecordedState,
    wanted: Wanted,
    warn: Warn,
) -> None:
    for old in dict.fromkeys((source.project, source.top)):
        for path in relocation.directories(store, state, old):
            is_editable = wanted.relocate is None and relocation.is_editable(
                store, state, path, old
            )
            if not (wanted.relocate or is_editable):
                warn(
                    f"{printable(path)} has the path {old} inside, and leads there; add --relocate,"
                    " or run --in-place"
                )
                continue
            try:
                relocation.relocate(created.path, path, old)
            except Failed as error:  # the worktree is there
                warn(str(error))
                continue
            if is_editable:
                warn(
                    f"{printable(path)} imports the worktree's files, not those of {old};"
                    " --no-relocate leaves it as it is"
                )


def _source(store: Store, directory: Path, env: Mapping[str, str]) -> _Source:
    top = work_tree_of(directory)
    inside = worktree.at(store, top)
    project = top if inside is None else inside.project
    refuse_home_or_root(project, force=None)
    is_in_git = git_questions.is_in_git(top)
    # What runs in a worktree may have put another repository there, which git would ask.
    if inside is not None and inside.link is not None and not is_linked(inside.link, top):
        raise Refused(f"{top} leads to another repository; `casfs worktree list` mends it")
    return _Source(project, top, inside, git_worktree.read_source(top, env) if is_in_git else None)


def _new_path(
    store: Store,
    source: _Source,
    wanted: Wanted,
    worktrees: Collection[Worktree],
    *,
    name: str,
    env: Mapping[str, str],
) -> Path:
    """Returns where a worktree of that name is to be; the lock is held. Raises Refused, Conflict,
    where it cannot be there, or the name or its branch is taken."""
    worktree.check_new(worktrees, source.project, name)
    path = _path(source, name, wanted.path)
    if registry.get(store, path) is not None:
        raise Conflict(f"{path} is a workspace already; see `casfs worktree list --all`")
    if source.git is not None:
        git_worktree.forget_interrupted(source.git, path, store.root, env)
        if wanted.branch is None:
            git_questions.check_new_branch(source.top, name, env)
    return path


def _new_name(worktrees: Collection[Worktree], source: _Source, env: Mapping[str, str]) -> str:
    return worktree.new_name(
        worktrees, source.project, lambda name: bool(git_questions.tip(source.top, name, env))
    )


def _path(source: _Source, name: str, wanted: str | None) -> Path:
    """Returns where a worktree is to be. Raises Refused for a link, and for a directory inside of
    what it is made from, which would then hold itself."""
    if wanted is None:
        if source.project.parent == Path("/"):  # of the system, beside which nothing is made
            raise Refused(f"{source.project} is a directory of the system; give --path")
        return worktree.default_folder(source.project) / name
    path = Path(os.path.abspath(wanted))
    real = path.parent.resolve() / path.name
    if path.is_symlink():
        raise Refused(f"{path} is a link; name the directory itself")
    if real.is_relative_to(source.project) or real.is_relative_to(source.top):
        raise Refused(f"{path} is inside of {source.project}; choose another directory")
    return real


def _state(
    store: Store, source: _Source, env: Mapping[str, str], *, look: Look, warn: Warn
) -> tuple[RecordedState, GitSource | None]:
    """Returns the files and what git has of them, of one moment: a commit while they are read would
    be taken back by the next one in the worktree. Raises Conflict."""
    git_source = source.git
    for _ in range(MAX_LOOKS):
        if source.inside is None:
            seen = look(source.project)
            state, lines = project_files.with_own_repositories(store, source.project, seen)
            if seen.new_bytes >= LARGE_BYTES:
                lines.append(
                    f"{readable(seen.new_bytes)} were stored; a further one takes what differs"
                )
        else:
            state, lines = worktree.record(store, source.inside), []
        before = git_source
        if before is not None:
            git_source = git_worktree.read_source(source.top, env)
        if before == git_source:
            for line in lines:
                warn(line)
            return state, git_source
    raise Conflict(f"git changes {source.top} all the time; try again")


def similar_image(
    store: Store, worktrees: Collection[Worktree], project: Path, state: RecordedState
) -> DatedTree | None:
    """Returns the tree of the image that is mounted for an open worktree of the project, the newest
    one, where few entries differ from it."""
    workspaces = [item.workspace for item in worktrees if item.project == project]
    for workspace in sorted(workspaces, key=lambda workspace: -workspace.record["openedAt"]):
        if workspace.strategy.native and workspace.state == "open":
            stack = workspace.stack
            image = stack.similar or stack.lower
            return image if layers.is_near(store, image, state.whole) else None
    return None


def _add_of_git(
    store: Store,
    source: GitSource,
    path: Path,
    *,
    name: str,
    branch: str,
    env: Mapping[str, str],
    opened: Callable[[Mapping[str, Any]], Workspace],
) -> Worktree:
    lock = Lock(store.root, name)
    link = git_worktree.add(source, path, lock, branch=branch, env=env)
    workspace = None
    try:
        workspace = opened({"git": link.record})
        git_worktree.fill(link, source, path, env)
    except BaseException:
        if workspace is not None:
            lifecycle.close(store, workspace, force=True)
        git_worktree.remove(link, path, env)
        raise
    return Worktree(workspace)

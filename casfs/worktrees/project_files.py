"""The files with which a worktree begins: those of its project, or of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from casfs.digest import TreeHash
from casfs.errors import Invalid
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees import dated, edit, recorded_state, tree
from casfs.trees.dated import DatedTree
from casfs.trees.git import linked_repositories
from casfs.trees.git.index import GIT
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot import exclusions, policy, working_tree
from casfs.trees.snapshot.gitignore import Patterns
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport

GIT_NAME = os.fsencode(GIT)
WITHOUT_REPOSITORY = {GIT_NAME: "the repository"}
INCLUDE = b".worktreeinclude"
MAX_TEXT_BYTES = 1 << 20
Changes = Mapping[bytes, Entry | None]


@dataclass(frozen=True, slots=True)
class ProjectLook:
    """A project as it is. `git_files`: the `.git` files, of submodules; `unreadable`: what was left
    out, and why; `new_bytes`: stored for it."""

    state: RecordedState
    git_files: Collection[bytes]
    unreadable: Mapping[bytes, str]
    new_bytes: int


def look(store: Store, project: Path) -> ProjectLook:
    """Stores a project as it is now, with what is private or derived, without the `.git` at its
    top. Raises NotFound, Refused, Failed."""
    report = SnapshotReport()
    rules = exclusions.ignore_rules(store, project, report, keeps_derived=True)
    rules.excluded = {**rules.excluded, **WITHOUT_REPOSITORY}
    options = SnapshotOptions(scanner=policy.load(store).scanner())
    with store.batch() as batch:
        state = working_tree.snapshot(store, batch, project, rules, report=report, options=options)
    return ProjectLook(state, [*report.git_files], report.unreadable, batch.new_bytes)


def with_own_repositories(
    store: Store, project: Path, seen: ProjectLook
) -> tuple[RecordedState, list[str]]:
    """Returns the state in which a submodule has a repository of its own in place of its `.git`
    file, which leads to the project's; and a line for each entry that is left out."""
    with store.batch() as batch:
        state, without = linked_repositories.replaced(
            store, batch, seen.state, top=project, git_files=seen.git_files
        )
    unreadable = dict.fromkeys(without, "the repository that it names is unreadable")
    reasons = {**seen.unreadable, **unreadable}
    return state, [f"{printable(path)} is left out: {why}" for path, why in reasons.items()]


def without_git(store: Store, state: RecordedState) -> RecordedState:
    """Returns a state without the `.git` at its top, which a thread's may have."""
    if tree.find(store, state.full, GIT_NAME) is None:
        return state
    return edited(store, state, work={GIT_NAME: None}, whole={GIT_NAME: None})


def only_included(
    store: Store,
    state: RecordedState,
    kept: Collection[bytes],
    ignored: Callable[[Iterable[bytes]], Collection[bytes]],
) -> RecordedState:
    """Returns a state in which, of the files that git ignores, only those are that its
    `.worktreeinclude` names, in the syntax of .gitignore; the same where it has none. What is
    derived stays, as it costs nothing, and what is `kept`, or below that. `ignored`: those of some
    paths that git ignores."""
    lines = text(store, state.full, INCLUDE)
    if lines is None:
        return state
    # Not strict, as git is not: other tools read this file by git.
    patterns = Patterns(lines.encode("utf-8", "surrogateescape"), strict=False)
    work = {
        path for path, entry in tree.walk(store, state.tree) if not isinstance(entry, Subdirectory)
    }
    private = recorded_state.private_files(store, state).keys()
    beginnings = tuple(path + b"/" for path in kept)
    dropped = {
        path
        for path in ignored(work | private)
        if not (_is_named(patterns, path) or path in kept or path.startswith(beginnings))
    }
    return edited(store, state, work=dict.fromkeys(dropped & work), whole=dict.fromkeys(dropped))


def _is_named(patterns: Patterns, path: bytes) -> bool:
    """Returns whether the patterns name a file, or a directory above it."""
    names = path.split(b"/")
    is_named = False
    for count, name in enumerate(names, start=1):
        above = b"/".join(names[:count])
        decision = patterns.decision(above, name, directory=count < len(names))
        is_named = is_named if decision is None else decision
    return is_named


def edited(store: Store, state: RecordedState, work: Changes, whole: Changes) -> RecordedState:
    """Returns a state with these entries at these paths in its two trees; None stands for none. In
    no other store."""
    sides = []
    with store.local_writes().batch() as batch:
        for side, changes in ((state.work, work), (state.whole, whole)):
            if changes:
                root = edit.with_entries(store, batch, root=side.tree, changes=changes).hash
                batch.commit()  # what is read for the times
                side = DatedTree(root, dated.times_for(store, batch, tree=root, source=side))
            sides.append(side)
    return RecordedState.of_parts(*sides)


def text(store: Store, root: TreeHash, path: bytes) -> str | None:
    """Returns the text of a file of a tree, with surrogates where it is not UTF-8; None where there
    is none. Raises Invalid for what is not a file, or too large."""
    entry = tree.find(store, root, path)
    if entry is None:
        return None
    if not isinstance(entry, File) or entry.digest.size_bytes > MAX_TEXT_BYTES:
        raise Invalid(f"{os.fsdecode(path)}: not a file of at most {MAX_TEXT_BYTES >> 20} MiB")
    return store.get(entry.digest.hash).decode("utf-8", "surrogateescape")

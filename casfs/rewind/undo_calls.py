"""Undoes what calls of an agent have changed in a directory, and keeps all else.

From the newest call to the oldest, path by path: where the file is as the call left it, it becomes
what it was before; where a person has changed it since, the two changes are merged by lines. What
cannot be merged stays as it is, and so does every earlier change of that path: a conflict. Changes
that are not known to be the call's (`CallRecord.foreign`) stay as well, and are named.

A git repository is undone as a whole or not at all, as git sees it (`casfs.rewind.repositories`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from casfs.digest import TreeHash
from casfs.rewind.repositories import UndoneRepository
from casfs.sessions.session_steps import AMBIGUOUS, UNSEEN, CallRecord
from casfs.store.nodes.directory import Entry, File, Subdirectory
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.trees.diff import merge, renames, three_way, unified_diff
from casfs.trees.git import repository_state
from casfs.trees.git.repository_paths import RepositoryPaths
from casfs.trees.recorded_state import RecordedState
from casfs.trees.snapshot.ignore import IgnoredPaths

SAME_LINES = "changed since, in the same lines or next to them"
UNRESOLVED = "it has conflict markers; resolve them first"
MARKED = "both are in it, between conflict markers"
NOT_TEXT = "changed since, and it is not a text"
LARGE = "changed since, and it is too large to merge"
GONE = "deleted since"
REPOSITORY = "its repository has changed since"
LOST_COMMITS = "git has deleted commits of its repository since"
PURGED = "its earlier content was purged"
ELSEWHERE = "its work tree is elsewhere"
HELD = "a work tree elsewhere has it checked out"
MOVED = "it holds what was elsewhere, and cannot come back there"
IGNORED = ".casfsignore leaves it out"
TORN = "git wrote in it while it was looked at"
AMBIGUOUS_UNSEEN = f"{AMBIGUOUS}: {UNSEEN}"


@dataclass(frozen=True)
class UndoOptions:
    """`paths`: what is undone of the changes, with what is below them; empty: all;
    `takes_ambiguous`: also changes of which it is uncertain whether a call or a person made them;
    `marks_conflicts`: a text that was changed since in the same lines gets both, with markers."""

    paths: tuple[bytes, ...] = ()
    takes_ambiguous: bool = False
    marks_conflicts: bool = False

    def includes(self, path: bytes) -> bool:
        return not self.paths or any(
            path == selected or path.startswith(selected + b"/") for selected in self.paths
        )


EVERYTHING = UndoOptions()


@dataclass
class Undone:
    """`changed`: what is to change in the directory; `conflicts`: paths that stay as they are
    though a call has changed them; `kept`: those that stay since they are not known to be of a
    call; both with the reason; `marked`: texts that get conflict markers; `repositories`: what
    becomes of each that changes, in words; `git`: where repositories are; `like`: the oldest state
    of which something comes back, whose directories and dates count."""

    git: RepositoryPaths
    changed: list[tree.Change] = field(default_factory=list)
    conflicts: dict[bytes, str] = field(default_factory=dict)
    kept: dict[bytes, str] = field(default_factory=dict)
    marked: list[bytes] = field(default_factory=list)
    repositories: dict[bytes, list[str]] = field(default_factory=dict)
    like: RecordedState | None = None

    @property
    def changed_files(self) -> list[tree.Change]:
        """What a person is shown as changed files: without those inside of repositories."""
        return [change for change in self.changed if not self.git.is_inside(change.path)]


def undo_calls(
    store: Store,
    current: TreeHash,
    calls: Iterable[CallRecord],
    options: UndoOptions = EVERYTHING,
    *,
    directory: Path | None = None,
) -> Undone:
    """Returns what is to change in a directory that holds `current` so that it is without the
    changes of these calls, given newest first. `directory`: which the trees are looks at, that say
    nothing of what `.casfsignore` left out then; None where they have all that was written. Raises
    NotFound, Corrupt."""
    known = [
        (call, list(tree.changes(store, call.before.full, call.after.full)))
        for call in calls
        if call.before is not None and call.after is not None
    ]
    git = RepositoryPaths(store, [current, *_ends([call for call, _ in known])])
    undoing = _Undoing(store, current, options, git, directory)
    for _, changes in known:
        for change in changes:
            # Undoing the later call has to restore what somebody else changed before it.
            later = undoing.first.get(change.path, change.new)
            if not tree.is_same(store, later, change.new):
                undoing.changed_between.add(change.path)
            undoing.first[change.path] = change.old
    for call, changes in known:
        undoing.undo(call, changes)
    changed = undoing.changed()
    marked = sorted(undoing.marked.intersection(change.path for change in changed))
    return Undone(
        git, changed, undoing.conflicts, undoing.kept, marked, undoing.words, like=undoing.oldest
    )


def _ends(calls: Sequence[CallRecord]) -> list[TreeHash]:
    """Returns the directory before all of these calls, and after them."""
    sides = [calls[-1].before, calls[0].after] if calls else []
    return [side.full for side in sides if side is not None]


class _Undoing:
    """`oldest`: the directory before the oldest call that was undone; `first`: each path that the
    calls have changed, as it was before the first of them; `changed_between`: paths that somebody
    else changed between two of the calls."""

    def __init__(
        self,
        store: Store,
        current: TreeHash,
        options: UndoOptions,
        git: RepositoryPaths,
        directory: Path | None,
    ) -> None:
        self._store = store
        self._git = git
        self._current = current
        self._current_paths = tree.PathFinder(store, current)
        self._options = options
        self._directory = directory
        self._entries: dict[bytes, Entry | None] = {}  # as undone so far, of the paths looked at
        self._directories: dict[bytes, Subdirectory] = {}  # the same; their modes alone count
        self.conflicts: dict[bytes, str] = {}
        self.kept: dict[bytes, str] = {}
        self.marked: set[bytes] = set()
        self.oldest: RecordedState | None = None
        self.first: dict[bytes, Entry | None] = {}
        self.changed_between: set[bytes] = set()
        self._repositories: dict[bytes, UndoneRepository] = {}

    def undo(self, call: CallRecord, changes: list[tree.Change]) -> None:
        assert call.before is not None
        assert call.after is not None
        self.oldest = call.before
        changes = self._without_repositories(call, changes)
        moved = self._moved(changes)
        # Entries before their directory: whether that can become a file depends on them. Before
        # all what was moved away: where it cannot come back, the file that it went to stays.
        changes.sort(key=lambda change: change.path, reverse=True)
        changes.sort(key=lambda change: not _is_elsewhere(change.path, moved.get(change.path)))
        ignored = None
        if self._directory is not None:
            roots = (self._current, call.before.full, call.after.full)
            ignored = IgnoredPaths(self._store, roots, self._directory)
        for change in changes:
            if self._is_back(change.path):
                continue
            if not self._options.includes(change.path):
                self._keep_moved(moved.get(change.path, ()))
                continue
            ignored_top = None if ignored is None else ignored.topmost(change.path)
            if ignored_top is None:
                self._undo_change(call, change)
            # One of the looks ignored it, so its content at that time is not recorded.
            elif not self._is_same(self._present(change.path), change.old):
                self.kept.setdefault(ignored_top, IGNORED)
            stays = ignored_top is not None or self._stays_as_it_is(change.path)
            if stays:
                self._keep_moved(moved.get(change.path, ()))

    def _keep_moved(self, paths: Iterable[bytes]) -> None:
        """Keeps files to which the content of one went that is not taken back."""
        for path in filter(self._options.includes, paths):
            self.conflicts.setdefault(path, MOVED)

    def _is_back(self, path: bytes) -> bool:
        """Whether a path already has the content from before the first of the calls."""
        is_first = self._is_same(self.first[path], self._there(path))
        return is_first and path not in self.changed_between

    def _without_repositories(
        self, call: CallRecord, changes: list[tree.Change]
    ) -> list[tree.Change]:
        """Undoes what a call has done to repositories; returns the other changes."""
        paths: dict[bytes, list[bytes]] = {}
        losing = set()  # repositories that lost objects, or logs of refs
        left = []
        for change in changes:
            top = self._git.of(change.path)
            if top is None or top == change.path:
                left.append(change)
                continue
            name = change.path[len(top) + 1 :]
            if repository_state.is_state(name):
                paths.setdefault(top, []).append(change.path)
            elif repository_state.is_lost(name, change):
                losing.add(top)
        for top in filter(self._options.includes, [*paths, *(losing - paths.keys())]):
            self._undo_repository(call, top, paths.get(top, []), is_losing=top in losing)
        return left

    def _undo_repository(
        self, call: CallRecord, top: bytes, changed: list[bytes], *, is_losing: bool
    ) -> None:
        assert call.before is not None
        if top not in self._repositories:
            self._repositories[top] = UndoneRepository(self._store, self._current, top, self._git)
        repository = self._repositories[top]
        if is_losing:  # to have these is never wrong
            repository.bring_back_lost(call.before.full)
        if not repository.is_changed_by(call):
            return
        reasons = filter(None, (self._foreign_reason(call, path) for path in changed))
        reason = TORN if call.is_torn else next(reasons, None)
        if repository_state.is_of_work_tree_elsewhere(
            self._store, top, self._current, other_trees=_ends([call])
        ):
            reason = ELSEWHERE
        if reason is not None:
            self.kept.setdefault(top, reason)
            return
        repository.undo(call)
        if repository.has_gone_on and call.is_interrupted:
            repository.undo_interrupted(call)
        self.conflicts |= conflicts_of(repository)

    @property
    def words(self) -> dict[bytes, list[str]]:
        return {
            top: words
            for top, repository in self._repositories.items()
            if not self._stays_as_it_is(top) and (words := repository.words)
        }

    def _moved(self, changes: list[tree.Change]) -> dict[bytes, list[bytes]]:
        """Returns to which files the former content of each path went, also of one that was written
        again after that, and to one that was there."""
        old_files = {change.path: change.old for change in changes if isinstance(change.old, File)}
        new_files = {change.path: change.new for change in changes if isinstance(change.new, File)}
        moved: dict[bytes, list[bytes]] = {}
        for path, source in renames.pairs(self._store, old_files, new_files).items():
            if path != source:
                moved.setdefault(source, []).append(path)
        return moved

    def _undo_change(self, call: CallRecord, change: tree.Change) -> None:
        if (reason := self._foreign_reason(call, change.path)) is not None:
            self.kept.setdefault(change.path, reason)
        elif any(tree.is_purged(self._store, root, change.path) for root in _ends([call])):
            self.conflicts.setdefault(change.path, PURGED)
        # What has markers has all that was changed in it; an older change is not looked for there.
        elif change.path not in self.conflicts and change.path not in self.marked:
            if isinstance(change.old, Subdirectory) and isinstance(change.new, Subdirectory):
                self._undo_mode(change.path, change.old, change.new)
            else:
                self._undo_path(change.path, self._leaf(change.old), self._leaf(change.new))

    def _stays_as_it_is(self, path: bytes) -> bool:
        return path in self.conflicts or path in self.kept

    def changed(self) -> list[tree.Change]:
        """Returns what is to change, without the repositories that have a conflict."""
        wanted: dict[bytes, Entry | None] = {
            path: entry for path, entry in self._directories.items() if self._existed_before(path)
        }
        wanted |= self._edits()
        changes = [tree.Change(path, self._there(path), wanted[path]) for path in sorted(wanted)]
        return [change for change in changes if not self._is_same(change.old, change.new)]

    def _existed_before(self, directory: bytes) -> bool:
        """Whether a directory comes from before all calls: else it goes with what is in it."""
        if directory == tree.TOP or self.oldest is None:
            return True
        entry = tree.find(self._store, self.oldest.full, directory)
        return isinstance(entry, Subdirectory)

    def _edits(self) -> dict[bytes, Entry | None]:
        edits: dict[bytes, Entry | None] = {}
        for path, entry in self._entries.items():
            # A directory with entries is none, as in `_entries`.
            if not self._is_same(entry, self._leaf(self._there(path))):
                edits[path] = entry
        for top, repository in self._repositories.items():
            if not self._stays_as_it_is(top):
                edits |= repository.edits()
        for top, repository in self._repositories.items():
            if self._stays_as_it_is(top):
                continue
            if repository.leaves_unborn(edits):
                self._keep_repository(top, edits, REPOSITORY)
            elif repository.lacks_commits(edits):
                self._keep_repository(top, edits, LOST_COMMITS)
        blocked: list[tuple[bytes, str]] = []
        merge.drop_blocked(edits, self._leaves(edits), blocked)
        for blocked_path, reason in blocked:
            above = self._git.of(blocked_path)
            if above is None or above == blocked_path:
                self.conflicts[blocked_path] = reason
            else:  # whole, or not at all
                self._keep_repository(above, edits, REPOSITORY)
        return edits

    def _keep_repository(self, top: bytes, edits: dict[bytes, Entry | None], reason: str) -> None:
        self.conflicts[top] = reason
        for path in [path for path in edits if self._git.of(path) == top]:
            del edits[path]

    def _undo_mode(self, path: bytes, before: Subdirectory, after: Subdirectory) -> None:
        there = self._directories.get(path) or self._there(path)
        # One that is deleted by now has the mode of before when something in it comes back.
        if isinstance(there, Subdirectory) and not self._is_same(there, before):
            if self._is_same(there, after):
                self._directories[path] = before
            else:
                self.conflicts[path] = "its mode has changed since"

    def _undo_path(self, path: bytes, before: Entry | None, after: Entry | None) -> None:
        if path in self._entries:
            current = self._entries[path]
        else:
            there = self._there(path)
            current = self._leaf(there)
            if current is None and isinstance(there, Subdirectory) and self._stays(path, there):
                self.conflicts[path] = "a directory is there now"
                return
        if self._is_same(current, before):
            self._entries[path] = current
            return
        if self._is_same(current, after):
            self._entries[path] = before
            return
        if isinstance(current, File) and isinstance(before, File) and isinstance(after, File):
            self._merge(path, current, before, after)
        elif current is None:
            self.conflicts[path] = GONE
        else:
            self.conflicts[path] = NOT_TEXT if before is not None else "changed since"

    def _merge(self, path: bytes, current: File, before: File, after: File) -> None:
        if not tree.has_same_mode(self._store, current, after):
            before = tree.with_mode_of(before, current)
        if current.digest == after.digest:
            self._entries[path] = before
            return
        if before.digest == after.digest:
            self._entries[path] = tree.with_mode_of(current, before)
            return
        texts = [unified_diff.text_lines(self._store, file) for file in (after, current, before)]
        if any(isinstance(text, str) for text in texts):
            self.conflicts[path] = LARGE if unified_diff.TOO_LARGE in texts else NOT_TEXT
            return
        base, ours, theirs = (b"".join(text) for text in texts)  # type: ignore[arg-type]
        if merge.has_markers(ours) and not merge.has_markers(base):
            self.conflicts[path] = UNRESOLVED
            return
        merged = three_way.merge(base, ours, theirs, labels=("now", "before"))
        if merged.conflicts and not self._options.marks_conflicts:
            self.conflicts[path] = SAME_LINES
            return
        if merged.conflicts:
            self.marked.add(path)
        digest = self._store.local_writes().put(merged.text)
        self._entries[path] = tree.with_mode_of(current._replace(digest=digest), before)

    def _stays(self, path: bytes, directory: Subdirectory) -> bool:
        """Returns whether a directory has an entry that is not undone."""
        for inner, entry in tree.walk(self._store, directory.digest.hash):
            inner_path = path + b"/" + inner
            if self._leaf(entry) is not None and self._entries.get(inner_path, entry) is not None:
                return True
        return False

    def _foreign_reason(self, call: CallRecord, path: bytes) -> str | None:
        """Returns why a change stays though a call may have made it; None where it does not."""
        reason = foreign_reason(call, path)
        is_ambiguous = reason is not None and reason.startswith(AMBIGUOUS)
        return None if is_ambiguous and self._options.takes_ambiguous else reason

    def _leaf(self, entry: Entry | None) -> Entry | None:
        """Returns a file, a link or an empty directory; None for a directory with entries."""
        is_leaf = entry is not None and tree.is_leaf(self._store, entry)
        return entry if is_leaf else None

    def _is_same(self, entry: Entry | None, other: Entry | None) -> bool:
        return tree.is_same(self._store, entry, other)

    def _present(self, path: bytes) -> Entry | None:
        """Returns an entry as undone so far."""
        return self._entries[path] if path in self._entries else self._there(path)

    def _there(self, path: bytes) -> Entry | None:
        return self._current_paths.find(path)

    def _leaves(self, edits: dict[bytes, Entry | None]) -> set[bytes]:
        """Returns the leaves of the directory that may be above or below new ones."""
        leaves = set()
        for path, entry in edits.items():
            if entry is None:
                continue
            parts = path.split(b"/")
            for count in range(1, len(parts) + 1):
                name = b"/".join(parts[:count])
                there = tree.find(self._store, self._current, name)
                if there is None:
                    break
                if not isinstance(there, Subdirectory):
                    leaves.add(name)
                elif count == len(parts):
                    # A directory goes with what is in it.
                    leaves |= {
                        name + b"/" + inner
                        for inner, below in tree.walk(self._store, there.digest.hash)
                        if self._leaf(below) is not None
                    }
        return leaves


def _is_elsewhere(path: bytes, moved: list[bytes] | None) -> bool:
    """Whether a file was moved away, and not into a directory in its own place."""
    return moved is not None and not any(to.startswith(path + b"/") for to in moved)


def conflicts_of(repository: UndoneRepository) -> dict[bytes, str]:
    """Returns what of a repository does not go back, with the reason."""
    if repository.has_gone_on:
        return {repository.path: REPOSITORY}
    return {repository.path + b"/" + name: HELD for name in repository.held}


def foreign_reason(call: CallRecord, path: bytes) -> str | None:
    """Returns why a change is not known to be the call's; None where it is."""
    name = printable(path)
    if (reason := call.foreign.get(name)) is not None:
        return reason
    if call.is_unseen and (call.paths is None or name not in call.paths):
        return AMBIGUOUS_UNSEEN
    return None

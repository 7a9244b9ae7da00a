"""What a restore is asked for, what it finds, and what it has done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from casfs.digest import NodeHash, TreeHash
from casfs.directories.operations import Intent, Operation, Verb
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.incremental import Outcome
from casfs.trees.restore.write import Progress
from casfs.trees.snapshot.report import RelativePath


@dataclass(slots=True)
class RestoreResult:
    """`files`: files and links that were written or corrected; `old`: the previous tree, None for
    a full restore; `local`: paths that were changed locally; `purged`: those of them whose content
    was purged, so that no checkpoint can record it; `plan`: what a dry run would change;
    `excluded`: paths that stay although the tree lacks them, as it is of a look that leaves them
    out; `failed`: paths that are as they were, since they could not be read or written, with the
    reason; `operation`: its entry in the log of the directory."""

    root: TreeHash
    old: TreeHash | None = None
    local: list[bytes] = field(default_factory=list)
    purged: list[bytes] = field(default_factory=list)
    plan: list[tree.Change] = field(default_factory=list)
    excluded: list[bytes] = field(default_factory=list)
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    outcome: Outcome = field(default_factory=Outcome)
    operation: Operation | None = None
    failed: dict[RelativePath, str] = field(default_factory=dict)


@dataclass(slots=True)
class Contents:
    """What the directory holds before the restore. `olds`: the trees that it may have been restored
    to. `tracked`: what it has at the paths of these and the new tree; None where it is empty.
    `current`: that, with the untracked entries that this restore deletes; `dated`: with its times.
    `purged`: paths that are left out, as their content was purged. `unseen`: the topmost paths that
    the new tree says nothing of. `newest`: the last time of a file, in ns."""

    olds: list[TreeHash | None] = field(default_factory=list)
    tracked: TreeHash | None = None
    current: TreeHash | None = None
    dated: DatedTree | None = None
    purged: list[bytes] = field(default_factory=list)
    unseen: list[bytes] = field(default_factory=list)
    newest: int | None = None


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """How a restore treats what is in the directory.

    `base`: the tree that was restored there before. `paths`: restore only these of the tree.
    `delete_untracked`: also delete entries that are in neither tree, but none that a checkpoint
    leaves out. `verify`: read every file, also one whose stat is as it was. `set_id`: give files
    the set-id bits of their preserved modes. `parents`: make missing parents. `dry_run`: only find
    out what would be changed. `force`: local changes are overwritten, not refused; `advice`: what
    a person can do where they are, by default that. `name`: NAME@ID
    of the checkpoint, which is noted of the directory. `leaves_out_failed`: what cannot be read or
    written is in the result, and the rest is restored. `opened`: as in Target. `operation`: what is
    noted in the log of the directory, so that it can be taken back; None for a directory of casfs.
    `like`: a whole directory from which all comes that is brought back, by which files are dated,
    and what is private; `seen`: what was just looked at, of the paths that are to be written and no
    others; the tree has no others either, and both are stored. `step`: of the thread whose tree it
    is, which the next checkpoint there is to name.
    """

    base: TreeHash | None = None
    paths: Sequence[bytes] = ()
    delete_untracked: bool = False
    verify: bool = False
    set_id: bool = False
    parents: bool = False
    dry_run: bool = False
    force: bool = False
    advice: str = ""
    progress: Progress | None = None
    opened: int | None = None
    name: str = ""
    leaves_out_failed: bool = False
    operation: Intent | None = None
    like: RecordedState | None = None
    seen: DatedTree | None = None
    step: NodeHash | None = None

    def of_changes(self, seen: DatedTree, like: RecordedState | None) -> RestoreOptions:
        """Returns these for a tree of the paths that are to be written alone, which are as in the
        tree `seen` now; `like`: as of these options."""
        return replace(self, base=seen.tree, like=like, seen=seen)

    @property
    def dates(self) -> DatedTree | None:
        return None if self.like is None else self.like.whole

    @property
    def is_of_checkpoint(self) -> bool:
        """Whether a person names a tree that is not of this directory as it was at a moment: it may
        lack what its look left out."""
        return self.operation is not None and self.operation.verb is Verb.RESTORE

    @property
    def forces_blocked(self) -> bool:
        """Whether a file takes the place of a directory with other files, which the log then has:
        not where what is there is only looked at by its paths."""
        return self.force and not self.keeps_base

    @property
    def keeps_base(self) -> bool:
        """Whether later restores compare with what they would compare with now."""
        return self.operation is not None and self.operation.verb is not Verb.RESTORE

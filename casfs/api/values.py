"""The values of the Python API: frozen, without a store behind them.

Hashes are 64 lowercase hex characters. Paths of a tree are relative to its root, with `/`
between names; bytes that are not UTF-8 are surrogate escapes, as in `os` (`os.fsencode`
gives them back). Times are aware datetimes in UTC, of millisecond precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

Kind = Literal["file", "directory", "symlink"]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A tree recorded under a name."""

    name: str
    id: str  # unique among the checkpoints of the name; ids sort by age
    hash: str  # of the checkpoint node
    root: str  # hash of the tree
    created_at: datetime
    message: str

    def __str__(self) -> str:
        """The revision that names it: NAME@ID."""
        return f"{self.name}@{self.id}"


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, directory or symlink of a tree."""

    path: str  # "" is the root
    kind: Kind
    hash: str | None = None  # of a file's blob or a directory's node
    size: int | None = None  # bytes of a file
    executable: bool = False
    target: str | None = None  # of a symlink
    mode: int | None = None  # permission bits, where they were preserved
    mtime_ns: int | None = None  # ns since 1970 UTC, where it was preserved

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Change:
    """A path at which two trees differ."""

    letter: str  # A added, D deleted, M content, T type, target, mode or mtime
    path: str
    old: Entry | None  # None: added
    new: Entry | None  # None: deleted


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did to a directory."""

    root: str  # hash of the tree that is there now
    base: str | None  # the tree that was there before; None for an empty directory
    files: int  # files and symlinks written
    bytes: int
    deleted: int
    changed: tuple[str, ...]  # paths that changed meanwhile, and are now as in the tree
    kept: tuple[str, ...]  # directories not deleted, for the untracked files in them
    operation: int | None = None  # its number in the directory's log; None where nothing changed
    aside: Mapping[str, str] = field(default_factory=dict)  # what no tree has: path to new path


@dataclass(frozen=True, slots=True)
class Agent:
    """The agent that plays a role: an installed package, its config, a PEP 440 specifier."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""  # "" is any


@dataclass(frozen=True, slots=True)
class Workflow:
    """Roles, and the rules that choose among them."""

    name: str
    hash: str  # of the workflow node
    definition: Mapping[str, Any]  # as `register` takes it, roles and role-schemas inline
    agents: Mapping[str, Agent]  # the default agents, by role


@dataclass(frozen=True, slots=True)
class ActionResult:
    """What a command did, now or when its result was cached."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    outputs: str | None  # hash of the tree of its outputs; None where nothing is cached
    is_hit: bool  # it was not run
    hash: str | None  # of the action-result node


@dataclass(frozen=True, slots=True)
class Thread:
    """One run of a workflow, as it stood when it was read."""

    id: str
    workflow: str
    status: str  # running, queued, suspended, succeeded, failed, stopped or cancelled
    hash: str  # of its newest node: thread-start, thread-step or thread-end
    role: str | None  # of the step in flight
    updated_at: datetime  # last activity
    reason: str | None  # why it is suspended
    question: str | None  # hash of a content node, for a human to answer (`resume(id, answer)`)
    return_code: int | None  # 0 ended by a rule, 1 no rule matched, 2 step limit, 130 cancelled
    parent: str | None  # id of the thread that called it
    tokens: int  # spent so far
    running_time: timedelta  # spent so far


@dataclass(frozen=True, slots=True)
class Step:
    """A finished step of a thread."""

    index: int  # from 1
    role: str
    output: str
    meta: Mapping[str, Any]  # the output as the role's schema asks for it
    hash: str  # of the thread-step node
    detail: str  # hash of the agent's own record
    artifacts: tuple[str, ...]  # hashes of what the agent reported
    workspace: str | None  # hash of the tree after the step
    changes: str | None  # hash of the unified diff of the workspace
    started_at: datetime
    completed_at: datetime
    cached: bool  # the output of an equal earlier step was used


def from_ms(ms: int) -> datetime:
    """The time that is `ms` milliseconds after 1970 UTC; exact."""
    return EPOCH + timedelta(milliseconds=ms)

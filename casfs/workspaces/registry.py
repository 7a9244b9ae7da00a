"""The workspace registry: the head and the folder in the store of each open workspace.

The head `workspaces/<id>` points to the root that was committed last, at first the one that
the workspace was opened with. The id stands for the directory, so no directory is two
workspaces. Its record:

    path         the directory
    way          its strategy (`Strategy.way` in `casfs.workspaces.strategies`)
    base         the tree below the upper: what a commit is computed from
    generation   which upper: `workspaces/<id>/<generation>/{upper,work}` in the store
    local        the whole directory as it was committed last, where not all of it is work
    name, checkpoint    of the checkpoint that it was opened from, or recorded last; else null
    readOnly, made (we made the directory), openedAt (ms since 1970 UTC)
    mode         of a directory that was there before
    system       the boot and the process namespace that it was opened in
    imageTree, imageTimes    of the image that is the lowest layer, where that is not of `base`:
                 another one has what differs
    worktree     of one that is a worktree: see `casfs.worktrees.worktree`

A read-only workspace keeps its tree for as long as it is mounted anywhere, also when it was
unmounted here while a container still uses it. It is orphaned then: its head is
`workspaces/<id>.<openedAt>`, so that the directory is free, and gc deletes the head when the
last mount is gone.

`casfs.workspaces.lifecycle` and `casfs.workspaces.commit` write the heads; all may read them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.backend.protocols import Head, HeadName
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.digest import TreeHash, hash_bytes
from casfs.errors import Corrupt, Invalid, NotFound, Refused
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.clock import now_ms
from casfs.system.files import os_errors
from casfs.system.locks import lock_file
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import overlay_mount, strategies
from casfs.workspaces.layers import Stack
from casfs.workspaces.strategies import Strategy

HEADS = "workspaces/"
FOLDER = "workspaces"
ID_LENGTH = 16
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
PID_NAMESPACE = Path("/proc/self/ns/pid")
INITIAL_PID_NAMESPACE = str(0xEFFF_FFFC)  # its inode; all processes are visible in it
BASE_TIMES = "baseTimes"  # of a record
IMAGE_TREE = "imageTree"  # of a record
IMAGE_TIMES = "imageTimes"  # of a record
WORKTREE = "worktree"  # of a record


@dataclass(frozen=True, slots=True)
class Workspace:
    """A snapshot of its head. `folder`: its directory in the store."""

    id: str
    head: Head
    folder: Path

    @property
    def record(self) -> Mapping[str, Any]:
        return self.head.record

    @property
    def root(self) -> TreeHash:
        """The work that was committed last."""
        return TreeHash(self.head.hash)

    @property
    def recorded(self) -> RecordedState:
        """What was committed last."""
        return RecordedState.of_fields(self.root, self.record)

    @property
    def stack(self) -> Stack:
        similar = None
        if IMAGE_TREE in self.record:
            similar = DatedTree(self.record[IMAGE_TREE], self.record.get(IMAGE_TIMES))
        return Stack(
            DatedTree(self.record["base"], self.record.get(BASE_TIMES)),
            self.upper,
            point=self.path,
            changes=self.folder / "changes",
            similar=similar,
            read_only=self.record["readOnly"],
            source=self.source,
        )

    @property
    def path(self) -> Path:
        return Path(self.record["path"])

    @property
    def strategy(self) -> Strategy:
        return strategies.BY_WAY[self.record["way"]]

    @property
    def upper(self) -> Path:
        return self.folder / str(self.record["generation"]) / "upper"

    @property
    def is_orphaned(self) -> bool:
        """Whether it is closed, while a container still uses it."""
        # The id of a directory is hexadecimal; that of an orphan has a dot and a time behind it.
        return "." in self.id

    @property
    def state(self) -> str:
        """`open`; `unmounted`: open it again; `left`: closed, and a container still uses it."""
        if self.is_orphaned:
            return "left"
        is_open = not self.strategy.layered or self._is_mounted
        return "open" if is_open else "unmounted"

    @property
    def _is_mounted(self) -> bool:
        """Whether this workspace is mounted at its directory, and not one of another store. Of
        fuse-overlayfs, whose mounts have no source of their own, any mount counts."""
        mounted = mounts.mounted_at(self.path)
        if mounted is None or self.strategy.name != strategies.FUSE:
            return mounted is not None and mounted.source == self.source
        return overlay_mount.FUSE_OVERLAYFS in (mounted.source, mounted.type.partition(".")[2])

    @property
    def source(self) -> str:
        """The unique source of its mount in the kernel's table."""
        # With the time, since a container may still have an earlier mount of the same directory. An
        # orphan's mount has the source of before, so without what was added to its id.
        return f"casfs-{self.id.partition('.')[0]}-{self.record['openedAt']}"

    @property
    def is_unused(self) -> bool:
        """Whether it is certainly not mounted in any namespace."""
        if self.state == "open":
            return False
        # Of all processes that are visible from here: a container may have a copy of the mount.
        if mounts.is_mounted_anywhere(self.source):
            return False
        opened_in = self.record["system"].split()
        boot, pid_namespace = system().split()
        # No mount outlives a reboot.
        if opened_in[0] != boot:
            return True
        # In another process namespace than that of the opening its users may be hidden from us.
        return pid_namespace in (opened_in[1], INITIAL_PID_NAMESPACE)


def head_name(id: str) -> HeadName:
    return HeadName(HEADS + id)


def new(
    store: Store,
    path: Path,
    state: RecordedState,
    strategy: Strategy,
    origin: Checkpoint | None,
    *,
    read_only: bool,
    mode: int | None,
) -> Workspace:
    """Returns a workspace that is not stored yet. `mode`: of its directory, None for one that must
    be made. Raises Invalid (the path)."""
    name = None
    checkpoint = None
    if origin:
        name = origin.name
        checkpoint = origin.hash
    # The whole directory: without its private files the work might not run.
    whole = state.whole
    record = {
        "path": _text(path),
        "way": strategy.way,
        "base": whole.tree,
        **state.fields,
        BASE_TIMES: whole.times,
        "generation": 0,
        "name": name,
        "checkpoint": checkpoint,
        "readOnly": read_only,
        "made": mode is None,
        "mode": mode,
        "openedAt": now_ms(),
        "system": system(),
    }
    return _workspace(store, id_of(path), Head(state.tree, record))


def system() -> str:
    """Returns the boot id of the machine and the process namespace of this process."""
    return f"{BOOT_ID.read_text().strip()} {os.stat(PID_NAMESPACE).st_ino}"


def listing(store: Store, *, read_only: bool = False) -> list[Workspace]:
    """Returns all, or the read-only ones, by directory."""
    workspaces: list[Workspace] = []
    # Without the damaged ones: one of them would end every listing, and gc, which sweeps these.
    for name, head in head_kinds.sound(store.heads, HEADS):
        if not read_only or head.record["readOnly"]:
            id = name[len(HEADS) :]
            workspaces.append(_workspace(store, id, head))
    return sorted(workspaces, key=lambda workspace: workspace.path)


def get(store: Store, path: Path) -> Workspace | None:
    """Returns the workspace at an absolute path, if any. Raises Corrupt."""
    id = id_of(path)
    head = store.heads.get(head_name(id))
    if head is None:
        return None
    # A listing leaves it out; who names it must learn how to remove it.
    if fault := head_kinds.fault(head_name(id), head):
        hint = "`casfs workspace close --force` removes it"
        raise Corrupt(f"the workspace {path} is broken: {fault}; {hint}")
    return _workspace(store, id, head)


def find(store: Store, directory: Path) -> Workspace:
    """Raises NotFound."""
    path = absolute(directory)
    workspace = get(store, path)
    if workspace is None:
        raise NotFound(f"{path} is not an open workspace; see `casfs workspace list`")
    return workspace


def absolute(directory: Path) -> Path:
    """Resolves all but the last component: the directory may be a dead mount."""
    path = Path(os.path.abspath(directory))
    return path.parent.resolve() / path.name


def swap(store: Store, id: str, old: Head | None, new: Head | None) -> None:
    """Raises Conflict where the head is not `old`."""
    with store.batch() as batch:
        batch.swap(head_name(id), old, new)


def orphan(store: Store, workspace: Workspace) -> None:
    """Keep the tree of a closed workspace, but free its directory for another."""
    orphan_name = head_name(f"{workspace.id}.{workspace.record['openedAt']}")
    # In one transaction: a gc in between would find no head that keeps the tree.
    with store.batch() as batch:
        batch.swap(head_name(workspace.id), workspace.head, None)
        batch.swap(orphan_name, None, workspace.head)


def check_open(workspace: Workspace) -> None:
    """Raises Refused for a workspace that must be opened again first."""
    if workspace.state == "unmounted":
        verb = "worktree list" if WORKTREE in workspace.record else "workspace open"
        raise Refused(f"{workspace.path} is not mounted; open it again: `casfs {verb}`")


def check_writable(workspace: Workspace) -> None:
    """Raises Refused."""
    if workspace.record["readOnly"]:
        raise Refused(f"the workspace {workspace.path} is read-only")


def lock(workspace: Workspace, *, shared: bool = False) -> int:
    """Lock the workspace until the descriptor is closed; `shared`: with others that are, by a
    process that becomes a command, and by what that starts. Raises Refused where another has it."""
    path = workspace.folder / "lock"
    with os_errors(f"cannot lock {workspace.folder}"):
        workspace.folder.mkdir(parents=True, exist_ok=True)
        fd = lock_file(path, shared=shared)
    if fd is None:
        raise Refused(f"a command runs in the workspace {workspace.path}; end it first")
    os.set_inheritable(fd, shared)
    return fd


def _workspace(store: Store, id: str, head: Head) -> Workspace:
    return Workspace(id, head, store.root / FOLDER / id)


def id_of(path: Path) -> str:
    """Returns the id of the workspace at an absolute path."""
    return hash_bytes(os.fsencode(path))[:ID_LENGTH]


def _text(path: Path) -> str:
    # A record is JSON, which has no text for other bytes.
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid("the path of a workspace must be UTF-8") from None
    return str(path)

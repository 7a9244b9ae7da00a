"""What the store keeps of an opened workspace, and where: its head and its folder.

The head `workspaces/<id>` points to the root that was committed last, at first the one that
the workspace was opened with. The id stands for the directory, so no directory is two
workspaces. The record:

    path         the directory
    way          how it is made (`casfs.workspaces.strategies`)
    base         the tree below the upper: what a commit is computed from
    generation   which upper: `workspaces/<id>/<generation>/{upper,work}` in the store
    name, checkpoint    of the checkpoint that it was opened from, or recorded last; else null
    readOnly, made (we made the directory), openedAt (ms since 1970 UTC)
    system       the boot and the process namespace that it was opened in

A read-only one keeps its tree for as long as a mount of it is seen anywhere, also when it was
unmounted here while a container went on with it: its head is then `workspaces/<id>.<openedAt>`,
so that the directory is free, and gc drops the head when the last mount is gone (`left`).

`casfs.workspaces.lifecycle` writes them; everybody may read them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.backend.protocols import Head
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.digest import hash_bytes
from casfs.errors import Failed, Invalid, NotFound, Refused
from casfs.store import Store
from casfs.system import mounts
from casfs.system.clock import now_ms
from casfs.system.locks import lock_file
from casfs.workspaces import strategies
from casfs.workspaces.layers import Layers
from casfs.workspaces.strategies import Trees, Way

HEADS = "workspaces/"
FOLDER = "workspaces"
ID_LENGTH = 16
BOOT = Path("/proc/sys/kernel/random/boot_id")
NAMESPACE = Path("/proc/self/ns/pid")
SEES_ALL = str(0xEFFF_FFFC)  # the number of the process namespace that a machine begins with


@dataclass(frozen=True, slots=True)
class Workspace:
    """As its head was at one moment. `folder` is its place in the store."""

    id: str
    head: Head
    folder: Path

    @property
    def record(self) -> Mapping[str, Any]:
        return self.head.record

    @property
    def root(self) -> str:
        """The tree that was committed last."""
        return self.head.hash

    @property
    def path(self) -> Path:
        return Path(self.record["path"])

    @property
    def way(self) -> Way:
        return strategies.WAYS[self.record["way"]]

    @property
    def upper(self) -> Path:
        return self.folder / str(self.record["generation"]) / "upper"

    @property
    def is_left(self) -> bool:
        """Is it closed, while a container goes on with it?"""
        return "." in self.id

    @property
    def state(self) -> str:
        """`open`; `namespace-only`: visible inside `exec` alone; `unmounted`: open it again;
        `left`: closed, and a container goes on with it."""
        if self.is_left:
            return "left"
        if self.way.mount is not None:
            return "open" if strategies.is_mounted(self.path) else "unmounted"
        return "namespace-only" if self.way.layered else "open"

    @property
    def source(self) -> str:
        """Of its mount in the kernel's tables; no other one has it."""
        return f"casfs-{self.id.partition('.')[0]}-{self.record['openedAt']}"

    @property
    def is_gone(self) -> bool:
        """Is it certain that nobody sees a mount of it?"""
        if self.state == "open" or mounts.is_mounted_anywhere(self.source):
            return False
        then, now = self.record["system"].split(), system().split()
        if then[0] != now[0]:
            return True  # the machine was started anew
        return now[1] in (then[1], SEES_ALL)  # else others may run that are not seen from here

    def layers(self, lowers: Trees) -> Layers:
        """`lowers`: what the way needs of a tree (`ways.lowers`)."""
        return Layers(
            lowers(self.record["base"]),
            self.upper,
            self.upper.with_name("work"),
            self.path,
            self.record["readOnly"],
            source=self.source,
        )


def new(
    store: Store,
    path: Path,
    root: str,
    way: Way,
    origin: Checkpoint | None,
    *,
    read_only: bool,
    made: bool,
) -> Workspace:
    """One that is to be opened; nothing has it yet. Raises Invalid (the path)."""
    record = {
        "path": _text(path),
        "way": way.name,
        "base": root,
        "generation": 0,
        "name": origin.name if origin else None,
        "checkpoint": origin.hash if origin else None,
        "readOnly": read_only,
        "made": made,
        "openedAt": now_ms(),
        "system": system(),
    }
    return _workspace(store, _id(path), Head(root, record))


def system() -> str:
    """This boot of the machine, and the process namespace that this process sees."""
    return f"{BOOT.read_text().strip()} {os.stat(NAMESPACE).st_ino}"


def listing(store: Store, *, read_only: bool = False) -> list[Workspace]:
    """All of them, or those that are only looked at, by directory."""
    found = [
        _workspace(store, name[len(HEADS) :], head)
        for name, head in store.heads.list(HEADS)
        if not read_only or head.record.get("readOnly")
    ]
    return sorted(found, key=lambda one: one.path)


def get(store: Store, path: Path) -> Workspace | None:
    """The workspace at an absolute path, if it is one."""
    id = _id(path)
    head = store.heads.get(HEADS + id)
    return None if head is None else _workspace(store, id, head)


def find(store: Store, directory: Path) -> Workspace:
    """Raises NotFound."""
    path = absolute(directory)
    found = get(store, path)
    if found is None:
        raise NotFound(f"{path} is not an open workspace; see `casfs workspace list`")
    return found


def absolute(directory: Path) -> Path:
    """The path of a directory which is perhaps a dead mount, so that it is not asked."""
    path = Path(os.path.abspath(directory))
    return path.parent.resolve() / path.name


def swap(store: Store, id: str, old: Head | None, new: Head | None) -> None:
    """Raises Conflict where the head is not `old`."""
    with store.batch() as batch:
        batch.swap(HEADS + id, old, new)


def leave(store: Store, found: Workspace) -> None:
    """Keep the tree of one that is closed, and let the directory become another workspace."""
    with store.batch() as batch:
        batch.swap(HEADS + found.id, found.head, None)
        batch.swap(f"{HEADS}{found.id}.{found.record['openedAt']}", None, found.head)


def check_open(found: Workspace) -> None:
    """Raises Refused for a workspace that is to be opened again first."""
    if found.state == "unmounted":
        raise Refused(f"{found.path} is not mounted; open it again: `casfs workspace open`")


def check_writable(found: Workspace) -> None:
    """Raises Refused."""
    if found.record["readOnly"]:
        raise Refused(f"the workspace {found.path} is read-only")


def lock(found: Workspace, *, inherited: bool = True) -> int:
    """Say that a command runs in the workspace, for as long as the descriptor is open
    somewhere; `inherited`: also in children. Raises Refused where one does."""
    try:
        found.folder.mkdir(parents=True, exist_ok=True)
        fd = lock_file(found.folder / "lock")
    except OSError as error:
        raise Failed(f"cannot lock {found.folder}: {error.strerror}") from None
    if fd is None:
        raise Refused(f"a command runs in the workspace {found.path}; end it first")
    os.set_inheritable(fd, inherited)
    return fd


def _workspace(store: Store, id: str, head: Head) -> Workspace:
    return Workspace(id, head, (store.root or Path()) / FOLDER / id)


def _id(path: Path) -> str:
    return hash_bytes(os.fsencode(path))[:ID_LENGTH]


def _text(path: Path) -> str:
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid("the path of a workspace must be UTF-8") from None
    return str(path)

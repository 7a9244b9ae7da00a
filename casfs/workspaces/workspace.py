"""Workspaces that a person opens: a writable directory over a tree, until it is closed.

The head `workspaces/<id>` keeps what one needs; the id stands for the directory, so no
directory is two workspaces. It points to the root that was committed last, at first the one
it was opened with. Its record:

    path         the directory
    way          how it is made (`casfs.workspaces.ways`)
    base         the tree below the upper: what a commit is computed from
    generation   which upper: `workspaces/<id>/<generation>/{upper,work}` in the store
    name, checkpoint    of the checkpoint that it was opened from, or recorded last; else null
    readOnly, made (we made the directory), openedAt (ms since 1970 UTC)

The record is there before anything is mounted and goes last, so a crash leaves nothing that
`close` would not find; a workspace that a reboot has unmounted is mounted again by `open`,
its changes kept. `discard` makes the next generation beside the old one and moves the
record in between: a base never meets the upper of another.

A commit leaves base and upper alone: what is written meanwhile goes into the next one. A
thread's private workspace is another thing (`engine.workspace`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .. import advance, scratch
from ..backend import Head
from ..batch import Batch
from ..checkpoint import Checkpoint
from ..digest import Digest, hash_bytes
from ..errors import Conflict, Failed, Invalid, NotFound, Refused
from ..nodes.directory import Properties
from ..store import Store
from ..trees import snapshot, tree
from ..trees.ignore import Ignore
from ..trees.restore import restore
from ..trees.snapshot import Options, Report
from . import overlay, ways
from .ways import Layers, Way

HEADS = "workspaces/"
ID_LENGTH = 16
Trees = Callable[[str], Path]  # where a mount of the store shows the tree of that root


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
        return ways.WAYS[self.record["way"]]

    @property
    def upper(self) -> Path:
        return self.folder / str(self.record["generation"]) / "upper"

    @property
    def state(self) -> str:
        """`open`; `closed off`: only `exec` leads into it; `unmounted`: open it again."""
        if self.way.mount is not None:
            return "open" if ways.is_mounted(self.path) else "unmounted"
        return "closed off" if self.way.layered else "open"

    def layers(self, trees: Trees) -> Layers:
        lower = trees(self.record["base"])
        work = self.upper.with_name("work")
        return Layers(lower, self.upper, work, self.path, self.record["readOnly"])


@dataclass(frozen=True, slots=True)
class Committed:
    """`checkpoint` is None for a workspace without a name, and where nothing had changed."""

    root: str
    checkpoint: Checkpoint | None
    report: Report


def listing(store: Store) -> list[Workspace]:
    """All of them, by directory."""
    found = [_workspace(store, name, head) for name, head in store.heads.list(HEADS)]
    return sorted(found, key=lambda one: one.path)


def find(store: Store, directory: Path) -> Workspace:
    """Raises NotFound."""
    path = absolute(directory)
    name = HEADS + _id(path)
    head = store.heads.get(name)
    if head is None:
        raise NotFound(f"{path} is no open workspace; see `casfs workspace list`")
    return _workspace(store, name, head)


def absolute(directory: Path) -> Path:
    """The path of a directory which is perhaps a dead mount, so that it is not asked."""
    path = Path(os.path.abspath(directory))
    return path.parent.resolve() / path.name


# -- open and close -----------------------------------------------------------------------


def open(
    store: Store,
    root: str,
    directory: Path,
    way: Way,
    trees: Trees,
    *,
    origin: Checkpoint | None = None,
    read_only: bool = False,
) -> Workspace:
    """Make `directory`, new or empty, a workspace of the tree `root`. `origin`: where it is from.

    Opened again after a reboot or a crash, it is mounted as it was, whatever `way` says.
    Raises Refused (the directory), Conflict (a workspace already), NotFound, Failed.
    """
    tree.load(store, root)
    path = absolute(directory)
    old = store.heads.get(HEADS + _id(path))
    if old is not None:
        return _open_again(_workspace(store, HEADS + _id(path), old), root, trees)
    if read_only and not way.layered:
        raise Refused("a copy cannot be read-only; leave --read-only or choose another way")
    made = _check(store, path)
    record = {
        "path": _text(path),
        "way": way.name,
        "base": root,
        "generation": 0,
        "name": origin.name if origin else None,
        "checkpoint": origin.hash if origin else None,
        "readOnly": read_only,
        "made": made,
        "openedAt": time.time_ns() // 1_000_000,
    }
    new = _workspace(store, HEADS + _id(path), Head(root, record))
    _swap(store, new.id, None, new.head)
    try:
        _make(store, new, trees)
    except BaseException:
        _remove(new)
        _swap(store, new.id, new.head, None)
        raise
    return new


def close(store: Store, found: Workspace, *, force: bool = False) -> None:
    """Unmount and remove it. Raises Refused where changes would be lost, unless `force`; also
    where something still runs in there."""
    lock = _lock(found)
    try:
        if not force and is_dirty(store, found):
            raise Refused(
                f"{found.path} has changes that are not committed; commit them, or close --force"
            )
        ways.unmount(found.path)
        _remove(found)
        _swap(store, found.id, found.head, None)
    finally:
        os.close(lock)


def detach(found: Workspace, *, lazy: bool = False) -> None:
    """Unmount it and keep everything: `open` mounts it again.

    Raises NotFound (it is not mounted), Refused (busy), Failed.
    """
    if not ways.is_mounted(found.path):
        raise NotFound(f"the workspace {found.path} is not mounted")
    ways.unmount(found.path, lazy=lazy)


def discard(store: Store, found: Workspace, trees: Trees) -> Workspace:
    """Back to what was committed last; stays open. Raises Refused where it is in use."""
    _check_writable(found)
    lock = _lock(found)
    try:
        ways.unmount(found.path)
        record = {**found.record, "base": found.root, "generation": found.record["generation"] + 1}
        new = replace(found, head=Head(found.root, record))
        if not found.way.layered:
            scratch.empty(found.path)
        _make_layers(store, new)
        _swap(store, found.id, found.head, new.head)
        scratch.delete(found.upper.parent)
        _show(store, new, trees)
    finally:
        os.close(lock)
    return new


def check_open(found: Workspace) -> None:
    """Raises Refused for a workspace that is to be opened again first."""
    if found.state == "unmounted":
        raise Refused(f"{found.path} is not mounted; open it again: `casfs workspace open`")


def lock(found: Workspace) -> int:
    """Say that a command runs in the workspace, for as long as the descriptor (which children
    inherit) is open somewhere. Raises Refused where one does."""
    fd = _lock(found)
    os.set_inheritable(fd, True)
    return fd


def _lock(found: Workspace) -> int:
    try:
        found.folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(found.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Failed(f"cannot lock {found.folder}: {error.strerror}") from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Refused(f"a command runs in the workspace {found.path}; end it first") from None
    return fd


# -- commit -------------------------------------------------------------------------------


def is_dirty(store: Store, found: Workspace) -> bool:
    """Is there anything that no commit has?"""
    if found.record["readOnly"] or not (found.upper if found.way.layered else found.path).exists():
        return False
    with store.batch() as batch:
        return _record(store, batch, found, Report()).hash != found.root


def commit(store: Store, found: Workspace, message: str = "") -> Committed:
    """Store what the workspace holds and move its head there; one that was opened from a
    checkpoint records another of that name.

    Raises Refused (read-only), Conflict (somebody else committed), Failed.
    """
    _check_writable(found)
    report = Report()
    with store.batch() as batch:
        root = _record(store, batch, found, report).hash
        if root == found.root:
            return Committed(root, None, report)
        batch.commit()  # from here on the new tree can be compared; nothing leads to it yet
        made, record = None, dict(found.record)
        if record["name"] is not None:
            last = record["checkpoint"]
            made = advance.put_checkpoint(store, batch, record["name"], last, root, message)
            record["checkpoint"] = made.hash
        batch.swap(HEADS + found.id, found.head, Head(root, record))
    return Committed(root, made, report)


def _record(store: Store, batch: Batch, found: Workspace, report: Report) -> Digest:
    """The root of what the workspace holds now."""
    if found.way.layered:
        base = found.record["base"]
        return overlay.commit(store, batch, base, found.upper, report, found.way.marks)
    kept = tree.preserved(store, found.record["base"]) or Properties()
    values = {"mtime": kept.mtime, "mode": kept.unix_mode}
    options = Options(preserve=[name for name, value in values.items() if value is not None])
    return snapshot.build(batch, found.path, Ignore(), report, options=options)


# -- on the host --------------------------------------------------------------------------


def _open_again(found: Workspace, root: str, trees: Trees) -> Workspace:
    if found.state == "unmounted" or _is_dead(found):
        if root not in (found.root, found.record["base"]):
            raise Conflict(f"{found.path} is a workspace of tree {found.root}; close it first")
        ways.unmount(found.path, lazy=True)
        assert found.way.mount is not None
        found.way.mount(found.layers(trees))
        return found
    raise Conflict(f"{found.path} is a workspace already; commit or close it")


def _is_dead(found: Workspace) -> bool:
    """Has what served its tree gone away?"""
    try:
        os.listdir(found.path)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def _check(store: Store, path: Path) -> bool:
    """May it become a workspace? True when it must be made. Raises Refused, Failed, NotFound."""
    if store.root is None:
        raise Failed("a store in memory has no place for workspaces")
    inside = store.root.resolve()
    if path.is_relative_to(inside) or inside.is_relative_to(path):
        raise Refused(f"the workspace {path} and the store {inside} must not be in one another")
    try:
        if any(path.iterdir()):
            raise Refused(f"{path} is not empty; give a new or empty directory")
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        raise Refused(f"{path} is no directory") from None
    except OSError as error:
        raise Failed(f"cannot use {path}: {error.strerror}") from None
    return False


def _check_writable(found: Workspace) -> None:
    if found.record["readOnly"]:
        raise Refused(f"the workspace {found.path} is read-only")


def _make(store: Store, new: Workspace, trees: Trees) -> None:
    try:
        new.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"cannot make {new.path}: {error.strerror}") from None
    _make_layers(store, new)
    _show(store, new, trees)


def _make_layers(store: Store, new: Workspace) -> None:
    """An upper as empty as it can be: it has the mode and the time that the tree's root has."""
    if not new.way.layered:
        return
    scratch.delete(new.upper.parent)  # left there by a crash
    try:
        prepare(store, new.record["base"], new.upper)
    except OSError as error:
        raise Failed(f"cannot make {new.upper}: {error.strerror}") from None


def prepare(store: Store, base: str, upper: Path) -> None:
    """Make an upper for the tree `base`, and `work` beside it. Raises OSError."""
    upper.mkdir(parents=True)
    upper.with_name("work").mkdir(mode=0o700)
    kept = tree.preserved(store, base)
    upper.chmod(0o755 if kept is None or kept.unix_mode is None else kept.unix_mode)
    if kept is not None and kept.mtime is not None:
        mtime_ns = kept.mtime[0] * overlay.SECOND + kept.mtime[1]
        os.utime(upper, ns=(mtime_ns, mtime_ns))


def _show(store: Store, new: Workspace, trees: Trees) -> None:
    """Let the directory show the tree."""
    if new.way.mount is not None:
        new.way.mount(new.layers(trees))
    elif not new.way.layered:
        restore(store, new.root, new.path)


def _remove(found: Workspace) -> None:
    """Everything but the head; what is mounted is unmounted first."""
    with suppress(OSError):
        ways.unmount(found.path, lazy=True)
    if not found.way.layered:
        scratch.empty(found.path)
    scratch.delete(found.folder)
    if found.record["made"]:
        with suppress(OSError):  # somebody may have put something there
            found.path.rmdir()


def _swap(store: Store, id: str, old: Head | None, new: Head | None) -> None:
    with store.batch() as batch:
        batch.swap(HEADS + id, old, new)


def _workspace(store: Store, name: str, head: Head) -> Workspace:
    id = name[len(HEADS) :]
    return Workspace(id, head, (store.root or Path()) / "workspaces" / id)


def _id(path: Path) -> str:
    return hash_bytes(os.fsencode(path))[:ID_LENGTH]


def _text(path: Path) -> str:
    try:
        os.fsencode(path).decode("utf-8")
    except UnicodeDecodeError:
        raise Invalid("the path of a workspace must be UTF-8") from None
    return str(path)

"""Workspaces that a person opens: a writable directory over a tree, until it is closed.

What is kept of one is `casfs.workspaces.registry`. The record is there before anything is
mounted and goes last, so a crash leaves nothing that `close` would not find; a workspace
that a reboot has unmounted is mounted again by `open`, its changes kept. `discard` makes the
next generation beside the old one and moves the record in between: a base never meets the
upper of another.

A commit leaves base and upper alone: what is written meanwhile goes into the next one. A
thread's private workspace is another thing (`engine.runtime.workspace`).

A tree that is mounted to be looked at (`casfs tree mount`) is a read-only workspace: its head
keeps the tree, and says what is mounted where. There is nothing in it to lose, so `sweep`
forgets it when a crash or a reboot has unmounted it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from casfs.backend.protocols import Head
from casfs.checkpoints import advance
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.digest import Digest
from casfs.errors import Conflict, Failed, NotFound, Refused
from casfs.store import Store
from casfs.system import mounts, rmtree
from casfs.system.paths import DIR_FLAGS
from casfs.trees import tree
from casfs.trees.restore import restore as restores
from casfs.trees.restore.write import finish
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.encoder import preserving
from casfs.trees.snapshot.ignore import Ignore
from casfs.trees.snapshot.walker import Options, Report
from casfs.workspaces import overlay, registry, strategies
from casfs.workspaces.registry import Workspace
from casfs.workspaces.strategies import Trees, Way
from casfs.write_batch import Batch


@dataclass(frozen=True, slots=True)
class Committed:
    """`checkpoint` is None for a workspace without a name, and where nothing had changed."""

    root: str
    checkpoint: Checkpoint | None
    report: Report


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
    path = registry.absolute(directory)
    old = registry.get(store, path)
    if old is not None:
        return _open_again(store, old, root, trees)
    if read_only and not way.layered:
        raise Refused("a copy cannot be read-only; leave --read-only or choose another way")
    made = _check(store, path)
    new = registry.new(store, path, root, way, origin, read_only=read_only, made=made)
    with _not_swept(new):
        registry.swap(store, new.id, None, new.head)
        try:
            _make(store, new, trees)
        except BaseException:
            _remove(store, new)
            registry.swap(store, new.id, new.head, None)
            raise
    return new


@contextmanager
def _not_swept(new: Workspace) -> Iterator[None]:
    """A read-only one that is not mounted yet is not one that nobody sees any more."""
    lock = registry.lock(new, inherited=False) if new.record["readOnly"] else -1
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def close(store: Store, found: Workspace, *, force: bool = False) -> bool:
    """Unmount and remove it. Raises Refused where changes would be lost, unless `force`; also
    where something still runs in there. False where a container goes on with a read-only one:
    its tree is kept until that has ended."""
    lock = registry.lock(found, inherited=False)
    try:
        if not force and is_dirty(store, found):
            raise Refused(
                f"{found.path} has changes that are not committed; commit them, or close --force"
            )
        strategies.unmount(found.path)
        left = found.record["readOnly"] and not found.is_gone
        _remove(store, found, left=left)
        if left:
            registry.leave(store, found)
        else:
            registry.swap(store, found.id, found.head, None)
    finally:
        os.close(lock)
    return not left


def sweep(store: Store) -> list[Workspace]:
    """Forget the read-only ones that nobody sees any more; returns them."""
    gone = []
    for found in registry.listing(store, read_only=True):
        if found.is_gone:
            with suppress(Refused), _not_swept(found):  # refused: it is just being opened
                if found.is_gone:
                    registry.swap(store, found.id, found.head, None)
                    _remove(store, found)
                    gone.append(found)
    return gone


def detach(found: Workspace, *, lazy: bool = False) -> None:
    """Unmount it and keep everything: `open` mounts it again.

    Raises NotFound (it is not mounted), Refused (busy), Failed.
    """
    if not strategies.is_mounted(found.path):
        raise NotFound(f"the workspace {found.path} is not mounted")
    strategies.unmount(found.path, lazy=lazy)


def discard(store: Store, found: Workspace, trees: Trees) -> Workspace:
    """Back to what was committed last; stays open. Raises Refused where it is in use."""
    registry.check_writable(found)
    lock = registry.lock(found, inherited=False)
    try:
        strategies.unmount(found.path)
        generation = found.record["generation"] + 1
        values = {**found.record, "base": found.root, "generation": generation}
        new = replace(found, head=Head(found.root, values))
        if not found.way.layered:
            rmtree.empty(found.path)
        _make_layers(store, new)
        registry.swap(store, found.id, found.head, new.head)
        rmtree.delete(found.upper.parent)
        _show(store, new, trees)
    finally:
        os.close(lock)
    return new


# -- commit -------------------------------------------------------------------------------


def is_dirty(store: Store, found: Workspace) -> bool:
    """Is there anything that no commit has?"""
    if found.record["readOnly"] or not (found.upper if found.way.layered else found.path).exists():
        return False
    with store.batch() as batch:
        return _recorded(store, batch, found, Report()).hash != found.root


def commit(store: Store, found: Workspace, message: str = "") -> Committed:
    """Store what the workspace holds and move its head there; one that was opened from a
    checkpoint records another of that name.

    Raises Refused (read-only), Conflict (somebody else committed), Failed.
    """
    registry.check_writable(found)
    report = Report()
    with store.batch() as batch:
        root = _recorded(store, batch, found, report).hash
        if root == found.root:
            return Committed(root, None, report)
        batch.commit()  # from here on the new tree can be compared; nothing leads to it yet
        made, values = None, dict(found.record)
        if values["name"] is not None:
            last = values["checkpoint"]
            made = advance.put_checkpoint(store, batch, values["name"], last, root, message)
            values["checkpoint"] = made.hash
        batch.swap(registry.HEADS + found.id, found.head, Head(root, values))
    return Committed(root, made, report)


def _recorded(store: Store, batch: Batch, found: Workspace, report: Report) -> Digest:
    """The root of what the workspace holds now."""
    if found.way.layered:
        base = found.record["base"]
        return overlay.commit(store, batch, base, found.upper, report, found.way.marks)
    options = Options(preserve=preserving(tree.preserved(store, found.record["base"])))
    return walker.build(batch, found.path, Ignore(), report, options=options)


# -- on the host --------------------------------------------------------------------------


def _open_again(store: Store, found: Workspace, root: str, trees: Trees) -> Workspace:
    if found.state == "unmounted" or _is_dead(found):
        if root not in (found.root, found.record["base"]):
            raise Conflict(f"{found.path} is a workspace of tree {found.root}; close it first")
        strategies.unmount(found.path, lazy=True)
        values = {**found.record, "system": registry.system()}
        again = replace(found, head=Head(found.root, values))
        with _not_swept(found):
            registry.swap(store, found.id, found.head, again.head)
            _show(store, again, trees)
        return again
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
        raise Refused(f"{path} is not a directory") from None
    except OSError as error:
        raise Failed(f"cannot use {path}: {error.strerror}") from None
    return False


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
    rmtree.delete(new.upper.parent)  # left there by a crash
    try:
        prepare(store, new.record["base"], new.upper)
    except OSError as error:
        raise Failed(f"cannot make {new.upper}: {error.strerror}") from None


def prepare(store: Store, base: str, upper: Path) -> None:
    """Make an upper for the tree `base`, and `work` beside it. Raises OSError."""
    upper.mkdir(parents=True)
    upper.with_name("work").mkdir(mode=0o700)
    fd = os.open(upper, DIR_FLAGS)
    try:
        finish(fd, tree.preserved(store, base), 0o755)
    finally:
        os.close(fd)


def _show(store: Store, new: Workspace, trees: Trees) -> None:
    """Let the directory show the tree."""
    if new.way.mount is not None:
        lowers = strategies.lowers(store, new.way, trees)
        strategies.mount(new.way, lambda: new.layers(lowers))
    elif not new.way.layered:
        restores.restore(store, new.root, new.path)


def _remove(store: Store, found: Workspace, *, left: bool = False) -> None:
    """Everything but the head; what is mounted is unmounted first. The directory stays if it is
    `left` to a container, where removing it would unmount it too."""
    if not found.is_left:  # else its directory is another's by now
        strategies.unmount(found.path, lazy=True)
    for point in mounts.mounted_below(found.folder.resolve()):  # what a crash has left there
        strategies.unmount(point, lazy=True)
    if not found.way.layered:
        rmtree.empty(found.path)
        restores.forget(store, found.path)
    rmtree.delete(found.folder)
    if found.record["made"] and not (left or found.is_left):
        with suppress(OSError):  # somebody may have put something there
            found.path.rmdir()

"""Opens, closes, detaches and discards workspaces: writable directories over a tree.

The head's record (`casfs.workspaces.registry`) is there before anything is mounted and goes
last, so a crash leaves nothing that `close` would not find; a workspace that a reboot has
unmounted is mounted again by `open`, its changes kept. `discard` makes the next generation
beside the old one and moves the head in between: a base never meets the upper of another.

Commits: `casfs.workspaces.commit`. What threads work in has no head: `casfs.workspaces.desk`.

A tree that is mounted to be looked at (`casfs tree mount`) is a read-only workspace: its head
keeps the tree, and the record has the mount point. It has no changes to lose, so `sweep`
deletes it when a crash or a reboot has unmounted it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from casfs.backend.protocols import Head
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.errors import Conflict, Failed, NotFound, Refused
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.system import mounts, rmtree
from casfs.system.files import closing_fd, os_errors
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.target import Target
from casfs.workspaces import layers, overlay_markers, overlay_mount, registry
from casfs.workspaces.commit import is_dirty
from casfs.workspaces.registry import Workspace
from casfs.workspaces.strategies import Strategy, TreeLocator

DISCONNECTED = (errno.ENOTCONN, errno.ECONNABORTED, errno.ESTALE)


def open(
    store: Store,
    state: RecordedState,
    directory: Path,
    strategy: Strategy,
    trees: TreeLocator,
    *,
    origin: Checkpoint | None = None,
    image_tree: DatedTree | None = None,
    worktree: Mapping[str, Any] | None = None,
    read_only: bool = False,
    verify: bool = False,
) -> Workspace:
    """Make `directory`, new or empty, a workspace of `state`. `origin`: the checkpoint of that
    state; `image_tree`: of an open workspace, similar: an image of the differences is mounted over
    its image, whose content is not looked at again; `worktree`: of the record of one
    (`casfs.worktrees.worktree`); `verify`: its content is hashed first, also where the kernel reads
    it without us.

    Opened again after a reboot or a crash, it is mounted as before, whatever `strategy` is.
    Raises Refused (the directory), Conflict (a workspace already), NotFound, Failed.
    """
    # First: a tree that is not here is refused before anything is made.
    tree.load(store, state.full)
    path = registry.absolute(directory)
    old = registry.get(store, path)
    if old is not None:
        return _reopen(store, old, state=state, trees=trees, verify=verify)
    if read_only and not strategy.layered:
        raise Refused("a copy cannot be read-only; leave out --read-only or use another strategy")
    if strategy.marks_by_files:
        overlay_markers.check_names(store, state.full)
    mode = _check_directory(store, path)
    new = registry.new(
        store, path, state=state, strategy=strategy, origin=origin, read_only=read_only, mode=mode
    )
    fields: dict[str, Any] = {}
    if image_tree is not None and strategy.native:
        fields |= {registry.IMAGE_TREE: image_tree.tree, registry.IMAGE_TIMES: image_tree.times}
    if worktree is not None:
        fields[registry.WORKTREE] = worktree
    new = replace(new, head=Head(new.root, {**new.record, **fields}))
    # Locked before it has a head: else a gc in another process would sweep a read-only one.
    with _locked_if_read_only(new):
        # Before the directory and the mount: `close` finds by the head what a crash leaves behind.
        registry.swap(store, new.id, old=None, new=new.head)
        try:
            _make_directory(new.path)
            _make_upper(store, new)
            _populate(store, new, trees=trees, verify=verify)
        except BaseException:
            # The head goes last, for the same reason.
            _remove(store, new)
            registry.swap(store, new.id, old=new.head, new=None)
            raise
    return new


def _check_directory(store: Store, path: Path) -> int | None:
    """Returns the directory's mode, None where it must be made. Raises Refused, Failed."""
    inside = store.root.resolve()
    if path.is_relative_to(inside) or inside.is_relative_to(path):
        raise Refused(f"the workspace {path} and the store {inside} must not be in one another")
    try:
        if any(path.iterdir()):
            raise Refused(f"{path} is not empty; give a new or empty directory")
        return stat.S_IMODE(path.stat().st_mode)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise Refused(f"{path} is not a directory") from None
    except OSError as error:
        raise Failed(f"cannot use {path}: {error.strerror}") from None


def _make_directory(path: Path) -> None:
    with os_errors(f"cannot make {path}"):
        path.mkdir(parents=True, exist_ok=True)


def _reopen(
    store: Store, workspace: Workspace, state: RecordedState, trees: TreeLocator, verify: bool
) -> Workspace:
    # The table of mounts still has a mount whose server died.
    if workspace.state != "unmounted" and not is_disconnected(workspace):
        raise Conflict(f"{workspace.path} is a workspace already; commit or close it")
    _check_no_other_mount(workspace)
    # A person names either the work that was committed last or the tree that it was opened with.
    if state.tree != workspace.root and state.full != workspace.record["base"]:
        raise Conflict(f"{workspace.path} is a workspace of tree {workspace.root}; close it first")
    # Lazily: programs may still have files open in the mount that died.
    overlay_mount.unmount(workspace.path, lazy=True)
    # `is_unused` compares with the boot and the process namespace of the last mount.
    values = {**workspace.record, "system": registry.system()}
    again = replace(workspace, head=Head(workspace.root, values))
    with _locked_if_read_only(workspace):
        registry.swap(store, workspace.id, old=workspace.head, new=again.head)
        _make_directory(again.path)
        _populate(store, again, trees=trees, verify=verify)
    return again


def _check_no_other_mount(workspace: Workspace) -> None:
    """Raises Refused where something else is mounted at its directory, such as a workspace of
    another store."""
    if workspace.state == "unmounted" and overlay_mount.is_mounted(workspace.path):
        raise Refused(f"something else is mounted at {workspace.path}; unmount it first")


def is_disconnected(workspace: Workspace) -> bool:
    """Returns whether the process that served a mounted workspace, or the mount below it, is
    gone: `open` mounts it again."""
    try:
        os.listdir(workspace.path)
    except OSError as error:
        return error.errno in DISCONNECTED
    return False


@contextmanager
def _locked_if_read_only(workspace: Workspace) -> Iterator[None]:
    """Locks a read-only workspace: `sweep` leaves alone what another process has locked, as one
    that is not mounted yet."""
    lock = registry.lock(workspace) if workspace.record["readOnly"] else -1
    try:
        yield
    finally:
        if lock >= 0:
            os.close(lock)


def close(store: Store, workspace: Workspace, *, force: bool = False) -> bool:
    """Unmount and remove a workspace. Returns False where a container still uses a read-only
    one: its head keeps the tree until that has ended.

    Raises Refused where changes would be lost, unless `force`; also where programs still run
    in there.
    """
    lock = registry.lock(workspace)
    with closing_fd(lock):
        if not force and is_dirty(store, workspace):
            raise Refused(
                f"{workspace.path} has changes that are not committed; commit them, or close"
                " --force"
            )
        _check_no_other_mount(workspace)
        # Not lazily, and before anything is deleted: where programs run in there it is refused.
        overlay_mount.unmount(workspace.path)
        # No longer mounted here, it may be in a container, which has a copy of the mount.
        in_use = workspace.record["readOnly"] and not workspace.is_unused
        _remove(store, workspace, keep_directory=in_use)
        if in_use:
            registry.orphan(store, workspace)
        else:
            registry.swap(store, workspace.id, old=workspace.head, new=None)
    return not in_use


def remove_broken(store: Store, path: Path) -> bool:
    """Unmounts and removes a workspace whose record is damaged, with its changes; the directory
    stays. Returns False for a sound one, or none."""
    name = registry.head_name(registry.id_of(path))
    head = store.heads.get(name)
    if head is None or not head_kinds.fault(name, head):
        return False
    # The directory is left alone: only a sound record would say whether we made it. The folder in
    # the store has the name of the head.
    overlay_mount.unmount(path, lazy=True)
    rmtree.delete(store.root / name)
    with store.batch() as batch:
        batch.swap(name, head, None)
    return True


def sweep(store: Store) -> list[Workspace]:
    """Delete the read-only workspaces that are mounted nowhere any more; returns them."""
    deleted = []
    for workspace in registry.listing(store, read_only=True):
        if workspace.is_unused:
            # Refused where another process just opens or closes it; a Conflict is one, too.
            with suppress(Refused), _locked_if_read_only(workspace):
                # Again, under the lock: it may have been mounted before we had it, or closed, and
                # the folder be another workspace's by now.
                head = store.heads.get(registry.head_name(workspace.id))
                if head == workspace.head and workspace.is_unused:
                    _remove(store, workspace)
                    registry.swap(store, workspace.id, old=workspace.head, new=None)
                    deleted.append(workspace)
    return deleted


def detach(workspace: Workspace, *, lazy: bool = False) -> None:
    """Unmount a workspace and keep everything: `open` mounts it again.

    Raises NotFound (it is not mounted), Refused (busy), Failed.
    """
    if not overlay_mount.is_mounted(workspace.path):
        raise NotFound(f"the workspace {workspace.path} is not mounted")
    overlay_mount.unmount(workspace.path, lazy=lazy)


def discard(store: Store, workspace: Workspace, trees: TreeLocator) -> Workspace:
    """Reset a workspace to its last commit; it stays open. Raises Refused where it is in use."""
    registry.check_writable(workspace)
    lock = registry.lock(workspace)
    with closing_fd(lock):
        # Not lazily, and before anything is deleted: where programs run in there it is refused.
        overlay_mount.unmount(workspace.path)
        generation = workspace.record["generation"] + 1
        whole = workspace.recorded.whole
        values = {
            **workspace.record,
            "base": whole.tree,
            registry.BASE_TIMES: whole.times,
            "generation": generation,
        }
        new = replace(workspace, head=Head(workspace.root, values))
        # A restore would refuse to overwrite the changes.
        if not workspace.strategy.layered:
            rmtree.empty(workspace.path)
        _make_upper(store, new)
        # Between the two generations: whenever a crash comes, the head has a base and the upper
        # that belongs to it.
        registry.swap(store, workspace.id, old=workspace.head, new=new.head)
        rmtree.delete(workspace.upper.parent)
        _populate(store, new, trees)
    return new


# -- on the host --------------------------------------------------------------------------


def _make_upper(store: Store, workspace: Workspace) -> None:
    if not workspace.strategy.layered:
        return
    rmtree.delete(workspace.upper.parent)  # left there by a crash
    with os_errors(f"cannot make {workspace.upper}"):
        layers.make_upper(store, workspace.stack)


def _populate(store: Store, workspace: Workspace, trees: TreeLocator, verify: bool = False) -> None:
    """Mount the tree, or restore it."""
    layers.fill(
        store,
        workspace.strategy,
        workspace.stack,
        workspace.recorded,
        trees,
        recheck=True,
        verify=verify,
    )


def _remove(store: Store, workspace: Workspace, *, keep_directory: bool = False) -> None:
    """Unmount and remove everything but the head. `keep_directory`: a container uses it, and
    removing it would unmount it there too."""
    if not workspace.is_orphaned:  # else its directory is another's by now
        overlay_mount.unmount(workspace.path, lazy=True)
    for point in mounts.mounted_below(workspace.folder.resolve()):  # left there by a crash
        overlay_mount.unmount(point, lazy=True)
    if not workspace.strategy.layered:
        rmtree.empty(workspace.path)
        # The restore that made the copy has noted what it holds.
        Target(store, workspace.path).forget()
    rmtree.delete(workspace.folder)
    if workspace.record["made"] and not (keep_directory or workspace.is_orphaned):
        with suppress(OSError):  # it is not empty
            workspace.path.rmdir()

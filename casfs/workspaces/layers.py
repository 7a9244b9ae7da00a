"""The layers of a directory that holds a recorded state: below the state, above what is written.

    upper, work    what is written, and what the kernel needs for that
    changes        an image of what differs from a similar tree, whose image is the lowest layer

A whole image costs seconds, one of few entries none. So where the image of a similar tree is there
it is the lowest layer, as long as few entries differ (`is_near`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from casfs.errors import Failed, NotFound
from casfs.store.store import Store
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS
from casfs.trees import dated, tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces.overlay_mount import SOURCE, OverlayLayers
from casfs.workspaces.strategies import Strategy, TreeLocator

# Entries between a state and the image below it: a quarter of the image, within these bounds.
MIN_DIFFERENT = 500
MAX_DIFFERENT = 5000
ENTRY_BYTES = 160  # of an image, about


@dataclass(frozen=True, slots=True)
class Stack:
    """`lower`: the state; `point`: where it is mounted; `similar`: the tree whose image is the
    lowest layer of a native one, `lower` itself where it is None; `changes`: the image of what
    differs from that; the others as of `OverlayLayers`."""

    lower: DatedTree
    upper: Path
    point: Path
    changes: Path
    similar: DatedTree | None = None
    read_only: bool = False
    unrecorded: Path | None = None
    source: str = SOURCE


def is_near(store: Store, old: DatedTree, new: DatedTree) -> bool:
    """Returns whether a tree has an image, and few entries differ between it and another one: each
    time that this is mounted they are written."""
    from casfs.native import images

    image = images.of_tree(store, old)
    if image is None:
        return False
    quarter = image.stat().st_size // (4 * ENTRY_BYTES)
    limit = min(max(quarter, MIN_DIFFERENT), MAX_DIFFERENT)
    changes = tree.changes(store, old.tree, new.tree)
    return len(list(islice(changes, limit + 1))) <= limit


def make_upper(store: Store, stack: Stack) -> None:
    """Make an empty upper, with the mode and the time of the root of the state, and `work` beside
    it. Raises OSError."""
    # A listing of workspaces has their layers, and makes none.
    from casfs.trees.restore.write import set_directory_attributes

    stack.upper.mkdir(parents=True)
    stack.upper.with_name("work").mkdir(mode=0o700)
    # The root of an overlay shows the attributes of its upper, not those of the tree.
    fd = os.open(stack.upper, DIR_FLAGS)
    with closing_fd(fd):
        set_directory_attributes(fd, dated.load(store, stack.lower).own)


def fill(
    store: Store,
    strategy: Strategy,
    stack: Stack,
    state: RecordedState,
    trees: TreeLocator,
    *,
    recheck: bool = False,
    verify: bool = False,
) -> None:
    """Has the directory show the state, whose whole is `stack.lower`: mounts it, or restores it.
    `trees`: where a mount of the store shows a tree; `recheck`: what the kernel reads without us is
    looked at first, also where its image is there; `verify`: it is hashed. Raises Failed and what
    `trees` raises."""
    if strategy.layered:
        again = partial(_mount, store, strategy, stack, trees, recheck=recheck, verify=verify)
        try:
            again()
        except NotFound:  # gc has evicted the image meanwhile
            again()
        return
    # Most are mounted, and a restore imports 20 modules.
    from casfs.trees.restore.options import RestoreOptions
    from casfs.trees.restore.restore import restore

    restore(store, state, stack.point, RestoreOptions(parents=True))


def _mount(
    store: Store,
    strategy: Strategy,
    stack: Stack,
    trees: TreeLocator,
    *,
    recheck: bool,
    verify: bool,
) -> None:
    assert strategy.mount is not None
    # Most commands mount nothing, and an image takes many modules.
    from casfs.workspaces import image_mount

    changes = None
    remote = None
    if not strategy.native:  # the mount verifies what it reads
        lower = trees(stack.lower)
    elif stack.similar is None:
        lower = image_mount.image(store, stack.lower, recheck=recheck, verify=verify)
    else:
        lower = image_mount.image(store, stack.similar, verify=verify)
        changes = _write_changes(store, stack, stack.similar)
    if strategy.native:
        remote = _remote(lower, changes, trees)
    strategy.mount(
        OverlayLayers(
            lower,
            stack.upper,
            work=stack.upper.with_name("work"),
            point=stack.point,
            read_only=stack.read_only,
            changes=changes,
            remote=remote,
            unrecorded=stack.unrecorded,
            source=stack.source,
        )
    )


def _write_changes(store: Store, stack: Stack, similar: DatedTree) -> Path:
    from casfs.native import images

    # Programs may still have the one before mounted, after a lazy unmount: it stays theirs.
    stack.changes.unlink(missing_ok=True)
    images.write_layer(store, similar, stack.lower, stack.changes)
    return stack.changes


def _remote(lower: Path, changes: Path | None, trees: TreeLocator) -> Path | None:
    """Returns the objects of remotes in a mount of the store, where an image needs them."""
    from casfs.native import images

    if not any(images.needs_remote(path) for path in (lower, changes) if path is not None):
        return None
    top = trees(DatedTree(images.root_of(lower))).parent.parent
    remote = top / ".casfs/objects"
    if not remote.is_dir():
        raise Failed(f"{top} is served by an older program; run `casfs mount --replace {top}`")
    return remote

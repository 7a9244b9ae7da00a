"""The strategies by which a tree becomes a writable directory. They differ not in what the
directory shows, but in what opening it costs, and in who can see it.

    erofs-overlay    the kernel's overlayfs over the tree's image and the objects, with no process
                     of ours behind it (`casfs.workspaces.image_mount`), except for files that are
                     in a remote only; requires root
    overlay          the kernel's overlayfs over the tree in a FUSE mount; requires root
    fuse-overlayfs   an overlay in user space, visible to all; requires no root. Its release 1.10
                     can forget a deletion: after `mv new old; mv old new` it shows the tree's
                     `old` again. What it shows is committed, wrong as it is
    namespace        the kernel's overlayfs in a user namespace: visible only to the command
                     that runs in there (`casfs workspace exec`); its directory is a placeholder
                     (`casfs.workspaces.placeholder`)
    copy             no mount: the tree is restored, and recorded by reading it

Upper and work are on one file system and never within the lower; the layers outlive the
mount, so a workspace can be mounted again after a crash. Which strategy is used:
`casfs.workspaces.strategy_choice`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from casfs.errors import Failed, NotFound
from casfs.store.store import Store
from casfs.trees.dated import DatedTree
from casfs.workspaces import overlay_markers, overlay_mount
from casfs.workspaces.overlay_markers import MarkerFormat
from casfs.workspaces.overlay_mount import OverlayLayers
from casfs.workspaces.strategy_names import COPY as COPY
from casfs.workspaces.strategy_names import FUSE as FUSE
from casfs.workspaces.strategy_names import NAMESPACE as NAMESPACE
from casfs.workspaces.strategy_names import NATIVE as NATIVE
from casfs.workspaces.strategy_names import OVERLAY as OVERLAY

TreeLocator = Callable[[DatedTree], Path]  # where a mount of the store shows a tree


@dataclass(frozen=True, slots=True)
class Strategy:
    """`markers`: how it writes whiteouts and the like; `mount`: None for a strategy without a
    mount that is visible to all."""

    name: str
    markers: MarkerFormat
    mount: Callable[[OverlayLayers], None] | None = None

    @property
    def layered(self) -> bool:
        """Whether there is an upper layer."""
        return self.name != COPY

    @property
    def is_visible(self) -> bool:
        """Whether all programs see it."""
        return self.mount is not None or not self.layered

    @property
    def native(self) -> bool:
        """Whether the lower layer is an image, not a tree in a mount of the store."""
        return self.name == NATIVE

    @property
    def way(self) -> str:
        """Its name in the record of a workspace."""
        return "native" if self.native else self.name

    @property
    def over_fuse(self) -> bool:
        """Whether the lower layer is a tree in a mount of the store."""
        return self.layered and not self.native


def _mount_image(layers: OverlayLayers) -> None:
    from casfs.workspaces import image_mount

    image_mount.mount(layers)


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy(NATIVE, overlay_markers.TRUSTED, _mount_image),
        Strategy(OVERLAY, overlay_markers.TRUSTED, overlay_mount.mount_overlay),
        Strategy(FUSE, overlay_markers.FUSE, overlay_mount.mount_fuse_overlayfs),
        Strategy(NAMESPACE, overlay_markers.USER),
        Strategy(COPY, overlay_markers.TRUSTED),
    )
}  # the preferred one first
BY_WAY = {strategy.way: strategy for strategy in STRATEGIES.values()}


def lower_locator(
    store: Store,
    strategy: Strategy,
    trees: TreeLocator,
    *,
    recheck: bool = True,
    verify: bool = False,
) -> TreeLocator:
    """Returns the function from a tree to its lower layer: its image, or its place in a mount. The
    kernel reads the objects of an image without us, so they are looked at first (`recheck`), and
    hashed where `verify` says so; a mount verifies what it reads."""
    from casfs.workspaces import image_mount

    image = partial(image_mount.image, store, recheck=recheck, verify=verify)
    return image if strategy.native else trees


def mount(strategy: Strategy, layers: Callable[[], OverlayLayers], trees: TreeLocator) -> None:
    """Mount, visible to all. Calls `layers` again where gc has evicted an image meanwhile.

    Raises Failed and what `layers` and `trees` raise.
    """
    try:
        _mount(strategy, layers(), trees)
    except NotFound:
        _mount(strategy, layers(), trees)


def _mount(strategy: Strategy, layers: OverlayLayers, trees: TreeLocator) -> None:
    assert strategy.mount is not None
    from casfs.native import images

    stack = [path for path in (layers.changes, layers.lower) if path is not None]
    if strategy.native and any(map(images.needs_remote, stack)):
        top = trees(DatedTree(images.root_of(layers.lower))).parent.parent
        remote = top / ".casfs/objects"
        if not remote.is_dir():
            raise Failed(f"{top} is served by an older program; run `casfs mount --replace {top}`")
        layers = replace(layers, remote=remote)
    strategy.mount(layers)

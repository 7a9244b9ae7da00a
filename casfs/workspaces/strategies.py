"""The strategies by which a tree becomes a writable directory. They differ not in what the
directory shows, but in what opening it costs.

    erofs-overlay    the kernel's overlayfs over the tree's image and the objects, with no process
                     of ours behind it (`casfs.workspaces.image_mount`), except for files that are
                     in a remote only; requires root
    overlay          the kernel's overlayfs over the tree in a FUSE mount; requires root
    fuse-overlayfs   an overlay in user space, visible to all; requires no root. Its release 1.10
                     can forget a deletion: after `mv new old; mv old new` it shows the tree's
                     `old` again. What it shows is committed, wrong as it is
    copy             no mount: the tree is restored, and recorded by reading it

Upper and work are on one file system and never within the lower; the layers outlive the
mount, so a workspace can be mounted again after a crash. Which strategy is used:
`casfs.workspaces.strategy_choice`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from casfs.errors import Failed
from casfs.trees.dated import DatedTree
from casfs.workspaces import overlay_mount
from casfs.workspaces.overlay_mount import OverlayLayers
from casfs.workspaces.strategy_names import COPY as COPY
from casfs.workspaces.strategy_names import FUSE as FUSE
from casfs.workspaces.strategy_names import NATIVE as NATIVE
from casfs.workspaces.strategy_names import OVERLAY as OVERLAY

TreeLocator = Callable[[DatedTree], Path]  # where a mount of the store shows a tree


def no_mount(root: DatedTree) -> Path:
    """The locator where there is none. Raises Failed."""
    raise Failed(f"the tree {root.name} needs a mount")


@dataclass(frozen=True, slots=True)
class Strategy:
    """`mount`: None for a copy; `marks_by_files`: it writes whiteouts and the like as files, not as
    attributes."""

    name: str
    mount: Callable[[OverlayLayers], None] | None = None
    marks_by_files: bool = False

    @property
    def layered(self) -> bool:
        """Whether there is an upper layer."""
        return self.mount is not None

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
        Strategy(NATIVE, _mount_image),
        Strategy(OVERLAY, overlay_mount.mount_overlay),
        Strategy(FUSE, overlay_mount.mount_fuse_overlayfs, marks_by_files=True),
        Strategy(COPY),
    )
}  # the preferred one first
BY_WAY = {strategy.way: strategy for strategy in STRATEGIES.values()}

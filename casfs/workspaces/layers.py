"""What an overlay is put together from, whichever way it is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from casfs.system import mounts

SOURCE = "casfs"  # of an overlay in the table of mounts, where nobody asks whose it is
FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV


@dataclass(frozen=True, slots=True)
class Layers:
    """Of one workspace: `lower` is the tree in a mount, or its image; `point` where it is to be
    seen. `changes`: an image of what the tree has otherwise than the one in `lower`."""

    lower: Path
    upper: Path
    work: Path
    point: Path
    read_only: bool = False
    changes: Path | None = None
    source: str = SOURCE

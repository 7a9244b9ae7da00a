"""What a worker reports to the mounter (`casfs.mount.mounter`): that a tree is walked."""

from __future__ import annotations

import json
import os
import select
from contextlib import suppress
from typing import NamedTuple

from casfs.trees.dated import DatedTree

MAX_LINE_BYTES = select.PIPE_BUF  # up to here a line is written whole, or not at all


class WalkedTree(NamedTuple):
    """`path`: of its directory from the mount's root; `ino`: that directory's inode number."""

    path: str
    ino: int
    root: DatedTree

    def send(self, pipe: int) -> None:
        """Writes it to a pipe that does not block; dropped where that is full or has no reader."""
        line = json.dumps(self).encode() + b"\n"
        if len(line) <= MAX_LINE_BYTES:
            with suppress(BlockingIOError, BrokenPipeError):
                os.write(pipe, line)

    @classmethod
    def parse(cls, line: bytes) -> WalkedTree:
        path, ino, root = json.loads(line)
        return cls(path, ino, DatedTree(*root))

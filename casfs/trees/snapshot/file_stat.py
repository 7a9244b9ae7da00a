"""What a snapshot looks at in the stat of a file."""

from __future__ import annotations

import os
from typing import NamedTuple


class Stat(NamedTuple):
    """The fields that a snapshot uses, named as in `os.stat_result`."""

    st_mode: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int

    @classmethod
    def of(cls, seen: os.stat_result) -> Stat:
        return cls(seen.st_mode, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino)

"""The names of git's object files, in a repository at any path."""

from __future__ import annotations

import re

LOOSE = re.compile(rb"(.*/)?objects/([0-9a-f]{2})/([0-9a-f]{38}|[0-9a-f]{62})\Z", re.DOTALL)
PACK_FILE = re.compile(rb"(.*/)?objects/pack/[^/]+\Z", re.DOTALL)
TEMPORARY = re.compile(rb"(?:.*/)?objects/(?:[0-9a-f]{2}/|pack/)?\.?tmp_[^/]*\Z", re.DOTALL)


def is_object_file(path: bytes) -> bool:
    """Whether a path may be one of git's object files, about which
    `casfs.trees.git.private_objects` decides."""
    return any(pattern.match(path) for pattern in (LOOSE, PACK_FILE, TEMPORARY))


def loose_id(path: bytes) -> bytes | None:
    """Returns the id of the loose object that a path is of, None for another path."""
    match = LOOSE.match(path)
    return bytes.fromhex((match[2] + match[3]).decode("ascii")) if match else None

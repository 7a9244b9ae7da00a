"""The names of git's object files, in a repository at any path."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress

LOOSE = re.compile(rb"(.*/)?objects/([0-9a-f]{2})/([0-9a-f]{38}|[0-9a-f]{62})\Z", re.DOTALL)
PACK_FILE = re.compile(rb"(.*/)?objects/pack/[^/]+\Z", re.DOTALL)
STEM = re.compile(rb"(.*)\.(?:pack|idx|rev|bitmap|mtimes)\Z", re.DOTALL)  # of a pack's files
OTHER_PACK_FILE = re.compile(rb".*/multi-pack-index[^/]*\Z|.*\.(?:keep|promisor)\Z", re.DOTALL)
HEADER = re.compile(rb"(?:blob|tree|commit|tag) \d+\0")
HEADER_BYTES = 64
KINDS = frozenset(("git-pack", "git-bundle", "git-object"))  # of what `kind_of` returns
IN_GIT = rb"(?:.*/)?[^/]*\.git/(?:.*/)?"
# What git is writing, or a killed git has left; also what waits for a hook's word.
TEMPORARY = re.compile(IN_GIT + rb"objects/(?:.*/)?\.?tmp[_-][^/]*(?:/.*)?\Z", re.DOTALL)
# Files that git keeps as they are: of conflicts, of large files, of a rebase.
COPIES = re.compile(IN_GIT + rb"(?:rr-cache|lfs/objects|rebase-[\w-]+)/.*\Z", re.DOTALL)


def is_object_file(path: bytes) -> bool:
    """Whether a path may be one of git's object files, about which
    `casfs.trees.git.private_objects` decides."""
    return any(pattern.match(path) for pattern in (LOOSE, PACK_FILE, TEMPORARY, COPIES))


def stays(path: bytes) -> bool:
    """Whether a new object file stays in this store whatever it holds."""
    if PACK_FILE.match(path) and not (STEM.match(path) or OTHER_PACK_FILE.match(path)):
        return True
    return any(pattern.match(path) for pattern in (TEMPORARY, COPIES))


def kind_of(head: bytes) -> str:
    """Returns which file of git begins with some bytes, one that has contents of others inside;
    empty for any other."""
    if head.startswith(b"PACK\0\0\0\2"):
        return "git-pack"
    if head.startswith((b"# v2 git bundle\n", b"# v3 git bundle\n")):
        return "git-bundle"
    if head.startswith(b"x"):
        with suppress(zlib.error):
            if HEADER.match(zlib.decompressobj().decompress(head, HEADER_BYTES)):
                return "git-object"
    return ""


def loose_id(path: bytes) -> bytes | None:
    """Returns the id of the loose object that a path is of, None for another path."""
    match = LOOSE.match(path)
    return bytes.fromhex((match[2] + match[3]).decode("ascii")) if match else None

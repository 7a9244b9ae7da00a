"""Files of git that have contents of others inside, compressed: no scanner sees those."""

from __future__ import annotations

import re
import zlib
from contextlib import suppress

HEADER = re.compile(rb"(?:blob|tree|commit|tag) \d+\0")
HEADER_BYTES = 64


def kind_of(head: bytes) -> str:
    """Returns which of them begins with some bytes; empty for any other file."""
    if head.startswith(b"PACK\0\0\0\2"):
        return "git-pack"
    if head.startswith((b"# v2 git bundle\n", b"# v3 git bundle\n")):
        return "git-bundle"
    if head.startswith(b"x"):
        with suppress(zlib.error):
            if HEADER.match(zlib.decompressobj().decompress(head, HEADER_BYTES)):
                return "git-object"
    return ""

"""Names files that look like secrets, so that whoever records them knows. A hint, no guard: a
secret may have any name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from casfs.system.paths import FILE_FLAGS

NAMES = re.compile(  # in names joined by NUL, which a search over all is cheapest for
    rb"\0(\.env(?:\.(?!(?:example|sample|template)\0)[^\0]+)?|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?"
    rb"|\.netrc|\.pgpass|\.git-credentials|credentials(?:\.(?:json|toml|ya?ml|csv))?)(?=\0)"
)
KEY_NAMES = re.compile(rb"([^\0]*\.(?:pem|key))\0")  # also of public keys and certificates
PRIVATE_KEY = b"PRIVATE KEY-----"
MAX_HEADER_BYTES = 4096


def secret_names(fd: int, names: Iterable[bytes]) -> list[bytes]:
    """Returns those of the directory `fd` that are the names of secrets, or of keys and there is a
    private one in the file."""
    joined = b"\0%b\0" % b"\0".join(names)
    found = NAMES.findall(joined)
    if b".pem\0" in joined or b".key\0" in joined:
        found += [name for name in KEY_NAMES.findall(joined) if _holds_private_key(fd, name)]
    return found


def _holds_private_key(fd: int, name: bytes) -> bool:
    try:
        file = os.open(name, FILE_FLAGS, dir_fd=fd)
    except OSError:
        return False
    try:
        return PRIVATE_KEY in os.read(file, MAX_HEADER_BYTES)
    except OSError:
        return False
    finally:
        os.close(file)

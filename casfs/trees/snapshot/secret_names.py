"""Names files that look like secrets, so that whoever records them knows. A hint, no guard: a
secret may have any name."""

from __future__ import annotations

import os
import re

from casfs.system.paths import FILE_FLAGS

SECRET_NAME = re.compile(
    rb"\.env(?:\.(?!(?:example|sample|template)\Z).+)?|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?"
    rb"|\.netrc|\.pgpass|\.git-credentials|credentials(?:\.(?:json|toml|ya?ml|csv))?",
    re.DOTALL,
)
KEY_SUFFIXES = (b".pem", b".key")  # also of public keys and certificates
PRIVATE_KEY = b"PRIVATE KEY-----"
MAX_HEADER_BYTES = 4096


def looks_secret(fd: int, name: bytes) -> bool:
    """Returns whether the file `name` of the directory `fd` has the name of a secret, or that of a
    key and a private one in it."""
    if SECRET_NAME.fullmatch(name):
        return True
    return name.endswith(KEY_SUFFIXES) and _holds_private_key(fd, name)


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

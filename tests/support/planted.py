"""Secrets that are none: made here, valid nowhere, and found by the scanner."""

from __future__ import annotations

import hashlib

TOKEN_KIND = "gitlab-token"


def token(seed: str = "a") -> bytes:
    """A token that the scanner finds; another one for each seed."""
    return b"gl" + b"pat-" + hashlib.sha256(seed.encode()).hexdigest()[:20].encode()


def settings_file(seed: str = "a") -> bytes:
    """A text file of two lines with a token in the second one."""
    return b"# settings\ntoken = " + token(seed) + b"\n"

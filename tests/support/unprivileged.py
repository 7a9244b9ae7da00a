"""Drops root's privileges in this process, for tests of permissions."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  # loaded later, it could not be read
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unprivileged(top: Path) -> Iterator[None]:
    """Without root's powers, owning what is below `top`. Modules must be loaded already."""
    if os.geteuid() != 0:
        yield
        return
    for folder, below, files in os.walk(top):
        for path in (folder, *(os.path.join(folder, name) for name in [*below, *files])):
            os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)

"""The private directory in which a thread's agents work: `workspaces/<thread>` in the store.

It is derived from the store at any time: `reset` makes it hold exactly a given tree, so a
step that is run again starts where the first try started. It is recorded whole, `.git`
and derived files included. Nobody but the thread's own agents may write in it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from casfs import snapshot
from casfs.errors import CasfsError
from casfs.ignore import Ignore
from casfs.restore import restore
from casfs.store import Store


class Workspace:
    """`root` is the tree it holds, None as soon as that is not certain."""

    def __init__(self, store: Store, path: Path) -> None:
        self._store = store
        self.path = path
        self.root: str | None = None

    def reset(self, root: str) -> None:
        """Make it hold the tree `root`, whatever was there. Raises as `casfs.restore`."""
        if self.root != root:
            self.remove()
            restore(self._store, root, self.path)
        self.root = None  # an agent may write from now on

    def record(self) -> str:
        """Store what it holds and return the root. Raises Failed as `casfs.snapshot`."""
        with self._store.batch() as batch:
            self.root = snapshot.build(batch, self.path, Ignore()).hash
        return self.root

    def remove(self) -> None:
        """Delete it, write-protected directories included."""
        self.root = None
        if self.path.exists():
            shutil.rmtree(self.path, onerror=_make_writable)


def _make_writable(function: Callable[..., Any], path: str, _: Any) -> None:
    """A directory without write permission keeps its content from being removed."""
    try:
        os.chmod(os.path.dirname(path), 0o700)
        os.chmod(path, 0o700, follow_symlinks=True)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError as error:
        raise CasfsError(f"cannot remove {path}: {error.strerror}") from None

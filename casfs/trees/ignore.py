"""What a checkpoint leaves out: well-known directories of derived files, and what
`.casfsignore` at the top of the workspace names in gitignore's syntax.

The default names (seed 004's set) hold for directories only: a *file* called `build` is
somebody's work.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..digest import hash_bytes
from ..errors import Failed, Invalid

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

FILE = ".casfsignore"
DEFAULT = frozenset(
    b"node_modules __pycache__ .git target .venv venv .mypy_cache .pytest_cache dist build "
    b".next .nuxt".split()
)


class Ignore:
    """Decides by name and relative path; `Ignore()` leaves nothing out."""

    def __init__(self, names: frozenset[bytes] = frozenset(), lines: Sequence[str] = ()) -> None:
        self._names = names
        self._spec = _spec(lines) if lines else None
        rules = b"\0".join([*sorted(names), b"", *map(os.fsencode, lines)])
        self.fingerprint = hash_bytes(rules)[:16]  # equal rules, equal fingerprint

    @classmethod
    def of(cls, root: Path, *, defaults: bool = True) -> Ignore:
        """The rules for the workspace at `root`. Raises Failed when they cannot be read,
        Invalid when one is no pattern."""
        try:
            lines = (root / FILE).read_text(errors="surrogateescape").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            lines = []
        except OSError as error:
            raise Failed(f"cannot read {root / FILE}: {error.strerror}") from None
        try:
            return cls(DEFAULT if defaults else frozenset(), lines)
        except ValueError as error:
            raise Invalid(f"{root / FILE}: {error}") from None

    def skips(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        """`path` is relative to the workspace, `name` its last component."""
        if directory and name in self._names:
            return True
        if self._spec is None:
            return False
        return self._spec.match_file(os.fsdecode(path) + ("/" if directory else ""))


def _spec(lines: Sequence[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # only workspaces that have the file pay for it

    return GitIgnoreSpec.from_lines(lines)

"""What a checkpoint leaves out: well-known directories of derived files, and what
`.casfsignore` at the top of the workspace names in gitignore's syntax.

The default names (seed 004's set) hold for directories only: a *file* called `build` is
somebody's work.
"""

from __future__ import annotations

from pathlib import Path

from casfs.digest import hash_bytes
from casfs.errors import Failed, Invalid
from casfs.trees.snapshot.gitignore import Patterns

FILE = ".casfsignore"
DEFAULT = frozenset(
    b"node_modules __pycache__ .git target .venv venv .mypy_cache .pytest_cache dist build "
    b".next .nuxt".split()
)


class Ignore:
    """Decides by name and relative path; `Ignore()` leaves nothing out. `excluded`: paths that
    are left out whatever the rules say."""

    excluded: frozenset[bytes] = frozenset()

    def __init__(self, names: frozenset[bytes] = frozenset(), rules: bytes = b"") -> None:
        """`rules`: what a file of them holds. Raises ValueError."""
        self._names = names
        self._patterns = Patterns(rules) if rules else None
        self._given = hash_bytes(b"\0".join([*sorted(names), b"", rules]))[:16]

    @classmethod
    def of(cls, root: Path, *, defaults: bool = True) -> Ignore:
        """The rules for the workspace at `root`. Raises Failed when they cannot be read,
        Invalid when one is no pattern."""
        try:
            rules = (root / FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            rules = b""
        except OSError as error:
            raise Failed(f"cannot read {root / FILE}: {error.strerror}") from None
        try:
            return cls(DEFAULT if defaults else frozenset(), rules)
        except ValueError as error:
            raise Invalid(f"{root / FILE}: {error}") from None

    @property
    def fingerprint(self) -> str:
        """Equal where the same is left out."""
        excluded = hash_bytes(b"\0".join(sorted(self.excluded)))[:16]
        return f"{self._given}/{excluded}"

    def skips(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        """`path` is relative to the workspace, `name` its last component."""
        if path in self.excluded or (directory and name in self._names):
            return True
        if self._patterns is None:
            return False
        return self._patterns.skips(path, name, directory=directory)

"""IgnoreRules rules: the default names of derived directories, and the gitignore patterns of
`.casfsignore` at the top of the workspace.

The default names (seed 004's set) match directories only: a *file* called `build` is
source, not a derived file.
"""

from __future__ import annotations

from pathlib import Path

from casfs.digest import hash_bytes
from casfs.errors import Failed, Invalid
from casfs.trees.snapshot.gitignore import Patterns

IGNORE_FILE = ".casfsignore"
DEFAULT_DIRECTORIES = frozenset(
    b"node_modules __pycache__ .git target .venv venv .mypy_cache .pytest_cache dist build "
    b".next .nuxt".split()
)


class IgnoreRules:
    """Decides by name and relative path; `IgnoreRules()` ignores nothing. `excluded`: paths that
    are ignored whatever the patterns are."""

    excluded: frozenset[bytes] = frozenset()

    def __init__(self, names: frozenset[bytes] = frozenset(), rules: bytes = b"") -> None:
        """`rules`: the content of a `.casfsignore`. Raises ValueError."""
        self._names = names
        self._patterns = Patterns(rules) if rules else None
        self._fingerprint = hash_bytes(b"\0".join([*sorted(names), b"", rules]))[:16]

    @classmethod
    def of(cls, root: Path, *, defaults: bool = True) -> IgnoreRules:
        """Loads the rules of the workspace at `root`. Raises Failed when they cannot be read,
        Invalid for an invalid pattern."""
        try:
            rules = (root / IGNORE_FILE).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            rules = b""
        except OSError as error:
            raise Failed(f"cannot read {root / IGNORE_FILE}: {error.strerror}") from None
        try:
            return cls(DEFAULT_DIRECTORIES if defaults else frozenset(), rules)
        except ValueError as error:
            raise Invalid(f"{root / IGNORE_FILE}: {error}") from None

    @property
    def fingerprint(self) -> str:
        """Equal for rules that ignore the same paths."""
        excluded = hash_bytes(b"\0".join(sorted(self.excluded)))[:16]
        return f"{self._fingerprint}/{excluded}"

    def ignores(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        """`path` is relative to the workspace, `name` its last component."""
        if path in self.excluded or (directory and name in self._names):
            return True
        if self._patterns is None:
            return False
        return self._patterns.ignores(path, name, directory=directory)

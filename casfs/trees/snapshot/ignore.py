"""Ignore rules: which entries of a directory a snapshot leaves out, and why.

Patterns in gitignore's syntax, of `.casfsignore` at the top of the directory and of the caller,
the later one prevailing. What they do not decide may be left out as derived, by default: see
`casfs.trees.snapshot.derived`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from casfs.digest import hash_bytes
from casfs.errors import Failed, Invalid
from casfs.trees.snapshot.derived import DerivedDirectories, Surroundings
from casfs.trees.snapshot.gitignore import Patterns

IGNORE_FILE = ".casfsignore"
MAX_IGNORE_BYTES = 1 << 20
BY_PATTERN = "an ignore pattern"


class IgnoreRules:
    """`IgnoreRules()` leaves out nothing. `excluded`: paths that are left out whatever the patterns
    are, with the reason."""

    excluded: Mapping[bytes, str] = {}

    def __init__(self, patterns: bytes = b"", *, defaults: bool = False) -> None:
        """`patterns`: as the lines of a `.casfsignore`. Raises ValueError."""
        self._patterns = Patterns(patterns) if patterns else None
        self._derived = DerivedDirectories() if defaults else None
        self._fingerprint = hash_bytes(b"%d\0%b" % (defaults, patterns))[:16]

    @classmethod
    def of(cls, root: Path, *, defaults: bool = True, patterns: Sequence[str] = ()) -> Self:
        """Loads the rules of the workspace at `root`, followed by `patterns`. Raises Failed when
        they cannot be read, Invalid for an invalid pattern."""
        for one in patterns:
            check_pattern(one)
        given = "\n".join(patterns).encode("utf-8", "surrogateescape")
        with invalid_patterns_named(root):
            own = read_patterns(root)
            return cls(b"\n".join(filter(None, (own, given))), defaults=defaults)

    @property
    def fingerprint(self) -> str:
        """Equal for rules that leave out the same paths."""
        excluded = hash_bytes(b"\0".join(sorted(self.excluded)))[:16]
        return f"{self._fingerprint}/{excluded}"

    @property
    def considers_files(self) -> bool:
        """Whether `reason` has to be asked about files, and not only about directories."""
        overridden = type(self).reason is not IgnoreRules.reason
        return overridden or self._patterns is not None or bool(self.excluded)

    def reason(
        self, path: bytes, name: bytes, *, directory: bool, at: Surroundings | None = None
    ) -> str | None:
        """Returns why an entry is left out, None where it is not. `path` is relative to the
        workspace, `name` its last component."""
        if path in self.excluded:
            return self.excluded[path]
        if self._patterns is not None:
            decision = self._patterns.decision(path, name, directory=directory)
            if decision is not None:
                return BY_PATTERN if decision else None
        if not directory or self._derived is None or at is None:
            return None
        return self._derived.reason(path, name, at)


def read_patterns(root: Path) -> bytes:
    """Returns the content of the workspace's `.casfsignore`, if any. Raises Failed; Invalid for one
    that is too large, or neither a file nor a link to one: an agent may have made it."""
    path = root / IGNORE_FILE
    try:
        with open(path, "rb", opener=_open_at_once) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise Invalid(f"{path}: not a regular file")
            data = source.read(MAX_IGNORE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None
    check_size(str(path), len(data))
    return data


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a fifo must not block


def check_size(name: str, size: int) -> None:
    """Raises Invalid for a file of patterns that is too large."""
    if size > MAX_IGNORE_BYTES:
        raise Invalid(f"{name}: larger than {MAX_IGNORE_BYTES >> 20} MiB")


@contextmanager
def invalid_patterns_named(root: Path) -> Iterator[None]:
    """Turns the ValueError of an invalid pattern into Invalid with the file's name."""
    try:
        yield
    except ValueError as error:
        raise Invalid(f"{root / IGNORE_FILE}: {error}") from None


def check_pattern(text: str) -> None:
    """Raises Invalid for a text that is not one gitignore pattern."""
    try:
        if "\n" in text or "\0" in text:
            raise ValueError(f"{text!r} is not a valid pattern")
        Patterns(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise Invalid(f"--exclude: {error}") from None

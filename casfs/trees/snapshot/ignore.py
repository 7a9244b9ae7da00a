"""Ignore rules: which entries of a directory a snapshot leaves out or keeps here only, and why.

Patterns in gitignore's syntax, of `.casfsignore` at the top of the directory and of the caller,
the later one prevailing: what they name is recorded nowhere. Then those of the settings
`snapshot.work` and `snapshot.private`. What none of them decides may be derived, by default: see
`casfs.trees.snapshot.derived`.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, Self

from casfs.digest import TreeHash, hash_bytes
from casfs.errors import Failed, Invalid, NotFound
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.system.files import closing_fd
from casfs.system.paths import DIR_FLAGS, FILE_FLAGS, open_beneath, shown_path
from casfs.trees import tree
from casfs.trees.snapshot.derived import GIT, DerivedDirectories, Surroundings
from casfs.trees.snapshot.gitignore import Patterns
from casfs.trees.snapshot.report import BY_PATTERN

IGNORE_FILE = ".casfsignore"
IGNORE_NAME = IGNORE_FILE.encode()
GIT_NAME = b".git"
MAX_IGNORE_BYTES = 1 << 20
BY_SETTING = "the setting snapshot.private"


class Verdict(NamedTuple):
    """Why an entry is excluded from the work tree. `is_local`: it is recorded in the local tree,
    with all below it; else nowhere."""

    reason: str
    is_local: bool = False


class IgnoreRules:
    """`IgnoreRules()` leaves out nothing. `excluded`: paths that are left out whatever the patterns
    are, with the reason; `keeps_top_git`: with `keeps_git`, the repository that the directory
    itself is, and not only those below it; `git_is_local`: without defaults, of a directory
    that is recorded: even then repositories are in its local tree alone."""

    excluded: Mapping[bytes, str] = {}
    keeps_top_git = True
    git_is_local = False

    def __init__(
        self,
        patterns: bytes = b"",
        *,
        defaults: bool = False,
        keeps_derived: bool = False,
        keeps_git: bool = True,
        work: Sequence[str] = (),
        private: Sequence[str] = (),
    ) -> None:
        """`patterns`: as the lines of a `.casfsignore`; `defaults`: derived directories are no
        work, and left out; `keeps_derived`: they are kept in the local tree instead, with
        `keeps_git` `.git`, too; `work`, `private`: patterns that move what they match to that
        class. Raises ValueError."""
        self._patterns = Patterns(patterns) if patterns else None
        self._derived = DerivedDirectories() if defaults else None
        self._keeps_derived = keeps_derived
        self._keeps_git = keeps_derived and keeps_git
        self._work = Patterns(_lines(work)) if work else None
        self._private = Patterns(_lines(private)) if private else None
        settings = _lines([*work, "", *private])
        kept = keeps_derived + self._keeps_git
        parts = b"%d%d\0%b\0%b" % (defaults, kept, patterns, settings)
        self._fingerprint = hash_bytes(parts)[:16]

    @classmethod
    def of(
        cls,
        root: Path,
        *,
        defaults: bool = True,
        patterns: Sequence[str] = (),
        keeps_derived: bool = False,
        keeps_git: bool = True,
        work: Sequence[str] = (),
        private: Sequence[str] = (),
    ) -> Self:
        """Loads the rules of the workspace at `root`, followed by `patterns`. Raises Failed when
        they cannot be read, Invalid for an invalid pattern."""
        for pattern in patterns:
            check_pattern(pattern)
        with invalid_patterns_named(root):
            own = read_patterns(root)
            rules = cls(
                b"\n".join(filter(None, (own, _lines(patterns)))),
                defaults=defaults,
                keeps_derived=keeps_derived,
                keeps_git=keeps_git,
                work=work,
                private=private,
            )
        rules.git_is_local = not defaults
        return rules

    @property
    def fingerprint(self) -> str:
        """Equal for rules that leave out the same paths."""
        excluded = hash_bytes(b"\0".join(sorted(self.excluded)))[:16]
        top = "" if self.keeps_top_git else "/below"
        return f"{self._fingerprint}/{excluded}{top}"

    @property
    def considers_files(self) -> bool:
        """Whether `verdict` has to be asked about files, and not only about directories."""
        overridden = type(self).verdict is not IgnoreRules.verdict
        has_patterns = self._patterns is not None or self._private is not None
        return overridden or has_patterns or bool(self.excluded)

    def verdict(
        self, path: bytes, name: bytes, *, directory: bool, surroundings: Surroundings | None = None
    ) -> Verdict | None:
        """Returns why an entry is excluded from the work tree, None where it is not. `path` is
        relative to the workspace, `name` its last component."""
        if path in self.excluded:
            return Verdict(self.excluded[path])
        if path == IGNORE_NAME:  # so that a recorded state always says what it left out
            return None
        if self._patterns is not None:
            decision = self._patterns.decision(path, name, directory=directory)
            if decision is not None:
                return Verdict(BY_PATTERN) if decision else None
        if directory and name == GIT_NAME and self._knows_git:
            return Verdict(GIT, self._keeps_repository(path))
        if self.is_work(path, name, directory=directory):
            return None
        if self._private is not None and self._private.decision(path, name, directory=directory):
            return Verdict(BY_SETTING, is_local=True)
        if not directory or self._derived is None or surroundings is None:
            return None
        reason = self._derived.reason(path, name, surroundings)
        return None if reason is None else Verdict(reason, self._keeps_derived)

    @property
    def _knows_git(self) -> bool:
        return self._derived is not None or self.git_is_local

    def _keeps_repository(self, path: bytes) -> bool:
        """Whether a `.git` directory is recorded in the local tree, and not left out. What git has
        in it no person reads, so it is work for none, whatever the settings say."""
        if self.git_is_local:
            return True
        return self._keeps_git and (self.keeps_top_git or path != GIT_NAME)

    def is_work(self, path: bytes, name: bytes, *, directory: bool = False) -> bool:
        """Whether a person has said that an entry, or a directory above it, is work, whatever its
        name is or it holds."""
        if self._work is None:
            return False
        if self._work.decision(path, name, directory=directory):
            return True
        above = path.rpartition(b"/")[0]
        return bool(above) and self.is_work(above, above.rpartition(b"/")[2], directory=True)


def _lines(patterns: Sequence[str]) -> bytes:
    return "\n".join(patterns).encode("utf-8", "surrogateescape")


def read_patterns(root: Path) -> bytes:
    """Returns the content of the workspace's `.casfsignore`, if any. Raises Failed; Invalid for one
    that is too large, or neither a file nor a link to one in the workspace: an agent may have made
    it."""
    path = shown_path(root) / IGNORE_FILE
    try:
        with open(path, "rb", opener=lambda *_: _open(root)) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                raise Invalid(f"{path}: not a regular file")
            data = source.read(MAX_IGNORE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.ELOOP):
            raise Invalid(f"{path}: a link that leads out; put the patterns into a file") from None
        raise Failed(f"cannot read {path}: {error.strerror}") from None
    check_size(str(path), len(data))
    return data


def patterns_of(store: Store, root: TreeHash) -> bytes:
    """Returns the `.casfsignore` of a tree; empty where it has none that can be read. Raises
    Corrupt."""
    entry = tree.find(store, root, IGNORE_NAME)
    if not isinstance(entry, File) or entry.digest.size_bytes > MAX_IGNORE_BYTES:
        return b""
    with suppress(NotFound, ValueError):  # purged, or it was never valid
        data = store.blobs.get(entry.digest.hash).data
        Patterns(data)
        return data
    return b""


class IgnoredPaths:
    """The paths that the `.casfsignore` of one of the trees `roots` leaves out: a look that such a
    file rules says nothing of them."""

    def __init__(self, store: Store, roots: Iterable[TreeHash], directory: Path) -> None:
        """`roots`: of looks at `directory`."""
        self._directory = os.fsencode(directory)
        texts = {patterns_of(store, root) for root in roots} - {b""}
        self._rules = [IgnoreRules(text) for text in texts]

    def topmost(self, path: bytes) -> bytes | None:
        """Returns the topmost ignored directory above a path, or the path itself; None also for a
        path that the directory does not have: nothing can be lost there."""
        parts = path.split(b"/")
        for count in range(1, len(parts) + 1) if self._rules else ():
            above = b"/".join(parts[:count])
            for rules in self._rules:
                # What is below a directory that is left out is not asked about.
                if rules.verdict(above, parts[count - 1], directory=count < len(parts)):
                    is_there = os.path.lexists(os.path.join(self._directory, path))
                    return above if is_there else None
        return None


def _open(root: Path) -> int:
    """Opens the file of the workspace. Raises OSError; EXDEV, or ELOOP, for a link out of it."""
    try:
        return os.open(root / IGNORE_FILE, FILE_FLAGS)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    top = os.open(root, DIR_FLAGS & ~os.O_NOFOLLOW)
    with closing_fd(top):
        return open_beneath(top, IGNORE_FILE.encode(), FILE_FLAGS & ~os.O_NOFOLLOW)


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
        raise Invalid(f"{shown_path(root) / IGNORE_FILE}: {error}") from None


def check_pattern(text: str) -> None:
    """Raises Invalid for a text that is not one gitignore pattern."""
    try:
        if "\n" in text or "\0" in text:
            raise ValueError(f"{text!r} is not a valid pattern")
        Patterns(text.encode("utf-8", "surrogateescape"))
    except ValueError as error:
        raise Invalid(f"--exclude: {error}") from None

"""Unified diffs between two trees, for people, models and `git apply`.

Text files and symlinks have lines, under the headers that git knows (modes; new, deleted and
renamed files). A change of kind is a deletion and an addition. Lines are bytes, whatever their
encoding. Files that have a NUL byte or are larger than MAX_FILE_BYTES, directories, and preserved
times are named on a line of their own, which git skips: `LETTER path (why)`. Paths in a directory
named `.git` are only counted, since git accepts no patch to them. The output is bounded; paths that
do not fit are counted too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from casfs.digest import TreeHash
from casfs.store.nodes.directory import Entry, File, Subdirectory, Symlink
from casfs.store.store import Store
from casfs.system import interruption
from casfs.trees import tree
from casfs.trees.diff import lines, renames
from casfs.trees.diff.matching import Lines
from casfs.trees.tree import Change

TOO_LARGE = "too large to show"
MAX_FILE_BYTES = 1 << 18
MAX_PATCH_BYTES = 1 << 20
TRAILER_BYTES = 200  # reserved for the counts at the end
ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r"}
SECTION = re.compile(rb"^(?=diff --git )", re.MULTILINE)  # no line of a file begins so in a patch
SHOWN = re.compile(rb"(?s:.*\n)?[ +@\\-][^\n]*\n")  # up to the last line of a file
ESCAPES |= {34: b'\\"', 92: b"\\\\"}


def patch(
    store: Store,
    old: TreeHash | None,
    new: TreeHash | None,
    limit: int = MAX_PATCH_BYTES,
    paths: Sequence[bytes] = (),
) -> bytes:
    """Returns the unified diff of two trees, at most `limit` bytes; empty if they are equal.
    `paths`: as `tree.diff`."""
    parts: list[bytes] = []
    left = limit - TRAILER_BYTES
    dropped = 0
    changes = list(tree.changes(store, old, new=new, paths=paths))
    outside_git = [change for change in changes if b".git" not in change.path.split(b"/")[:-1]]
    inside_git = len(changes) - len(outside_git)
    for change in renames.detect(store, outside_git):
        interruption.check()
        if dropped:
            dropped += 1
        elif len(part := b"".join(_parts(store, change))) > left:
            dropped = 1
        else:
            parts.append(part)
            left -= len(part)
    if inside_git:
        parts.append(f"... {inside_git} paths inside .git differ\n".encode())
    if dropped:
        parts.append(f"... {dropped} more paths differ\n".encode())
    return b"".join(parts)


def without(patch: bytes, changes: Collection[Change]) -> bytes:
    """Returns a patch with a line that git skips in place of what it shows of these changes."""
    names = {_names(change): change for change in changes}
    parts = SECTION.split(patch)
    for number, part in enumerate(parts):
        header, _, body = part.partition(b"\n")
        if header in names:
            parts[number] = _note(names[header], "purged") + SHOWN.sub(b"", body, count=1)
    return b"".join(parts)


def of_contents(path: bytes, old: bytes | None, new: bytes | None) -> bytes:
    """Returns the unified diff of a file whose contents are not stored; None: it is not there."""
    contents = [content or b"" for content in (old, new)]
    header = b"diff --git %s %s\n" % (_git_name(b"a/", path), _git_name(b"b/", path))
    why = TOO_LARGE if max(map(len, contents)) > MAX_FILE_BYTES else None
    if why is not None:
        return b"M %s (%s)\n" % (_git_name(b"", path), why.encode())
    body = b"".join(lines.hunks(*map(lines.split, contents)))
    if not body:
        return b""
    from_name = _git_name(b"a/", path) if old is not None else b"/dev/null"
    to_name = _git_name(b"b/", path) if new is not None else b"/dev/null"
    return b"%s--- %s\n+++ %s\n%s" % (header, from_name, to_name, body)


def text_lines(store: Store, entry: Entry | None, limit: int = MAX_FILE_BYTES) -> Lines | str:
    """Returns the lines of a text file or of a symlink's target; else the reason for none."""
    if entry is None:
        return []
    if isinstance(entry, Symlink):
        return lines.split(entry.target)
    if isinstance(entry, Subdirectory):
        return "directory"
    if entry.digest.size_bytes > limit:
        return TOO_LARGE
    data = store.get(entry.digest.hash)
    return "binary" if b"\0" in data else lines.split(data)


def _parts(store: Store, change: Change) -> Iterator[bytes]:
    """Yields the patch of one path; two where its kind changed."""
    old = change.old
    new = change.new
    if old is None or new is None or type(old) is type(new):
        yield from _part(store, change)
        return
    if not isinstance(old, Subdirectory):  # its content follows, path by path
        yield from _part(store, change._replace(new=None))
    if not isinstance(new, Subdirectory) or not tree.load(store, new.digest.hash):
        yield from _part(store, change._replace(old=None))


def _part(store: Store, change: Change) -> Iterator[bytes]:
    old = text_lines(store, change.old)
    new = text_lines(store, change.new)
    modes = tree.changed_modes(store, change)
    sides = [entry.digest for entry in (change.old, change.new) if isinstance(entry, File)]
    if len(sides) == 2 and sides[0] == sides[1]:
        old = new = []  # mode and name are all that git shows, of binary files too
    mode = ", mode {:04o} -> {:04o}".format(*modes) if modes else ""
    for why in (new, old):
        if isinstance(why, str):
            yield _note(change, why + mode)
            return
    assert not isinstance(old, str)
    assert not isinstance(new, str)
    header = b"".join(_header(change, modes))
    body = b"".join(lines.hunks(old, new))
    if not header and not body:
        yield _note(change, "preserved metadata")
        return
    old_name = _git_name(b"a/", change.source or change.path)
    yield _names(change) + b"\n"
    yield header
    if body:
        yield b"--- %s\n" % (old_name if change.old else b"/dev/null")
        yield b"+++ %s\n" % (_git_name(b"b/", change.path) if change.new else b"/dev/null")
        yield body


def _names(change: Change) -> bytes:
    old_name = _git_name(b"a/", change.source or change.path)
    return b"diff --git %s %s" % (old_name, _git_name(b"b/", change.path))


def _note(change: Change, why: str) -> bytes:
    """Returns a line that git skips."""
    source = b"" if change.source is None else _git_name(b"", change.source) + b" -> "
    name = source + _git_name(b"", change.path)
    return b"%s %s (%s)\n" % (change.letter.encode(), name, why.encode())


def _header(change: Change, preserved: tuple[int, int] | None) -> Iterator[bytes]:
    old = _mode(change.old)
    new = _mode(change.new)
    if preserved is not None:
        old, new = (b"%o" % (0o100000 | mode) for mode in preserved)
    if old is None:
        yield b"new file mode %s\n" % (new or b"")
    elif new is None:
        yield b"deleted file mode %s\n" % old
    elif old != new:
        yield b"old mode %s\nnew mode %s\n" % (old, new)
    if change.source is not None:
        names = _git_name(b"", change.source), _git_name(b"", change.path)
        yield b"similarity index %d%%\n" % change.similarity
        yield b"rename from %s\nrename to %s\n" % names


def _mode(entry: Entry | None) -> bytes | None:
    """Returns the mode as git writes it."""
    if entry is None:
        return None
    if isinstance(entry, File):
        return b"100755" if entry.executable else b"100644"
    return b"120000"


def _git_name(side: bytes, path: bytes) -> bytes:
    """Returns a name as git writes it: quoted where it could end a line, or a name, too early."""
    quoted = _escaped(path)
    return side + path if quoted == path else b'"' + side + quoted + b'"'


def _escaped(path: bytes) -> bytes:
    return b"".join(
        ESCAPES.get(byte) or (b"\\%03o" % byte if byte < 32 or byte == 127 else bytes((byte,)))
        for byte in path
    )

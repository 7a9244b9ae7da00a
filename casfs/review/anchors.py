"""Where the lines of a comment stand in a later state: by content, or nowhere any more.

The lines are followed by the line diff of the file as it was and as it is; where one of them was
changed or deleted, or something was put between them, the comment is outdated.
"""

from __future__ import annotations

from dataclasses import dataclass

from casfs.digest import TreeHash
from casfs.errors import CasfsError, Invalid, NotFound
from casfs.review.comments import Comment
from casfs.store.nodes.directory import Entry
from casfs.store.store import Store
from casfs.system.paths import printable
from casfs.trees import tree
from casfs.trees.diff import renames, unified_diff
from casfs.trees.diff.matching import Lines, changed_blocks


@dataclass(frozen=True)
class Position:
    """`line`: the first of the lines, from 1; 0: the file as a whole."""

    path: bytes
    line: int


def place(store: Store, comment: Comment, root: TreeHash) -> Position | None:
    """Returns where the lines of a comment stand in another tree; None where the comment is
    outdated there."""
    if root == comment.tree:
        return Position(comment.path, comment.line)
    try:
        old = tree.find(store, comment.tree, comment.path)
        path, new = _followed(store, comment, root)
        if old is None:
            return None
        if new is None or comment.line == 0 or tree.is_same(store, old, new):
            return None if new is None else Position(path, comment.line)
        before = unified_diff.text_lines(store, old)
        after = unified_diff.text_lines(store, new)
    except CasfsError:  # purged, or not kept
        return None
    if isinstance(before, str) or isinstance(after, str):
        return None
    line = moved_line(before, after, comment.line, comment.count)
    return None if line is None else Position(path, line)


def moved_line(old: Lines, new: Lines, line: int, count: int) -> int | None:
    """Returns where `count` lines from `line` on, from 1, stand in a new text; None where they do
    not stand there as they were."""
    first = line - 1
    end = first + count
    shift = 0
    for i1, i2, j1, j2 in changed_blocks(old, new):
        if i1 >= end:
            break
        if i2 > first:
            return None
        shift += (j2 - j1) - (i2 - i1)
    return line + shift


def _followed(store: Store, comment: Comment, root: TreeHash) -> tuple[bytes, Entry | None]:
    """Returns the path and the entry of the file as it is called in a tree."""
    entry = tree.find(store, root, comment.path)
    if entry is not None:
        return comment.path, entry
    for change in renames.detect(store, tree.changes(store, comment.tree, root)):
        if change.source == comment.path:
            return change.path, change.new
    return comment.path, None


def check_lines(store: Store, comment: Comment) -> None:
    """Raises NotFound where the file of a comment is not in its tree, Invalid where its lines are
    not."""
    entry = tree.find(store, comment.tree, comment.path)
    if entry is None:
        raise NotFound(f"{printable(comment.path)} is not in the tree that was reviewed")
    if comment.line == 0:
        return
    lines = unified_diff.text_lines(store, entry)
    if isinstance(lines, str):
        raise Invalid(f"{printable(comment.path)} has no lines: {lines}; comment on the whole file")
    last = comment.line + comment.count - 1
    if comment.count < 1 or last > len(lines):
        raise Invalid(f"{printable(comment.path)} has {len(lines)} lines, not {last}")

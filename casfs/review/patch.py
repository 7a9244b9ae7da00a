"""A review as a text to write comments into: the diff, in which a line that begins with `#` is a
comment on the line above it. What begins with `#:` is said to the person, and not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from casfs.errors import Invalid
from casfs.review.anchors import place
from casfs.review.comments import Comment, Review
from casfs.review.subject import Subject
from casfs.store.store import Store
from casfs.system.safe_text import escape
from casfs.trees import tree
from casfs.trees.diff import lines as line_diff
from casfs.trees.diff import renames, unified_diff
from casfs.trees.diff.lines import NumberedLine
from casfs.trees.tree import Change

HELP = """\
#: A line that begins with # is a comment on the line above it; below the name of a file, on the
#: file. Several such lines are one comment. `casfs review send` sends them.
"""
FILE = "==="
SAID = "#:"


@dataclass(frozen=True)
class _Target:
    """A line that can be commented on, on the side that it is of; line 0: the file as a whole."""

    path: bytes
    is_old: bool = False
    line: int = 0


def compose(store: Store, review: Review, reviewed: Subject) -> str:
    """Returns the text, with the comments that there are."""
    said = _comments_by_target(store, review, reviewed)
    text = [HELP]
    for target, line in _lines(store, reviewed):
        text.append(f"{line}\n")
        if target is not None:
            text += [f"{SAID} {each}\n" for each in said.get(target, ())]
    return "".join(text)


def parse(store: Store, reviewed: Subject, text: str) -> list[Comment]:
    """Returns the comments that were written into a text. Raises Invalid where a line of the diff
    is not as it was."""
    expected = _lines(store, reviewed)
    written: dict[_Target, list[str]] = {}
    target = None
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(SAID):
            continue
        if not line.startswith("#"):
            target, known = next(expected, (None, ""))
            # Editors may strip spaces at the ends of lines.
            if line.rstrip() != known.rstrip():
                raise Invalid(
                    f"line {number} is not as it was; comments are lines that begin with #"
                )
        elif target is None:
            raise Invalid(f"line {number}: a comment stands below the line that it is on")
        else:
            written.setdefault(target, []).append(line.removeprefix("#").removeprefix(" "))
    return [_comment(reviewed, target, lines) for target, lines in written.items()]


def _comment(reviewed: Subject, target: _Target, lines: list[str]) -> Comment:
    return Comment(
        0,
        reviewed.old if target.is_old else reviewed.new,
        target.path,
        target.line,
        count=1 if target.line else 0,
        text="\n".join(lines),
        is_old=target.is_old,
    )


def _comments_by_target(
    store: Store, review: Review, reviewed: Subject
) -> dict[_Target, list[str]]:
    said: dict[_Target, list[str]] = {}
    for comment in review.comments:
        position = place(store, comment, reviewed.tree_of(comment))
        target = _Target(comment.path)
        state = review.state(comment)
        if position is None:
            state += ", outdated"
        elif position.line:
            target = _Target(position.path, comment.is_old, position.line + comment.count - 1)
        text = escape(comment.text, one_line=True)
        said.setdefault(target, []).append(f"{review.label(comment.number)} {state}: {text}")
    return said


def _lines(store: Store, reviewed: Subject) -> Iterator[tuple[_Target | None, str]]:
    """Yields the lines of the diff, each with what a comment below it is on."""
    changes = tree.changes(store, reviewed.old, reviewed.new)
    for change in renames.detect(store, changes):
        whole = _Target(change.path, is_old=change.new is None)
        before = change.source or change.path
        yield whole, f"{FILE} {_printable(change.path)}"
        yield from _file_lines(store, change, whole, before)


def _file_lines(
    store: Store, change: Change, whole: _Target, before: bytes
) -> Iterator[tuple[_Target | None, str]]:
    old = unified_diff.text_lines(store, change.old)
    new = unified_diff.text_lines(store, change.new)
    for why in (old, new):
        if isinstance(why, str):
            yield whole, f"@@ {why}: no lines are shown"
            return
    assert not isinstance(old, str)
    assert not isinstance(new, str)
    for hunk in line_diff.numbered_hunks(old, new):
        yield None, f"@@ {hunk[0].old or '-'} {hunk[0].new or '-'}"
        for line in hunk:
            yield _target(change.path, before, line), _diff_line(line)


def _target(path: bytes, before: bytes, line: NumberedLine) -> _Target:
    if line.new is None:
        return _Target(before, is_old=True, line=line.old or 0)
    return _Target(path, line=line.new)


def _diff_line(line: NumberedLine) -> str:
    sign = "-" if line.new is None else "+" if line.old is None else " "
    return sign + _printable(line.text.rstrip(b"\r\n"))


def _printable(text: bytes) -> str:
    return escape(text.decode("utf-8", "backslashreplace"), one_line=True)

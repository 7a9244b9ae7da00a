"""Three-way merges of texts by lines, with the conflict markers of git.

A block of lines that one side changed is taken; blocks of both sides that overlap or touch are a
conflict unless they are equal. As in git, a conflict is reduced to the lines that differ, and two
conflicts with at most JOIN_LINES lines between them are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from casfs.trees.diff.lines import split
from casfs.trees.diff.matching import Block, Lines, changed_blocks

JOIN_LINES = 3


@dataclass(frozen=True, slots=True)
class MergedText:
    text: bytes
    conflicts: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Lines of the merged text; of a conflict, those of each side. `common`: both have them."""

    lines: Lines
    theirs: Lines | None = None
    common: bool = True


def merge(base: bytes, ours: bytes, theirs: bytes, labels: tuple[str, str]) -> MergedText:
    """Merges the changes of both sides since `base`; `labels`: names of the sides in markers."""
    texts = split(base), split(ours), split(theirs)
    pieces = _joined(_pieces(*texts))
    has_cr = all(text[0].endswith(b"\r\n") for text in texts if text)
    end = b"\r\n" if has_cr and any(texts) else b"\n"
    first, second = (label.encode() for label in labels)
    found: Lines = []
    for piece in pieces:
        if piece.theirs is None:
            found += piece.lines
        else:
            found += [b"<<<<<<< " + first + end, *_ended(piece.lines, end), b"=======" + end]
            found += [*_ended(piece.theirs, end), b">>>>>>> " + second + end]
    return MergedText(b"".join(found), sum(one.theirs is not None for one in pieces))


def _pieces(base: Lines, ours: Lines, theirs: Lines) -> Iterator[_Piece]:
    at = 0  # base lines before it are done
    shifts = [0, 0]  # of a base line after the last group, in ours and theirs
    for start, end, sides in _groups(changed_blocks(base, ours), changed_blocks(base, theirs)):
        yield _Piece(base[at:start])
        found = []
        for side, (text, blocks) in enumerate(zip((ours, theirs), sides, strict=True)):
            grown = sum((j2 - j1) - (i2 - i1) for i1, i2, j1, j2 in blocks)
            found.append(text[start + shifts[side] : end + shifts[side] + grown])
            shifts[side] += grown
        if all(sides):
            yield from _reduced(*found)
        else:
            yield _Piece(found[0] if sides[0] else found[1], common=False)
        at = end
    yield _Piece(base[at:])


def _reduced(ours: Lines, theirs: Lines) -> Iterator[_Piece]:
    """Yields the parts of a conflict that differ, and the equal lines between them."""
    at = 0
    for i1, i2, j1, j2 in changed_blocks(ours, theirs):
        yield _Piece(ours[at:i1])
        yield _Piece(ours[i1:i2], theirs[j1:j2])
        at = i2
    yield _Piece(ours[at:])


def _joined(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Joins conflicts that have only a few common lines between them."""
    found: list[_Piece] = []
    gap: Lines = []  # common lines after the last of `found`
    for piece in pieces:
        last = found[-1] if found else _Piece([])
        if piece.theirs is None and piece.common:
            gap = gap + piece.lines
        elif last.theirs is None or piece.theirs is None or len(gap) > JOIN_LINES:
            found += [_Piece(gap), piece]
            gap = []
        else:
            theirs = [*last.theirs, *gap, *piece.theirs]
            found[-1] = _Piece([*last.lines, *gap, *piece.lines], theirs)
            gap = []
    return [*found, _Piece(gap)]


def _groups(
    ours: list[Block], theirs: list[Block]
) -> Iterator[tuple[int, int, tuple[list[Block], list[Block]]]]:
    """Yields (start, end, blocks of each side) of base lines whose blocks overlap or touch."""
    sides = [(block, 0) for block in ours] + [(block, 1) for block in theirs]
    group: tuple[list[Block], list[Block]] = ([], [])
    start = end = 0
    for block, side in sorted(sides, key=lambda one: (one[0][:2], one[1])):
        if any(group) and block[0] > end:
            yield start, end, group
            group = ([], [])
        if not any(group):
            start = end = block[0]
        group[side].append(block)
        end = max(end, block[1])
    if any(group):
        yield start, end, group


def _ended(lines: Lines, end: bytes) -> Lines:
    """Ends the last line, so that a marker stands on its own."""
    return [*lines[:-1], lines[-1] + end] if lines and not lines[-1].endswith(b"\n") else lines

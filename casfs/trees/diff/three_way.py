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
    lines: Lines = []
    for piece in pieces:
        if piece.theirs is None:
            lines += piece.lines
        else:
            lines += [b"<<<<<<< " + first + end, *_ended(piece.lines, end), b"=======" + end]
            lines += [*_ended(piece.theirs, end), b">>>>>>> " + second + end]
    return MergedText(b"".join(lines), sum(piece.theirs is not None for piece in pieces))


def _pieces(base: Lines, ours: Lines, theirs: Lines) -> Iterator[_Piece]:
    position = 0  # base lines before it are done
    shifts = [0, 0]  # of a base line after the last group, in ours and theirs
    for start, end, sides in _groups(changed_blocks(base, ours), changed_blocks(base, theirs)):
        yield _Piece(base[position:start])
        side_lines = []
        for side, (text, blocks) in enumerate(zip((ours, theirs), sides, strict=True)):
            grown = sum((j2 - j1) - (i2 - i1) for i1, i2, j1, j2 in blocks)
            side_lines.append(text[start + shifts[side] : end + shifts[side] + grown])
            shifts[side] += grown
        if all(sides):
            yield from _reduced(*side_lines)
        else:
            yield _Piece(side_lines[0] if sides[0] else side_lines[1], common=False)
        position = end
    yield _Piece(base[position:])


def _reduced(ours: Lines, theirs: Lines) -> Iterator[_Piece]:
    """Yields the parts of a conflict that differ, and the equal lines between them."""
    position = 0
    for i1, i2, j1, j2 in changed_blocks(ours, theirs):
        yield _Piece(ours[position:i1])
        yield _Piece(ours[i1:i2], theirs[j1:j2])
        position = i2
    yield _Piece(ours[position:])


def _joined(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Joins conflicts that have only a few common lines between them."""
    joined_pieces: list[_Piece] = []
    gap: Lines = []  # common lines after the last of `joined_pieces`
    for piece in pieces:
        last = joined_pieces[-1] if joined_pieces else _Piece([])
        if piece.theirs is None and piece.common:
            gap = gap + piece.lines
        elif last.theirs is None or piece.theirs is None or len(gap) > JOIN_LINES:
            joined_pieces += [_Piece(gap), piece]
            gap = []
        else:
            theirs = [*last.theirs, *gap, *piece.theirs]
            joined_pieces[-1] = _Piece([*last.lines, *gap, *piece.lines], theirs)
            gap = []
    return [*joined_pieces, _Piece(gap)]


def _groups(
    ours: list[Block], theirs: list[Block]
) -> Iterator[tuple[int, int, tuple[list[Block], list[Block]]]]:
    """Yields (start, end, blocks of each side) of base lines whose blocks overlap or touch."""
    sides = [(block, 0) for block in ours] + [(block, 1) for block in theirs]
    group: tuple[list[Block], list[Block]] = ([], [])
    start = end = 0
    for block, side in sorted(sides, key=lambda pair: (pair[0][:2], pair[1])):
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

"""Line diffs of two texts: counts of changed lines, or unified hunks.

Equal lines are matched by `casfs.trees.diff.matching`, in bounded time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from casfs.trees.diff.matching import Block, Lines, changed_blocks

CONTEXT_LINES = 3  # equal lines around a change
LINE = re.compile(rb"[^\n]*\n|[^\n]+")


class NumberedLine(NamedTuple):
    """A line with its numbers on both sides, from 1; None where it is not there."""

    old: int | None
    new: int | None
    text: bytes


def split(text: bytes) -> Lines:
    """Splits at line feeds only; the last line may have none."""
    return LINE.findall(text)


def counts(old: Lines, new: Lines) -> tuple[int, int]:
    """Returns the numbers of added and of deleted lines."""
    blocks = changed_blocks(old, new)
    return sum(j2 - j1 for _, _, j1, j2 in blocks), sum(i2 - i1 for i1, i2, _, _ in blocks)


def hunks(old: Lines, new: Lines) -> Iterator[bytes]:
    """Yields the unified diff, line by line, without a header; nothing for equal texts."""
    for group in groups(changed_blocks(old, new)):
        start = max(group[0][0] - CONTEXT_LINES, 0)
        end = min(group[-1][1] + CONTEXT_LINES, len(old))
        shift = group[0][2] - group[0][0]
        after = group[-1][3] - group[-1][1]
        old_range = _range(start, end)
        new_range = _range(start + shift, end + after)
        yield b"@@ -%s +%s @@\n" % (old_range, new_range)
        old_index = start
        for i1, i2, j1, j2 in group:
            yield from _prefixed(b" ", old[old_index:i1])
            yield from _prefixed(b"-", old[i1:i2])
            yield from _prefixed(b"+", new[j1:j2])
            old_index = i2
        yield from _prefixed(b" ", old[old_index:end])


def numbered_hunks(old: Lines, new: Lines) -> Iterator[list[NumberedLine]]:
    """Yields the changed lines with the equal ones around them, hunk by hunk."""
    for group in groups(changed_blocks(old, new)):
        position = max(group[0][0] - CONTEXT_LINES, 0)
        end = min(group[-1][1] + CONTEXT_LINES, len(old))
        shift = group[0][2] - group[0][0]
        hunk: list[NumberedLine] = []
        for i1, i2, j1, j2 in group:
            hunk += [NumberedLine(i + 1, i + shift + 1, old[i]) for i in range(position, i1)]
            hunk += [NumberedLine(i + 1, None, old[i]) for i in range(i1, i2)]
            hunk += [NumberedLine(None, j + 1, new[j]) for j in range(j1, j2)]
            position = i2
            shift = j2 - i2
        hunk += [NumberedLine(i + 1, i + shift + 1, old[i]) for i in range(position, end)]
        yield hunk


def groups(blocks: list[Block]) -> Iterator[list[Block]]:
    """Blocks whose contexts touch share a hunk."""
    group: list[Block] = []
    for block in blocks:
        if group and block[0] - group[-1][1] > 2 * CONTEXT_LINES:
            yield group
            group = []
        group.append(block)
    if group:
        yield group


def _range(start: int, end: int) -> bytes:
    count = end - start
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if count else start, count)


def _prefixed(sign: bytes, lines: Lines) -> Iterator[bytes]:
    for line in lines:
        is_ended = line.endswith(b"\n")
        yield sign + line if is_ended else sign + line + b"\n\\ No newline at end of file\n"

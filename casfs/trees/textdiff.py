"""Line diffs of two texts, by value: which lines differ, counted or as unified hunks.

Equal beginnings and ends are set aside first, so an edit of a large file costs little.
Where the rest is so repetitive that matching would take long, it counts as replaced as a
whole: correct, only longer than it could be.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from itertools import takewhile

CONTEXT = 3  # equal lines around a change
EFFORT = 500_000  # pairs of equal lines that the matching may have to look at
LINE = re.compile(rb"[^\n]*\n|[^\n]+")
Lines = list[bytes]
Block = tuple[int, int, int, int]  # old lines i1 to i2 became new lines j1 to j2


def split(text: bytes) -> Lines:
    """Only a line feed ends a line; the last may have none."""
    return LINE.findall(text)


def counts(old: Lines, new: Lines) -> tuple[int, int]:
    """How many lines were added and deleted."""
    found = blocks(old, new)
    return sum(j2 - j1 for _, _, j1, j2 in found), sum(i2 - i1 for i1, i2, _, _ in found)


def hunks(old: Lines, new: Lines) -> Iterator[bytes]:
    """The unified diff, line by line, without a header; nothing where they are equal."""
    for group in _groups(blocks(old, new)):
        start, end = max(group[0][0] - CONTEXT, 0), min(group[-1][1] + CONTEXT, len(old))
        shift, after = group[0][2] - group[0][0], group[-1][3] - group[-1][1]
        old_range, new_range = _range(start, end), _range(start + shift, end + after)
        yield b"@@ -%s +%s @@\n" % (old_range, new_range)
        at = start
        for i1, i2, j1, j2 in group:
            yield from _marked(b" ", old[at:i1])
            yield from _marked(b"-", old[i1:i2])
            yield from _marked(b"+", new[j1:j2])
            at = i2
        yield from _marked(b" ", old[at:end])


def blocks(old: Lines, new: Lines) -> list[Block]:
    """What was replaced, inserted or deleted, in order."""
    shorter = min(len(old), len(new))
    head = _equal(zip(old, new, strict=False))
    tail = min(_equal(zip(reversed(old), reversed(new), strict=False)), shorter - head)
    a, b = old[head : len(old) - tail], new[head : len(new) - tail]
    if not a and not b:
        return []
    if not a or not b or _effort(a, b) > EFFORT:
        return [(head, head + len(a), head, head + len(b))]
    found = difflib.SequenceMatcher(None, a, b).get_opcodes()
    return [
        (i1 + head, i2 + head, j1 + head, j2 + head)
        for tag, i1, i2, j1, j2 in found
        if tag != "equal"
    ]


def _equal(pairs: Iterator[tuple[bytes, bytes]]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _effort(a: Lines, b: Lines) -> int:
    there = Counter(b)
    return sum(there[line] for line in a)


def _groups(found: list[Block]) -> Iterator[list[Block]]:
    """Blocks whose contexts touch share a hunk."""
    group: list[Block] = []
    for block in found:
        if group and block[0] - group[-1][1] > 2 * CONTEXT:
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


def _marked(sign: bytes, lines: Lines) -> Iterator[bytes]:
    for line in lines:
        whole = line.endswith(b"\n")
        yield sign + line if whole else sign + line + b"\n\\ No newline at end of file\n"

"""Matches the lines of two texts, in bounded time: a patience diff with a budget.

The common prefix and suffix are trimmed, so an edit of a large file costs little. Between
them, lines that occur exactly once in both texts, in the same order, are anchors (patience
diff: sorting, no search). Between two anchors the longest common block is matched first, as by
difflib, until all of it together has spent MATCH_BUDGET. The rest counts as replaced as a
whole: correct, only longer than necessary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import accumulate, takewhile
from typing import Any

MATCH_BUDGET = 2_000_000  # lines, and pairs of equal lines, that may be visited
GAP_COST = 50  # of starting on a gap between anchors, in the same unit
Lines = list[bytes]
Block = tuple[int, int, int, int]  # old lines i1 to i2 became new lines j1 to j2
Match = tuple[int, int, int]  # old line i, new line j, number of equal lines from there


def changed_blocks(old: Lines, new: Lines) -> list[Block]:
    """Returns the replaced, inserted and deleted blocks, in order."""
    whole = _trimmed(old, new, (0, len(old), 0, len(new)))
    i1, i2, j1, j2 = whole
    blocks: list[Block] = []
    left = MATCH_BUDGET
    for i, j in [*_anchors(old, new, whole), (i2, j2)]:
        pieces, spent = _match_gap(old, new, block=_trimmed(old, new, (i1, i, j1, j)), limit=left)
        blocks += pieces
        left -= spent
        i1 = i + 1
        j1 = j + 1
    return blocks


def _trimmed(old: Lines, new: Lines, block: Block) -> Block:
    """Strips the common prefix and suffix."""
    i1, i2, j1, j2 = block
    head = _equal(zip(range(i1, i2), range(j1, j2), strict=False), old, new)
    i1 = i1 + head
    j1 = j1 + head
    backwards = zip(range(i2 - 1, i1 - 1, -1), range(j2 - 1, j1 - 1, -1), strict=False)
    tail = _equal(backwards, old, new)
    return i1, i2 - tail, j1, j2 - tail


def _equal(pairs: Iterator[tuple[int, int]], old: Lines, new: Lines) -> int:
    return sum(1 for _ in takewhile(lambda pair: old[pair[0]] == new[pair[1]], pairs))


def _anchors(old: Lines, new: Lines, block: Block) -> list[tuple[int, int]]:
    """Returns the longest increasing sequence of lines that occur once on both sides."""
    i1, i2, j1, j2 = block
    old_counts = Counter(old[i1:i2])
    new_counts = Counter(new[j1:j2])
    new_indices = {new[j]: j for j in range(j1, j2) if new_counts[new[j]] == 1}
    ends: list[int] = []  # the smallest new line that a run of that length can end with
    last: list[int] = []  # of these runs, as indices of `run`
    run: list[tuple[int, int, int]] = []  # old line, new line, the one before it in its run
    for i in range(i1, i2):
        j = new_indices.get(old[i])
        if j is None or old_counts[old[i]] != 1:
            continue
        index = bisect_left(ends, j)
        run.append((i, j, last[index - 1] if index else -1))
        ends[index : index + 1] = [j]
        last[index : index + 1] = [len(run) - 1]
    return _backtrack(run, last[-1] if last else -1)


def _backtrack(run: list[tuple[int, int, int]], index: int) -> list[tuple[int, int]]:
    anchors = []
    while index >= 0:
        i, j, index = run[index]
        anchors.append((i, j))
    return anchors[::-1]


def _match_gap(old: Lines, new: Lines, block: Block, limit: int) -> tuple[list[Block], int]:
    """Returns (the changed blocks within this one, the cost of finding them)."""
    i1, i2, j1, j2 = block
    if i1 == i2 and j1 == j2:
        return [], 0
    a = old[i1:i2]
    b = new[j1:j2]
    if limit < len(a) + len(b) + GAP_COST or set(a).isdisjoint(b):
        return [block], 0
    matches, spent = _matches(a, b, limit)
    blocks = []
    i = j = 0
    for x, y, size in [*sorted(matches), (len(a), len(b), 0)]:
        if i < x or j < y:
            blocks.append((i + i1, x + i1, j + j1, y + j1))
        i = x + size
        j = y + size
    return blocks, spent


def _matches(a: Lines, b: Lines, limit: int) -> tuple[list[Match], int]:
    """Returns the matches of `SequenceMatcher.get_matching_blocks` that are found before the
    limit is reached, the longest first; and the cost."""
    matcher: Any = SequenceMatcher(None, a, b)  # the stubs lack `b2j`
    cost = [1 + len(matcher.b2j.get(line, ())) for line in a]
    upto = list(accumulate(cost, initial=0))
    matches = []
    spent = len(a) + len(b) + GAP_COST
    todo = deque([(0, len(a), 0, len(b))])
    while todo:
        i1, i2, j1, j2 = todo.popleft()
        price = upto[i2] - upto[i1]
        if spent + price > limit:
            continue
        spent += price
        i, j, size = matcher.find_longest_match(i1, i2, j1, j2)
        if size:
            matches.append((i, j, size))
            if i1 < i and j1 < j:
                todo.append((i1, i, j1, j))
            if i + size < i2 and j + size < j2:
                todo.append((i + size, i2, j + size, j2))
    return matches, spent

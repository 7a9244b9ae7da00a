"""The layout of a workflow's graph: states as boxes in layers, by their distance from the start.

Edges to the next layer are curves between boxes; other edges run in lanes to the right of all
boxes, and those from a role to itself are loops at its left side. Numbers on edges are those of the
rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from casfs.threads.workflow_path import END, START

BOX_HEIGHT = 34
LAYER_HEIGHT = 84
CHAR_WIDTH = 8
LABEL_WIDTH = 7
GAP = 28
LANE_WIDTH = 40
LEFT = 64  # of loops and their labels
MAX_NAME_CHARS = 24
MAX_ROLES = 60
MAX_EDGES = 200
MAX_RULES = 200
NAMES = {START: "start", END: "end"}


@dataclass(frozen=True)
class Box:
    """A state. `x`, `y`: of its centre; `kind`: role, start or end; `count`: steps of it."""

    name: str
    kind: str
    x: int
    y: int
    width: int
    count: int
    pending: bool
    height: int = BOX_HEIGHT


@dataclass(frozen=True)
class Edge:
    """`path`: as in SVG; `label`: the numbers of its rules, and `count`: how often it was taken."""

    path: str
    label: str
    x: int
    y: int
    count: int


@dataclass(frozen=True)
class Graph:
    boxes: list[Box]
    edges: list[Edge]
    width: int
    height: int


@dataclass(frozen=True)
class Rule:
    """`taken`: how often threads went from `origin` to `to`, by any rule between the two."""

    origin: str
    to: str
    when: str
    taken: int


def counted(rules: Sequence[Mapping[str, Any]], taken: Counter[tuple[str, str]]) -> list[Rule]:
    """Returns the first MAX_RULES rules of a workflow with how often they were taken."""
    return [
        Rule(
            rule["from"], rule["to"], when=rule["when"] or "", taken=taken[rule["from"], rule["to"]]
        )
        for rule in rules[:MAX_RULES]
    ]


def layout(
    roles: Sequence[str],
    rules: Sequence[Mapping[str, Any]],
    taken: Counter[tuple[str, str]],
    pending: str | None = None,
) -> Graph | None:
    """Returns the drawing of a workflow with the edges that a thread took; None for one that is too
    large."""
    numbers: dict[tuple[str, str], list[int]] = {}
    for number, rule in enumerate(rules, start=1):
        numbers.setdefault((rule["from"], rule["to"]), []).append(number)
    known = {START, END, *roles}
    numbers = {
        edge: edge_numbers for edge, edge_numbers in numbers.items() if known.issuperset(edge)
    }
    if len(roles) > MAX_ROLES or len(numbers) > MAX_EDGES:
        return None
    played: Counter[str] = Counter()
    for (_, to), count in taken.items():
        played[to] += count
    if pending:
        played[pending] -= 1
    layers = _layers(roles, numbers)
    boxes = _boxes(layers, played, pending)
    right = max(box.x + box.width // 2 for box in boxes.values())
    edges = []
    lanes = 0
    places = {state: depth for depth, layer in enumerate(layers) for state in layer}
    for (origin, to), rule_numbers in numbers.items():
        a = boxes[origin]
        b = boxes[to]
        count = taken[origin, to]
        label = ",".join(map(str, rule_numbers)) + (f" ×{count}" if count > 1 else "")
        if origin == to:
            x = a.x - a.width // 2
            path = f"M{x} {a.y - 8}C{x - 34} {a.y - 24} {x - 34} {a.y + 24} {x} {a.y + 8}"
            edges.append(
                Edge(path, label, x=x - 32 - LABEL_WIDTH * len(label), y=a.y + 4, count=count)
            )
        elif places[to] == places[origin] + 1:
            top = a.y + BOX_HEIGHT // 2
            bottom = b.y - BOX_HEIGHT // 2
            middle = (top + bottom) // 2
            path = f"M{a.x} {top}C{a.x} {middle} {b.x} {middle} {b.x} {bottom}"
            edges.append(Edge(path, label, x=(a.x + b.x) // 2 + 8, y=middle + 4, count=count))
        else:
            lane = right + GAP + lanes * LANE_WIDTH
            lanes += 1
            start = a.x + a.width // 2
            end = b.x + b.width // 2
            path = f"M{start} {a.y + 7}H{lane}V{b.y - 7}H{end}"
            edges.append(Edge(path, label, x=lane + 6, y=(a.y + b.y) // 2 + 4, count=count))
    width = right + GAP + lanes * LANE_WIDTH
    return Graph(list(boxes.values()), edges, width=width, height=len(layers) * LAYER_HEIGHT)


def _layers(roles: Sequence[str], edges: Mapping[tuple[str, str], object]) -> list[list[str]]:
    """Returns the states by their distance from START; those that no rule reaches, and then END,
    come last."""
    layers = [[START]]
    left = dict.fromkeys(roles)
    while layers[-1]:
        below = [to for origin in layers[-1] for source, to in edges if source == origin]
        layers.append([role for role in dict.fromkeys(below) if role in left])
        for role in layers[-1]:
            del left[role]
    return [layer for layer in (*layers, list(left), [END]) if layer]


def _boxes(layers: list[list[str]], played: Counter[str], pending: str | None) -> dict[str, Box]:
    widths = {state: _width(state) for layer in layers for state in layer}
    totals = [sum(widths[state] + GAP for state in layer) - GAP for layer in layers]
    boxes = {}
    for depth, (layer, total) in enumerate(zip(layers, totals, strict=True)):
        x = LEFT + (max(totals) - total) // 2
        y = depth * LAYER_HEIGHT + LAYER_HEIGHT // 2
        for state in layer:
            width = widths[state]
            kind = "start/end" if state in NAMES else "role"
            name = NAMES.get(state, state)
            name = name if len(name) <= MAX_NAME_CHARS else name[: MAX_NAME_CHARS - 1] + "…"
            middle = x + width // 2
            boxes[state] = Box(
                name,
                kind,
                x=middle,
                y=y,
                width=width,
                count=played[state],
                pending=state == pending,
            )
            x += width + GAP
    return boxes


def _width(state: str) -> int:
    return (min(len(state), MAX_NAME_CHARS) + 7) * CHAR_WIDTH  # with its count

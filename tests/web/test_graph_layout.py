"""The drawing of a workflow: layers, edges of each kind, the path, bounds."""

from __future__ import annotations

from collections import Counter

from casfs.threads.workflow_path import END, START, edges_taken
from casfs.web.graph_layout import LAYER_HEIGHT, LEFT, MAX_ROLES, Graph, layout

ROLES = ["planner", "coder", "alone"]
RULES = [
    {"from": START, "to": "planner", "when": None},
    {"from": "planner", "to": "coder", "when": "a"},
    {"from": "planner", "to": "coder", "when": "b"},
    {"from": "coder", "to": "planner", "when": "c"},
    {"from": "coder", "to": "coder", "when": "d"},
    {"from": "coder", "to": END, "when": None},
]


def drawn(*path: str, ended: bool = False, pending: str | None = None) -> Graph:
    found = layout(ROLES, RULES, edges_taken([START, *path], ended, pending), pending)
    assert found is not None
    return found


def test_states_are_in_layers_by_their_distance_from_the_start() -> None:
    boxes = {box.name: box for box in drawn().boxes}
    assert [box.y // LAYER_HEIGHT for box in boxes.values()] == [0, 1, 2, 3, 4]
    assert list(boxes) == ["start", "planner", "coder", "alone", "end"]
    assert {box.kind for box in boxes.values()} == {"start/end", "role"}


def test_edges_have_the_numbers_of_their_rules_and_how_often_they_were_taken() -> None:
    path = ("planner", "coder", "coder", "planner")
    found = drawn(*path, pending="coder")
    counts = {edge.label: edge.count for edge in found.edges}
    assert counts == {"1": 1, "2,3 ×2": 2, "4": 1, "5": 1, "6": 0}
    boxes = {box.name: (box.count, box.pending) for box in found.boxes}
    assert boxes["planner"] == (2, False)
    assert boxes["coder"] == (2, True), "the pending step is no step yet"
    assert {box.name: box.count for box in drawn("planner", "coder", ended=True).boxes}["end"] == 1


def test_loops_are_at_the_left_and_other_edges_in_lanes_at_the_right() -> None:
    found = drawn()
    right = max(box.x + box.width // 2 for box in found.boxes)
    at = {edge.label: edge.x for edge in found.edges}
    assert at["5"] < LEFT
    assert right < at["4"] <= at["6"] <= found.width
    assert min(box.x - box.width // 2 for box in found.boxes) >= LEFT


def test_rules_with_unknown_states_and_too_large_workflows_are_not_drawn() -> None:
    rules = [{"from": "<b>", "to": "planner", "when": None}, *RULES]
    found = layout(ROLES, rules, Counter(), "gone")
    assert found is not None
    assert "1" not in {edge.label for edge in found.edges}
    assert layout([str(n) for n in range(MAX_ROLES + 1)], RULES, Counter()) is None

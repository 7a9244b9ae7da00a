"""A workflow as a Mermaid flowchart, or as lines for a terminal, with the path of a thread
through it.

Roles are boxes, rules are arrows with their conditions. A role that was played shows the count,
an arrow that was taken is thick; the running role is coloured. Two rules
between the same roles are one arrow (`casfs.threads.workflow_path`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from casfs.threads.workflow_path import END, START, condition_label, edges_taken
from engine.workflow.registry import Workflow

ESCAPES = {"&": "&amp;", '"': "&quot;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "#": "&#35;"}


def mermaid(flow: Workflow, path: Sequence[str], ended: bool, running: str | None = None) -> str:
    """Returns the flowchart. `path`: the roles of the steps in order; `running`: the role of the
    pending step."""
    names = {START: "start_", END: "end_"}
    names |= {role: f"r{index}" for index, role in enumerate(flow.roles)}
    taken = edges_taken([START, *path], ended, running)
    played = Counter(path)
    lines = ["flowchart TD", *_boxes(flow, names, played)]
    lines += _arrows(flow, names, taken)
    lines += ["    classDef played stroke-width:3px", "    classDef running fill:#fd6"]
    if played:
        lines.append(f"    class {','.join(names[role] for role in played)} played")
    if running:
        lines.append(f"    class {names[running]} running")
    return "\n".join(lines) + "\n"


def outline(flow: Workflow, path: Sequence[str], ended: bool, running: str | None = None) -> str:
    """Returns the same as lines: each state, and below it where its rules lead."""
    taken = edges_taken([START, *path], ended, running)
    played = Counter(path)
    lines = []
    for state in (START, *flow.roles):
        mark = "  (running)" if state == running else ""
        lines.append(f"{_NAMES.get(state, state)}{_times(played[state], 1)}{mark}")
        for rule in (candidate for candidate in flow.rules if candidate["from"] == state):
            to = rule["to"]
            when = rule["when"]
            count = taken[state, to]
            arrow = f"  {'==>' if count else '-->'} {_NAMES.get(to, to)}{_times(count, 2)}"
            lines.append(arrow + (f"  when {' '.join(when.split())}" if when else ""))
    return "\n".join(lines) + "\n"


_NAMES = {START: "start", END: "end"}


def _times(count: int, least: int) -> str:
    return f" ×{count}" if count >= least else ""


def _boxes(flow: Workflow, names: dict[str, str], played: Counter[str]) -> Iterator[str]:
    yield f'    {names[START]}(["start"])'
    for role in flow.roles:
        times = f" ×{played[role]}" if played[role] else ""
        yield f'    {names[role]}["{_escaped(role)}{times}"]'
    yield f'    {names[END]}(["end"])'


def _arrows(
    flow: Workflow, names: dict[str, str], taken: Counter[tuple[str, str]]
) -> Iterator[str]:
    edges: dict[tuple[str, str], list[str]] = {}
    for rule in flow.rules:
        edges.setdefault((rule["from"], rule["to"]), []).append(
            _escaped(condition_label(rule["when"]))
        )
    for (origin, to), conditions in edges.items():
        count = taken[origin, to]
        label = _label([condition for condition in conditions if condition], count)
        yield f"    {names[origin]} {'==>' if count else '-->'}{label} {names[to]}"


def _label(conditions: Iterable[str], count: int) -> str:
    parts = [*conditions, *([f"×{count}"] if count > 1 else [])]
    return f'|"{"<br>".join(parts)}"|' if parts else ""


def _escaped(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)

"""A workflow as a Mermaid flowchart, with the path of a thread through it.

Roles are boxes, rules are arrows with their conditions. A role that was played shows the count,
an arrow that was taken is thick; the running role is coloured. Which of two rules between the
same roles was taken is not recorded, so both are one arrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from engine.moderator.decision import END, START
from engine.workflow.registry import Workflow

MAX_LABEL_CHARS = 48  # of a condition
ESCAPES = {"&": "&amp;", '"': "&quot;", "<": "&lt;", ">": "&gt;", "|": "&#124;", "#": "&#35;"}


def mermaid(flow: Workflow, path: Sequence[str], ended: bool, running: str | None = None) -> str:
    """Returns the flowchart. `path`: the roles of the steps in order; `running`: the role of the
    pending step."""
    names = {START: "start_", END: "end_"}
    names |= {role: f"r{place}" for place, role in enumerate(flow.roles)}
    full = [START, *path, *([END] if ended else [running] if running else [])]
    taken = Counter(pairwise(full))
    played = Counter(path)
    lines = ["flowchart TD", *_boxes(flow, names, played)]
    lines += _arrows(flow, names, taken)
    lines += ["    classDef played stroke-width:3px", "    classDef running fill:#fd6"]
    if played:
        lines.append(f"    class {','.join(names[role] for role in played)} played")
    if running:
        lines.append(f"    class {names[running]} running")
    return "\n".join(lines) + "\n"


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
        edges.setdefault((rule["from"], rule["to"]), []).append(_condition(rule["when"]))
    for (origin, to), conditions in edges.items():
        count = taken[origin, to]
        label = _label([one for one in conditions if one], count)
        yield f"    {names[origin]} {'==>' if count else '-->'}{label} {names[to]}"


def _label(conditions: Iterable[str], count: int) -> str:
    parts = [*conditions, *([f"×{count}"] if count > 1 else [])]
    return f'|"{"<br>".join(parts)}"|' if parts else ""


def _condition(when: str | None) -> str:
    text = " ".join((when or "").split())
    return _escaped(text if len(text) <= MAX_LABEL_CHARS else text[: MAX_LABEL_CHARS - 1] + "…")


def _escaped(text: str) -> str:
    return "".join(ESCAPES.get(character, character) for character in text)

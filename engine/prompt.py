"""What an agent is told, in parts: a model agent sends them as messages, a command gets
the text of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Turn:
    """An earlier step as later ones see it."""

    index: int
    role: str
    output: str
    meta: Mapping[str, Any]

    def text(self) -> str:
        meta = json.dumps(self.meta, ensure_ascii=False, indent=2)
        return f"## Step {self.index}: {self.role}\n\n{self.output.strip()}\n\nRecorded as:\n{meta}"


@dataclass(frozen=True)
class Prompt:
    """`system`: who the role is; `task`: the thread's input; `history`: the steps so far;
    `ask`: what the output must hold; `correction`: what was wrong with the last output."""

    system: str
    task: str
    history: Sequence[Turn]
    ask: str
    schema: Mapping[str, Any]
    correction: str | None = None

    def corrected(self, fault: str) -> Prompt:
        return replace(self, correction=fault)

    def text(self) -> str:
        parts = [self.system, "# Task\n\n" + self.task]
        if self.history:
            parts.append("# What happened so far\n\n" + "\n\n".join(t.text() for t in self.history))
        parts.append("# What to report\n\n" + self.ask + "\n\n" + self._form())
        if self.correction:
            parts.append(f"# Correction\n\nYour last output was not usable: {self.correction}")
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def _form(self) -> str:
        schema = {key: value for key, value in self.schema.items() if key != "name"}
        return (
            "End with one fenced block marked `json` that holds a JSON object of this schema:\n\n"
            + json.dumps(schema, ensure_ascii=False)
        )

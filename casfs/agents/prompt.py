"""What an agent is told, in parts: a model agent sends them as messages, a command gets
the text of all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from casfs.agents.secrets import Secrets


@dataclass(frozen=True)
class EarlierStep:
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
    """`system`: who the role is; `task`: the thread's input; `history`: the steps so far, or
    since the one before which `summary` stands for all; `ask`: what the output must hold;
    `correction`: what was wrong with the last output; `origin`: for a thread that another one
    called, how to read that one's context."""

    system: str
    task: str
    history: Sequence[EarlierStep]
    ask: str
    schema: Mapping[str, Any]
    correction: str | None = None
    summary: str | None = None
    origin: str | None = None

    def corrected(self, fault: str) -> Prompt:
        return replace(self, correction=fault)

    def text(self) -> str:
        return f"{self.system.strip()}\n\n{self.question()}"

    def question(self, form: bool = True) -> str:
        """All but the system prompt; without `form`, not how the meta is to be written."""
        parts = ["# Task\n\n" + self.task]
        if self.origin:
            parts.append("# Who asks\n\n" + self.origin)
        if self.summary is not None or self.history:
            parts.append("# What happened so far\n\n" + self.history_text())
        report = [self.ask, self._form()] if form else [self.ask]
        parts.append("\n\n".join(["# What to report", *report]))
        if self.correction:
            parts.append(self.correction_text())
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def correction_text(self) -> str:
        """What was wrong with the last output: all that is new to who goes on with it."""
        return f"# Correction\n\nYour last output was not usable: {self.correction}"

    def redacted(self, secrets: Secrets) -> Prompt:
        """The same without the values of secrets."""
        if not secrets:
            return self
        texts = ("system", "task", "ask", "correction", "summary", "origin")
        fields = {name: secrets.redact_json(getattr(self, name)) for name in texts}
        turns = tuple(
            replace(turn, output=secrets.redact(turn.output), meta=secrets.redact_json(turn.meta))
            for turn in self.history
        )
        return replace(self, **fields, history=turns, schema=secrets.redact_json(self.schema))

    def history_text(self) -> str:
        """What happened so far, as text; empty before the first step."""
        before = [] if self.summary is None else [f"## Summary\n\n{self.summary.strip()}"]
        return "\n\n".join([*before, *(turn.text() for turn in self.history)])

    def _form(self) -> str:
        schema = {key: value for key, value in self.schema.items() if key != "name"}
        return (
            "End with one fenced block marked `json` that holds a JSON object of this schema:\n\n"
            + json.dumps(schema, ensure_ascii=False)
        )

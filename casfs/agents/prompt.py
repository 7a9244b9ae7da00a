"""The prompt of a step, in parts: a model agent sends them as messages, a program gets their
text on stdin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from casfs.agents.secrets import Secrets


@dataclass(frozen=True)
class EarlierStep:
    """A completed step as later prompts show it. `index`: from 1; `output`: all that the agent
    said; `meta`: the object extracted from it."""

    index: int
    role: str
    output: str
    meta: Mapping[str, Any]

    def text(self) -> str:
        """Returns the step as Markdown."""
        meta = json.dumps(self.meta, ensure_ascii=False, indent=2)
        return f"## Step {self.index}: {self.role}\n\n{self.output.strip()}\n\nRecorded as:\n{meta}"


@dataclass(frozen=True)
class Prompt:
    """`system`: the role's system prompt; `task`: the thread's input; `history`: earlier steps,
    oldest first, after those that `summary` stands for; `ask`: the facts that the output must
    hold; `schema`: the role-schema of its meta; `correction`: the fault of the last output;
    `origin`: for a child thread, how to read its caller's context; `hint`: of a person who resumed
    the step."""

    system: str
    task: str
    history: Sequence[EarlierStep]
    ask: str
    schema: Mapping[str, Any]
    correction: str | None = None
    summary: str | None = None
    origin: str | None = None
    hint: str | None = None

    def corrected(self, fault: str) -> Prompt:
        """Returns the same prompt with a correction."""
        return replace(self, correction=fault)

    def text(self) -> str:
        """Returns the whole prompt as Markdown."""
        return f"{self.system.strip()}\n\n{self.user_message()}"

    def user_message(self, output_format: bool = True) -> str:
        """Returns all but the system prompt; without `output_format`, the instructions on how to
        write the meta are left out."""
        parts = ["# Task\n\n" + self.task]
        if self.origin:
            parts.append("# Who asks\n\n" + self.origin)
        if self.summary is not None or self.history:
            parts.append("# What happened so far\n\n" + self.history_text())
        report = [self.ask, self._output_format()] if output_format else [self.ask]
        parts.append("\n\n".join(["# What to report", *report]))
        if self.hint:
            parts.append("# Hint\n\n" + self.hint)
        if self.correction:
            parts.append(self.correction_text())
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def correction_text(self) -> str:
        """Returns the correction alone: the only new part for an agent that keeps a session."""
        return f"# Correction\n\nYour last output was not usable: {self.correction}"

    def history_text(self) -> str:
        """Returns the summary and the earlier steps; empty before the first step."""
        before = [] if self.summary is None else [f"## Summary\n\n{self.summary.strip()}"]
        return "\n\n".join([*before, *(step.text() for step in self.history)])

    def redacted(self, secrets: Secrets) -> Prompt:
        """Returns the same prompt with the values of `secrets` replaced."""
        if not secrets:
            return self
        texts = ("system", "task", "ask", "correction", "summary", "origin", "hint")
        fields = {name: secrets.redact_json(getattr(self, name)) for name in texts}
        history = tuple(
            replace(step, output=secrets.redact(step.output), meta=secrets.redact_json(step.meta))
            for step in self.history
        )
        return replace(self, **fields, history=history, schema=secrets.redact_json(self.schema))

    def _output_format(self) -> str:
        schema = {key: value for key, value in self.schema.items() if key != "name"}
        return (
            "End with one fenced block marked `json` that holds a JSON object of this schema:\n\n"
            + json.dumps(schema, ensure_ascii=False)
        )

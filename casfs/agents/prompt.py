"""The prompt of a step, in parts: a model agent sends them as messages, a program gets their
text on stdin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from casfs import canonical
from casfs.agents.secrets import Secrets

BETWEEN = "\n\n"  # the parts of a prompt
AFTER = BETWEEN.__add__


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
        meta = canonical.indented(self.meta)
        return f"## Step {self.index}: {self.role}\n\n{self.output.strip()}\n\nRecorded as:\n{meta}"


@dataclass(frozen=True)
class Prompt:
    """`system`: the role's system prompt; `task`: the thread's input; `history`: earlier steps,
    oldest first, after those that `summary` stands for; `ask`: the facts that the output must
    hold; `schema`: the role-schema of its meta; `correction`: the fault of the last output;
    `origin`: for a child thread, how to read its caller's context; `hint`: of a person who resumed
    the step; `answer`: of a person to the agent's question; `instruction`: of the rule that chose
    the role."""

    system: str
    task: str
    history: Sequence[EarlierStep]
    ask: str
    schema: Mapping[str, Any]
    correction: str | None = None
    summary: str | None = None
    origin: str | None = None
    hint: str | None = None
    answer: str | None = None
    instruction: str | None = None

    def corrected(self, fault: str) -> Prompt:
        """Returns the same prompt with a correction."""
        return replace(self, correction=fault, answer=None)

    def text(self) -> str:
        """Returns the whole prompt as Markdown."""
        return self.system.strip() + AFTER(self.user_message())

    def user_message(self, output_format: bool = True) -> str:
        """Returns all but the system prompt; without `output_format`, the instructions on how to
        write the meta are left out."""
        steps = (step.text() for step in self.history)
        return (
            self.before_history() + "".join(map(AFTER, steps)) + self.after_history(output_format)
        )

    def before_history(self) -> str:
        """Returns the part of `user_message` that comes before the earlier steps."""
        parts = ["# Task\n\n" + self.task]
        if self.origin:
            parts.append("# Who asks\n\n" + self.origin)
        if self.summary is not None or self.history:
            parts.append("# What happened so far")
        if self.summary is not None:
            parts.append("## Summary\n\n" + self.summary)
        return BETWEEN.join(part.strip() for part in parts)

    def after_history(self, output_format: bool = True) -> str:
        """Returns the part of `user_message` that comes after them."""
        report = [self.ask, self._output_format()] if output_format else [self.ask]
        parts = [] if self.instruction is None else ["# Instruction\n\n" + self.instruction]
        parts.append(BETWEEN.join(["# What to report", *report]))
        if self.hint:
            parts.append("# Hint\n\n" + self.hint)
        if self.correction:
            parts.append(self.correction_text())
        if self.answer:
            parts.append("# Answer to your question\n\n" + self.answer)
        return "".join(AFTER(part.strip()) for part in parts) + "\n"

    def correction_text(self) -> str:
        """Returns the correction alone: the only new part for an agent that keeps a session."""
        return f"# Correction\n\nYour last output was not usable: {self.correction}"

    def redacted(self, secrets: Secrets) -> Prompt:
        """Returns the same prompt with the values of `secrets` replaced. The scanner has no say:
        its parts passed it before they were stored, and are proved as they are stored."""
        if not secrets:
            return self
        texts = ("system", "task", "ask", "correction", "summary", "origin", "hint", "answer")
        names = (*texts, "instruction")
        fields = {name: secrets.redact_values_in_json(getattr(self, name)) for name in names}
        history = tuple(
            replace(
                step,
                output=secrets.redact_values(step.output),
                meta=secrets.redact_values_in_json(step.meta),
            )
            for step in self.history
        )
        return replace(
            self, **fields, history=history, schema=secrets.redact_variables_in_json(self.schema)
        )

    def _output_format(self) -> str:
        schema = {key: value for key, value in self.schema.items() if key != "name"}
        return (
            "End with one fenced block marked `json` that holds a JSON object of this schema:\n\n"
            + json.dumps(schema, ensure_ascii=False)
        )

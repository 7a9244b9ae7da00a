"""The prompt's text, as a command agent reads it."""

from __future__ import annotations

import json
from typing import Any

from casfs.agents.prompt import EarlierStep, Prompt

SCHEMA = {"name": "status", "type": "object", "properties": {"é": {"const": "ü"}}}


def prompt(*history: EarlierStep, **more: Any) -> Prompt:
    return Prompt("You are the tester.\n", "Test it.", history, "Say how it went.", SCHEMA, **more)


def test_a_first_prompt_has_no_history_and_no_correction() -> None:
    assert prompt().text() == (
        "You are the tester.\n\n# Task\n\nTest it.\n\n# What to report\n\nSay how it went.\n\n"
        "End with one fenced block marked `json` that holds a JSON object of this schema:\n\n"
        '{"type": "object", "properties": {"é": {"const": "ü"}}}\n'
    )


def test_earlier_steps_are_told_in_order_with_their_facts() -> None:
    meta = {"status": "planned", "phases": ["ä"]}
    text = prompt(
        EarlierStep(1, "planner", "\nA plan.\n\n", meta), EarlierStep(2, "coder", "Done.", {})
    ).text()
    facts = json.dumps(meta, ensure_ascii=False, indent=2)
    first = f"## Step 1: planner\n\nA plan.\n\nRecorded as:\n{facts}"
    assert first + "\n\n## Step 2: coder\n\nDone.\n\nRecorded as:\n{}\n\n# What to report" in text
    assert text.index("# Task") < text.index("# What happened so far") < text.index("## Step 1")


def test_a_correction_comes_last_and_only_once() -> None:
    asked = prompt()
    again = asked.corrected("$: too short").corrected("$.status: missing")
    text = again.text()
    assert text.endswith("# Correction\n\nYour last output was not usable: $.status: missing\n")
    assert "too short" not in text
    assert text.startswith(asked.text().rstrip("\n"))
    assert asked.correction is None


def test_the_name_of_a_role_schema_is_not_shown_as_a_keyword() -> None:
    assert '"name"' not in prompt().text()

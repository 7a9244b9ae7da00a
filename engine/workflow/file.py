"""Workflow files: JSON or YAML, with what may be left out filled in.

A file's name stands for the workflow's, a role's key for its `name`, `<key>-meta` for the name of
its schema; texts, `when` and `schema` have defaults. `agent` of a role is its default agent, which
is not part of the definition: it is kept beside the workflow (`engine.workflow.registry`).
`workflow-file.json` describes the format for editors; `engine.workflow.definition` checks what
results from here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import Any

from casfs import canonical
from casfs.agents import notation
from casfs.agents.notation import AgentSpec
from casfs.canonical import member
from casfs.errors import Invalid
from engine import yaml_values
from engine.workflow.definition import WORKFLOW_NAME, CheckReport, check

YAML_ENDINGS = (".yaml", ".yml")
ENDINGS = (".json", *YAML_ENDINGS)
STDIN = "-"
EXTRACT_PROMPT = "Report what the schema below asks for."


@dataclass(frozen=True)
class WorkflowFile:
    """`definition`: in the form that `check` takes; `agents`: the default agents, by role;
    `faults`: of the agents, one line each; `yaml`: the text, where it is no JSON."""

    definition: Any
    agents: Mapping[str, AgentSpec]
    faults: tuple[str, ...] = ()
    yaml: str | None = None

    def check(self) -> CheckReport:
        report = check(self.definition)
        return self.with_lines(CheckReport([*report.errors, *self.faults], report.warnings))

    def with_lines(self, report: CheckReport) -> CheckReport:
        """Returns a report on this file in which a fault of a YAML value begins with its line."""
        if self.yaml is None or not (report.errors or report.warnings):
            return report
        lines = yaml_values.lines(self.yaml)

        def located(fault: str) -> str:
            location = fault.replace(".agent: config", ".agent.config", 1)
            known = [path for path in lines if _is_below(location, path)]
            return f"line {lines[max(known, key=len)]}: {fault}" if known else fault

        return CheckReport([*map(located, report.errors)], [*map(located, report.warnings)])


def _is_below(fault: str, path: str) -> bool:
    """Whether a fault is one of the value at `path`, or of a part of it."""
    return fault.startswith(path) and fault[len(path) : len(path) + 1] in (":", ".", "[")


def read(data: bytes, name: str) -> WorkflowFile:
    """Reads the content of the file `name` (- for stdin). Raises Invalid where it is not JSON
    or YAML."""
    text = _text(data)
    is_json = name.endswith(".json") or text.lstrip().startswith(("{", "["))
    is_yaml = name.endswith(YAML_ENDINGS) or not is_json
    value = yaml_values.document(text) if is_yaml else canonical.parse(text)
    workflow_file = complete(value, "" if name == STDIN else PurePath(name).stem)
    return replace(workflow_file, yaml=text) if is_yaml else workflow_file


def complete(value: object, stem: str = "") -> WorkflowFile:
    """Fills in what a file may leave out; `stem`: the file's name without its ending. Values of a
    wrong type are left for `check`."""
    if not isinstance(value, Mapping):
        return WorkflowFile(value, {})
    definition = {key: field for key, field in value.items() if key != "$schema"}
    if WORKFLOW_NAME.fullmatch(stem):
        definition = {"name": stem, **definition}
    agents: dict[str, AgentSpec] = {}
    faults = []
    roles = definition.get("roles")
    rules = definition.get("moderator")
    if isinstance(roles, Mapping):
        definition["roles"] = {key: _role(str(key), body) for key, body in roles.items()}
        for key, body in roles.items():
            if isinstance(body, Mapping) and "agent" in body:
                try:
                    spec = notation.from_value(body["agent"])
                    agents[key] = notation.resolved(spec, {})
                except Invalid as error:
                    faults.append(f"{member('$.roles', str(key))}.agent: {error}")
    if isinstance(rules, list):
        definition["moderator"] = [
            {"when": None, **rule} if isinstance(rule, Mapping) else rule for rule in rules
        ]
    return WorkflowFile({"description": "", **definition}, agents, tuple(faults))


def _role(key: str, body: object) -> object:
    if not isinstance(body, Mapping):
        return body
    texts = {"name": key, "description": "", "extractPrompt": EXTRACT_PROMPT}
    filled = {**texts, "schema": {"type": "object"}, **body}
    filled.pop("agent", None)
    if isinstance(filled["schema"], Mapping):
        filled["schema"] = {"name": f"{key}-meta", **filled["schema"]}
    return filled


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Invalid(f"byte {error.start} is not UTF-8") from None


@cache
def schema() -> dict[str, Any]:
    """Returns the JSON Schema of a workflow file."""
    text = resources.files("engine.workflow").joinpath("workflow-file.json").read_text("utf-8")
    document: dict[str, Any] = json.loads(text)
    return document

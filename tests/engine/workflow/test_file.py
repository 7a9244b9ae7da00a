"""Workflow files: JSON or YAML, what may be left out, default agents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casfs.errors import Invalid
from engine import yaml_values
from engine.workflow import file, shipped
from engine.workflow.definition import NO_ROLES, CheckReport, check

SHORT = b"""
roles:
  on: {systemPrompt: Begin.}
  no: {systemPrompt: End., schema: {type: object, properties: {status: {enum: [yes]}}}}
moderator:
  - {from: __start__, to: on}
  - {from: on, to: no, when: "$last('on').role = 'on'"}
  - {from: on, to: on}
  - {from: no, to: __end__}
"""
FULL = {
    "name": "mine",
    "description": "",
    "roles": {
        "on": {
            "name": "on",
            "description": "",
            "systemPrompt": "Begin.",
            "extractPrompt": file.EXTRACT_PROMPT,
            "schema": {"name": "on-meta", "type": "object"},
        },
        "no": {
            "name": "no",
            "description": "",
            "systemPrompt": "End.",
            "extractPrompt": file.EXTRACT_PROMPT,
            "schema": {
                "name": "no-meta",
                "type": "object",
                "properties": {"status": {"enum": ["yes"]}},
            },
        },
    },
    "moderator": [
        {"from": "__start__", "to": "on", "when": None},
        {"from": "on", "to": "no", "when": "$last('on').role = 'on'"},
        {"from": "on", "to": "on", "when": None},
        {"from": "no", "to": "__end__", "when": None},
    ],
}


@pytest.mark.parametrize("roles", [b"", b"roles:\n", b"roles: {}\n"])
def test_a_file_without_roles_says_what_to_add(roles: bytes) -> None:
    found = file.read(roles + b"moderator:\n  - {from: __start__, to: writer}\n", "mine.yaml")
    (fault,) = found.check().errors
    assert fault.removeprefix("line 1: ") == NO_ROLES
    added = b"roles: " + fault.rpartition("such as roles: ")[2].encode() + b"\n"
    rules = b"moderator: [{from: __start__, to: writer}, {from: writer, to: __end__}]\n"
    assert file.read(added + rules, "mine.yaml").check() == CheckReport([], [])


@pytest.mark.parametrize("name", ["mine.yaml", "./deep/mine.yml", "mine.txt", "mine"])
def test_what_is_left_out_is_filled_in(name: str) -> None:
    found = file.read(SHORT, name)
    assert (found.definition, found.agents) == (FULL, {})
    assert found.check() == CheckReport([], [])


def test_a_full_definition_is_not_changed() -> None:
    text = json.dumps({"$schema": "https://example.org/workflow-file.json", **FULL}).encode()
    for name in ("other.json", "-", "other.yaml", "other"):
        assert file.read(text, name).definition == FULL


def test_stdin_has_no_name() -> None:
    assert file.read(SHORT, "-").check().errors == ["$.name: missing"]
    assert file.read(SHORT, "a b.yaml").check().errors == ["$.name: missing"]


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        (b"{", "a.json", "not JSON"),
        (b"{", "-", "not JSON"),
        (b"a: 1", "a.json", "not JSON"),
        (b"{", "a.yaml", "not YAML: line 1, column 2"),
        (b"\xff", "a.yaml", "byte 0 is not UTF-8"),
        (b"name: a\nname: b", "a.yaml", "line 2, column 1: duplicate key 'name'"),
    ],
)
def test_what_does_not_parse(data: bytes, name: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        file.read(data, name)


@pytest.mark.parametrize(
    "value", [None, "x", [], {"roles": []}, {"roles": {"a": 1}, "moderator": [1]}]
)
def test_a_wrong_type_is_left_to_the_check(value: Any) -> None:
    assert file.complete(value, "w").check().errors


def with_agent(agent: Any) -> file.WorkflowFile:
    roles = {"a": {"systemPrompt": "", "agent": agent}}
    rules = [{"from": "__start__", "to": "a"}, {"from": "a", "to": "__end__"}]
    return file.complete({"roles": roles, "moderator": rules}, "w")


@pytest.mark.parametrize(
    ("agent", "name", "config"),
    [
        ("fast", "fast", {}),
        ("command:./run.sh --all 'a b'", "command", {"argv": ["./run.sh", "--all", "a b"]}),
        ('human:{"question": "?"}', "human", {"question": "?"}),
        ({"package": "mine", "version": ">=1", "config": {"a": [1]}}, "mine", {"a": [1]}),
    ],
)
def test_default_agents(agent: Any, name: str, config: dict[str, Any]) -> None:
    found = with_agent(agent)
    assert found.check() == CheckReport([], [])
    assert (found.agents["a"]["name"], found.agents["a"]["config"]) == (name, config)
    assert "agent" not in found.definition["roles"]["a"]


@pytest.mark.parametrize(
    ("agent", "said"),
    [
        (5, "must be a string, or a table of package, version, config"),
        ("", "give NAME"),
        ("fast:small", "fast has no short form"),
        ("command:", "command: must be followed by its argv"),
        ("command:'", "is not a command"),
        ({"config": {}}, "package is required"),
        ({"package": "a", "argv": []}, "argv: no such field; there are package, version, config"),
        ({"package": "a", "config": 1}, "config must be a table"),
        ({"package": "a", "version": 1}, "version must be a string"),
    ],
)
def test_faults_of_default_agents(agent: Any, said: str) -> None:
    (error,) = with_agent(agent).check().errors
    assert error.startswith("$.roles.a.agent: ")
    assert said in error


@pytest.mark.parametrize("name", shipped.files())
def test_shipped_files_have_no_fault(name: str) -> None:
    found = file.read(shipped.files()[name], name)
    assert found.check() == CheckReport([], [])
    assert check(found.definition) == CheckReport([], [])
    assert found.definition["name"] == name.rpartition(".")[0]


BROKEN = b"""# a comment
roles:
  writer:
    systemPrompt: [1]
    cacheable: 5
    agent: "command:"
  "odd: name": {}
moderator:
  - {from: __start__, to: writer}
  - from: writer
    to: nobody
"""


def test_faults_of_yaml_values_have_their_line() -> None:
    errors = file.read(BROKEN, "w.yaml").check().errors
    found = [error.split(": ")[:2] for error in errors]
    assert ["line 4", "$.roles.writer.systemPrompt"] in found
    assert ["line 5", "$.roles.writer.cacheable"] in found
    assert ["line 6", "$.roles.writer.agent"] in found
    assert ["line 11", "$.moderator[1].to"] in found
    assert 'line 7: $.roles["odd: name"].systemPrompt: missing' in errors
    assert len([error for error in errors if error.startswith("line ")]) == len(errors)
    data = json.dumps(yaml_values.document(BROKEN.decode())).encode()
    assert all(error.startswith("$") for error in file.read(data, "w.json").check().errors)
    assert file.read(BROKEN, "-").check().errors[0] == "$.name: missing"

"""The prompt of a rule: what the next role is told by the rule that chose it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.errors import Invalid
from casfs.store.nodes.registry import builtin
from casfs.store.store import Store
from casfs.threads import prompts, rule_prompts, threads
from casfs.threads.threads import ENDED, RUNNING, SUSPENDED, Thread
from engine.threads import suspension
from engine.workflow import file as workflow_file
from engine.workflow import registry as workflows
from engine.workflow.definition import check
from tests.support.engine import Cli, begin, carry_on, fork, rule, says, shell, workflow

REVIEW = {
    "name": "review",
    "type": "object",
    "properties": {
        "status": {"enum": ["approved", "rejected"]},
        "issues": {"type": "array", "items": {"type": "object"}},
        "by": {"type": "object", "properties": {"name": {"type": "string"}}},
    },
    "required": ["status"],
    "additionalProperties": False,
}
ASK = "{{ by.name }} says {{status}}: {{ issues.what }}{{ issues }}"


def told(**prompts: str) -> dict[str, Any]:
    """A writer and a critic; `prompts`: of the rules that begin, reject and approve."""
    rejected = "$last('critic').meta.status = 'rejected'"
    rules = {
        "begins": rule("__start__", "writer"),
        "written": rule("writer", "critic"),
        "rejects": rule("critic", "writer", rejected),
        "approves": rule("critic", "writer", "$count(steps) < 6"),
        "ends": rule("critic", "__end__"),
    }
    for name, text in prompts.items():
        rules[name]["prompt"] = text
    return workflow([*rules.values()], "told", writer=None, critic=REVIEW)


@pytest.fixture
def got(tmp_path: Path) -> Path:
    """Where the agents put what they got on stdin."""
    (tmp_path / "got").mkdir()
    return tmp_path / "got"


def agents(got: Path, *metas: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A writer, and a critic with a meta for each of its steps."""
    keep = f"cat >{got}/$CASFS_STEP\n"
    reports = [f"```json\n{json.dumps(one)}\n```" for one in metas]
    critic = shell(f'{keep}eval "printf \'%s\\n\' \\"\\${{$((CASFS_STEP / 2))}}\\""', *reports)
    return {"writer": says({}, keep), "critic": critic}


def instruction(text: str) -> str | None:
    """The part of a prompt that a rule handed over."""
    _, found, rest = text.partition("\n# Instruction\n\n")
    return rest.partition("\n\n# What to report\n")[0] if found else None


def check_rebuilt(store: Store, thread: Thread, got: Path) -> list[str | None]:
    """Every prompt is rebuilt as the agent got it; returns what the rules handed over."""
    found = []
    for node in threads.last_steps(store, thread, None):
        prompt = prompts.of_step(store, thread, node)
        assert (prompt.fault, prompt.text) == (None, (got / str(node.payload["index"])).read_text())
        found.append(instruction(prompt.text))
    return found


NO = {"status": "rejected", "issues": [{"what": "Übel"}, {"line": 1}], "by": {"name": "<b>"}}
YES = {"status": "approved"}
SAID = '<b> says rejected: ["Übel"][{"what": "Übel"}, {"line": 1}]'


async def test_the_next_role_is_told(disk_store: Store, got: Path) -> None:
    flow = told(begins="Go.", rejects=ASK, approves="Good: {{ status }}{{ by }}.")
    assert check(flow).errors == []
    ended = await carry_on(disk_store, begin(disk_store, flow, agents(got, NO, YES, YES)))
    assert ended.status == ENDED
    said = check_rebuilt(disk_store, ended, got)
    assert said == ["Go.", None, SAID, None, "Good: approved.", None]


async def test_which_of_two_rules_with_equal_ends_is_found(disk_store: Store, got: Path) -> None:
    flow = told(approves="Again.")
    ended = await carry_on(disk_store, begin(disk_store, flow, agents(got, NO, YES, YES)))
    assert check_rebuilt(disk_store, ended, got) == [None] * 4 + ["Again.", None]


async def test_it_is_the_same_after_a_restart_and_a_retry(disk_store: Store, got: Path) -> None:
    flow = told(rejects=ASK)
    flow["roles"]["writer"]["policy"] = {"retries": 1}
    bound = agents(got, NO, YES)
    keep = f"cat >{got}/$CASFS_STEP; echo >>{got}/runs"
    wait = f"[ $CASFS_STEP != 3 ] || [ -e {got}/go ] || sleep 600"
    fails = f"[ $CASFS_STEP != 3 ] || [ -e {got}/luck ] || {{ >{got}/luck; exit 1; }}"
    bound["writer"] = says({}, f"{keep}; {wait}; {fails}")
    made = begin(disk_store, flow, bound)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(carry_on, disk_store, made)
        while not (got / "runs").exists() or (got / "runs").read_text().count("\n") < 2:
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    now = threads.get(disk_store, made.id)
    assert now.status == RUNNING
    pending = prompts.of_pending_step(disk_store, now)
    assert pending is not None
    assert instruction(pending.text) == SAID
    (got / "go").touch()
    (got / "3").unlink()
    ended = await carry_on(disk_store, now)
    assert (got / "runs").read_text().count("\n") == 5, "cut off, failed, retried"
    assert check_rebuilt(disk_store, ended, got)[2] == SAID


async def test_a_resumed_step_and_a_fork_are_told(disk_store: Store, got: Path) -> None:
    bound = agents(got, NO, YES)
    bound["writer"] = says({}, f"cat >{got}/$CASFS_STEP; [ $CASFS_STEP != 3 ] || [ -e {got}/go ]")
    bound["writer"]["argv"][2] = "set -e; " + bound["writer"]["argv"][2]
    failed = await carry_on(disk_store, begin(disk_store, told(rejects=ASK), bound))
    assert failed.status == SUSPENDED
    (got / "go").touch()
    resumed = suspension.resume(disk_store, failed, hint="Try.")
    ended = await carry_on(disk_store, resumed)
    assert check_rebuilt(disk_store, ended, got)[2] == SAID
    other, _ = workflows.add(disk_store, told(rejects="Other: {{ status }}."))
    forked = await carry_on(disk_store, fork(disk_store, ended, 2, workflow=other))
    step = threads.step_at(disk_store, forked, 3)
    rebuilt = prompts.of_step(disk_store, forked, step)
    assert (rebuilt.fault, instruction(rebuilt.text)) == (None, "Other: rejected.")
    shared = prompts.of_step(disk_store, forked, threads.step_at(disk_store, forked, 1))
    assert shared.fault is None


def filled(text: str, meta: Any) -> str:
    return rule_prompts.filled({"prompt": text}, {"meta": meta}) or ""


def test_a_value_is_bounded_and_not_read_again() -> None:
    long = "x" * (rule_prompts.MAX_VALUE_CHARS + 5)
    text = filled("{{a}}|{{b}}", {"a": long, "b": "{{ a }}"})
    assert text == f"{long[:-5]}… (5 more characters)|{{{{ a }}}}"
    many = filled("{{a}}" * 20, {"a": long})
    assert len(many) < rule_prompts.MAX_CHARS + 40


@pytest.mark.parametrize("meta", [None, [], {"a": [1]}, {"a": None}, {"a": {"b": {}}}])
def test_a_missing_value_is_nothing(meta: Any) -> None:
    assert filled("<{{ a.b.c }}>", meta) in ("<>", "<[]>")


MUST = ".prompt: must be a text, in a rule that leads to a role; leave it out elsewhere"


@pytest.mark.parametrize(
    ("at", "text", "fault"),
    [
        ("rejects", "", MUST),
        ("rejects", 3, MUST),
        ("ends", "Bye.", MUST),
        ("rejects", "{{ a b }}", ".prompt: {{a b}} names no field; write {{ status }} or"),
        ("rejects", "{{}}", ".prompt: {{}} names no field"),
        ("begins", "{{ x }}", ".prompt: {{ x }}: __start__ follows no step"),
        ("rejects", "{{ stats }}", ".prompt: the schema of critic has no property 'stats'; there"),
    ],
)
def test_what_validate_finds(at: str, text: Any, fault: str) -> None:
    (error,) = check(told(**{at: text})).errors
    assert fault in error
    assert error.startswith("$.moderator[")


def test_a_property_that_an_open_schema_does_not_declare_is_a_warning() -> None:
    flow = told(rejects="{{ more }}")
    flow["roles"]["critic"]["schema"] = {**REVIEW, "additionalProperties": True}
    report = check(flow)
    assert report.errors == []
    assert "$.moderator[2].prompt: the schema of critic declares no property 'more'" in (
        report.warnings
    )


def test_a_workflow_without_one_keeps_its_hash(store: Store) -> None:
    hash, _ = workflows.add(store, told())
    assert "prompt" not in store.node(hash).payload["moderator"][0]
    other, _ = workflows.add(store, told(begins="Go."))
    assert store.node(other).payload["moderator"][0]["prompt"] == "Go."
    assert workflows.definition(store, other)["moderator"][0]["prompt"] == "Go."


def test_a_store_of_an_older_casfs_says_what_to_do(disk_store: Store) -> None:
    document = copy.deepcopy(builtin()["workflow"])
    del document["properties"]["moderator"]["items"]["properties"]["prompt"]
    with disk_store.batch() as batch:
        batch.put_schema(document, builtin=True)
    with Store.open(disk_store.root) as store:
        workflows.add(store, told())
        with pytest.raises(Invalid, match=r"moderator\[0\].*'prompt'.*`casfs init`"):
            workflows.add(store, told(begins="Go."))


FILE = """
roles:
  a: {systemPrompt: A., schema: {type: object, properties: {x: {type: string}}}}
  b: {systemPrompt: B.}
moderator:
  - {from: __start__, to: a}
  - from: a
    to: b
    prompt: |
      Look at {{ x }}.
  - {from: b, to: __end__}
"""


def test_the_command_line_shows_it(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    cli = Cli(disk_store.root, monkeypatch, capfdbinary)
    file = tmp_path / "two.yaml"
    file.write_text(FILE)
    found = workflow_file.read(FILE.encode(), "two.yaml")
    assert found.check().warnings == []
    (tmp_path / "two.json").write_text(json.dumps(found.definition))
    steps = b'[{"role": "a", "meta": {"x": "y\\u001b[2J"}}]'
    for one in (file, tmp_path / "two.json"):
        shown = cli("workflow", "next", one, "--steps", "-", stdin=steps).text
        assert shown.startswith("b\n\nLook at y")
        assert cli("workflow", "next", one, "--steps", "-", stdin=b"[]").text == "a\n"
        answer = cli("workflow", "next", one, "--steps", "-", "--json", stdin=steps)
        assert answer.json == {"next": "b", "prompt": "Look at y\x1b[2J.\n"}
    assert b"\x1b" not in cli("workflow", "next", file, "--steps", "-", stdin=steps).out
    cli("workflow", "add", file)
    assert "    prompt: Look at {{ x }}.\n" in cli("workflow", "show", "two").text
    assert cli("workflow", "next", "two", "--steps", "-", stdin=b'[{"role": "a"}]').text == (
        "b\n\nLook at .\n"
    )

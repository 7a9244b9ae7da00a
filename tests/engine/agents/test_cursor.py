"""The cursor agent against a stand-in that writes the documented stream of events."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import AgentContext, AgentFailed
from casfs.store.store import Store
from engine.agents import loader
from engine.agents.cursor import create_agent
from tests.support.agents import DONE, PROMPT, context

ID = "c6b62c6f-7ead-4fd6-9922-e952131177ff"
STAND_IN = """\
import json, os, sys

with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([os.getcwd(), os.environ.get("CURSOR_API_KEY"), sys.argv[1:]]) + "\\n")
print(open(os.environ["STREAM"]).read(), end="")
sys.stderr.write(os.environ.get("COMPLAINT", ""))
sys.exit(int(os.environ.get("CODE", "0")))
"""


def event(**fields: Any) -> dict[str, Any]:
    return {**fields, "session_id": ID}


def said(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return event(type="assistant", message=message)


def tool(subtype: str, id: str, kind: str, **call: Any) -> dict[str, Any]:
    return event(type="tool_call", subtype=subtype, call_id=id, tool_call={kind: call})


INIT = event(
    type="system",
    subtype="init",
    apiKeySource="login",
    cwd="/project",
    model="Claude 4 Sonnet",
    permissionMode="default",
)
ARGS = {"path": "README.md"}
FOUND = {"success": {"content": "# Project", "isEmpty": False, "totalLines": 1}}
RESULT = event(
    type="result", subtype="success", duration_ms=5234, is_error=False, result=f"I see.{DONE}"
)
STREAM = [
    INIT,
    event(type="user", message={"role": "user", "content": [{"type": "text", "text": "Do."}]}),
    said("I will read."),
    tool("started", "1", "readToolCall", args=ARGS),
    tool("started", "2", "function", name="grep", arguments='{"x": 1}'),
    tool("completed", "1", "readToolCall", args=ARGS, result=FOUND),
    event(type="thinking", subtype="delta", text="Hm."),
    said("I see."),
    RESULT,
]


@pytest.fixture
def given(store: Store, tmp_path: Path) -> AgentContext:
    (tmp_path / "cursor.py").write_text(STAND_IN)
    (tmp_path / "work").mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "CALLS": str(tmp_path / "calls"),
        "STREAM": str(tmp_path / "stream"),
    }
    return context(store, "cursor", env=env, workspace=tmp_path / "work")


async def run(given: AgentContext, events: list[Any], **more: Any) -> Any:
    lines = [one if isinstance(one, str) else json.dumps(one) for one in events]
    Path(given.env["STREAM"]).write_text("".join(f"{line}\n" for line in lines))
    config = {"argv": [sys.executable, str(Path(given.env["CALLS"]).parent / "cursor.py")], **more}
    loader.load("cursor").check_config(config)
    return await create_agent(config)(given)


def calls(given: AgentContext) -> list[Any]:
    return [json.loads(line) for line in Path(given.env["CALLS"]).read_text().splitlines()]


async def test_the_stream_becomes_nodes(given: AgentContext, store: Store) -> None:
    result = await run(given, STREAM)
    assert result.output == f"I see.{DONE}"
    detail = store.node(result.detail.hash, "cursor-detail").payload
    assert (detail["sessionId"], detail["model"]) == (ID, "Claude 4 Sonnet")
    assert len(store.get(detail["stream"]).splitlines()) == len(STREAM)

    def text(hash: str | None) -> str | None:
        return None if hash is None else store.node(hash, "content").payload["text"]

    turns = [
        (turn["kind"], turn["name"], text(turn["text"]), text(turn["result"]))
        for turn in (store.node(one, "cursor-turn").payload for one in detail["turns"])
    ]
    assert turns == [
        ("text", None, "I will read.", None),
        ("tool", "read", json.dumps(ARGS), json.dumps(FOUND)),
        ("tool", "grep", '{"x": 1}', None),
        ("text", None, "I see.", None),
    ]


async def test_a_store_of_an_older_casfs_has_its_turns_inline(
    given: AgentContext, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = store.registry.document(store.registry.head("cursor-detail").hash)
    properties = {**document["properties"], "turns": {"type": "array"}}
    with store.batch() as batch:
        batch.put_schema({**document, "properties": properties}, builtin=True)
    known = [name for name in store.registry.names() if name != "cursor-turn"]
    monkeypatch.setattr(type(store.registry), "names", lambda registry: known)
    result = await run(given, STREAM)
    detail = store.node(result.detail.hash, "cursor-detail").payload
    members = {"kind", "name", "text", "result"}
    assert [set(turn) for turn in detail["turns"]] == [members] * 4


async def test_how_it_is_called(given: AgentContext) -> None:
    given = replace(given, env={**given.env, "MY_KEY": "hunter2-hunter2"})
    await run(given, STREAM, model="gpt-5", force=True, apiKeyEnv="MY_KEY")
    ((where, key, argv),) = calls(given)
    assert (where, key) == (str(given.workspace), "hunter2-hunter2")
    options = "--print --output-format stream-json --model gpt-5 --force"
    assert argv == [*options.split(), PROMPT.text()]


async def test_a_correction_resumes_the_session(given: AgentContext) -> None:
    await run(given, STREAM)
    corrected = PROMPT.corrected("it has no block")
    await run(replace(given, prompt=corrected), STREAM)
    assert calls(given)[1][2][3:] == ["--resume", ID, corrected.correction_text()]


async def test_what_is_not_known_is_passed_over(given: AgentContext) -> None:
    odd = ["not JSON", "[1]", event(type="new", x=1), {"type": "tool_call"}, {"type": "assistant"}]
    assert (await run(given, [INIT, *odd, RESULT])).output == f"I see.{DONE}"


@pytest.mark.parametrize(
    ("events", "env", "reason"),
    [
        (
            [INIT, said("Half")],
            {"CODE": "1", "COMPLAINT": "one moment\nno login"},
            "with 1: no login",
        ),
        ([INIT], {}, "with 0: no result in its stream"),
        ([INIT, {**RESULT, "is_error": True, "result": "limit"}], {}, "with 0: limit"),
        ([], {"CODE": "2"}, "with 2: no result"),
    ],
)
async def test_it_breaks_and_leaves_what_it_did(
    events: list[Any], env: dict[str, str], reason: str, given: AgentContext, store: Store
) -> None:
    with pytest.raises(AgentFailed, match=f"^cursor exited {reason}") as raised:
        await run(replace(given, env={**given.env, **env}), events)
    assert raised.value.detail is not None
    store.node(raised.value.detail, "cursor-detail")


async def test_its_tokens_count(given: AgentContext) -> None:
    usage = {"inputTokens": 40, "outputTokens": 2, "cacheReadTokens": 8, "odd": 5}
    result = await run(given, [event(type="result", result=DONE, usage=usage)])
    assert result.tokens == 50

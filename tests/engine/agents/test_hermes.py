"""The hermes agent against a stand-in that writes what the CLI is documented to write."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import AgentContext, AgentFailed
from casfs.errors import Refused
from casfs.store.store import Store
from engine.agents import loader
from engine.agents.hermes import create_agent
from tests.support.agents import DONE, PROMPT, context

STAND_IN = """\
import json, os, sys
from pathlib import Path

ID = "20260518_223724_45ab80"
args = sys.argv[1:]
home = Path(os.environ["HERMES_HOME"])
with open(home / "calls", "a") as calls:
    calls.write(json.dumps([os.getcwd(), args]) + "\\n")
function = {"name": "terminal", "arguments": '{"command": "ls"}'}
call = {"id": "1", "type": "function", "function": function}
messages = [
    {"role": "user", "content": args[-1]},
    {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "Look first."},
    {"role": "tool", "content": "a.txt", "tool_call_id": "1"},
    {"role": "assistant", "content": "Done.", "finish_reason": "stop"},
]
mode = os.environ["STAND_IN"]
session = {"id": ID, "session_id": ID, "model": "qwen-plus", "messages": messages}
chats = (home / "calls").read_text().count('"chat"')
session |= json.loads(os.environ.get("ALSO", "{}"))
session |= {"input_tokens": 50 * chats, "output_tokens": 7}
if args[:2] == ["sessions", "export"]:
    assert args[2:] == ["-", "--session-id", ID], args
    if mode == "file":
        sys.exit("no such command: sessions")
    print("{broken" if mode == "unreadable" else json.dumps(session))
elif mode == "broken":
    sys.exit("no provider is configured")
else:
    assert args[:2] == ["chat", "--quiet"] and args[-2] == "-q", args
    print(os.environ["SAYS"])
    if mode == "file":
        (home / "sessions").mkdir()
        (home / "sessions" / f"session_{ID}.json").write_text(json.dumps(session))
    if mode != "silent":
        print(f"\\nsession_id: {ID}", file=sys.stderr if mode == "stderr" else sys.stdout)
"""
ID = "20260518_223724_45ab80"


@pytest.fixture
def given(store: Store, tmp_path: Path) -> AgentContext:
    (tmp_path / "hermes.py").write_text(STAND_IN)
    (tmp_path / "work").mkdir()
    env = {
        "PATH": os.environ["PATH"],
        "HERMES_HOME": str(tmp_path),
        "STAND_IN": "stdout",
        "SAYS": DONE,
    }
    return context(store, "hermes", env=env, workspace=tmp_path / "work")


def config(given: AgentContext, **more: Any) -> dict[str, Any]:
    return {"argv": [sys.executable, given.env["HERMES_HOME"] + "/hermes.py"], **more}


def calls(given: AgentContext) -> list[Any]:
    lines = (Path(given.env["HERMES_HOME"]) / "calls").read_text().splitlines()
    return [json.loads(line) for line in lines]


def mode(given: AgentContext, name: str, **more: str) -> AgentContext:
    return replace(given, env={**given.env, "STAND_IN": name, **more})


@pytest.mark.parametrize("name", ["stdout", "stderr"])
async def test_the_session_becomes_nodes(name: str, given: AgentContext, store: Store) -> None:
    result = await create_agent(config(given))(mode(given, name))
    assert result.output == DONE + "\n"
    detail = store.node(result.detail.hash, "hermes-detail").payload
    assert (detail["sessionId"], detail["model"], detail["turnCount"]) == (ID, "qwen-plus", 4)
    turns = [store.node(turn, "hermes-turn").payload for turn in detail["turns"]]
    assert [turn["index"] for turn in turns] == [0, 1, 2, 3]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "tool", "assistant"]
    assert turns[1] == {
        "index": 1,
        "role": "assistant",
        "content": "",
        "toolCalls": [{"name": "terminal", "args": '{"command": "ls"}'}],
        "reasoning": "Look first.",
    }
    assert (turns[3]["content"], turns[3]["reasoning"]) == ("Done.", None)


async def test_how_it_is_called(given: AgentContext) -> None:
    more = {"model": "x/y", "provider": "auto", "toolsets": "file,terminal", "yolo": True}
    loader.load("hermes").check_config(config(given, **more))
    await create_agent(config(given, **more))(given)
    (where, argv), _ = calls(given)
    assert where == str(given.workspace)
    options = "chat --quiet --model x/y --provider auto --toolsets file,terminal --yolo -q"
    assert argv == [*options.split(), PROMPT.text()]


async def test_its_tokens_count_once(given: AgentContext) -> None:
    agent = create_agent(config(given))
    first = await agent(given)
    again = await agent(replace(given, prompt=given.prompt.corrected("no")))
    assert (first.tokens, again.tokens) == (57, 50)


async def test_a_correction_resumes_the_session(given: AgentContext) -> None:
    agent = create_agent(config(given))
    await agent(given)
    corrected = PROMPT.corrected("it has no block")
    await agent(replace(given, prompt=corrected))
    (argv,) = [argv for _, argv in calls(given) if "--resume" in argv]
    assert argv == ["chat", "--quiet", "--resume", ID, "-q", corrected.correction_text()]


async def test_a_session_that_cannot_be_read(given: AgentContext, store: Store) -> None:
    result = await create_agent(config(given))(mode(given, "unreadable"))
    assert result.output == DONE + "\n"
    assert store.node(result.detail.hash, "hermes-detail").payload["turns"] == []


@pytest.mark.parametrize(
    ("messages", "calls"),
    [
        (5, []),
        ("text", []),
        ([{"role": "x", "tool_calls": True}], [[]]),
        ([{"role": "x", "tool_calls": [{"function": "f"}]}], [[{"name": "", "args": ""}]]),
    ],
)
async def test_a_session_of_another_form_fails_no_step(
    messages: Any, calls: list[Any], given: AgentContext, store: Store
) -> None:
    also = json.dumps({"messages": messages})
    result = await create_agent(config(given))(mode(given, "stdout", ALSO=also))
    turns = store.node(result.detail.hash, "hermes-detail").payload["turns"]
    assert [store.node(turn, "hermes-turn").payload["toolCalls"] for turn in turns] == calls


async def test_no_session_id(given: AgentContext) -> None:
    with pytest.raises(AgentFailed, match="printed no session_id"):
        await create_agent(config(given))(mode(given, "silent"))


async def test_it_breaks(given: AgentContext) -> None:
    with pytest.raises(AgentFailed, match=r"^hermes exited with 1: no provider is configured$"):
        await create_agent(config(given))(mode(given, "broken"))


async def test_a_prompt_that_is_too_long(given: AgentContext) -> None:
    prompt = replace(PROMPT, task="x" * 130_000)
    with pytest.raises(Refused, match="compact the thread"):
        await create_agent(config(given))(replace(given, prompt=prompt))


async def test_a_session_that_is_only_a_file_is_read(given: AgentContext, store: Store) -> None:
    result = await create_agent(config(given))(mode(given, "file"))
    detail = store.node(result.detail.hash, "hermes-detail").payload
    assert (detail["model"], detail["turnCount"], result.tokens) == ("qwen-plus", 4, 57)
    assert "warning" not in detail


async def test_a_session_that_is_nowhere_is_a_warning(given: AgentContext, store: Store) -> None:
    result = await create_agent(config(given))(mode(given, "unreadable"))
    detail = store.node(result.detail.hash, "hermes-detail").payload
    assert detail["warning"].startswith(f"hermes gave no messages of session {ID}")

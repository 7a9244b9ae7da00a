"""What real agents do that the protocol does not say, seen in tests/agents_real."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from casfs.agents.secrets import NO_SECRETS
from casfs.store.store import Store
from casfs.threads.live_output import LiveOutput
from engine.acp import protocol
from engine.acp.recorder import Recorder
from tests.support import acp_agent
from tests.support.acp import DONE, Script, session, start, text
from tests.support.agents import context
from tests.support.engine import carry_on, steps


async def test_a_child_that_keeps_the_pipes_open_does_not_hide_the_end(
    disk_store: Store, tmp_path: Path
) -> None:
    """qwen is such a pair: the first process starts the second, which speaks."""
    script = Script(tmp_path, [{"kill": 9}, DONE])
    argv = [sys.executable, acp_agent.__file__, str(script.file)]
    given = {"argv": ["sh", "-c", 'sleep 600 & exec "$@"', "sh", *argv]}
    failed = await carry_on(disk_store, start(disk_store, given))
    assert failed.record["reason"] == "a: sh exited with -9: no output"


async def test_a_question_tells_what_a_tool_call_is(disk_store: Store, tmp_path: Path) -> None:
    """qwen sends no more of a tool call than its end, hermes asks under ids of their own."""
    about = {"title": "rm a.txt", "kind": "execute", "rawInput": {"command": "rm a.txt"}}
    asks = [{"permission": {"tool": {"toolCallId": id, **about}}} for id in ("1", "of-question")]
    end = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "status": "completed"}
    script = Script(tmp_path, [*asks, {"update": end}, DONE])
    given = script.config(permissions="allow")
    ended = await carry_on(disk_store, start(disk_store, given))
    (step,) = steps(disk_store, ended)
    _, turns = session(disk_store, step["detail"])
    (hash,) = turns[0]["toolCalls"]
    call = disk_store.node(hash, "react-tool-call").payload
    assert (call["name"], call["kind"], call["status"]) == ("rm a.txt", "execute", "completed")
    assert json.loads(text(disk_store, call["arguments"])) == about["rawInput"]
    (kept,) = json.loads(text(disk_store, turns[-1]["updates"]))
    assert kept["permission"] == {"toolCallId": "of-question", **about}


async def test_what_the_client_offers_is_in_the_config(disk_store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [DONE])
    for files in (True, False):
        await carry_on(disk_store, start(disk_store, script.config(files=files)))
    found = [one["params"]["clientCapabilities"]["fs"] for one in script.got("initialize")]
    assert found == [dict.fromkeys(("readTextFile", "writeTextFile"), one) for one in (True, False)]


def usage(given: int, got: int) -> dict[str, Any]:
    figures = {"inputTokens": given, "outputTokens": got, "totalTokens": given + got}
    return {"stopReason": "end_turn", "usage": figures}


QUOTA = {"quota": {"token_count": {"input_tokens": 7, "output_tokens": 2}}}


@pytest.mark.parametrize(
    ("agent", "answers", "spent"),
    [
        ("hermes-agent 0.19.0", [usage(20, 5), usage(50, 9)], [[20, 5], [30, 4]]),
        ("OpenCode 1.18.33", [usage(20, 5), usage(20, 5)], [[20, 5], [20, 5]]),
        ("gemini-cli 0.61.0", [{"stopReason": "end_turn", "_meta": QUOTA}], [[7, 2]]),
        ("qwen-code 0.15.10", [{"stopReason": "end_turn"}], [[]]),
    ],
)
async def test_tokens_of_a_prompt(
    agent: str, answers: list[Any], spent: list[list[int]], store: Store
) -> None:
    await protocol.load()
    recorder = Recorder(context(store, "acp"), LiveOutput(None, NO_SECRETS))
    found = [recorder.spent(protocol.read("PromptResponse", one), agent) for one in answers]
    assert found == spent

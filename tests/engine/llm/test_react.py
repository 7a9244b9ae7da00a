"""Agents that are models: what they are asked, what is recorded, how the conversation goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import AgentContext, AgentFailed, AgentResult
from casfs.errors import CasfsError
from casfs.store.graph import walk
from casfs.store.nodes.schema import Schema
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import CANCELLED
from engine.agents import llm, loader, react
from engine.workflow import registry as workflows
from tests.support.agents import DONE, PROMPT, context
from tests.support.engine import ONE, daemon, until
from tests.support.model_server import Model, Say, served, status, text, tool_calls

NOW = {"Retry_After": "0"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    (made / "a.txt").write_text("hello\n")
    return made


def action(tool: str, thought: str = "hm", **arguments: Any) -> str:
    return json.dumps({"thought": thought, "action": {"tool": tool, "arguments": arguments}})


FINISH = action("finish", report="All is well.", meta={"status": "done"})


async def asked(
    given: AgentContext, model: Model, agent: Any = react, **config: Any
) -> AgentResult:
    settings = {"baseUrl": model.url, "model": "m", **config}
    loader.load(agent.package_descriptor["name"]).check_config(settings)
    result: AgentResult = await agent.create_agent(settings)(given)
    return result


def session(store: Store, hash: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The payload of a react-session and those of its turns."""
    payload = store.node(hash, "react-session").payload
    return payload, [store.node(turn, "react-turn").payload for turn in payload["turns"]]


def content(store: Store, hash: str) -> str:
    found: str = store.node(hash, "content").payload["text"]
    return found


def roles(model: Model, request: int) -> list[str]:
    return [message["role"] for message in model.asked[request]["messages"]]


# -- llm ----------------------------------------------------------------------------------


async def test_one_call(store: Store) -> None:
    given = context(store, "llm")
    with served(text(DONE, 30, 12)) as model:
        result = await asked(given, model, llm, temperature=0, maxTokens=9, options={"seed": 1})
    assert (result.output, result.artifacts) == (DONE, ())
    (body,) = model.asked
    assert (body["temperature"], body["max_tokens"], body["seed"]) == (0, 9, 1)
    assert body["messages"] == [
        {"role": "system", "content": "You are it."},
        {"role": "user", "content": PROMPT.user_message()},
    ]
    payload, (turn,) = session(store, result.detail.hash)
    assert (payload["agent"], payload["role"]) == (given.agent, "tester")
    assert payload["totalTokens"] == 42
    assert turn["tokens"] == {"input": 30, "output": 12}
    assert turn["toolCalls"] == []
    assert content(store, turn["output"]) == DONE
    said = content(store, turn["input"])
    assert said == f"[system]\nYou are it.\n\n[user]\n{PROMPT.user_message()}"


async def test_an_answer_that_is_the_meta(store: Store) -> None:
    with served(text('{"status": "done"}')) as model:
        result = await asked(context(store, "llm"), model, llm, reply="json", strict=True)
    assert result.output == '```json\n{"status": "done"}\n```\n'
    form = model.asked[0]["response_format"]["json_schema"]
    assert form["strict"] is True
    assert form["schema"] == {key: PROMPT.schema[key] for key in PROMPT.schema if key != "name"}
    assert "fenced block" not in model.asked[0]["messages"][1]["content"]


async def test_a_correction_is_the_next_turn(store: Store) -> None:
    given = context(store, "llm")
    with served(text("I forgot."), text(DONE)) as model:
        await asked(given, model, llm)
        corrected = replace(given, prompt=PROMPT.corrected("it has no block"))
        result = await asked(corrected, model, llm)
    assert model.asked[1]["messages"] == [
        *model.asked[0]["messages"],
        {"role": "assistant", "content": "I forgot."},
        {"role": "user", "content": PROMPT.corrected("it has no block").correction_text()},
    ]
    _, (turn,) = session(store, result.detail.hash)
    assert content(store, turn["input"]) == "[user]\n" + corrected.prompt.correction_text()


async def test_another_try_is_another_conversation(store: Store) -> None:
    given = context(store, "llm")
    with served(text("one"), text("two")) as model:
        await asked(given, model, llm)
        await asked(given, model, llm)
    assert model.asked[1]["messages"] == model.asked[0]["messages"]


async def test_a_server_that_refuses(store: Store) -> None:
    with served(status(401, "who are you")) as model, pytest.raises(AgentFailed) as raised:
        await asked(context(store, "llm"), model, llm)
    assert str(raised.value) == "HTTP 401: who are you"
    assert raised.value.detail is not None
    assert session(store, raised.value.detail)[0]["turns"] == []


async def test_the_key_comes_from_the_variable_that_the_config_names(store: Store) -> None:
    env = {"THE_KEY": "hunter2-hunter2", "BASE": ""}
    with served(text(DONE)) as model:
        env["BASE"] = model.url
        config = {"baseUrlEnv": "BASE", "model": "m", "apiKeyEnv": "THE_KEY"}
        await llm.create_agent(config)(context(store, "llm", env=env))
    assert model.headers[0]["authorization"] == "Bearer hunter2-hunter2"


@pytest.mark.parametrize("config", [{"baseUrl": "x", "apiKeyEnv": "GONE"}, {"baseUrlEnv": "GONE"}])
async def test_a_variable_that_is_not_set(config: dict[str, str], store: Store) -> None:
    with pytest.raises(CasfsError, match=r"^GONE is not set, neither by the command"):
        await llm.create_agent({"model": "m", **config})(context(store, "llm"))


@pytest.mark.parametrize(
    "config",
    [
        {"model": "m"},
        {"baseUrl": "x"},
        {"baseUrl": "x", "baseUrlEnv": "Y", "model": "m"},
        {"baseUrl": "x", "model": "m", "apiKey": "hunter2"},
        {"baseUrl": "x", "model": "m", "tools": ["read_file"]},
    ],
)
def test_configs_that_do_not_fit(config: dict[str, Any]) -> None:
    with pytest.raises(CasfsError, match=r"^config"):
        loader.load("llm").check_config(config)


# -- react, native ------------------------------------------------------------------------


async def test_tools_are_used_until_there_is_an_answer(store: Store, folder: Path) -> None:
    first = tool_calls(
        ("read_file", '{"path": "a.txt"}'), ("list_dir", "{}"), given=100, got=20, said="Looking."
    )
    second = tool_calls(("write_file", '{"path": "b.txt", "text": "bye"}'), given=150, got=10)
    seen: list[str] = []

    async def turn(hash: str) -> None:
        seen.append(hash)

    given = context(store, workspace=folder, turn=turn)
    with served(first, second, text(DONE, 180, 30)) as model:
        result = await asked(given, model)
    assert result.output == DONE
    assert (folder / "b.txt").read_text() == "bye"
    assert roles(model, 2) == "system user assistant tool tool assistant tool".split()
    assistant, one, two = model.asked[1]["messages"][2:]
    assert assistant["content"] == "Looking."
    assert [call["id"] for call in assistant["tool_calls"]] == ["id0", "id1"]
    assert (one["tool_call_id"], one["content"]) == ("id0", "hello\n")
    assert (two["tool_call_id"], two["content"]) == ("id1", "a.txt 6")
    payload, turns = session(store, result.detail.hash)
    assert payload["totalTokens"] == 100 + 20 + 150 + 10 + 180 + 30
    assert [turn["tokens"]["input"] for turn in turns] == [100, 150, 180]
    assert [len(turn["toolCalls"]) for turn in turns] == [2, 1, 0]
    assert payload["turns"] == seen
    call = store.node(turns[0]["toolCalls"][0], "react-tool-call").payload
    assert call["name"] == "read_file"
    assert content(store, call["arguments"]) == '{"path": "a.txt"}'
    assert content(store, call["result"]) == "hello\n"
    assert content(store, turns[0]["output"]).startswith("Looking.\n[calls read_file]")
    assert content(store, turns[1]["input"]) == "[tool]\nhello\n\n\n[tool]\na.txt 6"
    assert len(list(walk(store, [result.detail.hash]))) >= 1 + 1 + 3 + 3


async def test_what_was_put_is_an_artifact(store: Store) -> None:
    put = tool_calls(("cas_put", '{"text": "found"}'))
    with served(put, put, text(DONE)) as model:
        result = await asked(context(store), model)
    (hash,) = result.artifacts
    assert content(store, hash) == "found"


async def test_what_is_no_tool_or_no_json_is_told(store: Store, folder: Path) -> None:
    bad = tool_calls(("fly", "{}"), ("read_file", '{"path": '), ("read_file", '{"path": "../x"}'))
    with served(bad, text(DONE)) as model:
        await asked(context(store, workspace=folder), model)
    results = [message["content"] for message in model.asked[1]["messages"][3:]]
    assert all(result.startswith("error: ") for result in results)


async def test_the_last_turn_can_only_report(store: Store, folder: Path) -> None:
    look = tool_calls(("list_dir", "{}"))
    with served(look, look, text(DONE)) as model:
        result = await asked(context(store, workspace=folder), model, maxTurns=3)
    assert result.output == DONE
    assert "tools" in model.asked[1]
    assert "tools" not in model.asked[2]
    assert "last turn" in model.asked[2]["messages"][-1]["content"]


async def test_only_the_tools_that_the_config_names(store: Store, folder: Path) -> None:
    with served(text(DONE)) as model:
        await asked(context(store, workspace=folder), model, tools=["search", "cas_get"])
    names = [tool["function"]["name"] for tool in model.asked[0]["tools"]]
    assert names == ["search", "cas_get"]


async def test_a_failure_keeps_the_session_so_far(store: Store, folder: Path) -> None:
    look = tool_calls(("list_dir", "{}"), given=5, got=6)
    said = pytest.raises(AgentFailed, match="context too long")
    with served(look, status(400, "context too long")) as model, said as raised:
        await asked(context(store, workspace=folder), model)
    assert raised.value.detail is not None
    payload, turns = session(store, raised.value.detail)
    assert (payload["totalTokens"], len(turns)) == (11, 1)


async def test_a_correction_goes_on_after_the_tools(store: Store, folder: Path) -> None:
    given = context(store, workspace=folder)
    with served(tool_calls(("list_dir", "{}")), text("Done."), text(DONE)) as model:
        await asked(given, model)
        result = await asked(replace(given, prompt=PROMPT.corrected("no block")), model)
    assert roles(model, 2) == "system user assistant tool assistant user".split()
    assert session(store, result.detail.hash)[0]["totalTokens"] == 15


async def test_it_asks_again_as_it_should(store: Store) -> None:
    with served(status(429, "slow", **NOW), text(DONE)) as model:
        result = await asked(context(store), model)
    assert session(store, result.detail.hash)[0]["totalTokens"] == 15


def test_a_turn_is_seen_as_soon_as_it_is_over(disk_store: Store) -> None:
    """And a thread that is cancelled lets go of its server at once."""
    gone = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        gone.wait(60)

    root = disk_store.root
    workflows.add(disk_store, ONE)
    with served(tool_calls(("cas_put", '{"text": "x"}')), hang) as model, daemon(root):
        config = {"baseUrl": model.url, "model": "m"}
        bound = {"a": {"name": "react", "config": config}}
        request = partial(daemon_socket.request, root)
        try:
            made = request("start", workflow="sample", input="Go.", agents=bound)
            until(lambda: len(model.asked) == 2, "the second turn")
            intent = threads.get(disk_store, made["id"]).record["intent"]
            (turn,) = intent["turns"]
            assert len(disk_store.node(turn, "react-turn").payload["toolCalls"]) == 1
            request("cancel", id=made["id"])
            assert not gone.is_set()
        finally:
            gone.set()
        assert threads.get(disk_store, made["id"]).status == CANCELLED


def test_a_log_tells_of_a_turn_while_the_step_goes_on(disk_store: Store) -> None:
    go_on = threading.Event()

    def late(handler: BaseHTTPRequestHandler) -> None:
        go_on.wait(60)
        text(DONE)(handler)

    root = disk_store.root
    workflows.add(disk_store, ONE)
    with served(tool_calls(("cas_put", '{"text": "x"}')), late) as model, daemon(root):
        bound = {"a": {"name": "react", "config": {"baseUrl": model.url, "model": "m"}}}
        made = daemon_socket.request(root, "start", workflow="sample", input="Go.", agents=bound)
        argv = ["--store", str(root), "thread", "log", made["id"], "--follow", "--json"]
        follower = subprocess.Popen(
            [sys.executable, "-m", "casfs", *argv], stdout=subprocess.PIPE, text=True
        )
        try:
            assert follower.stdout is not None
            assert json.loads(follower.stdout.readline())["event"] == "started"
            # The tool call may be seen before its turn is recorded.
            lines = map(json.loads, iter(follower.stdout.readline, ""))
            turn = next(line for line in lines if "turn" in line)
            assert (turn["index"], turn["turn"], turn["type"]) == (1, 1, "react-turn")
            assert threads.get(disk_store, made["id"]).hash == made["start"]
            go_on.set()
            rest = [json.loads(line) for line in follower.stdout.read().splitlines()]
            assert [one["turn"] for one in rest[:-1] if "turn" in one] in ([], [2])
            assert (rest[-1]["index"], rest[-1]["output"]) == (1, DONE)
            assert follower.wait(60) == 0
        finally:
            go_on.set()
            follower.kill()
            follower.communicate()


# -- react, actions in JSON ---------------------------------------------------------------


async def test_actions(store: Store, folder: Path) -> None:
    script: list[Say] = [text(action("read_file", path="a.txt"), 9, 4), text(FINISH, 20, 6)]
    with served(*script) as model:
        result = await asked(context(store, workspace=folder), model, mode="json")
    assert result.output == 'All is well.\n\n```json\n{\n  "status": "done"\n}\n```\n'
    assert "tools" not in model.asked[0]
    system, user = model.asked[0]["messages"]
    assert "- read_file:" in system["content"]
    assert "fenced block" not in user["content"]
    assert model.asked[1]["messages"][-1] == {
        "role": "user",
        "content": "Result of read_file:\nhello\n",
    }
    payload, turns = session(store, result.detail.hash)
    assert payload["totalTokens"] == 39
    assert [len(turn["toolCalls"]) for turn in turns] == [1, 0]
    call = store.node(turns[0]["toolCalls"][0], "react-tool-call").payload
    assert json.loads(content(store, call["arguments"])) == {"path": "a.txt"}


async def test_the_schema_of_an_action(store: Store, folder: Path) -> None:
    with served(text(FINISH)) as model:
        await asked(context(store, workspace=folder), model, mode="json", tools=["read_file"])
    document = model.asked[0]["response_format"]["json_schema"]["schema"]
    schema = Schema(document)
    for good in (FINISH, action("read_file", path="x"), action("read_file", path="x", line=3)):
        schema.check(json.loads(good))
    for bad in (
        action("fly"),
        action("read_file"),
        action("read_file", thought="x" * 501, path="x"),
        action("finish", report="", meta={}),
        action("finish", report="", meta={"status": "perhaps"}),
        action("finish", meta={"status": "done"}),
    ):
        with pytest.raises(CasfsError):
            schema.check(json.loads(bad))


async def test_the_last_action_can_only_be_the_report(store: Store, folder: Path) -> None:
    script = [text(action("list_dir")), text(FINISH)]
    with served(*script) as model:
        await asked(context(store, workspace=folder), model, mode="json", maxTurns=2)
    last = model.asked[1]["response_format"]["json_schema"]["schema"]
    with pytest.raises(CasfsError):
        Schema(last).check(json.loads(action("list_dir")))
    Schema(last).check(json.loads(FINISH))


@pytest.mark.parametrize("said", ["no JSON", "{}", '{"action": 1}', '"x"', "[" * 10_000])
async def test_what_is_no_action_is_told(said: str, store: Store) -> None:
    with served(text(said), text(FINISH)) as model:
        result = await asked(context(store), model, mode="json")
    last = model.asked[1]["messages"][-1]
    assert last == {"role": "user", "content": "error: your answer is not an action in JSON"}
    assert session(store, result.detail.hash)[0]["totalTokens"] == 30


async def test_an_action_that_was_cut_off(store: Store) -> None:
    with served(text('{"thought": "I', finish="length"), text(FINISH)) as model:
        await asked(context(store), model, mode="json")
    assert "cut off" in model.asked[1]["messages"][-1]["content"]


async def test_it_never_comes_to_an_end(store: Store) -> None:
    said = pytest.raises(AgentFailed, match=r"^no report within 3 turns$")
    with served(*[text("no")] * 3) as model, said as raised:
        await asked(context(store), model, mode="json", maxTurns=3)
    assert raised.value.detail is not None
    assert len(session(store, raised.value.detail)[1]) == 3

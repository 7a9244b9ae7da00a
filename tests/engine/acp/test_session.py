"""An agent that speaks ACP plays a role: sessions, records, corrections, and what goes wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import json_rpc
from casfs.errors import Invalid
from casfs.store.graph import walk
from casfs.store.store import Store
from casfs.threads import attempt_details
from casfs.threads.threads import ENDED, SUSPENDED
from casfs.trees import tree
from engine.acp import client, protocol
from engine.agents import loader
from engine.processes import subprocesses
from engine.threads import suspension
from engine.threads.record import Budget
from tests.support.acp import DONE, USAGE, Script, honest, session, start, text
from tests.support.engine import STATUS, alive, carry_on, loop, resumed, steps
from tests.support.new_store import init_store


async def test_what_an_agent_does_is_recorded_as_turns_and_tool_calls(
    disk_store: Store, tmp_path: Path
) -> None:
    edit = {
        "id": "1",
        "title": "Edit a.txt",
        "kind": "edit",
        "input": {"path": "a.txt"},
        "output": "edited",
        "locations": [{"path": "a.txt", "line": 3}, {"path": "/etc/x"}],
        "diffs": [{"path": "a.txt", "oldText": "one\n", "newText": "two\n"}],
        "more": {"_meta": {"new": 1}},
    }
    plan = {"content": "Look", "priority": "high", "status": "pending"}
    script = Script(
        tmp_path,
        [
            {"think": "Hm. "},
            {"think": "Grüße."},
            {"say": "I will "},
            {"say": "edit."},
            {"update": {"sessionUpdate": "plan", "entries": [plan]}},
            {"update": {"sessionUpdate": "of_tomorrow", "x": [1]}},
            {"tool": edit},
            DONE,
            {"stop": "end_turn", "usage": USAGE},
        ],
    )
    ended = await carry_on(disk_store, start(disk_store, script.config()))
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(disk_store, ended)
    assert step["meta"] == {"status": "done"}
    detail, turns = session(disk_store, step["detail"])
    first, last = turns
    assert (detail["totalTokens"], detail["stopReason"]) == (30, "end_turn")
    assert detail["agentName"] == "scripted 1.0"
    assert "Do it." in text(disk_store, first["input"])
    assert text(disk_store, first["thoughts"]) == "Hm. Grüße."
    assert text(disk_store, first["output"]) == "I will edit."
    assert first["plan"] == [plan]
    assert json.loads(text(disk_store, first["updates"])) == [
        {"sessionUpdate": "of_tomorrow", "x": [1]}
    ]
    assert text(disk_store, last["output"]) == DONE["say"]
    assert last["tokens"] == {"input": 20, "output": 10}
    call = disk_store.node(first["toolCalls"][0], "react-tool-call").payload
    assert (call["name"], call["kind"], call["status"]) == ("Edit a.txt", "edit", "completed")
    assert json.loads(text(disk_store, call["arguments"])) == {"path": "a.txt"}
    assert text(disk_store, call["result"]) == "edited"
    assert call["locations"] == [{"path": "a.txt", "line": 3}, {"path": "/etc/x", "line": None}]
    (diff,) = call["diffs"]
    blobs = [disk_store.get(diff[name]) for name in ("old", "new")]
    assert (diff["path"], *blobs) == ("a.txt", b"one\n", b"two\n")
    assert json.loads(text(disk_store, call["more"])) == {"_meta": {"new": 1}}


async def test_a_correction_is_the_next_prompt_of_the_same_process(
    disk_store: Store, tmp_path: Path
) -> None:
    script = Script(tmp_path, [{"say": "Well."}], [{"say": "Hm."}], [DONE])
    ended = await carry_on(disk_store, start(disk_store, script.config(), loop(1, STATUS)))
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(disk_store, ended)
    assert step["extraction"] == "correction"
    first, *corrections = script.prompts()
    assert "Do it." in first
    assert [one.startswith("# Correction\n\nYour last output") for one in corrections] == [
        True,
        True,
    ]
    assert len({one["pid"] for one in script.got()}) == 1
    assert not alive(script.got()[0]["pid"])
    _, turns = session(disk_store, step["detail"])
    assert [text(disk_store, one["input"]) for one in turns] == corrections[1:]


async def test_a_person_answers_two_questions_of_one_step(
    disk_store: Store, tmp_path: Path
) -> None:
    ask = [
        {"permission": {"tool": {"toolCallId": f"c{n}", "title": f"rm {n}", "kind": "execute"},
         "yes": [{"say": f"{n} allowed. "}], "no": [{"say": f"{n} denied. "}]}}
        for n in (1, 2)
    ]  # fmt: skip
    write = {"tool": {"id": "w", "title": "write", "write": "made.txt", "output": "x"}}
    prompts = [[write, *ask, DONE], [*ask, DONE]]
    script = Script(tmp_path, *prompts, load=True, again=[[*ask, DONE]], replay=[{"say": "old"}])
    asked = await carry_on(disk_store, start(disk_store, script.config()))
    assert (asked.record["cause"], asked.record["reason"]) == ("human", "a: may it do this? rm 1")
    assert "rm 1" in text(disk_store, asked.record["question"])
    assert script.got("session/cancel")
    again = suspension.resume(disk_store, asked, "allow")
    asked = await carry_on(disk_store, again)
    assert asked.record["reason"] == "a: may it do this? rm 2"
    ended = await carry_on(disk_store, suspension.resume(disk_store, asked, "no, not that"))
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(disk_store, ended)
    _, turns = session(disk_store, step["detail"])
    assert text(disk_store, turns[-1]["output"]) == "1 allowed. 2 denied. " + DONE["say"]
    assert len(script.got("session/new")) == 1
    assert len(script.got("session/load")) == 2
    assert "Answer: no, not that" in script.prompts()[-1]
    made = tree.resolve(disk_store, step["workspace"], b"made.txt")
    assert disk_store.get(made.digest.hash) == b"x\n"


async def test_an_agent_that_is_killed_goes_on_with_its_session(
    disk_store: Store, tmp_path: Path
) -> None:
    crash = [
        {"say": "Begun."},
        {"tool": {"id": "1", "title": "look"}},
        {"stderr": "oh"},
        {"kill": 9},
    ]
    script = Script(tmp_path, crash, load=True, again=[[DONE]], replay=[{"say": "Begun."}])
    failed = await carry_on(disk_store, start(disk_store, script.config()))
    assert failed.record["reason"] == f"a: {sys.executable} exited with -9: oh"
    ended = await resumed(disk_store, failed)
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(disk_store, ended)
    _, turns = session(disk_store, step["detail"])
    assert [text(disk_store, one["output"]) for one in turns] == [DONE["say"]]
    assert "You were interrupted" in script.prompts()[-1]
    assert "Do it." not in script.prompts()[-1]


async def test_one_that_cannot_load_its_session_is_told_what_it_had_done(
    disk_store: Store, tmp_path: Path
) -> None:
    crash = {
        "do": [{"tool": {"id": "1", "title": "look"}}, {"exit": 3}],
        "file": f"{tmp_path}/once",
    }
    script = Script(tmp_path, [{"say": "Begun."}, {"once": crash}, DONE])
    failed = await carry_on(disk_store, start(disk_store, script.config()))
    assert "exited with 3: no output" in failed.record["reason"]
    ended = await resumed(disk_store, failed)
    assert ended.status == ENDED, ended.record["reason"]
    assert "Do it." in script.prompts()[-1]
    assert "Begun.\n- look (completed)" in script.prompts()[-1]


async def test_what_is_no_message_is_counted_and_does_no_harm(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rpc, "MAX_LINE_BYTES", 300_000)
    hostile: list[Any] = [
        "not JSON",
        "[1, 2]",
        "[" * 100_000,
        '{"jsonrpc": "2.0", "id": 99, "result": 1}',
        '{"jsonrpc": "2.0", "method": "session/update", "params": 7}',
        '{"jsonrpc": "2.0", "method": "session/update", "params": {"update": {"x": []}}}',
        '{"jsonrpc": "2.0", "method": "of/tomorrow", "params": {"x": NaN}}',
    ]
    updates: list[dict[str, Any]] = [
        {"sessionUpdate": "tool_call", "toolCallId": 7, "title": None},
        {"sessionUpdate": "tool_call_update", "toolCallId": "u", "status": "completed",
         "content": [{"type": "content", "content": {"type": "image", "data": ""}}],
         "locations": "none", "kind": ["k"]},
        {"sessionUpdate": "plan", "entries": [{"content": 1}]},
        {"sessionUpdate": "usage_update", "used": -1, "size": "x"},
    ]  # fmt: skip
    script = Script(
        tmp_path,
        [
            *({"raw": line} for line in hostile),
            *({"update": one} for one in updates),
            {"say": "lone \ud800, \x1b[31m, \u202e"},
            DONE,
        ],
    )
    ended = await carry_on(disk_store, start(disk_store, script.config()))
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(disk_store, ended)
    detail, turns = session(disk_store, step["detail"])
    assert detail["malformedLines"] == 3
    assert disk_store.get(detail["malformed"]).startswith(b"not JSON\n[1, 2]\n[[[[")
    said = text(disk_store, turns[-1]["output"])
    assert said == "lone \ufffd, \x1b[31m, \u202e" + DONE["say"]
    assert detail["loneSurrogates"] == 1
    kept = "".join(text(disk_store, one["updates"]) for one in turns if "updates" in one)
    assert "\\ud800" in kept
    assert all(name in kept for name in ("of/tomorrow", '"toolCallId": 7', '"used": -1'))


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"version": 2}, "speaks version 2 of ACP, casfs 1"),
        ({"errors": {"session/new": {"code": -32000, "message": "who"}}}, "must be logged in"),
        ({"errors": {"session/prompt": {"code": 5, "message": "no\nway"}}}, "no way"),
        (
            {"errors": {"session/set_mode": {"code": 5, "message": "?"}}},
            "does not take mode 'fast'",
        ),
    ],
)
async def test_why_an_agent_does_not_start_is_one_line(
    disk_store: Store, tmp_path: Path, more: dict[str, Any], reason: str
) -> None:
    script = Script(tmp_path, [DONE], **more)
    failed = await carry_on(disk_store, start(disk_store, script.config(mode="fast")))
    assert failed.status == SUSPENDED
    assert reason in failed.record["reason"]
    assert not alive(script.got()[0]["pid"])


async def test_a_program_that_does_not_speak_it_fails(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "HANDSHAKE_S", 0.3)
    failed = await carry_on(disk_store, start(disk_store, {"argv": ["sleep", "600"]}))
    assert failed.record["reason"] == "a: sleep does not answer; is it an agent that speaks ACP?"


async def test_login_mode_and_model_are_as_the_config_says(
    disk_store: Store, tmp_path: Path
) -> None:
    option = {"id": "m", "name": "Model", "category": "model", "type": "select",
              "currentValue": "a", "options": []}  # fmt: skip
    errors = {"session/new": {"code": -32000, "message": "log in"}}
    script = Script(tmp_path, [DONE], errors=errors, new={"configOptions": [option]})
    config = script.config(login="key", mode="fast", model="b", env={"SOME": "thing"})
    ended = await carry_on(disk_store, start(disk_store, config))
    assert ended.status == ENDED, ended.record["reason"]
    assert script.got("authenticate")[0]["params"] == {"methodId": "key"}
    assert script.got("session/set_mode")[0]["params"]["modeId"] == "fast"
    chosen = script.got("session/set_config_option")[0]["params"]
    assert (chosen["configId"], chosen["value"]) == ("m", "b")
    honest(script)
    (step,) = steps(disk_store, ended)
    detail, _ = session(disk_store, step["detail"])
    assert (detail["agentName"], detail["model"]) == ("scripted 1.0", "b")


@pytest.mark.parametrize(
    ("state", "model"),
    [
        ({"models": {"currentModelId": "local/x", "availableModels": []}}, "local/x"),
        ({"configOptions": [{"id": "m", "category": "model", "currentValue": "y"}]}, "y"),
        ({"configOptions": [{"id": "m", "category": "mode", "currentValue": "y"}]}, ""),
        ({"configOptions": [{"id": "m", "currentValue": "y"}]}, ""),
        ({"models": {"currentModelId": 7}, "configOptions": ["x", {"category": "model"}]}, ""),
        ({"models": [], "configOptions": {}}, ""),
        (None, ""),
    ],
)
def test_the_model_that_an_agent_names(state: Any, model: str) -> None:
    assert protocol.current_model(state) == model


@pytest.mark.parametrize("how", ["", "deaf"])
async def test_one_that_hangs_is_cancelled_and_all_that_it_started_ends(
    disk_store: Store, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CANCEL_GRACE_S", 0.2)
    monkeypatch.setattr(subprocesses, "TERM_GRACE_S", 0.2)
    script = Script(tmp_path, [{"spawn": 600}, {"say": "Hm."}, {"hang": how}])
    failed = await carry_on(disk_store, start(disk_store, script.config(timeoutS=1.5)))
    assert failed.record["cause"] == "timeout"
    assert failed.record["reason"] == f"a: {sys.executable} took longer than 1.5 s"
    (entry,) = failed.record["attempts"]
    _, turns = session(disk_store, attempt_details.detail(disk_store, entry) or "")
    assert text(disk_store, turns[0]["output"]) == "Hm."
    assert how or script.got("session/cancel")
    (child,) = (one["child"] for one in script.lines() if "child" in one)
    assert not alive(child)


async def test_a_secret_is_redacted_wherever_the_agent_says_it(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "hunter2-hunter2")
    leak = {"id": "1", "title": "hunter2-hunter2", "input": ["hunter2-hunter2"],
            "output": "hunter2-hunter2", "more": {"x": "hunter2-hunter2"}}  # fmt: skip
    script = Script(
        tmp_path,
        [{"say": "hunter2-"}, {"say": "hunter2"}, {"tool": leak}, {"stderr": "hunter2-hunter2"},
         {"raw": "hunter2-hunter2"}, DONE],
    )  # fmt: skip
    ended = await carry_on(disk_store, start(disk_store, script.config(secrets=["MY_KEY"])))
    assert ended.status == ENDED, ended.record["reason"]
    found = [disk_store.get(hash) for hash in walk(disk_store, [ended.hash])]
    assert not [data for data in found if b"hunter2-hunter2" in data]
    held = sorted(data for data in found if b"$MY_KEY" in data)
    assert len(held) == 5, held  # the result and what was said are one node


async def test_no_part_of_a_secret_is_left_where_a_text_is_cut(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hunter2-abcdefghijklmnopqrstuvwxyz-0123456789"
    monkeypatch.setenv("MY_KEY", secret)
    monkeypatch.setattr(client, "MAX_STDERR_BYTES", 1000)
    block = [{"type": "text", "text": part} for part in (secret[:20], secret[20:])]
    kinds = ("agent_message_chunk", "agent_thought_chunk")
    spread = [
        {"sessionUpdate": kind, "content": one, "_meta": {"x": 1}}
        for kind in kinds
        for one in block
    ]
    script = Script(
        tmp_path,
        [*({"update": one} for one in spread), {"tool": {"id": "1", "title": "x" * 180 + secret}},
         {"raw": "x" * 1000 + secret}, {"stderr": "x" * 1500 + secret + "x" * 980},
         {"sleep": 0.2}, {"exit": 3}],
    )  # fmt: skip
    more = {"errors": {"session/prompt": {"code": 5, "message": "x" * 280 + secret}}}
    reasons = []
    for one in (script, Script(tmp_path, [], **more)):
        failed = await carry_on(disk_store, start(disk_store, one.config(secrets=["MY_KEY"])))
        assert failed.status == SUSPENDED
        reasons.append(failed.record["reason"])
        found = [disk_store.get(hash) for hash in walk(disk_store, failed.record["attempts"])]
        parts = (secret[:12].encode(), secret[15:27].encode(), secret[-12:].encode())
        assert not [data for data in found for part in parts if part in data]
    assert not [part for part in parts for reason in reasons if part.decode() in reason]


async def test_a_spent_budget_suspends_the_thread(disk_store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [DONE, {"stop": "end_turn", "usage": USAGE}])
    begun = start(disk_store, script.config(), loop(3), budget=Budget(tokens=50))
    suspended = await carry_on(disk_store, begun)
    assert suspended.record["reason"] == "budget: 60 of 50 tokens are spent"
    assert len(steps(disk_store, suspended)) == 2


async def test_counts_of_a_session_and_of_each_call(disk_store: Store, tmp_path: Path) -> None:
    """The usage of an answer is that of the whole session, for some agents; others count each
    model call."""
    more = {"totalTokens": 50, "inputTokens": 35, "outputTokens": 15}
    block = {"type": "text", "text": ""}
    call = {"sessionUpdate": "agent_message_chunk", "content": block,
            "_meta": {"usage": {"inputTokens": 7, "outputTokens": 2}}}  # fmt: skip
    script = Script(
        tmp_path,
        [{"say": "?"}, {"stop": "end_turn", "usage": USAGE}],
        [{"update": call}, {"tool": {"id": "1"}}, DONE, {"stop": "end_turn", "usage": more}],
        name="hermes-agent",
    )
    ended = await carry_on(disk_store, start(disk_store, script.config(), loop(1, STATUS)))
    (step,) = steps(disk_store, ended)
    detail, turns = session(disk_store, step["detail"])
    assert detail["totalTokens"] == 20
    assert turns[0]["tokens"] == {"input": 7, "output": 2}
    assert ended.record["spent"]["tokens"] == 50


async def test_numbers_that_no_node_holds(disk_store: Store, tmp_path: Path) -> None:
    many = 10**30
    call = {"id": "1", "locations": [{"path": "a.txt", "line": many}]}
    usage = {"totalTokens": many, "inputTokens": many, "outputTokens": 0}
    script = Script(tmp_path, [{"tool": call}, DONE, {"stop": "end_turn", "usage": usage}])
    ended = await carry_on(disk_store, start(disk_store, script.config()))
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(disk_store, ended)
    assert session(disk_store, step["detail"])[0]["totalTokens"] == 10**12


async def test_without_the_extra_the_reason_says_how_to_get_it(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "_loaded", [])
    monkeypatch.setitem(sys.modules, "acp.schema", None)
    failed = await carry_on(disk_store, start(disk_store, Script(tmp_path, [DONE]).config()))
    assert "ACP needs an extra: pip install 'casfs-store[acp]'" in failed.record["reason"]


@pytest.mark.parametrize("env", [{"MY_API_KEY": "x"}, {"X": "sk-abcdefgh"}, {"a=b": "x"}, {"X": 1}])
def test_a_config_holds_no_key(env: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match=r"^config\.env"):
        loader.resolve("acp", "", {"argv": ["x"], "env": env})
    assert loader.resolve("acp", "", {"argv": ["x"], "env": {"MAX_TOKENS": "5"}})


async def test_a_store_of_an_older_casfs_gets_what_its_schemas_have(
    disk_store: Store, tmp_path: Path
) -> None:
    new = {"react-session": "stderr", "react-turn": "thoughts", "react-tool-call": "diffs"}
    for name, member in new.items():
        document = dict(disk_store.registry.document(disk_store.registry.current(name)))
        required = set(document["required"])
        kept = {key: one for key, one in document["properties"].items() if key in required}
        assert member not in kept
        with disk_store.batch() as batch:
            batch.put_schema({**document, "properties": kept}, builtin=True)
    with Store.open(disk_store.root or Path()) as store:
        script = Script(tmp_path, [{"think": "Hm."}, {"tool": {"id": "1", "kind": "edit"}}, DONE])
        ended = await carry_on(store, start(store, script.config()))
        assert ended.status == ENDED, ended.record["reason"]
        (step,) = steps(store, ended)
        assert "sessionId" not in session(store, step["detail"])[0]
    init_store(disk_store.root or Path()).close()
    with Store.open(disk_store.root or Path()) as store:
        ended = await carry_on(store, start(store, script.config()))
        assert "sessionId" in session(store, steps(store, ended)[0]["detail"])[0]

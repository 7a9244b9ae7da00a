"""An agent that speaks ACP plays a role: sessions, records, corrections, and what goes wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from casfs.store import Store
from casfs.threads import ENDED, Thread
from casfs.trees import tree
from engine.threads import lifecycle, suspension
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support import acp_agent
from tests.support.engine import ONE, STATUS, alive, carry_on, loop, resumed, steps
from tests.support.helpers import put_tree

USAGE = {"totalTokens": 30, "inputTokens": 20, "outputTokens": 10}
DONE = {"say": 'Done.\n```json\n{"status": "done"}\n```'}


class Script:
    """A scripted agent's file and log."""

    def __init__(self, folder: Path, *prompts: list[dict[str, Any]], **more: Any) -> None:
        self.file, self.log = folder / "script.json", folder / "agent.log"
        self.file.write_text(json.dumps({"log": str(self.log), "prompts": prompts, **more}))

    def config(self, **more: Any) -> dict[str, Any]:
        return {"argv": [sys.executable, acp_agent.__file__, str(self.file)], **more}

    def got(self, method: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [one for one in found if method is None or one.get("method") == method]

    def prompts(self) -> list[str]:
        return [one["params"]["prompt"][0]["text"] for one in self.got("session/prompt")]


def start(
    store: Store, config: dict[str, Any], definition: dict[str, Any] = ONE, **more: Any
) -> Thread:
    hash, _ = workflows.add(store, definition)
    bound = {role: Binding("acp", config) for role in definition["roles"]}
    tree = put_tree(store, {"a.txt": b"one\n"})
    return lifecycle.create(store, ThreadRequest(hash, "Do it.", bound, tree, **more))


def session(store: Store, hash: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The payload of a react-session and those of its turns."""
    payload = store.node(hash, "react-session").payload
    return payload, [store.node(turn, "react-turn").payload for turn in payload["turns"]]


def text(store: Store, hash: str) -> str:
    return str(store.node(hash, "content").payload["text"])


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

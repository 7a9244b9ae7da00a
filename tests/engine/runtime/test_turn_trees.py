"""Trees of turns: each tool call that changed files has one, and a fork can begin at any."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from casfs.checkpoints import revisions
from casfs.digest import TreeHash
from casfs.errors import Failed, Invalid, NotFound
from casfs.history import blame, details, log, versions
from casfs.maintenance import gc
from casfs.store.store import Store
from casfs.threads import attempt_details, threads
from casfs.threads.threads import ENDED, SUSPENDED, Thread
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces.desk import Desk
from engine.agents import loader
from engine.threads import forking, lifecycle, suspension
from engine.threads.agent_binding import NO_BINDINGS, Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.acp import DONE as ACP_DONE
from tests.support.acp import Script
from tests.support.acp import start as start_acp
from tests.support.engine import ONE, STATUS, carry_on, loop, says, steps
from tests.support.helpers import put_tree
from tests.support.model_server import Model, Say, served, status, text, tool_calls

DONE = '```json\n{"status": "done"}\n```'


def write(path: str, data: str) -> tuple[str, str]:
    return "write_file", json.dumps({"path": path, "text": data})


LOOK = ("read_file", '{"path": "a.txt"}')


def react(model: Model, **more: Any) -> Binding:
    return Binding("react", {"baseUrl": model.url, "model": "m", "turnTrees": True, **more})


def start(store: Store, agent: Binding, definition: dict[str, Any] = ONE) -> Thread:
    hash, _ = workflows.add(store, definition)
    root = put_tree(store, {"a.txt": b"one\n"})
    bound = dict.fromkeys(definition["roles"], agent)
    return lifecycle.create(store, ThreadRequest(hash, "Do it.", bound, RecordedState(root)))


def fork(
    store: Store, thread: Thread, at: str, agents: Mapping[str, Binding] = NO_BINDINGS, **more: Any
) -> Thread:
    return forking.fork(store, thread, at, [agents], options=forking.ForkOptions(**more))[0]


def files(store: Store, root: str) -> dict[bytes, bytes]:
    return {path: store.get(one.digest.hash) for path, one in tree.walk(store, root)}  # type: ignore[union-attr]


def session(store: Store, thread: Thread, index: int = -1) -> list[dict[str, Any]]:
    detail = store.node(steps(store, thread)[index]["detail"], "react-session").payload
    return [store.node(one, "react-turn").payload for one in detail["turns"]]


def at(store: Store, thread: Thread, turn: str) -> dict[bytes, bytes]:
    return files(store, revisions.resolve_tree(store, f"{thread.id}@{turn}"))


SCRIPT = [
    tool_calls(write("b.txt", "b\n")),
    tool_calls(LOOK),
    tool_calls(write("b.txt", "b\nc\n"), write("d.txt", "d\n")),
    text(DONE),
]
ONLY, TWO = {b"a.txt": b"one\n"}, {b"a.txt": b"one\n", b"b.txt": b"b\n"}
ALL = {**TWO, b"b.txt": b"b\nc\n", b"d.txt": b"d\n"}


async def test_a_tree_for_each_tool_call_that_changed_files(disk_store: Store) -> None:
    with served(*SCRIPT) as model:
        ended = await carry_on(disk_store, start(disk_store, react(model)))
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(disk_store, ended)
    turns = session(disk_store, ended)
    assert [at(disk_store, ended, f"1.{n}") for n in (1, 2, 3, 4)] == [TWO, TWO, ALL, ALL]
    assert files(disk_store, step["workspace"]) == ALL
    assert turns[-1]["workspace"] == step["workspace"]
    assert [files(disk_store, one["before"]) for one in turns if "before" in one] == [ONLY, TWO]
    calls = [
        disk_store.node(call, "react-tool-call").payload
        for one in turns
        for call in one["toolCalls"]
    ]
    trees = [one.get("workspace") for one in calls]
    assert trees[1] is None, "a tool that only reads"
    assert files(disk_store, trees[2]) == {**TWO, b"b.txt": b"b\nc\n"}
    assert trees[3] == step["workspace"]


async def test_without_the_setting_nothing_is_added(disk_store: Store) -> None:
    with served(*SCRIPT) as model:
        off = react(model)
        off = Binding(off.name, {key: one for key, one in off.config.items() if key != "turnTrees"})
        ended = await carry_on(disk_store, start(disk_store, off))
    assert ended.status == ENDED
    for turn in session(disk_store, ended):
        assert not {"workspace", "before", "messages"} & turn.keys()
    with pytest.raises(NotFound, match="turn 1 has no tree; see `thread start --turn-trees`"):
        at(disk_store, ended, "1.1")


async def test_blame_names_the_turn_by_its_tree(disk_store: Store) -> None:
    """A shell command whose arguments have nothing of the line."""
    shell = ("run_command", json.dumps({"command": "tr a-z A-Z <b.txt >e.txt"}))
    script = [tool_calls(write("b.txt", "b\n")), tool_calls(shell), text(DONE)]
    with served(*script) as model:
        ended = await carry_on(disk_store, start(disk_store, react(model, allowShell=True)))
    assert ended.status == ENDED, ended.record["reason"]
    place, path = versions.find(disk_store, f"{ended.id}:e.txt")
    (line,) = details.lines(disk_store, blame.blame(place, path))
    assert (line["turn"], line["tool"]) == (2, "run_command")
    assert line["version"]["revision"] == f"{ended.id}@1.2"
    assert at(disk_store, ended, "1.2")[b"e.txt"] == b"B\n"
    place, path = versions.find(disk_store, f"{ended.id}:a.txt")
    (line,) = details.lines(disk_store, blame.blame(place, path))
    assert (line["turn"], line["version"]["step"]) == (None, 0)


async def test_blame_and_log_from_a_turn(disk_store: Store) -> None:
    """Its tree is that of no step; also while the step is pending."""
    first = [tool_calls(write("b.txt", "b\n")), text(DONE)]
    second = [
        tool_calls(write("b.txt", "b\nc\n")),
        tool_calls(LOOK),
        tool_calls(write("b.txt", "b\nc\nd\n")),
        tool_calls(write("b.txt", "b\n")),
    ]
    with served(*first, *second, status(400, "no"), text(DONE)) as model:
        thread = await carry_on(disk_store, start(disk_store, react(model), loop(2, STATUS)))
        assert thread.status == SUSPENDED
        ended = await carry_on(disk_store, fork(disk_store, thread, "2.4"))
        assert ended.status == ENDED, ended.record["reason"]
    for id in (thread.id, ended.id):
        for turn, wrote in {"2.3": ["1.1", "2.1", "2.3"], "2.2": ["1.1", "2.1"]}.items():
            place, path = versions.find(disk_store, f"{id}@{turn}:b.txt")
            authors = [one.version.revision for one in blame.blame(place, path)]
            assert authors == [f"{id}@{one}" for one in wrote]
        place, path = versions.find(disk_store, f"{id}@2.4~1:b.txt")
        found = [one.version.revision for one in log.log(place, path)]
        assert found == [f"{id}@{one}" for one in ("2.3", "2.1", "1", "1.1")]
        (line,) = details.lines(disk_store, blame.blame(place, path, 3, 3))
        assert (line["turn"], line["tool"], line["version"]["step"]) == (3, "write_file", 2)
        place, path = versions.find(disk_store, f"{id}@2.4:b.txt")
        assert blame.removal(place, path, b"d").version.revision == f"{id}@2.4"


async def test_a_fork_goes_on_with_the_conversation(disk_store: Store) -> None:
    other = [tool_calls(write("f.txt", "f\n")), text(DONE)]
    with served(*SCRIPT, *other) as model:
        old = await carry_on(disk_store, start(disk_store, react(model)))
        made = fork(disk_store, old, "1.2")
        assert made.record["fork"] == {"thread": old.id, "step": 0, "turn": 2, "continues": True}
        new = await carry_on(disk_store, made)
        assert new.status == ENDED, new.record["reason"]
        before, after = model.asked[2]["messages"], model.asked[4]["messages"]
    assert after == before, "the model is asked as it was asked after those turns"
    assert files(disk_store, steps(disk_store, new)[0]["workspace"]) == {**TWO, b"f.txt": b"f\n"}
    assert [at(disk_store, new, f"1.{n}") for n in (1, 2)] == [TWO, TWO], (
        "its turns go on from there"
    )
    assert at(disk_store, new, "1.3")[b"f.txt"] == b"f\n"
    assert len(session(disk_store, new)) == 4
    assert threads.get(disk_store, old.id) == old
    with served(text(DONE)) as third:
        again = fork(disk_store, new, "1.3", {"a": react(third)})
        ended = await carry_on(disk_store, again)
        assert ended.status == ENDED, ended.record["reason"]
        said = [one["role"] for one in third.asked[0]["messages"]]
    assert said == ["system", "user", *["assistant", "tool"] * 3], "another model, the same words"


async def test_a_fork_in_the_second_step_with_actions_in_json(disk_store: Store) -> None:
    def action(tool: str, **arguments: Any) -> Say:
        return text(json.dumps({"thought": "hm", "action": {"tool": tool, "arguments": arguments}}))

    finish = action("finish", report="Well.", meta={"status": "done"})
    lines = [action("write_file", path="b.txt", text=f"{n}\n") for n in (1, 2, 3)]
    with served(lines[0], finish, lines[1], lines[2], finish, finish) as model:
        old = await carry_on(
            disk_store, start(disk_store, react(model, mode="json"), loop(2, STATUS))
        )
        assert old.status == ENDED, old.record["reason"]
        new = await carry_on(disk_store, fork(disk_store, old, "2.1"))
        assert new.status == ENDED, new.record["reason"]
        assert model.asked[5]["messages"] == model.asked[3]["messages"]
    assert [one["workspace"] for one in steps(disk_store, new)] == [
        steps(disk_store, old)[0]["workspace"],
        revisions.resolve_tree(disk_store, f"{old.id}@2.1"),
    ]
    assert files(disk_store, steps(disk_store, new)[1]["workspace"])[b"b.txt"] == b"2\n"


async def test_a_fork_after_a_correction_has_the_conversation_before_it(disk_store: Store) -> None:
    wrong = [tool_calls(write("b.txt", "b\n")), text("No block.")]
    with served(*wrong, *SCRIPT[2:], text("Again."), tool_calls(LOOK), *[text(DONE)] * 2) as model:
        old = await carry_on(disk_store, start(disk_store, react(model)))
        assert old.status == ENDED, old.record["reason"]
        assert at(disk_store, old, "1.1") == ALL, "turns are counted from the correction"
        new = await carry_on(disk_store, fork(disk_store, old, "1.1"))
        assert new.status == ENDED, new.record["reason"]
        assert len(model.asked[3]["messages"]) == 9, "prompt, two turns, correction, two calls"
        assert model.asked[4]["messages"] == model.asked[3]["messages"]
        again = await carry_on(disk_store, fork(disk_store, new, "1.1"))
        assert again.status == ENDED, again.record["reason"]
        assert model.asked[7]["messages"] == model.asked[6]["messages"], "corrected in the fork"


async def test_a_fork_whose_agent_keeps_no_conversation_begins_anew(disk_store: Store) -> None:
    with served(*SCRIPT) as model:
        old = await carry_on(disk_store, start(disk_store, react(model)))
    shell = Binding("command", says({}, "cat b.txt >g.txt"))
    made = fork(disk_store, old, "1.1", {"a": shell})
    assert made.record["fork"]["continues"] is False
    new = await carry_on(disk_store, made)
    assert new.status == ENDED, new.record["reason"]
    (step,) = steps(disk_store, new)
    assert files(disk_store, step["workspace"]) == {**TWO, b"g.txt": b"b\n"}
    assert step["attempts"] == [], "a fork is no failed attempt"
    assert disk_store.node(step["paused"], "content").payload["text"] == f"forked from {old.id}@1.1"
    with pytest.raises(Invalid, match="keeps the workflow"):
        fork(disk_store, old, "1.1", workflow=workflows.add(disk_store, ONE)[0])
    for wrong, said in {
        "1.9": "no turn 9; it has 4",
        "2.1": "no step 2",
        "1.0": "no turn 0",
    }.items():
        with pytest.raises(NotFound, match=said):
            fork(disk_store, old, wrong)
    for wrong in ("x", "1.", "-1", "1.2.3"):
        with pytest.raises(Invalid, match="is not a step"):
            fork(disk_store, old, wrong)


async def test_the_turns_of_a_failed_step_keep_their_trees(disk_store: Store) -> None:
    """And a person may go on before the mistake."""
    with served(*SCRIPT[:3], status(400, "no")) as model:
        failed = await carry_on(disk_store, start(disk_store, react(model)))
        assert failed.status == SUSPENDED
        assert at(disk_store, failed, "1.2") == TWO
        model.script.append(text(DONE))
        new = await carry_on(disk_store, fork(disk_store, failed, "1.2"))
        assert new.status == ENDED, new.record["reason"]
        assert model.asked[4]["messages"] == model.asked[2]["messages"]
    (entry,) = failed.record["attempts"]
    turns = [disk_store.node(one).payload for one in attempt_details.turns(disk_store, entry)]
    assert disk_store.node(entry, "content").payload["text"].startswith("attempt 1 of a failed: a:")
    assert disk_store.node(attempt_details.detail(disk_store, entry) or "", "react-session")
    assert [files(disk_store, one["workspace"]) for one in turns] == [TWO, TWO, ALL]


async def test_another_attempt_begins_at_the_turn_too(disk_store: Store) -> None:
    script = [*SCRIPT, tool_calls(write("x.txt", "x\n")), status(400, "no"), text(DONE)]
    with served(*script) as model:
        old = await carry_on(disk_store, start(disk_store, react(model)))
        new = await carry_on(disk_store, fork(disk_store, old, "1.1"))
        assert new.status == SUSPENDED
        ended = await carry_on(disk_store, suspension.resume(disk_store, new))
        assert ended.status == ENDED, ended.record["reason"]
        assert model.asked[6]["messages"] == model.asked[4]["messages"]
    assert files(disk_store, steps(disk_store, ended)[0]["workspace"]) == TWO


async def test_an_agent_that_speaks_acp(disk_store: Store, tmp_path: Path) -> None:
    def tool(id: str, file: str, data: str) -> dict[str, Any]:
        return {"tool": {"id": id, "title": f"write {file}", "write": file, "output": data}}

    asked = {"toolCallId": "2", "title": "write c.txt", "kind": "edit"}
    second = {"permission": {"tool": asked, "yes": [tool("2", "c.txt", "c")], "no": []}}
    first = [tool("1", "b.txt", "b"), {"say": "Next."}, second, ACP_DONE]
    script = Script(tmp_path, first, load=True, again=[[tool("3", "f.txt", "f"), ACP_DONE]])
    old = await carry_on(
        disk_store, start_acp(disk_store, script.config(turnTrees=True, permissions="allow"))
    )
    assert old.status == ENDED, old.record["reason"]
    one, two, rest = session(disk_store, old)
    assert files(disk_store, one["workspace"]) == {**ONLY, b"b.txt": b"b\n"}
    assert files(disk_store, two["before"]) == {**ONLY, b"b.txt": b"b\n"}
    assert two["workspace"] == rest["workspace"] == steps(disk_store, old)[0]["workspace"]
    made = fork(disk_store, old, "1.1")
    assert made.record["fork"]["continues"] is True
    new = await carry_on(disk_store, made)
    assert new.status == ENDED, new.record["reason"]
    (loaded,) = script.got("session/load")
    assert (
        loaded["params"]["sessionId"]
        == disk_store.node(steps(disk_store, old)[0]["detail"]).payload["sessionId"]
    )
    assert "the files are as they were after turn 1 of" in script.prompts()[-1]
    assert files(disk_store, steps(disk_store, new)[0]["workspace"]) == {
        **ONLY,
        b"b.txt": b"b\n",
        b"f.txt": b"f\n",
    }


async def test_an_agent_that_cannot_load_its_session_is_told(
    disk_store: Store, tmp_path: Path
) -> None:
    write = {"tool": {"id": "1", "title": "write b.txt", "write": "b.txt", "output": "b"}}
    script = Script(tmp_path, [{"say": "Hm."}, write, ACP_DONE])
    config = script.config(turnTrees=True, permissions="allow")
    old = await carry_on(disk_store, start_acp(disk_store, config))
    new = await carry_on(disk_store, fork(disk_store, old, "1.1"))
    assert new.status == ENDED, new.record["reason"]
    assert "# What you had done\n\nHm.\n- write b.txt (completed)" in script.prompts()[-1]


def test_the_setting_is_true_or_false() -> None:
    with pytest.raises(Invalid, match=r"config.turnTrees: must be true or false"):
        loader.load("command").check_config({"argv": ["x"], "turnTrees": "yes"})


async def test_gc_keeps_what_turns_refer_to(disk_store: Store) -> None:
    """Those of a step, of a fork that has not begun, and of a failed attempt."""
    failing = [tool_calls(write("z.txt", "z\n")), tool_calls(write("z.txt", "")), status(400, "no")]
    with served(*SCRIPT, *failing, text(DONE)) as model:
        old = await carry_on(disk_store, start(disk_store, react(model)))
        made = fork(disk_store, old, "1.2")
        failed = await carry_on(disk_store, start(disk_store, react(model)))
        again = fork(disk_store, failed, "1.1")
        gc.collect(disk_store, grace=0)
        assert at(disk_store, old, "1.1") == TWO
        assert at(disk_store, failed, "1.1") == {**ONLY, b"z.txt": b"z\n"}
        lifecycle.remove(disk_store, old)
        gc.collect(disk_store, grace=0)
        assert disk_store.node(made.record["intent"]["kept"]).type == "content"
        assert files(disk_store, made.record["intent"]["tree"]) == TWO
        ended = await carry_on(disk_store, again)
        assert ended.status == ENDED, ended.record["reason"]
    assert files(disk_store, steps(disk_store, ended)[0]["workspace"])[b"z.txt"] == b"z\n"


async def test_a_store_of_an_older_casfs_records_no_trees(disk_store: Store) -> None:
    """Its types have no such members until `casfs init`."""
    registry = disk_store.registry
    for name in ("react-turn", "react-tool-call"):
        document = json.loads(json.dumps(registry.document(registry.current(name))))
        for member in ("workspace", "before", "messages"):
            document["properties"].pop(member, None)
        with disk_store.batch() as batch:
            batch.put_schema(document, builtin=True)
    with Store.open(disk_store.root) as old, served(*SCRIPT) as model:
        ended = await carry_on(old, start(old, react(model)))
        assert ended.status == ENDED, ended.record["reason"]
        assert not any("workspace" in one for one in session(old, ended))


async def test_a_tree_that_cannot_be_recorded_ends_nothing(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, calls = Desk.record_turn, count()

    def fails(workspace: Desk) -> TreeHash:
        if next(calls) == 1:
            raise Failed("no")
        return record(workspace)

    monkeypatch.setattr(Desk, "record_turn", fails)
    said: list[str] = []
    with served(*SCRIPT, text(DONE)) as model:
        made = start(disk_store, react(model))
        old = await carry_on(disk_store, made, log=lambda event, **_: said.append(event))
        assert old.status == ENDED, old.record["reason"]
        assert said.count("no tree of a turn") == 1
        with pytest.raises(NotFound, match="turn 2 has no tree"):
            at(disk_store, old, "1.2")
        assert at(disk_store, old, "1.3") == ALL
        new = await carry_on(disk_store, fork(disk_store, old, "1.3"))
        assert new.status == ENDED, new.record["reason"]
        assert model.asked[4]["messages"] == model.asked[3]["messages"], "nothing is missing"

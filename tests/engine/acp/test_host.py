"""What an agent asks of us: files, commands, permissions."""

from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.threads import attempt_details
from casfs.threads.threads import ENDED, SUSPENDED
from casfs.trees import tree
from engine.acp import host
from engine.acp.permissions import find_rule
from engine.threads import lifecycle, suspension
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.acp import DONE, Script, honest, session, start, text
from tests.support.engine import ONE, alive, carry_on, spawn, steps
from tests.support.programs import needs


async def played(store: Store, script: Script, **config: Any) -> dict[str, Any]:
    """The only step of a thread that the script plays in."""
    ended = await carry_on(store, start(store, script.config(**config)))
    assert ended.status == ENDED, ended.record["reason"]
    honest(script)
    (step,) = steps(store, ended)
    return step


def fs(verb: str, path: str | Path, **more: Any) -> dict[str, Any]:
    return {"request": {"method": f"fs/{verb}_text_file", "params": {"path": str(path), **more}}}


def terminal(command: str, *then: str, **more: Any) -> dict[str, Any]:
    """A request for a terminal, and for what follows with it."""
    after = [{"method": f"terminal/{one}"} for one in then]
    return {"request": {"method": "terminal/create", "params": {"command": command, **more},
                        "then": after}}  # fmt: skip


async def test_files_are_those_of_the_workspace(disk_store: Store, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    (inside := tmp_path / "link").symlink_to(outside)
    assert inside.read_text() == "secret"
    begun = start(disk_store, {"argv": ["x"]})
    place = disk_store.root / "workspaces" / begun.id
    script = Script(
        tmp_path,
        [
            fs("read", "a.txt"),
            fs("write", "deep/er.txt", content="1\n2\n3\n"),
            fs("read", "deep/er.txt", line=2, limit=1),
            fs("read", outside),
            fs("read", "../../format"),
            fs("write", f"{place}/../x", content=""),
            fs("read", "missing"),
            fs("read", "a.txt\0"),
            {"request": {"method": "fs/read_text_file", "params": {}}},
            {"request": {"method": "of/tomorrow", "params": {}}},
            DONE,
        ],
    )
    step = await played(disk_store, script)
    first, written, part, *refused = script.answers()
    assert (first["result"], written["result"]) == ({"content": "one\n"}, {})
    assert part["result"] == {"content": "2\n"}
    assert [one["error"]["code"] for one in refused] == [
        -32603, -32603, -32603, -32002, -32602, -32602, -32601,
    ]  # fmt: skip
    made = tree.resolve(disk_store, step["workspace"], b"deep/er.txt")
    assert disk_store.get(made.digest.hash) == b"1\n2\n3\n"


async def test_an_absolute_path_in_the_workspace_is_one(disk_store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [{"here": "a.txt"}, DONE])
    await played(disk_store, script)
    assert script.answers()[0]["result"] == {"content": "one\n"}


async def test_a_thread_without_a_workspace_has_no_files_and_an_empty_directory(
    disk_store: Store, tmp_path: Path
) -> None:
    script = Script(tmp_path, [fs("read", "a.txt"), terminal("true"), DONE])
    hash, _ = workflows.add(disk_store, ONE)
    bound = {"a": Binding("acp", script.config())}
    begun = lifecycle.create(disk_store, ThreadRequest(hash, "Do it.", bound, None))
    ended = await carry_on(disk_store, begun)
    assert ended.status == ENDED, ended.record["reason"]
    offered = script.got("initialize")[0]["params"]["clientCapabilities"]
    assert (offered["fs"]["readTextFile"], offered["terminal"]) == (False, False)
    assert all("no workspace" in one["error"]["message"] for one in script.answers())
    directory = script.got("session/new")[0]["params"]["cwd"]
    assert not os.path.exists(directory)


@needs("bwrap")
async def test_commands_run_in_the_sandbox(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "hunter2-hunter2")
    outside = tmp_path / "outside"
    outside.write_text("x")
    look = f"cat a.txt; cat {outside} 2>&1 | tail -c 26; echo $MY_KEY/$V"
    script = Script(
        tmp_path,
        [
            terminal("sh", "wait_for_exit", "output", "release", "output", args=["-c", look],
                     env=[{"name": "V", "value": "a 'b"}]),
            terminal("pwd; exit 3", "wait_for_exit", "output", cwd="."),
            terminal("sleep 600", "kill", "wait_for_exit"),
            terminal("yes é | head -c 5000", "wait_for_exit", "output", outputByteLimit=101),
            terminal("true", env=[{"name": "LD PRELOAD", "value": "x"}]),
            terminal("true", cwd="/etc"),
            DONE,
        ],
    )  # fmt: skip
    await played(disk_store, script)
    made, ended, output, released, gone, _, failed, where, _, _, killed, _, _, cut, *refused = (
        one.get("result", one.get("error")) for one in script.answers()
    )
    assert list(made) == ["terminalId"]
    assert ended == {"exitCode": 0}
    assert output["output"] == "one\nNo such file or directory\n/a 'b\n"
    assert output["exitStatus"] == {"exitCode": 0}
    assert (released, gone["code"]) == ({}, -32002)
    assert failed == {"exitCode": 3}
    assert where["output"].strip() == script.got("session/new")[0]["params"]["cwd"]
    assert "signal" in killed or killed["exitCode"]
    assert cut["truncated"]
    assert len(cut["output"].encode()) in (100, 101)
    assert "\ufffd" not in cut["output"]
    assert [one["code"] for one in refused] == [-32602, -32603]


@needs("bwrap")
async def test_terminals_are_bounded_and_end_with_the_agent(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "MAX_TERMINALS", 2)
    script = Script(
        tmp_path,
        [terminal("echo $$ >pid; sleep 600"), terminal("sleep 600"), terminal("true"), DONE],
    )
    await played(disk_store, script)
    *_, refused = script.answers()
    assert "more than 2 terminals" in refused["error"]["message"]


async def test_a_terminal_ends_with_its_command(disk_store: Store, tmp_path: Path) -> None:
    left = terminal("sleep 600 & echo begun", "wait_for_exit", "output")
    script = Script(tmp_path, [left, terminal("yes | head -c 3000000", "wait_for_exit"), DONE])
    gc.disable()  # a pipe is closed, not found unused
    try:
        before = _pipes()
        await played(disk_store, script, allowShell=True, timeoutS=60)
        assert _pipes() == before
    finally:
        gc.enable()
    _, waited, output, *_ = (one["result"] for one in script.answers())
    assert (waited, output["output"]) == ({"exitCode": 0}, "begun\n")


def _pipes() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("pipe:")
    return count


# -- permissions --------------------------------------------------------------------------


def ask(title: str, kind: str = "execute", **more: Any) -> dict[str, Any]:
    tool = {"toolCallId": title, "title": title, "kind": kind}
    branches = {answer: [{"say": f"{title}: {answer}. "}] for answer in ("yes", "ever", "no")}
    return {"permission": {"tool": tool, **branches, **more}}


@pytest.mark.parametrize(
    ("policy", "title", "kind", "rule"),
    [
        ("deny", "ls", "execute", "deny"),
        ({"execute": "allow"}, "ls", "execute", "allow"),
        ({"execute": "allow"}, "x", "edit", "ask"),
        ({"*": "deny"}, "x", "edit", "deny"),
        ({"edit": "allow", "rm": "deny", "*": "allow"}, "rm: a.txt", "edit", "deny"),
        ({"edit": "allow", "rm a": "ask"}, "rm a", "edit", "ask"),
        ({}, "", "other", "ask"),
    ],
)
def test_the_strictest_rule_for_a_tool_holds(policy: Any, title: str, kind: str, rule: str) -> None:
    assert find_rule(policy, title, kind) == rule


async def test_the_config_answers(disk_store: Store, tmp_path: Path) -> None:
    only_always = [{"optionId": "ever", "name": "x", "kind": "allow_always"}]
    script = Script(
        tmp_path,
        [ask("ls"), ask("edit", "edit"), ask("go", "fetch", options=only_always), DONE],
    )
    policy = {"execute": "allow", "edit": "deny", "fetch": "allow"}
    step = await played(disk_store, script, permissions=policy)
    _, turns = session(disk_store, step["detail"])
    said = text(disk_store, turns[-1]["output"])
    assert said.startswith("ls: yes. edit: no. go: ever. Done.")


async def test_a_question_is_about_what_is_known_of_its_tool_call(
    disk_store: Store, tmp_path: Path
) -> None:
    """The request names only the id; equal ones of another call are other questions."""

    def asks(id: str, **about: Any) -> list[dict[str, Any]]:
        begun = {"sessionUpdate": "tool_call", "toolCallId": id, "status": "pending", **about}
        return [{"update": begun}, {"permission": {"tool": {"toolCallId": id}}}]

    script = Script(tmp_path, [*asks("1", title="rm a"), *asks("2", title="rm b"), DONE])
    asked = await carry_on(disk_store, start(disk_store, script.config()))
    assert asked.record["reason"] == "a: may it do this? rm a"
    asked = await carry_on(disk_store, suspension.resume(disk_store, asked, "allow"))
    assert asked.record["reason"] == "a: may it do this? rm b"


async def test_an_answer_for_always_holds_for_its_kind(disk_store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [ask("ls"), ask("rm"), ask("get", "fetch"), DONE])
    asked = await carry_on(disk_store, start(disk_store, script.config()))
    asked = await carry_on(disk_store, suspension.resume(disk_store, asked, " Allow always. "))
    assert (asked.status, asked.record["reason"]) == (SUSPENDED, "a: may it do this? get")
    ended = await carry_on(disk_store, suspension.resume(disk_store, asked, "deny"))
    (step,) = steps(disk_store, ended)
    _, turns = session(disk_store, step["detail"])
    said = text(disk_store, turns[-1]["output"])
    assert said.startswith("ls: ever. rm: yes. get: no. Done.")


async def test_an_answer_is_to_the_question_that_was_shown(
    disk_store: Store, tmp_path: Path
) -> None:
    """Two tool calls at once ask for permission."""
    tools = [{"toolCallId": title, "title": title} for title in ("rm a", "rm b")]
    script = Script(tmp_path, [{"at_once": tools}, DONE])
    asked = await carry_on(disk_store, start(disk_store, script.config()))
    again = await carry_on(disk_store, suspension.resume(disk_store, asked, "allow"))
    shown = [one.record["reason"].removeprefix("a: may it do this? ") for one in (asked, again)]
    assert sorted(shown) == ["rm a", "rm b"]
    ended = await carry_on(disk_store, suspension.resume(disk_store, again, "deny"))
    assert ended.status == ENDED, ended.record["reason"]
    allowed, denied = ("yes", "no") if shown[0] == "rm a" else ("no", "yes")
    got = {one["id"]: one["result"]["outcome"]["optionId"] for one in script.answers()[-2:]}
    assert got == {1: allowed, 2: denied}


async def test_a_question_is_no_failed_attempt(disk_store: Store, tmp_path: Path) -> None:
    write = {"tool": {"id": "w", "title": "write", "write": "made.txt"}}
    script = Script(tmp_path, [write, ask("ls"), DONE])
    asked = await carry_on(disk_store, start(disk_store, script.config()))
    assert asked.record["attempts"] == []
    ended = await carry_on(disk_store, suspension.resume(disk_store, asked, "allow"))
    (step,) = steps(disk_store, ended)
    assert step["attempts"] == []
    before = attempt_details.turns(disk_store, step["paused"])[0]
    (call,) = disk_store.node(before, "react-turn").payload["toolCalls"]
    assert disk_store.node(call).payload["name"] == "write", "what it did before is kept"
    assert "- write (completed)" in script.prompts()[-1], "and it is told"
    root = str(disk_store.root)
    shown = spawn("--store", root, "thread", "log", ended.id, "--turns")
    assert "... 000001 a turn 1\n" in shown.stdout, shown.stderr
    assert "- write (completed)" in shown.stdout


async def test_an_attempt_keeps_its_number_over_a_question(
    disk_store: Store, tmp_path: Path
) -> None:
    script = Script(tmp_path, [ask("ls"), {"exit": 3}])
    asked = await carry_on(disk_store, start(disk_store, script.config()))
    died = await carry_on(disk_store, suspension.resume(disk_store, asked, "allow"))
    assert (died.record["cause"], died.record["intent"]["attempt"]) == ("failure", 1)
    (entry,) = died.record["attempts"]
    shown = attempt_details.read(disk_store, entry)
    assert attempt_details.line(shown).startswith("attempt 1 of a failed: a: ")
    assert disk_store.node(shown["detail"], "react-session").payload["role"] == "a"


async def test_another_agent_begins_without_what_the_first_one_kept(
    disk_store: Store, tmp_path: Path
) -> None:
    write = {"tool": {"id": "w", "write": "made.txt"}}
    script = Script(tmp_path, [write, ask("ls"), DONE], load=True)
    asked = await carry_on(disk_store, start(disk_store, script.config()))
    assert {"kept", "tree"} <= asked.record["intent"].keys()
    other = {"a": Binding("acp", script.config(permissions="allow"))}
    resumed = suspension.resume(disk_store, asked, agents=other)
    assert not {"kept", "tree"} & resumed.record["intent"].keys()
    ended = await carry_on(disk_store, resumed)
    assert ended.status == ENDED, ended.record["reason"]
    assert not script.got("session/load")


async def test_a_question_ends_what_the_agent_started(disk_store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [{"spawn": 600}, ask("ls"), DONE])
    asked = await carry_on(disk_store, start(disk_store, script.config()))
    assert asked.record["cause"] == "human"
    (child,) = (one["child"] for one in script.lines() if "child" in one)
    assert not alive(child)
    assert not alive(script.got()[0]["pid"])

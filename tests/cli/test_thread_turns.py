"""The commands that name a turn of a step: start, diff, show a file, workspace, fork, blame."""

from __future__ import annotations

import json
from pathlib import Path

from casfs.store.store import Store
from tests.support.engine import ONE, Cli, daemon
from tests.support.model_server import served, text, tool_calls
from tests.support.thread_example import make_thread

DONE = '```json\n{"status": "done"}\n```'


def test_turns_on_the_command_line(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps(ONE))
    cli("workflow", "add", file)
    shell = tmp_path / "shell.sh"
    shell.write_text("cat b.txt\nprintf '```json\\n{}\\n```\\n'\n")
    lines = [("write_file", json.dumps({"path": "b.txt", "text": f"{n}\n"})) for n in (1, 2)]
    with served(*map(tool_calls, lines), text(DONE), text(DONE)) as model, daemon(cli.root):
        agent = "react:" + json.dumps({"model": "m", "baseUrl": model.url})
        given = ("--agent", agent, "--turn-trees", "--name", "mend", "--wait")
        cli("thread", "start", "sample", "--input", "Go.", *given)
        assert cli("diff", "mend@1.1", "mend@1.2").text == "M b.txt\n"
        assert cli("get", "mend@1.1:b.txt").text == "1\n"
        (line,) = cli("blame", "mend:b.txt", "--json").json
        assert (line["turn"], line["tool"]) == (2, "write_file")
        assert line["version"]["revision"].endswith("@1.2")
        made = cli("thread", "fork", "mend", "--at", "1.1", "--json")
        assert (made.json["turn"], made.json["continues"], made.err) == (1, True, "")
        other = f"command:sh {shell}"
        anew = cli("thread", "fork", "mend", "--at", "1.1", "--agent", other, "--wait")
        assert "begins the step anew, over the files of that turn" in anew.err
        id = anew.text.split()[0]
        assert cli("get", f"{id}:b.txt").text == "1\n"
        assert "has no turn 7" in cli("thread", "fork", "mend", "--at", "1.7", code=3).err
        assert "STEP.TURN" in cli("thread", "fork", "mend", "--at", "1.x", code=2).err


def test_the_log_prints_turns_of_other_programs(cli: Cli, opened: Store) -> None:
    def content(said: str) -> str:
        return opened.put_node("content", {"text": said, "artifacts": []}).hash

    said = {"index": 0, "kind": "text", "name": None, "text": content("I look."), "result": None}
    used = {**said, "index": 1, "kind": "tool", "name": "edit", "text": content("{}")}
    about = {"sessionId": "s1", "model": "auto", "durationMs": 100}
    turns = [opened.put_node("cursor-turn", one).hash for one in (said, used)]
    stream = opened.put(b"{}").hash
    cursor = opened.put_node("cursor-detail", {**about, "turns": turns, "stream": stream}).hash
    turn = {"index": 0, "role": "assistant", "content": "Hi.", "reasoning": None,
            "toolCalls": [{"name": "ls", "args": "{}"}]}  # fmt: skip
    turns = [opened.put_node("hermes-turn", turn).hash]
    hermes = opened.put_node("hermes-detail", {**about, "turnCount": 1, "turns": turns}).hash
    thread = make_thread(opened)
    thread.step("planner", "Done.", detail=cursor)
    thread.step("planner", "Done.", detail=hermes)
    text = cli("thread", "log", thread.id, "--turns").text
    assert "turn 1\nI look.\n" in text
    assert "turn 2\n\n- edit\n" in text
    assert "turn 1\nHi.\n- ls\n" in text
    assert "agents: planner=command (auto)" in cli("thread", "show", thread.id).text

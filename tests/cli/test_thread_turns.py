"""The commands that name a turn of a step: start, diff, show a file, workspace, fork, blame."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.engine import ONE, Cli, daemon
from tests.support.model_server import served, text, tool_calls

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

"""A text that is purged while an agent has it is not recorded again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from engine.workflow import registry as workflows
from tests.support import readings
from tests.support.engine import Cli, daemon, loop, says, until

LINES = "first line of a long text\n}\nand another one of them"
INDENTED = "first line of a long text\n                    }\n                    \nthe last one"
WORDS = "a passphrase of a person, in words"


@pytest.mark.parametrize("text", [WORDS, LINES, INDENTED])
def test_its_output_has_it_no_more(cli: Cli, tmp_path: Path, text: str) -> None:
    (tmp_path / "text").write_text(text)
    begun, done = tmp_path / "begun", tmp_path / "done"
    script = f"cat {tmp_path}/text; touch {begun}; while ! [ -e {done} ]; do sleep 0.05; done"
    agent = "a=command:" + json.dumps(says({}, f"{script}; cat {tmp_path}/text; echo"))
    with Store.open(cli.root) as store:
        workflows.add(store, loop(2))
        store.put(f"it is: {text}\n".encode())
        with daemon(cli.root):
            start = ("--input", "go", "--agent", agent, "--json")
            id = cli("thread", "start", loop(2)["name"], *start).json["id"]
            until(begun.exists)
            cli("purge", "--text", "--force", stdin=text.encode())
            done.touch()
            assert daemon_socket.request(cli.root, "wait", id=id)["status"] == "ended"
        assert readings.leaks(store, text.encode()) == []
        assert cli("grep", "-", stdin=text.encode(), code=1).text == ""

"""What came from outside cannot command the terminal that it is printed on."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
import trio

from casfs.cli import output
from casfs.store.store import Store
from casfs.system import safe_text
from tests.support.engine import Cli, begin, carry_on, says, spawn, workflow
from tests.support.engine import rule as edge

HOSTILE = "\x1b]0;title\x07\x1b[2J\x08\r\x7f\u0085\u009b31m\u202e\u2066\u200f\u2028 end"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
NAME = "a\x1b[2J\n\u202eb"


def checked(out: bytes) -> str:
    text = out.decode("utf-8", "surrogateescape")
    assert not RAW.search(text), ascii(RAW.search(text))
    return text


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / NAME).write_text(HOSTILE)
    (folder / "link").symlink_to(NAME)
    return folder


def test_names_in_trees(cli: Cli, tree: Path) -> None:
    cli("checkpoint", "create", "one", tree, "-m", HOSTILE)
    (tree / NAME).write_text("other")
    (tree / f"{NAME}2").write_text("new")
    cli("checkpoint", "create", "two", tree)
    listing = checked(cli("tree", "ls", "two").out)
    assert len(listing.splitlines()) == 3
    assert r"a\x1b[2J\n\u202eb" in listing
    for form in ([], ["--stat"]):
        assert r"a\x1b[2J\n\u202eb" in checked(cli("tree", "diff", "one", "two", *form).out)
    checked(cli("checkpoint", "list").out)


@pytest.mark.parametrize("verb", [["tree", "ls", "one"], ["checkpoint", "list"]])
def test_json_keeps_the_value(cli: Cli, tree: Path, verb: list[str]) -> None:
    cli("checkpoint", "create", "one", tree, "-m", HOSTILE)
    value = json.loads(checked(cli(*verb, "--json").out))
    found = value[0].get("name") if verb[0] == "tree" else value[0]["message"]
    assert found in (NAME, HOSTILE)


def test_outputs_of_agents(cli: Cli) -> None:
    flow = workflow([edge("__start__", "a"), edge("a", "__end__")], a=None)
    flow["description"] = HOSTILE
    with Store.open(cli.root) as store:
        thread = begin(store, flow, {"a": says({}, f"printf '%s\\n' '{HOSTILE}'")})
        trio.run(carry_on, store, thread)
    for verb in (
        ["thread", "list"],
        ["thread", "show", thread.id],
        ["thread", "log", thread.id],
        ["thread", "context", thread.id],
        ["workflow", "show", "sample"],
        ["search", "end"],
    ):
        checked(cli(*verb).out)
        checked(cli(*verb, "--json").out)


def test_the_log_of_an_action(tree: Path, cli: Cli) -> None:
    argv = ["--input", tree, "--cache", "--", "sh", "-c", "true"]
    for _ in range(2):
        said = spawn("--store", cli.root, "action", "run", *argv).stderr
        checked(said.encode())
        (tree / NAME).write_text("other")
    assert r"a\x1b[2J\n\u202eb" in said


def test_errors(cli: Cli) -> None:
    answer = cli("put", f"{HOSTILE}\n{NAME}", code=3)
    checked(answer.err.encode())
    assert answer.err.count("\n") == 1


def test_a_patch_is_escaped_on_a_terminal_only(
    cli: Cli, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("checkpoint", "create", "one", tree)
    (tree / NAME).write_text("other")
    cli("checkpoint", "create", "two", tree)
    assert HOSTILE.encode() in cli("tree", "diff", "one", "two", "--patch").out
    monkeypatch.setattr("casfs.cli.diff_output.sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.setenv("NO_COLOR", "1")
    checked(cli("tree", "diff", "one", "two", "--patch").out)


def test_what_is_escaped() -> None:
    assert safe_text.escape("a\tb\nc\r\nd") == "a\tb\nc\r\nd"
    assert safe_text.escape("a\tb\nc\rd", one_line=True) == r"a\tb\nc\rd"
    assert safe_text.escape("Grüße, 日本語, 🙂, שלום") == "Grüße, 日本語, 🙂, שלום"
    assert os.fsencode(safe_text.escape(os.fsdecode(b"\xff\x1b"))) == rb"\xff\x1b".replace(
        rb"\xff", b"\xff"
    )
    assert json.loads(output.escape_json(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE

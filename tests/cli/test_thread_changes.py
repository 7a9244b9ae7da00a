"""What a thread changed: shown, and applied to the directory that it started from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casfs.store.store import Store
from engine.workflow import registry as workflows
from tests.support.engine import Cli, daemon, loop, says
from tests.support.helpers import read_tree, write_tree

SCRIPT = "echo $CASFS_STEP >>log; sed -i 's/^1$/one/' text; rm -f old"
TEXT = b"1\n2\n3\n4\n5\n"


@pytest.fixture
def project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, from which the thread `mend` of two steps has started."""
    place = write_tree(tmp_path / "project", {"text": TEXT, "old": b"old\n"})
    with Store.open(cli.root) as store:
        workflows.add(store, loop(2))
    agent = f"a=command:{json.dumps(says({}, SCRIPT))}"
    start = ("thread", "start", "sample", "--input", "x", "--workspace", place, "--name", "mend")
    with daemon(cli.root):
        cli(*start, "--agent", agent, "--wait")
    monkeypatch.chdir(place)
    return place


def test_diff(cli: Cli, project: Path) -> None:
    assert cli("thread", "diff", "mend").text == "A log\nD old\nM text\n"
    assert cli("thread", "diff", "@last@1..2").text == "M log\n"
    assert cli("thread", "diff", "mend@1", "--patch").text.count("+1\n") == 1
    assert cli("thread", "diff", "mend@..2", "--stat").text.count("\n") == 4
    assert cli("thread", "diff", "mend@2..", "--json").json == []
    assert "has no step 3" in cli("thread", "diff", "mend@3", code=3).err
    assert "give a thread's ID" in cli("thread", "diff", "mend@x", code=2).err
    assert cli("diff", "mend@0", "mend").text == cli("thread", "diff", "mend").text
    assert cli("diff", "mend").text == "D log\nA old\nM text\n", "the directory is as before"


def test_apply_to_what_has_changed_meanwhile(cli: Cli, project: Path) -> None:
    (project / "text").write_bytes(TEXT.replace(b"5", b"five"))
    (project / "mine").write_bytes(b"mine")
    said = cli("thread", "apply", "mend", "--check").text
    assert said == "A log\nD old\nM text\n"
    assert (project / "old").exists()
    said = cli("thread", "apply", "mend").text
    assert said.startswith("A log\nD old\nM text\n`casfs undo` takes it back")
    done = {b"log": b"1\n2\n", b"text": b"one\n2\n3\n4\nfive\n", b"mine": b"mine"}
    assert read_tree(project) == done
    assert cli("thread", "apply", "mend", ".").text == "nothing to apply\n"
    cli("checkpoint", "create", "site", ".")
    lines = cli("blame", "site:text", "--json").json
    steps = [line["version"]["step"] for line in lines]
    assert steps == [1, None, None, None, None], "the edit beside it is the checkpoint's"
    cli("undo")
    text = TEXT.replace(b"5", b"five")
    assert read_tree(project) == {b"text": text, b"old": b"old\n", b"mine": b"mine"}


def test_conflicts(cli: Cli, project: Path, tmp_path: Path) -> None:
    (project / "text").write_bytes(TEXT.replace(b"1", b"uno"))
    (project / "old").write_bytes(b"older\n")
    answer = cli("thread", "apply", "mend", "--json", code=1).json
    assert [change["path"] for change in answer["changes"]] == ["log", "text"]
    assert answer["conflicts"] == [
        {"path": "old", "reason": f"changed here, deleted in thread {answer['thread']}"},
        {"path": "text", "reason": "changed on both sides, 1 conflict marked"},
    ]
    marked = f"<<<<<<< ours\nuno\n=======\none\n>>>>>>> thread {answer['thread']}\n2\n3\n4\n5\n"
    assert (project / "text").read_text() == marked
    assert (project / "old").read_bytes() == b"older\n"
    assert "are not resolved: text;" in cli("thread", "apply", "mend", code=4).err
    assert (project / "text").read_text() == marked
    other = write_tree(tmp_path / "other", {})
    said = cli("thread", "apply", "mend@1", other, code=1).text
    assert "conflict: text: deleted here, changed in thread " in said
    assert (other / "log").read_bytes() == b"1\n"


def test_derived_files_are_not_applied(cli: Cli, tmp_path: Path) -> None:
    place = write_tree(tmp_path / "project", {"package.json": b"{}", "a.py": b"A = 1\n"})
    with Store.open(cli.root) as store:
        workflows.add(store, loop(1))
    makes = (
        "mkdir -p node_modules/m; echo 1 >node_modules/m/index.js; echo 'A = 2' >a.py;"
        " python3 -c 'import py_compile; py_compile.compile(\"a.py\")'; test -d __pycache__"
    )
    agent = f"a=command:{json.dumps(says({}, makes))}"
    start = ("thread", "start", "sample", "--input", "x", "--workspace", place, "--name", "derive")
    with daemon(cli.root):
        cli(*start, "--agent", agent, "--wait")
    assert cli("thread", "diff", "derive").text == "M a.py\n"
    assert cli("thread", "apply", "derive", place, "--check").text == "M a.py\n"
    cli("thread", "apply", "derive", place)
    assert sorted(one.name for one in place.iterdir()) == ["a.py", "package.json"]

"""Schemas, trees and checkpoints."""

from __future__ import annotations

import json
import os
from pathlib import Path

from casfs.store.store import Store
from casfs.threads import threads
from tests.support.cli import run_thread, written
from tests.support.engine import (
    ONE,
    Cli,
    begin,
    says,
)


def test_schemas(cli: Cli, tmp_path: Path) -> None:
    document = {"$id": "note", "type": "object", "properties": {"about": {"format": "cas_ref"}}}
    added = cli("schema", "add", written(tmp_path / "s.json", document))
    hash = added.word
    assert added.text == f"{hash} note\n"
    assert cli("schema", "add", "-", "--json", stdin=json.dumps(document).encode()).json == {
        "hash": hash,
        "name": "note",
    }
    assert f"note\t{hash}\n" in cli("schema", "list").text
    assert cli("schema", "show", "note").json == document
    assert cli("schema", "show", "note", "--json").json == document


def test_trees(cli: Cli, project: Path, tmp_path: Path) -> None:
    one = cli("tree", "build", project).word
    shown = cli("tree", "build", project, "--json").json
    assert (shown["hash"], shown["files"]) == (one, 2)
    assert cli("tree", "build", project, "--no-default-excludes").word != one
    names = [entry["name"] for entry in cli("tree", "ls", one, "--json").json]
    assert names == ["link", "run", "src"]
    lines = cli("tree", "ls", one[:8]).text.splitlines()
    assert [line[0] for line in lines] == ["l", "x", "d"]
    assert lines[0].endswith(" link -> run")
    assert cli("tree", "ls", one, "src/main.py").text.split()[-1] == "main.py"
    (project / "src/main.py").write_text("print(1)\n")
    (project / "run").chmod(0o644)
    (project / "link").unlink()
    (project / os.fsdecode(b"new\xe9")).touch()
    two = cli("tree", "build", project).word
    assert cli("tree", "diff", one, two).out == (b"D link\nA new\xe9\nT run\nM src/main.py\n")
    assert [change["letter"] for change in cli("tree", "diff", one, two, "--json").json] == [
        *"DATM"
    ]
    assert cli("tree", "diff", one, one).out == b""
    assert cli("tree", "restore", two, tmp_path / "back").word == two
    assert sorted(os.listdir(os.fsencode(tmp_path / "back"))) == [b"new\xe9", b"run", b"src"]
    assert cli("tree", "restore", one, tmp_path / "b2", "--json").json["root"] == one
    assert cli("tree", "build", tmp_path / "b2").word == one


def test_checkpoints(cli: Cli, project: Path, tmp_path: Path) -> None:
    first = cli("checkpoint", "create", "work", project, "-m", "before")
    assert "3 added, 0 modified, 0 deleted; " in first.text
    (project / "src/main.py").write_text("print(1)\n")
    made = cli("checkpoint", "create", "work", project, "--json").json
    assert made["stats"]["modified"] == 1
    listed = cli("checkpoint", "list", "work", "--json").json
    assert [one["id"] for one in listed] == [made["id"], first.word]
    assert cli("checkpoint", "list").text.splitlines()[1].startswith(f"work@{first.word}\t")
    assert cli("checkpoint", "list").text.splitlines()[1].endswith("\tbefore")
    assert cli("checkpoint", "restore", f"work@{first.word}", tmp_path / "old").word == first.word
    assert (tmp_path / "old/src/main.py").read_text() == "print()\n"
    shown = cli("checkpoint", "restore", "work", tmp_path / "new", "--json").json
    assert (shown["root"], shown["id"]) == (made["root"], made["id"])
    assert cli("tree", "diff", f"work@{first.word}", "work").text == "M src/main.py\n"
    for name in ("work", "work@latest", made["hash"], made["root"]):
        assert cli("tree", "ls", name).text == cli("tree", "ls", made["root"]).text


def test_a_tree_may_be_named_by_a_step(cli: Cli, opened: Store, project: Path) -> None:
    tree = cli("tree", "build", project).word
    thread = begin(opened, ONE, {"a": says({})}, tree)
    ended = run_thread(opened, thread)
    step = threads.last_step(opened, ended)
    assert step is not None
    assert cli("tree", "ls", step).text == cli("tree", "ls", tree).text
    bare = threads.last_step(opened, run_thread(opened, begin(opened, ONE, {"a": says({})})))
    assert bare is not None
    assert "that step has no workspace" in cli.refused("tree", "ls", bare, code=3)

"""Blame and log of a directory in which attached agents and a person have worked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from tests.support.attached_agent import AttachedAgent
from tests.support.engine import Cli
from tests.support.following import OwnSessionDirectory


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a").write_text("old\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def agents(cli: Cli, project: Path) -> Iterator[list[AttachedAgent]]:
    """Two sessions, of which the second begins after the first."""
    with Store.open(cli.root) as store:
        followed = OwnSessionDirectory(store, project, None)
        yield [AttachedAgent(store, project, followed, session=name) for name in ("one", "two")]
        followed.close()


def add(path: Path, line: str) -> None:
    path.write_text(path.read_text() + line + "\n")


def authors(cli: Cli, path: str) -> list[tuple[Any, ...]]:
    rows = cli("blame", path, "--json").json
    return [
        (
            row["text"],
            row["version"]["revision"].rpartition("@")[2],
            row["version"]["role"],
            row["tool"],
            row["version"]["prompt"],
        )
        for row in rows
    ]


def test_each_line_has_its_prompt_and_call(
    cli: Cli, project: Path, agents: list[AttachedAgent]
) -> None:
    first, second = agents
    first.prompt("Add lines\nto a")
    first.run("echo by a command >> a")
    add(project / "a", "mine, between two calls")
    first.write("a", (project / "a").read_text() + "by an edit\n")
    first.stop()
    add(project / "a", "mine, between two sessions")
    second.prompt("And one more")
    second.run("echo of the second >> a")
    second.stop()
    assert authors(cli, "a") == [
        ("old", "0", "person", None, None),
        ("by a command", "1.1", "claude", "Bash", "Add lines"),
        ("mine, between two calls", "1.2", "person", None, None),
        ("by an edit", "1.2", "claude", "Write", "Add lines"),
        ("mine, between two sessions", "0", "person", None, None),
        ("of the second", "1.1", "claude", "Bash", "And one more"),
    ]
    lines = cli("blame", "a").text.splitlines()
    assert "claude claude #1 Bash" in lines[1]
    assert '"Add lines"' in lines[1]
    assert "person" in lines[2]
    assert cli("log", "a").text.count('"Add lines"') >= 1


def test_a_file_that_was_changed_since(
    cli: Cli, project: Path, agents: list[AttachedAgent]
) -> None:
    first, _ = agents
    first.prompt()
    first.run("echo x > b")
    first.stop()
    add(project / "b", "later")
    answer = cli("blame", "b")
    assert "b was changed since" in answer.err
    assert answer.text.endswith("x\n")
    assert "never" not in answer.text
    cli.refused("blame", "gone", code=3)

"""`casfs review`: comments from the terminal, by line and in an editor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

from casfs.store.store import Store
from tests.support.attached_agent import AttachedAgent
from tests.support.engine import Cli, until
from tests.support.following import OwnSessionDirectory
from tests.support.thread_example import make_thread


@pytest.fixture
def agent(
    cli: Cli, opened: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[AttachedAgent]:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src/a").write_text("1\n2\n3\n")
    followed = OwnSessionDirectory(opened, project, None)
    agent = AttachedAgent(opened, project, followed)
    agent.prompt("Change it")
    agent.run("sed -i s/2/two/ src/a")
    agent.stop()
    monkeypatch.chdir(project)
    yield agent
    followed.close()


def listed(cli: Cli) -> list[tuple[str, str, int, str]]:
    rows = cli("review", "list", "--json").json
    return [(row["state"], row["path"], row["line"], row["text"]) for row in rows]


@pytest.mark.usefixtures("own_daemon")
def test_from_a_comment_to_done(
    cli: Cli, agent: AttachedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("review", "list", "--json").json == []
    label = f"{agent.thread.id[-8:]}.1"
    assert cli("review", "add", "src/a:2", "Why?").text == (
        f"{label} is a draft; `casfs review send` sends it\n"
    )
    # A path is one of the directory here, wherever that is in the project.
    monkeypatch.chdir("src")
    cli("review", "add", "a:1-2", "Shorter", "--suggest", "12")
    assert listed(cli) == [("draft", "src/a", 2, "Why?"), ("draft", "src/a", 1, "Shorter")]
    agent.prompt("More")  # it works: nothing wakes it
    sent = cli("review", "send", agent.thread.id)
    assert sent.text == "round 1: the agent hears it at its next call or prompt\n"
    cli("review", "done", label, "-m", "It is two now.")
    (first, second) = cli("review", "list", "--json").json
    assert (first["state"], first["answer"]) == ("handled", "It is two now.")
    assert (second["state"], second["suggestion"], second["round"]) == ("sent", "12", 1)


def test_drafts_are_removed_and_not_forgotten(
    cli: Cli, opened: Store, agent: AttachedAgent, tmp_path: Path
) -> None:
    label = f"{agent.thread.id[-8:]}.1"
    cli("review", "add", "src/a:2", "Why?")
    cli("review", "add", "src/a:3", "And why?")
    assert cli("review", "rm", label).text == f"{label}: removed\n"
    assert [row[3] for row in listed(cli)] == ["And why?"]
    assert "no comment" in cli.refused("review", "rm", label, code=3)
    followed = OwnSessionDirectory(opened, tmp_path / "project", None)
    later = AttachedAgent(opened, tmp_path / "project", followed, session="later")
    later.prompt("More")
    later.stop()
    followed.close()
    answer = cli("review", "list")
    assert (answer.text, "1 draft waits in" in answer.err) == ("", True)
    assert f"`casfs review list {agent.thread.id[-8:]}`" in answer.err


def test_by_the_name_of_a_worktree(
    cli: Cli, opened: Store, agent: AttachedAgent, tmp_path: Path
) -> None:
    cli("worktree", "add", "fix", "--path", str(tmp_path / "fix"))
    path = tmp_path / "fix"
    try:
        assert "no session of an attached agent" in cli.refused("review", "list", "fix", code=3)
        followed = OwnSessionDirectory(opened, path, None)
        other = AttachedAgent(opened, path, followed, session="other")
        other.prompt("Mend it")
        other.run("sed -i s/3/three/ src/a")
        other.stop()
        followed.close()
        cli("review", "add", "src/a:3", "Why?", "--of", "fix")
        (row,) = cli("review", "list", "fix", "--json").json
        assert row["comment"] == f"{other.thread.id[-8:]}.1"
    finally:
        cli("worktree", "rm", "fix", "--force")


def test_two_states_are_compared(
    cli: Cli, agent: AttachedAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The browser is told which page: what differs between them."""
    browser = tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\ntouch {tmp_path}/opened\n")
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", str(browser))
    states = [f"{agent.thread.id}@{index}" for index in (0, 1)]
    argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), "review", "..".join(states)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        try:
            until((tmp_path / "opened").exists, "the browser")
        finally:
            process.terminate()
    page = f"/compare?{urlencode({'a': states[0], 'b': states[1], 'view': 'unified'})}"
    assert quote(page) in (cli.root / "web.html").read_text()


def test_in_an_editor(
    cli: Cli, agent: AttachedAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/^+two$/+two\\n# Why?/' \"$1\"\n")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    assert cli("review", "edit").text == "1 draft; `casfs review send` sends all\n"
    assert listed(cli) == [("draft", "src/a", 2, "Why?")]
    editor.write_text('#!/bin/sh\necho \'# and more\' >> "$1"; echo changed >> "$1"\n')
    refused = cli.refused("review", "edit", code=1)
    assert "is not as it was; comments are lines that begin with #; what you wrote is in" in refused
    kept = Path(refused.rpartition(" ")[2].strip())
    written = kept.read_text()
    assert "# and more" in written
    # Another edit does not touch it.
    editor.write_text("#!/bin/sh\ntrue\n")
    assert cli("review", "edit").text == "0 drafts; `casfs review send` sends all\n"
    assert kept.read_text() == written
    assert len(listed(cli)) == 1


def test_it_is_shown_where_it_stands_now(cli: Cli, agent: AttachedAgent) -> None:
    cli("review", "add", "src/a:2", "Why?")
    agent.prompt("More")
    agent.run("sed -i '1i new' src/a")
    agent.stop()
    assert listed(cli) == [("draft", "src/a", 3, "Why?")]
    agent.prompt("More")
    agent.run("echo other > src/a")
    agent.stop()
    assert "draft, outdated" in cli("review", "list").text


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("add", "src/a:9", "Why?"), 4, "src/a has 3 lines, not 9"),
        (("add", "nosuch", "Why?"), 3, "nosuch is not in the tree"),
        (("add", "src/a:2", " "), 4, "a comment needs a text"),
        (("add", "src/a:3-2", "Why?"), 4, "src/a has 3 lines"),
        (("send",), 4, "nothing to send: comment on a line first"),
        (("done", "nosuch"), 2, "names no comment; `casfs review list`"),
        (("list", "main..work"), 2, "`casfs review A..B` shows what differs"),
        (("main..work",), 3, "main"),
        (("list", "nosuch"), 3, "nosuch"),
        (("list", "/"), 3, "no session of an attached agent in /"),
        (("edit", "--since", "7"), 3, "has 1 steps, not 7"),
    ],
)
@pytest.mark.usefixtures("own_daemon", "agent")
def test_bad_input(cli: Cli, arguments: tuple[str, ...], code: int, says: str) -> None:
    assert says in cli.refused("review", *arguments, code=code)


@pytest.mark.usefixtures("own_daemon")
def test_a_thread_of_a_workflow_cannot_be_told(cli: Cli, opened: Store) -> None:
    thread = make_thread(opened)
    cli("review", "add", "hello.txt", "Why?", "--of", thread.id)
    refused = cli.refused("review", "send", thread.id, code=4)
    assert "agents that speak ACP while they work; copy the comments" in refused

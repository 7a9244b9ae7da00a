"""`rewind`: what it prints, asks, refuses and leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.threads import sessions
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.engine import Cli
from tests.support.repositories import git


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a").write_text("1\n2\n3\n")
    monkeypatch.chdir(folder)
    return folder


def test_the_last_shell_command(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    agent.prompt("Tidy up")
    agent.write("b", "b\n")
    agent.run("rm a; echo x > c")
    (project / "mine").write_text("mine")
    head = f"{project}, back to before 1.2, your own changes kept:\nA a\nD c\n"
    assert cli("rewind", "--last", "--dry-run").text == head
    assert not (project / "a").exists()
    assert cli("rewind", "--last").text == f"{head}`casfs undo` takes it back\n"
    assert sorted(path.name for path in project.iterdir()) == ["a", "b", "mine"]
    assert cli("undo").text.startswith(f"{project}: taken back: 1, rewind to before 1.2 of ")
    assert sorted(path.name for path in project.iterdir()) == ["b", "c", "mine"]


def test_the_list(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    agent.prompt("Tidy up\nand more")
    agent.write("b", "b\n")
    agent.run("true")
    rows = cli("rewind", "--list", "--json").json
    assert [(row["point"], row["tool"], row["text"], row["changed"]) for row in rows] == [
        ("1.2", "Bash", "x", []),
        ("1.1", "Write", "b", ["b"]),
        ("1", "prompt", "Tidy up", []),
    ]
    assert cli("rewind", "--list").text.splitlines()[0].startswith("1.2\t")


def test_conflicts_are_named_first(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    agent.prompt()
    agent.run("sed -i s/1/one/ a; echo x > new")
    (project / "a").write_text("ONE\n2\n3\n")
    answer = cli("rewind", "--to", "1", code=1)
    assert (
        answer.err
        == "casfs: warning: a stays as it is: changed since, in the same lines or next to them\n"
    )
    assert "D new" in answer.text
    assert (project / "a").read_text() == "ONE\n2\n3\n"
    value = cli("rewind", "--to", "1", "--json", code=1).json
    assert value["conflicts"] == {"a": "changed since, in the same lines or next to them"}
    assert value["changes"] == []


def test_exactly(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    agent.prompt()
    agent.run("echo x > new")
    (project / "mine").write_text("mine")
    value = cli("rewind", "--to", "1", "--exact", "--json").json
    assert (value["exact"], value["what"], value["conversation"]) == (True, "files", None)
    assert sorted(path.name for path in project.iterdir()) == ["a"]


def test_a_session_by_its_name(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    agent.prompt()
    agent.run("echo x > new")
    for name in ("one", agent.thread.id, agent.thread.id[-6:]):
        assert cli("rewind", name, "--last", "--dry-run", "--json").json["changes"]


def test_the_conversation(
    cli: Cli, project: Path, agent: AttachedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.prompt("first")
    agent.stop()
    agent.prompt("second")
    agent.run("echo x > new")
    transcript = Path.home() / "one.jsonl"
    lines = [
        {"type": "user", "message": {"content": "first"}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "Done."}]}},
        {"type": "user", "message": {"content": "second"}},
    ]
    transcript.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(sessions, "about", _with_transcript(sessions.about, str(transcript)))
    answer = cli("rewind", "--to", "2", "--what", "both")
    assert "quit the session, then run: claude --resume " in answer.text
    assert not (project / "new").exists()
    id = answer.text.split()[-1]
    assert len((Path.home() / f"{id}.jsonl").read_text().splitlines()) == 2
    fork = next(thread for thread in sessions.newest_first(agent.store) if thread.fields["fork"])
    assert fork.fields["fork"] == {"thread": agent.thread.id, "step": 1}
    assert fork.record["session"]["id"] == id
    project.rename(project.with_name("moved"))
    value = cli("rewind", agent.thread.id, "--to", "2", "--what", "conversation", "--json").json
    assert value["conversation"]["command"].startswith("claude --resume ")


def _with_transcript(about: object, transcript: str) -> object:
    def changed(store: Store, thread: object) -> dict[str, object]:
        return {**about(store, thread), "transcript": transcript}  # type: ignore[operator]

    return changed


def test_a_project_that_was_moved(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    agent.prompt()
    agent.run("echo x > new")
    place = project.with_name("elsewhere")
    project.rename(place)
    (place / "src").mkdir()
    os.chdir(place / "src")
    assert cli("rewind", "--last", "--dry-run").text.startswith(f"{place}, back to before 1.1")
    project.mkdir()  # another one, where it was
    cli("rewind", "--last")
    assert not (place / "new").exists()
    assert cli("undo").text.startswith(f"{place}: taken back: 1, rewind")
    os.chdir(project)
    assert "rewind to before" not in cli("undo", "--list").text


def test_paths_and_one_call(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    agent.prompt()
    agent.run("mkdir d; echo x > d/new; echo x > a")
    agent.run("echo y > later")
    only = cli("rewind", "--only", "1.1", "--dry-run").text
    assert only == f"{project}, without 1.1, your own changes kept:\nM a\nD d/new\n"
    os.chdir(project / "d")
    assert "D d/new" in cli("rewind", "--to", "1", "--dry-run", "--", "new").text
    assert "M a" in cli("rewind", "--to", "1", "--dry-run", "--", "../a").text
    os.chdir(project)
    cli("rewind", "--to", "1", "--", "./d")
    assert sorted(path.name for path in project.iterdir()) == ["a", "later"]
    assert (project / "a").read_text() == "x\n"
    outside = cli("rewind", "--to", "1", "--", "../elsewhere", code=2).err
    assert f"../elsewhere is not a path in {project}" in outside
    assert "nothere is not there" in cli.refused("rewind", "--to", "1", "--", "nothere", code=3)


def test_markers_end_with_1(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    agent.prompt()
    agent.run("sed -i s/1/one/ a")
    (project / "a").write_text("ONE\n2\n3\n")
    answer = cli("rewind", "--to", "1", "--markers", code=1)
    assert "a: both are in it, between conflict markers" in answer.err
    assert "<<<<<<< now" in (project / "a").read_text()
    value = cli("rewind", "--to", "1", "--markers", "--dry-run", "--json", code=1).json
    assert value["marked"] == []
    assert value["conflicts"] == {"a": "it has conflict markers; resolve them first"}


def test_a_person_at_a_terminal_is_asked(
    cli: Cli, project: Path, agent: AttachedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.prompt()
    agent.run("echo x > new")
    monkeypatch.setattr("casfs.cli.rewind.is_asked", lambda: True)
    answer = cli("rewind", "--last", stdin=b"n\n", code=1)
    assert "Take this back?" in answer.err
    assert "D new" in answer.text
    assert (project / "new").exists()
    cli("rewind", "--last", "--yes")
    assert not (project / "new").exists()
    cli("undo")
    cli("rewind", "--last", stdin=b"\n")
    assert not (project / "new").exists()


def test_usage(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    assert "no session of an attached agent" in cli.refused("rewind", "--last", code=3)
    agent.prompt()
    agent.run("true")
    assert "a terminal lets you choose" in cli("rewind", code=2).err
    assert "give one of" in cli("rewind", "--last", "--list", code=2).err
    assert "--last and --only keep your own" in cli("rewind", "--last", "--exact", code=2).err
    assert "no prompt 7" in cli.refused("rewind", "--to", "7", code=3)
    for point in ("x", "1" * 5000, "1.x", "1."):
        assert "is neither a prompt (3) nor a call" in cli.refused("rewind", "--to", point, code=3)
    assert "no call of this session has changed" in cli.refused("rewind", "--last", code=3)


def test_an_undo_keeps_what_was_changed_since(
    cli: Cli, project: Path, agent: AttachedAgent
) -> None:
    agent.prompt("go")
    agent.run("echo 1 > made; sed -i s/2/two/ a")
    cli("rewind", "--last")
    assert not (project / "made").exists()
    (project / "a").write_text((project / "a").read_text() + "mine\n")
    (project / "other").write_text("mine, too\n")
    before = contents(project)
    assert "made" in cli("undo", "--dry-run").text
    assert contents(project) == before
    cli("undo")
    assert (project / "made").read_text() == "1\n"
    assert "two" in (project / "a").read_text()
    assert (project / "a").read_text().endswith("mine\n")
    assert (project / "other").read_text() == "mine, too\n"
    cli("redo")
    assert contents(project) == before


def test_an_undo_names_what_it_cannot_bring_back(
    cli: Cli, project: Path, agent: AttachedAgent
) -> None:
    agent.prompt("go")
    agent.run("sed -i s/2/two/ a")
    cli("rewind", "--last")
    (project / "a").write_text((project / "a").read_text().replace("2", "zwei"))
    mine = contents(project)
    answer = cli("undo", code=1)
    assert "a stays as it is: changed since, in the same lines or next to them" in answer.err
    assert contents(project) == mine


def test_a_repository_elsewhere_is_named(cli: Cli, project: Path, agent: AttachedAgent) -> None:
    git(project, "init", "-q", "--separate-git-dir", str(project.parent / "kept"))
    agent.prompt()
    agent.run("echo x > new")
    words = f"files alone: commits, branches and the index are in {project.parent}/kept, and stay"
    assert words in cli("rewind", "--last", "--dry-run").err
    (project / ".git").unlink()
    git(project, "init", "-q")
    assert cli("rewind", "--last", "--dry-run").err == ""


def test_a_link_where_the_project_was(
    cli: Cli, project: Path, agent: AttachedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.prompt()
    agent.run("echo x > new")
    there = project.rename(project.with_name("there"))
    project.symlink_to(there)
    monkeypatch.chdir(project)
    assert cli("rewind", "--last").text.startswith(f"{there}, back to before 1.1")
    assert not (there / "new").exists()

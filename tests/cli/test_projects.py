"""`projects`: which there are, what the store has of each, and how one is forgotten."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from casfs.store.store import Store
from tests.cli.test_attach import stop
from tests.cli.test_sessions import transcript
from tests.support.engine import Cli
from tests.support.thread_example import make_thread


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "app"
    path.mkdir()
    subprocess.run(["git", "init", "-q", path], check=True)
    return path


def imported(cli: Cli, name: str, prompt: str, directory: Path) -> None:
    """Has the store record a session of a directory."""
    path = transcript(name, prompt)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["cwd"] = str(directory)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    cli("sessions", "import", "claude", path)


def test_sessions_and_runs_are_listed_by_project(cli: Cli, project: Path, tmp_path: Path) -> None:
    cli("init")
    assert cli("projects", "list").text == ""
    other = tmp_path / "other"
    other.mkdir()
    imported(cli, "one", "Do it", project)
    imported(cli, "two", "And more", project)
    imported(cli, "three", "Elsewhere", other)
    with Store.open(cli.root) as store:
        make_thread(store, status="ended", returnCode=0, project=str(project))
        make_thread(store, f"01JD{1:022}", status="ended", returnCode=0)  # of no project
    rows = {row["directory"]: row for row in cli("projects", "list", "--room", "--json").json}
    assert rows.keys() == {str(project), str(other)}
    assert (rows[str(project)]["sessions"], rows[str(project)]["runs"]) == (2, 1)
    assert (rows[str(other)]["sessions"], rows[str(other)]["runs"]) == (1, 0)
    assert rows[str(project)]["bytes"] > rows[str(other)]["bytes"] > 0
    (listed,) = cli("thread", "list", "--project", other, "--json").json
    assert (listed["task"], listed["project"]) == ("Elsewhere", str(other))
    named = {row["project"] for row in cli("sessions", "list", "--json").json}
    assert named == {str(project), str(other)}
    other.rmdir()
    assert f"{other} (gone)" in cli("projects", "list").text


def test_forget_and_undo(cli: Cli, project: Path, tmp_path: Path) -> None:
    cli("init")
    (project / "kept.txt").write_text("kept")
    cli("checkpoint", "create", "app", project)
    (project / "kept.txt").write_text("changed")
    cli("checkpoint", "restore", "app", project, "--force")
    imported(cli, "one", "Do it", project)
    imported(cli, "two", "Elsewhere", tmp_path)
    before = cli("sessions", "list", "--json").json
    dry = cli("projects", "forget", project, "--dry-run")
    assert dry.text == f"would be removed: 1 sessions and 0 runs of {project}\n"
    assert cli("sessions", "list", "--json").json == before
    forgotten = cli("projects", "forget", project, "--json").json
    assert forgotten["removal"]
    assert [row["first"] for row in cli("sessions", "list", "--json").json] == ["Elsewhere"]
    assert str(project) not in cli("projects", "list").text
    assert (project / "kept.txt").read_text() == "kept"
    (project / "kept.txt").write_text("changed again")
    cli("checkpoint", "restore", "app", project, "--force")
    cli("undo", "--store")
    assert cli("sessions", "list", "--json").json == before


def test_a_project_that_is_gone_is_forgotten_by_its_path(cli: Cli, project: Path) -> None:
    cli("init")
    imported(cli, "one", "Do it", project)
    nested = project / "nested"
    nested.mkdir()
    subprocess.run(["git", "init", "-q", nested], check=True)
    imported(cli, "two", "Do it", nested)
    shutil.rmtree(nested)
    assert cli("projects", "forget", nested, "--json").json["directory"] == str(nested)
    project.rename(project.parent / "moved")
    cli("projects", "forget", project)
    assert cli("projects", "list").text == ""
    assert "no project" in cli.refused("projects", "forget", project, code=3)


def test_one_in_which_a_thread_runs_is_refused(cli: Cli, project: Path) -> None:
    cli("init")
    with Store.open(cli.root) as store:
        make_thread(store, status="running", project=str(project))
    assert "is running" in cli.refused("projects", "forget", project, "--dry-run", code=4)
    assert "is running" in cli.refused("projects", "forget", project, code=4)


def test_a_subagent_without_a_project_is_of_that_of_its_caller(cli: Cli, project: Path) -> None:
    cli("init")
    imported(cli, "one", "Do it", project)
    (session,) = cli("sessions", "list", "--json").json
    with Store.open(cli.root) as store:
        ended = {"status": "ended", "returnCode": 0}
        make_thread(store, "01ZZ" + "0" * 22, parent=session["thread"], **ended)
    (listed,) = cli("projects", "list", "--json").json
    assert (listed["sessions"], listed["runs"]) == (1, 0)
    cli("projects", "forget", project / ".git")
    assert cli("thread", "list", "--json").json == []


def test_detach_all(cli: Cli, project: Path) -> None:
    try:
        cli("attach", "claude", "--project", project, "--no-service")
        cli("attach", "claude", "--user", "--no-service")
    finally:
        stop(cli)
    assert cli("projects", "list", "--json").json[0]["attached"] == ["claude"]
    assert cli("detach", "--all").text.count("claude detached: ") == 2
    assert cli("attach", "--list", "--json").json["attached"] == []
    assert cli("detach", "--all").text == "nothing is attached\n"
    cli.refused("detach", code=2)
    cli.refused("detach", "claude", "--all", code=2)
    cli.refused("detach", "--all", "--user", code=2)

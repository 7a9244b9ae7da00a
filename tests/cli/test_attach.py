"""`attach` and `detach`: what they write, print and refuse."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from casfs.attach import spool
from casfs.system import daemon_socket
from tests.support.engine import Cli, until
from tests.support.sessions import ClaudeEvents, report


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", folder], check=True)
    monkeypatch.chdir(folder / "src")
    return folder


def stop(cli: Cli) -> None:
    if daemon_socket.runs(cli.root):
        daemon_socket.stop(cli.root)


def test_from_attach_to_detach(cli: Cli, project: Path) -> None:
    file = project / ".claude/settings.local.json"
    plan = cli("attach", "claude", "--dry-run").text
    assert plan.startswith(f"{file}:\n+{{\n")
    assert plan.endswith(f"claude would be attached in {project}\n")
    assert not file.exists()
    try:
        done = cli("attach", "claude")
        assert done.text.startswith(f"{file} gets a hook for SessionStart, ")
        assert done.text.endswith("sessions that begin now are recorded\n")
        assert daemon_socket.find(cli.root) is not None
        assert cli("attach", "--list").text == f"claude\t{project}\t\t\n"
        assert f"agent   claude in {project}, has not spoken yet" in cli("status").text
        events = ClaudeEvents(project)
        report(cli.root, events.prompt("Do it"))
        report(cli.root, events.stop())
        until(lambda: spool.names(cli.root) == [], "an empty spool")
        (listed,) = cli("attach", "--list", "--json").json["attached"]
        assert listed["lastSpokeAt"] is not None
        assert (listed["sessions"], listed["projects"]) == (1, 1)
        assert f"agent   claude in {project}, 1 session, last spoke 2" in cli("status").text
        assert listed["fault"] is None
        (thread,) = cli("thread", "list", "--json").json
        assert (thread["workflow"], thread["task"]) == ("claude", "Do it")
        assert cli("detach", "claude").text == f"claude detached: {file}\n"
        assert not file.parent.exists()
        assert cli("attach", "--list").text == ""
        assert len(cli("thread", "list", "--json").json) == 1
        assert "is not attached in" in cli.refused("detach", "claude", code=3)
    finally:
        stop(cli)


def test_it_makes_the_store(cli: Cli, project: Path, tmp_path: Path) -> None:
    cli.root = tmp_path / "new"
    try:
        done = cli("attach", "claude", "--user", "--json").json
        assert (done["directory"], done["dryRun"]) == (None, False)
        assert "develop" in cli("workflow", "list").text
    finally:
        stop(cli)


def git(project: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", project, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("folder", ["", "sub [x]/"])
def test_git_does_not_see_it(cli: Cli, project: Path, folder: str) -> None:
    """Else an agent that commits all would share paths of this machine."""
    exclude = project / ".git/info/exclude"
    before = exclude.read_bytes()
    (project / folder).mkdir(exist_ok=True)
    try:
        for _ in range(2):
            cli("attach", "claude", "--project", str(project / folder))
        git(project, "add", "-A")
        assert git(project, "ls-files") == ""
        assert exclude.read_text().count("settings.local.json") == 1
        cli("detach", "claude", "--project", str(project / folder))
    finally:
        stop(cli)
    assert exclude.read_bytes() == before


def test_the_lines_of_a_person_stay(cli: Cli, project: Path, tmp_path: Path) -> None:
    """Byte for byte, with the mode, behind a link; and the line of two work trees is one."""
    real = tmp_path / "exclude"
    exclude = project / ".git/info/exclude"
    exclude.unlink()
    exclude.symlink_to(real)
    real.write_bytes(b"# old\x0c*.py\r\nlast")
    real.chmod(0o640)
    git(project, "-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "x", "--allow-empty")
    git(project, "worktree", "add", "-q", "../linked")
    both = [project, project.parent / "linked"]
    try:
        for top in both:
            cli("attach", "claude", "--project", str(top))
        assert real.read_bytes() == b"# old\x0c*.py\r\nlast\n/.claude/settings.local.json\n"
        cli("detach", "claude", "--project", str(both[0]))
        assert git(both[1], "status", "--porcelain") == ""
        cli("detach", "claude", "--project", str(both[1]))
    finally:
        stop(cli)
    assert real.read_bytes() == b"# old\x0c*.py\r\nlast\n"
    assert real.stat().st_mode & 0o777 == 0o640
    assert exclude.is_symlink()


def test_where_it_cannot_be_excluded_a_person_is_told(cli: Cli, project: Path) -> None:
    info = project / ".git/info"
    (info / "exclude").unlink()
    info.rmdir()
    info.write_text("")
    try:
        answer = cli("attach", "claude")
        assert "keep it out of commits" in answer.err
        cli("detach", "claude")
    finally:
        stop(cli)


def test_what_git_ignores_already_is_not_excluded(cli: Cli, project: Path) -> None:
    (project / ".gitignore").write_text("*.local.json\n")
    before = (project / ".git/info/exclude").read_bytes()
    try:
        cli("attach", "claude")
    finally:
        stop(cli)
    assert (project / ".git/info/exclude").read_bytes() == before


def test_a_file_that_git_tracks(cli: Cli, project: Path) -> None:
    file = project / ".claude/settings.local.json"
    file.parent.mkdir()
    file.write_text("{}")
    subprocess.run(["git", "-C", project, "add", "-A"], check=True)
    assert "git tracks" in cli.refused("attach", "claude", code=4)
    assert file.read_text() == "{}"


def test_what_is_wrong_with_an_attachment(cli: Cli, project: Path) -> None:
    try:
        cli("attach", "claude")
        file = project / ".claude/settings.local.json"
        value = json.loads(file.read_text())
        del value["hooks"]["Stop"]
        file.write_text(json.dumps(value))
        assert "no hook for Stop" in cli("attach", "--list").err
        file.write_text("{")
        assert "not what the agent can read" in cli("status").err
        (cli.root / "spool/aside").mkdir()
        (cli.root / "spool/aside/x").touch()
        (cli.root / "spool/missed").touch()
        said = cli("attach", "--list").err
        assert "1 reports could not be read" in said
        assert "is lost: the disk was full" in said
    finally:
        stop(cli)


def test_pause(cli: Cli, project: Path) -> None:
    assert cli("attach", "--pause", ".").text == f"sessions in {project}/src are not recorded\n"
    assert cli("attach", "--list", "--json").json["paused"] == [f"{project}/src"]
    assert cli("attach", "--resume", ".").text.endswith("are recorded again\n")
    assert "is not paused" in cli.refused("attach", "--resume", ".", code=3)


def test_usage(cli: Cli, project: Path) -> None:
    assert "'emacs' is not one of 'claude'" in cli("attach", "emacs", code=2).err
    assert "give AGENT, --list" in cli("attach", code=2).err
    assert "give AGENT, --list" in cli("attach", "claude", "--list", code=2).err
    both = cli("attach", "claude", "--user", "--project", ".", code=2)
    assert "not both" in both.err
    home = str(Path.home())
    assert "home directory" in cli.refused("attach", "claude", "--project", home, code=4)

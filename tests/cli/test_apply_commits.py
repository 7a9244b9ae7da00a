"""`thread apply --commits` brings what agents committed, as branches of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.engine import Cli
from tests.support.helpers import write_tree
from tests.support.repositories import git

pytestmark = pytest.mark.usefixtures("own_daemon")
COMMIT = "git -c user.name=a -c user.email=b commit -q"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = write_tree(tmp_path / "project", {"a.txt": b"a\n", ".env": b"TOKEN=horse-battery\n"})
    git(tmp_path, "init", "-q", "-b", "main", str(project))
    git(project, "add", "a.txt")
    git(project, "commit", "-qm", "first")
    return project


def committed(cli: Cli, project: Path, script: str) -> str:
    """Runs a thread whose agent runs a script; returns its id."""
    (project.parent / "agent.sh").write_text(script)
    agent = f"command:sh {project.parent / 'agent.sh'}"
    ended = cli("run", agent, "x", project, "--no-apply", "--json").text.splitlines()[-1]
    return str(json.loads(ended)["id"])


def test_commits_come_home(cli: Cli, project: Path) -> None:
    script = (
        f"echo b >>a.txt; {COMMIT} -am second; git checkout -qb try/it;"
        f" echo c >c; git add -f c .env; {COMMIT} -m third; git gc -q"
    )
    thread = committed(cli, project, script)
    before = git(project, "status", "--porcelain"), git(project, "rev-parse", "HEAD")
    asked = cli("thread", "apply", thread, project, "--commits", "--check", "--json").json
    assert [branch["commits"] for branch in asked["branches"]] == [None, None]
    assert "casfs/" not in git(project, "branch", "--list")
    done = cli("thread", "apply", thread, project, "--commits", "--json")
    branches = {branch["name"]: branch for branch in done.json["branches"]}
    assert {name: branch["commits"] for name, branch in branches.items()} == {
        f"casfs/{thread}/main": 1,
        f"casfs/{thread}/try/it": 2,
    }
    assert branches[f"casfs/{thread}/try/it"]["private"] == [".env"]
    assert f"casfs/{thread}/try/it has files that are private in the thread: .env" in done.err
    assert git(project, "show", f"casfs/{thread}/try/it:c") == "c\n"
    assert git(project, "log", "-1", "--format=%s", f"casfs/{thread}/main") == "second\n"
    # Nothing else of the repository has moved.
    assert (git(project, "status", "--porcelain"), git(project, "rev-parse", "HEAD")) == before
    assert git(project, "fsck", "--strict", "--no-dangling") == ""
    assert "no commits" not in cli("thread", "apply", thread, project, "--commits").text
    told = cli("thread", "apply", thread, project)
    assert "its git commits were left out; --commits brings them" in told.err


def test_commits_on_no_branch(cli: Cli, project: Path) -> None:
    thread = committed(cli, project, f"git checkout -q --detach; {COMMIT} --allow-empty -m on-none")
    cli("thread", "apply", thread, project, "--commits")
    assert git(project, "log", "-1", "--format=%s", f"casfs/{thread}/HEAD") == "on-none\n"


def test_without_commits(cli: Cli, project: Path) -> None:
    thread = committed(cli, project, "echo b >>a.txt; git branch same; git branch -D same -q")
    assert cli("thread", "apply", thread, project, "--commits").text == "no commits to bring\n"


def test_what_is_refused(cli: Cli, project: Path, tmp_path: Path) -> None:
    thread = committed(cli, project, f"{COMMIT} --allow-empty -m second")
    (tmp_path / "plain").mkdir()
    refused = cli("thread", "apply", thread, tmp_path / "plain", "--commits", code=4)
    assert "is not a git repository; run `git init` there first" in refused.err
    # A branch on which the person has gone on is hers.
    branch = f"casfs/{thread}/main"
    git(project, "branch", branch)
    git(project, "switch", "-q", branch)
    git(project, "commit", "-q", "--allow-empty", "-m", "mine")
    git(project, "switch", "-q", "main")
    mine = git(project, "rev-parse", branch)
    cli("thread", "apply", thread, project, "--commits", code=1)
    assert git(project, "rev-parse", branch) == mine
    (project / "b").mkdir()
    plain = committed(cli, project / "b", "echo x >x")
    missing = cli("thread", "apply", plain, project, "--commits", code=3)
    assert "nothing of a git repository" in missing.err


def test_a_repository_that_names_programs(cli: Cli, project: Path, tmp_path: Path) -> None:
    """Nothing of its configuration, hooks or alternates is used, and no name becomes a command."""
    planted = tmp_path / "planted"
    script = f"""
{COMMIT} --allow-empty -m second
for name in uploadpack.packObjectsHook core.fsmonitor core.hooksPath core.sshCommand; do
    git config $name 'touch {planted}'
done
git config alias.upload-pack '!touch {planted}'
git config include.path {tmp_path}/other
mkdir -p .git/hooks .git/refs/heads/--upload-pack=x
for hook in post-checkout reference-transaction post-merge; do
    printf '#!/bin/sh\\ntouch {planted}\\n' >.git/hooks/$hook; chmod +x .git/hooks/$hook
done
cp .git/refs/heads/main '.git/refs/heads/--upload-pack=x/y'
cp .git/refs/heads/main '.git/refs/heads/with space'
echo /nowhere >.git/objects/info/alternates
"""
    thread = committed(cli, project, script)
    done = cli("thread", "apply", thread, project, "--commits", "--json").json
    names = [branch["name"] for branch in done["branches"]]
    assert names == [f"casfs/{thread}/--upload-pack=x/y", f"casfs/{thread}/main"]
    assert not planted.exists()

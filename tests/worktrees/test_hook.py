"""Worktrees that Claude Code has made by its hooks, without it: what it is answered."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from casfs.attach import spool
from tests.support.engine import Cli
from tests.worktrees.conftest import git, write


def hook(cli: Cli, task: str, code: int = 0, **payload: Any) -> subprocess.CompletedProcess[str]:
    """Runs what `attach --worktrees` writes into the settings."""
    script = spool.prepare(cli.root, os.environ).with_name(spool.WORKTREE_SCRIPT)
    done = subprocess.run(
        ["sh", "-c", f"{script} {task}"], input=json.dumps(payload), capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done


def test_create_go_on_and_remove(cli: Cli, project: Path) -> None:
    cwd = str(project)
    answer = hook(cli, "create", name="feat", cwd=cwd, session_id="s")
    worktree = Path(answer.stdout.splitlines()[-1])
    assert worktree.is_absolute()
    assert (worktree / "node_modules/left/pad.js").read_text() == "pad"
    assert git(worktree, "branch", "--show-current") == "worktree-feat"
    assert hook(cli, "create", name="feat", cwd=cwd).stdout == answer.stdout
    write(worktree, {"mine.txt": "1"})
    assert "mine.txt" in hook(cli, "remove", worktree_path=str(worktree)).stderr
    assert worktree.exists()
    (worktree / "mine.txt").unlink()
    hook(cli, "remove", worktree_path=str(worktree))
    assert not worktree.exists()
    assert hook(cli, "remove", worktree_path=str(worktree)).stderr == ""


def test_what_git_ignores_is_kept(cli: Cli, project: Path) -> None:
    """Claude removes without a question; what is derived can be made again."""
    cwd = str(project)
    worktree = Path(hook(cli, "create", name="feat", cwd=cwd).stdout.strip())
    write(worktree, {"results.log": "of an hour", "node_modules/made.js": "made"})
    said = hook(cli, "remove", worktree_path=str(worktree)).stderr
    assert "git ignores results.log: kept in worktree-feat@" in said
    assert not worktree.exists()
    name = said.split()[-1]
    assert cli("cat", f"{name}:results.log").text == "of an hour"
    worktree = Path(hook(cli, "create", name="feat", cwd=cwd).stdout.strip())
    assert hook(cli, "remove", worktree_path=str(worktree)).stderr == ""


def test_one_of_a_worktree_begins_as_that_is(cli: Cli, project: Path) -> None:
    first = Path(hook(cli, "create", name="a", cwd=str(project)).stdout.strip())
    write(first, {"later.txt": "1"})
    git(first, "commit", "-qam", "second")
    second = Path(hook(cli, "create", name="agent-1", cwd=str(first)).stdout.strip())
    assert second.parent == first.parent
    assert (second / "later.txt").read_text() == "1"
    assert git(second, "log", "--format=%s") == "second\nfirst"
    assert git(second, "status", "--porcelain") == "?? later.txt\n?? src/new.py"
    assert cli("worktree", "list", "--json").json[1]["project"] == str(project)


def test_names_that_no_directory_may_have(cli: Cli, project: Path) -> None:
    names = ("../a b/..c", "../a b/../c")
    paths = {hook(cli, "create", name=name, cwd=str(project)).stdout.strip() for name in names}
    assert {Path(path).parent for path in paths} == {project.parent / "project.worktrees"}
    assert len(paths) == 2


@pytest.mark.parametrize(
    "payload", [{}, {"name": "a"}, {"name": 1, "cwd": "/"}, {"name": "..", "cwd": "/nowhere"}]
)
def test_a_payload_of_another_form(cli: Cli, project: Path, payload: dict[str, Any]) -> None:
    assert hook(cli, "create", code=4, **payload).stderr.startswith("casfs: ")


def test_prune(cli: Cli, project: Path) -> None:
    for name in ("unused", "changed", "committed", "busy"):
        cli("worktree", "add", name)
    worktrees = project.parent / "project.worktrees"
    write(worktrees / "unused", {"made.log": "", "node_modules/x.js": ""})
    write(worktrees / "changed", {"mine.txt": "1"})
    git(worktrees / "committed", "commit", "-qam", "second")
    with subprocess.Popen(["cat"], cwd=worktrees / "busy", stdin=subprocess.PIPE) as user:
        pruned = cli("worktree", "prune", "--json").json
        user.communicate(b"")
    assert pruned["removed"] == ["unused"]
    assert pruned["staying"].keys() == {"busy", "changed", "committed"}
    assert "branch committed has commits" in pruned["staying"]["committed"]
    assert cli("worktree", "prune").out.decode().splitlines()[0] == "busy removed"

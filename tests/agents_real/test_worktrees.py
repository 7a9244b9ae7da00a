"""Real agents in worktrees: claude makes its own by casfs, two agents work in two at once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.attach import spool
from casfs.cli import implicit_mount
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import prompts, sessions, threads
from casfs.workspaces import overlay_mount, registry
from tests.agents_real.conftest import ready
from tests.support.agent_model import Model, script
from tests.support.engine import Cli, until
from tests.worktrees.conftest import git, make_project

pytestmark = pytest.mark.agents
CLAUDE = ("claude", "-p", "--permission-mode", "bypassPermissions")


@pytest.fixture
def project(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = make_project(tmp_path / "project")
    monkeypatch.chdir(path)
    monkeypatch.setenv("CASFS_STORE", str(cli.root))
    try:
        yield path
    finally:
        if daemon_socket.runs(cli.root):
            daemon_socket.stop(cli.root)
        with Store.open(cli.root) as store:
            for workspace in registry.listing(store):
                overlay_mount.unmount(workspace.path, lazy=True)
        implicit_mount.end(cli.root, os.environ)


def test_claude_makes_its_worktree(
    cli: Cli, project: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready("claude-code", model.url, monkeypatch)
    cli("attach", "claude", "--worktrees", "--no-service")
    work = script(
        ("run", "cat node_modules/left/pad.js > a.txt && git add a.txt"), ("say", "Done.")
    )
    subprocess.run(
        [*CLAUDE, "-w", "feat", f"Work\n{work}"],
        cwd=project,
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )
    worktree = project.parent / "project.worktrees/feat"
    assert (worktree / "a.txt").read_text() == "pad"
    assert git(worktree, "branch", "--show-current") == "worktree-feat"
    assert not (project / "a.txt").exists()
    assert git(project, "worktree", "list").count("\n") == 1
    until(lambda: spool.names(cli.root) == [], "an empty spool")
    with Store.open(cli.root) as store:
        (thread,) = sessions.newest_first(store)
        (step,) = threads.last_steps(store, thread, None)
        assert prompts.of_step(store, thread, step).text.startswith("Work")
        directory = sessions.about(store, thread)["directory"]
    assert directory in (str(project), str(worktree))
    assert "a.txt" in cli("worktree", "rm", "feat", code=4).err
    cli("worktree", "apply", "feat")
    assert (project / "a.txt").read_text() == "pad"


def test_two_agents_in_two_worktrees(
    cli: Cli, project: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("claude-code", "opencode-cli"):
        ready(name, model.url, monkeypatch)
    before = git(project, "status", "--porcelain", "--ignored")
    for name in ("a", "b"):
        cli("worktree", "add", name)
    commands = {"a": [*CLAUDE], "b": ["opencode", "run"]}
    running = []
    for name, command in commands.items():
        commit = f"git add -A && git -c user.name=T -c user.email=t@example.org commit -qm {name}"
        work = script(("write", f"{name}.txt", name), ("run", commit), ("say", "Done."))
        argv = [sys.executable, "-m", "casfs", "worktree", "run", name, "--", *command]
        directory = str(project.parent / "project.worktrees" / name)
        process = subprocess.Popen(
            argv, env={**os.environ, "PWD": directory}, stdin=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write(f"Work\n{work}")
        process.stdin.close()
        running.append(process)
    assert [process.wait(timeout=180) for process in running] == [0, 0]
    assert git(project, "status", "--porcelain", "--ignored") == before
    for name in commands:
        assert git(project, "show", f"{name}:{name}.txt") == name
        assert git(project, "log", "--format=%s", f"main..{name}") == name
        cli("worktree", "apply", name)
        assert (project / f"{name}.txt").read_text() == name
        cli("worktree", "rm", name)

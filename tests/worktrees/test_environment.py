"""The environment of a worktree: ports, and an `.env` by a template."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from casfs.errors import Failed
from casfs.system import daemon_socket
from casfs.worktrees import environment
from tests.support.engine import Cli
from tests.worktrees.conftest import git, write


def test_ports_are_of_one_worktree(cli: Cli, project: Path) -> None:
    bases = [cli("worktree", "add", "--json").json["portBase"] for _ in range(3)]
    assert len(set(bases)) == 3
    assert {base % environment.PORTS_EACH for base in bases} == {0}
    script = "import os; print(os.environ['CASFS_PORT_BASE'], os.environ['CASFS_WORKTREE'])"
    argv = [
        sys.executable,
        "-m",
        "casfs",
        "worktree",
        "run",
        "w2",
        "--",
        sys.executable,
        "-c",
        script,
    ]
    env = {**os.environ, "CASFS_STORE": str(cli.root)}
    output = subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout
    assert output == f"{bases[1]} w2\n"


def test_a_block_in_which_somebody_listens_is_not_taken(tmp_path: Path) -> None:
    base = environment.free_ports([], tmp_path)
    assert environment.free_ports([], tmp_path) == base
    with socket.socket() as server:
        server.bind(("127.0.0.1", base + 7))
        server.listen()
        assert environment.free_ports([], tmp_path) != base
    every = [environment.FIRST_PORT + block * 20 for block in environment.BLOCKS]
    with pytest.raises(Failed, match="no block of ports is free"):
        environment.free_ports(every, tmp_path)


def test_the_template_of_an_env(cli: Cli, project: Path) -> None:
    template = "# of a worktree\nPORT={port}\nURL=http://localhost:{port+1}/{name}?b={branch}\n"
    write(project, {".env": "KEY=mine\nexport PORT=3000\n\n# the end\n", ".env.worktree": template})
    added = cli("worktree", "add", "try", "--branch", "b/c", "--json").json
    base = added["portBase"]
    worktree = Path(added["directory"])
    assert (worktree / ".env").read_text() == (
        f"KEY=mine\nPORT={base}\n\n# the end\nURL=http://localhost:{base + 1}/try?b=b/c\n"
    )
    assert (project / ".env").read_text() == "KEY=mine\nexport PORT=3000\n\n# the end\n"
    # It does not count as a change.
    cli("worktree", "apply", "try", "--ignored")
    assert "export PORT=3000" in (project / ".env").read_text()
    cli("worktree", "rm", "try")


@pytest.mark.parametrize("is_work", [False, True])
def test_a_template_without_an_env(cli: Cli, project: Path, is_work: bool) -> None:
    write(project, {".env.worktree": "PORT={port}\n"})
    (project / ".env").unlink()
    if is_work:
        (project / ".gitignore").write_text("node_modules/\n")
        write(project, {".env": "A=1\n"})
        git(project, "add", "-A")
    added = cli("worktree", "add", "try", "--json").json
    text = (Path(added["directory"]) / ".env").read_text()
    before = "A=1\n" if is_work else ""
    assert text == f"{before}PORT={added['portBase']}\n"


def test_a_bad_template(cli: Cli, project: Path) -> None:
    write(project, {".env.worktree": "PORT={port+20}\n"})
    listed = git(project, "worktree", "list")
    assert "there are {port} to {port+19}" in cli("worktree", "add", "try", code=4).err
    write(project, {".env.worktree": f"PORT={{port+{'9' * 5000}}}\n"})
    assert "there are {port} to {port+19}" in cli("worktree", "add", "try", code=4).err
    assert git(project, "worktree", "list") == listed


def test_the_hooks_of_an_attached_agent_come_along(cli: Cli, project: Path) -> None:
    write(project, {".worktreeinclude": ".env\n"})
    try:
        cli("attach", "claude", "--project", str(project))
        worktree = Path(cli("worktree", "add", "try", "--json").json["directory"])
        assert (worktree / ".claude/settings.local.json").exists()
        assert git(worktree, "status", "--porcelain") == git(project, "status", "--porcelain")
    finally:
        daemon_socket.stop(cli.root)


def test_hooks_of_git_come_along(cli: Cli, project: Path) -> None:
    """As husky has them: in a directory that git ignores."""
    write(project, {".worktreeinclude": ".env\n", ".husky/_/pre-commit": "#!/bin/sh\nexit 9\n"})
    write(project, {".gitignore": ".husky/_/\n.env\n*.log\nnode_modules/\n", "x.log": ""})
    (project / ".husky/_/pre-commit").chmod(0o755)
    git(project, "config", "core.hooksPath", ".husky/_")
    git(project, "-c", "core.hooksPath=/dev/null", "commit", "-qam", "husky")
    worktree = Path(cli("worktree", "add", "try", "--json").json["directory"])
    assert not (worktree / "x.log").exists()
    git(worktree, "commit", "-q", "--allow-empty", "-m", "refused", code=1)


def test_worktreeinclude(cli: Cli, project: Path) -> None:
    """Of what git ignores; what is derived comes along all the same, and what git tracks."""
    write(
        project,
        {
            ".worktreeinclude": "# for all tools\n.env\n/local/\n!local/huge.log\n",
            "other.log": "left here",
            "local/a.log": "1",
            "local/huge.log": "left here",
            "deep/.env": "KEY=another\n",
            "deep/keys.log": "left here",
            "tracked.log": "1",
        },
    )
    git(project, "add", "-f", "tracked.log")
    worktree = Path(cli("worktree", "add", "try", "--json").json["directory"])
    present = {".env", "deep/.env", "local/a.log", "tracked.log"}
    absent = {"other.log", "local/huge.log", "deep/keys.log"}
    for name in present | absent:
        assert (worktree / name).exists() == (name in present), name
    assert (worktree / "node_modules/left/pad.js").exists()
    assert git(worktree, "status", "--porcelain") == git(project, "status", "--porcelain")
    # What was not there is not deleted in the project.
    cli("worktree", "apply", "try", "--ignored")
    assert (project / "other.log").read_text() == "left here"
    cli("worktree", "rm", "try")
    worktree = Path(cli("worktree", "add", "all", "--all", "--json").json["directory"])
    assert (worktree / "other.log").exists()

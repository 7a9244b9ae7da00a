"""A worktree at its project's own path: for what has that path inside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.engine import Cli
from tests.worktrees.conftest import COMMITTER, OWNER, add, git, write


def run(cli: Cli, name: str, script: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "casfs", "worktree", "run", "--in-place", name]
    done = subprocess.run(
        [*command, "--", "sh", "-ec", script],
        env={**os.environ, **OWNER, **COMMITTER, "CASFS_STORE": str(cli.root)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_it_is_at_the_path_of_the_project(cli: Cli, project: Path) -> None:
    worktree = add(cli, "try")
    write(worktree, {"only-here": "1"})
    before = git(project, "rev-parse", "main"), (project / ".git/index").read_bytes()
    script = f"""
        test "$PWD" = {project}
        test "$(cat {project}/only-here)" = 1
        test "$CASFS_WORKTREE" = try
        echo changed >src/b.py
        test "$(git rev-parse --show-toplevel)" = {project}
        git commit -qam in-place
        git log --format=%s
    """
    assert run(cli, "try", script) == "in-place\nfirst\n"
    # Its own, and nothing of the project's.
    assert (worktree / "src/b.py").read_text() == "changed\n"
    assert git(worktree, "log", "--format=%s") == "in-place\nfirst"
    assert not (project / "only-here").exists()
    assert (project / "src/b.py").read_text() == "b\n"
    assert (git(project, "rev-parse", "main"), (project / ".git/index").read_bytes()) == before
    assert git(project, "fsck") == ""
    # Nothing stays mounted, and the worktree can be removed.
    assert run(cli, "try", "exit 7", code=7) == ""
    cli("worktree", "rm", "try", "--force")
    assert str(project) not in Path("/proc/self/mountinfo").read_text().split()


def test_a_virtual_environment(cli: Cli, project: Path) -> None:
    """Its programs name the project's path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], check=True)
    program = project / ".venv/bin/tool"
    write(project, {".gitignore": ".venv/\n", "src/mine.py": "WHO = 'project'\n"})
    program.write_text(f"#!{project}/.venv/bin/python\nimport mine\nprint(mine.WHO)\n")
    program.chmod(0o755)
    (site,) = project.glob(".venv/lib/*/site-packages")
    (site / "mine.pth").write_text(f"{project}/src\n")
    worktree = add(cli, "try", "--no-relocate")
    write(worktree, {"src/mine.py": "WHO = 'worktree'\n"})
    assert subprocess.check_output([worktree / ".venv/bin/tool"]) == b"project\n"
    assert run(cli, "try", ".venv/bin/tool") == "worktree\n"


def test_without_git(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tmp_path / "plain"
    write(plain, {"a": "1"})
    monkeypatch.chdir(plain)
    worktree = add(cli, "try")
    write(worktree, {"a": "2"})
    assert run(cli, "try", "cat a") == "2"


def test_one_in_use_is_not_removed(cli: Cli, project: Path) -> None:
    add(cli, "try")
    command = [sys.executable, "-m", "casfs", "worktree", "run", "--in-place", "try", "--"]
    waiting = [sys.executable, "-c", "print(flush=True); input()"]
    env = {**os.environ, "CASFS_STORE": str(cli.root)}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*command, *waiting], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    with start() as first, start() as second:
        for program in (first, second):
            assert program.stdout is not None
            assert program.stdout.readline() == b"\n"
        for options in ((), ("--force",)):
            assert "--in-place" in cli("worktree", "rm", "try", *options, code=4).err
        assert "--in-place" in cli("worktree", "prune").out.decode()
        for program in (first, second):
            program.communicate(b"\n")
    cli("worktree", "rm", "try")


def test_a_linked_work_tree_of_git(
    cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its repository is elsewhere, and is not hidden."""
    linked = project.parent / "linked"
    git(project, "worktree", "add", "-q", str(linked))
    monkeypatch.chdir(linked)
    worktree = add(cli, "try")
    write(worktree, {"src/b.py": "changed\n"})
    assert run(cli, "try", "git commit -qam second; git log --format=%s") == "second\nfirst\n"
    assert git(worktree, "log", "-1", "--format=%s") == "second"


def test_casfs_in_it_says_so(cli: Cli, project: Path) -> None:
    """The paths that it would record are none outside."""
    add(cli, "try")
    casfs = f"{sys.executable} -m casfs"
    assert run(cli, "try", f"{casfs} worktree list 2>&1 || true").startswith("casfs: in a worktree")

"""What was built in a project is up to date in its worktree, for real tools; after an edit exactly
what is needed is built."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.builds import QUICK_MAKE, TOOLS, Tool
from tests.support.engine import Cli
from tests.test_true_builds import check
from tests.worktrees.conftest import add, git, write

MANY = 20
IGNORED = "*.o\nprog\n.ninja*\ntarget\nout\n*.tsbuildinfo\n__pycache__\n.pytest_cache\n"


def built(folder: Path, tool: Tool) -> Path:
    """Creates a project in git in which everything is built."""
    project = tool.create(folder / "project")
    write(project, {".gitignore": IGNORED})
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "first")
    tool.make(project)
    return project


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_nothing_is_built_again(
    cli: Cli, tmp_path: Path, tool: Tool, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.require(*tool.programs)
    project = built(tmp_path, tool)
    monkeypatch.chdir(project)
    worktree = add(cli, "try")
    assert (worktree / tool.output).exists()
    check(tool, worktree, tmp_path, is_idle=True)
    assert not tool.make(project)
    assert "8" not in tool.says(project)


def test_only_what_failed_last_is_tested(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache of pytest comes along."""
    project = built(tmp_path, QUICK_MAKE)
    write(project, {"test_a.py": "def test_a(): pass\n", "test_b.py": "def test_b(): assert 0\n"})
    monkeypatch.chdir(project)
    pytest_again = [sys.executable, "-m", "pytest", "-q", "--last-failed", "-c", "/dev/null"]
    assert subprocess.run(pytest_again, cwd=project, capture_output=True).returncode == 1
    worktree = add(cli, "try")
    said = subprocess.run(pytest_again, cwd=worktree, capture_output=True, text=True).stdout
    assert "1 failed in" in said
    assert "passed" not in said


def test_twenty_at_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is made, built, committed and rebased while the others are; what is the person's does
    not move."""
    tool = QUICK_MAKE
    project = built(tmp_path, tool)
    git(project, "switch", "-qc", "upstream")
    write(project, {"upstream.txt": "1"})
    git(project, "add", "-A")
    git(project, "commit", "-qm", "upstream")
    git(project, "switch", "-q", "main")
    git(project, "status")
    monkeypatch.chdir(project)
    before = [(project / ".git" / name).read_bytes() for name in ("index", "HEAD")]
    before_main = git(project, "rev-parse", "main")
    program = [sys.executable, "-m", "casfs", "--store", str(cli.root), "worktree", "add"]

    def work(number: int) -> str:
        name = f"w{number}"
        done = subprocess.run([*program, name], cwd=project, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        worktree = project.parent / "project.worktrees" / name
        assert not tool.make(worktree)
        tool.edit(worktree, tool.edited[number % 3], "8")
        assert tool.make(worktree)
        assert "8" in tool.says(worktree)
        git(worktree, "commit", "-qam", name)
        git(worktree, "rebase", "-q", "upstream")
        assert git(worktree, "status", "--porcelain") == ""
        return git(worktree, "log", "--format=%s", name)

    with ThreadPoolExecutor(MANY) as pool:
        logs = list(pool.map(work, range(MANY)))
    assert logs == [f"w{number}\nupstream\nfirst" for number in range(MANY)]
    assert git(project, "fsck", "--full") == ""
    assert [(project / ".git" / name).read_bytes() for name in ("index", "HEAD")] == before
    assert git(project, "rev-parse", "main") == before_main
    assert git(project, "status", "--porcelain") == ""
    assert not tool.make(project)
    values = cli("worktree", "list", "--json").json
    assert len({value["portBase"] for value in values}) == MANY

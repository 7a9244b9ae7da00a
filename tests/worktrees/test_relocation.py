"""What has the project's path inside: said, and mended by `--relocate`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import programs
from tests.support.engine import Cli, daemon
from tests.worktrees.conftest import add, git, write

CMAKE = """\
cmake_minimum_required(VERSION 3.13)
project(app C)
add_executable(app main.c part.c)
"""


def said(directory: Path, *command: str) -> str:
    return subprocess.run(
        command,
        cwd=directory,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout


@pytest.fixture
def environment(project: Path) -> Path:
    """The project with a virtual environment in which its package can be edited."""
    said(project, sys.executable, "-m", "venv", "--without-pip", ".venv")
    write(project, {".gitignore": ".venv/\nbuild/\n", "src/mine.py": "WHO = 'project'\n"})
    tool = project / ".venv/bin/tool"
    tool.write_text(f"#!{project}/.venv/bin/python\nimport mine\nprint(mine.WHO)\n")
    tool.chmod(0o755)
    (site,) = project.glob(".venv/lib/*/site-packages")
    (site / "mine.pth").write_text(f"{project}/src\n{project}-other\n")
    return project


def test_a_virtual_environment(cli: Cli, environment: Path) -> None:
    answer = cli("worktree", "add", "led-back", "--no-relocate")
    assert ".venv has the path" in answer.err
    before = (environment / ".venv/bin/activate").stat()
    answer = cli("worktree", "add", "try", "--relocate")
    assert answer.err == ""
    worktree = environment.parent / "project.worktrees/try"
    write(worktree, {"src/mine.py": "WHO = 'worktree'\n"})
    assert said(worktree, str(worktree / ".venv/bin/tool")) == "worktree\n"
    activated = said(worktree, "sh", "-c", ". .venv/bin/activate && echo $VIRTUAL_ENV")
    assert activated == f"{worktree}/.venv\n"
    (site,) = worktree.glob(".venv/lib/*/site-packages")
    assert (site / "mine.pth").read_text() == f"{worktree}/src\n{environment}-other\n"
    after = (worktree / ".venv/bin/activate").stat()
    assert (after.st_mtime_ns, after.st_mode) == (before.st_mtime_ns, before.st_mode)
    assert said(environment, str(environment / ".venv/bin/tool")) == "project\n"
    # Of it, nothing comes back.
    assert cli("worktree", "apply", "try", "--check").out.decode() == "M src/mine.py\n"


def test_by_the_daemon(cli: Cli, environment: Path) -> None:
    with daemon(cli.root):
        led_back = cli("worktree", "add", "led-back", "--no-relocate")
        assert ".venv has the path" in led_back.err
        answer = cli("worktree", "add", "try")
    # Else its tests would test the project's files.
    assert ".venv imports the worktree's files" in answer.err
    worktree = environment.parent / "project.worktrees/try"
    write(worktree, {"src/mine.py": "WHO = 'worktree'\n"})
    assert said(worktree, str(worktree / ".venv/bin/tool")) == "worktree\n"


@programs.needs("cmake", "make", "cc")
def test_a_build_of_cmake(cli: Cli, project: Path) -> None:
    part = "#include <stdio.h>\nvoid part(void) { puts(PART); }\n"
    write(
        project,
        {
            ".gitignore": "build/\n",
            "CMakeLists.txt": CMAKE,
            "main.c": "void part(void);\nint main(void) { part(); }\n",
            "part.c": f'#define PART "one"\n{part}',
        },
    )
    git(project, "add", "-A")
    git(project, "commit", "-qm", "cmake")
    said(project, "cmake", "-S", ".", "-B", "build", "-G", "Unix Makefiles")
    said(project, "cmake", "--build", "build")
    answer = cli("worktree", "add", "led-back")
    assert "build has the path" in answer.err
    worktree = add(cli, "try", "--relocate")
    again = said(worktree, "cmake", "--build", "build")
    assert "Building" not in again
    assert "Linking" not in again
    write(worktree, {"part.c": f'#define PART "two"\n{part}'})
    again = said(worktree, "cmake", "--build", "build")
    assert "Building C object CMakeFiles/app.dir/part.c.o" in again
    assert "main.c.o" not in again
    assert said(worktree, "build/app") == "two\n"
    assert said(project, "build/app") == "one\n"
    assert os.fsencode(project) + b"/" not in (worktree / "build/Makefile").read_bytes()

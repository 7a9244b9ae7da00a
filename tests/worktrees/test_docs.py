"""docs/worktrees.md, typed line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import console_docs
from tests.support.engine import Cli
from tests.worktrees.conftest import COMMITTER, OWNER, git, write

PAGE = Path(__file__).resolve().parents[2] / "docs" / "worktrees.md"


def test_the_page(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASFS_STORE", str(cli.root))
    for name, value in {**OWNER, **COMMITTER}.items():
        monkeypatch.setenv(name, value)
    project = tmp_path / "app"
    makefile = "app: src/app.txt\n\tcp src/app.txt app\n"
    write(project, {"Makefile": makefile, "src/app.txt": "one\n", ".gitignore": "app\n"})
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    write(project, {"src/app.txt": "one\nand\n"})
    console_docs.run("make -s", "", project)
    for line, shown in console_docs.commands(PAGE.read_text("utf-8")):
        console_docs.run(line, shown, project)
    assert (project / "src/app.txt").read_text() == "one\nand\ntwo\n"

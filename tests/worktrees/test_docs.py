"""docs/worktrees.md, typed line by line, in a project of git, make, npm and pip."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support import console_docs, programs
from tests.support.engine import Cli
from tests.worktrees.conftest import COMMITTER, OWNER, git, write

PAGE = Path(__file__).resolve().parents[2] / "docs" / "worktrees.md"
MAKEFILE = "app: src/app.txt\n\tcp src/app.txt app\n"
IGNORED = "app\nnode_modules/\n.venv/\n*.tgz\n*.whl\n"
PACKAGE = """\
{"name": "app", "version": "1.0.0", "private": true, "scripts": {"test": "node test.js"}}
"""
WHEEL = {
    "greeting.py": "import os\ndef main(): print('hello from', os.path.basename(os.getcwd()))\n",
    "greeting-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n",
    "greeting-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
    "Tag: py3-none-any\n",
    "greeting-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greeting:main\n",
    "greeting-1.0.dist-info/RECORD": "",
}


def run(directory: Path, *command: str) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True)


def install(project: Path, packages: Path) -> None:
    """By npm and pip themselves, from packages on the disk."""
    left = '{"name": "left", "version": "1.0.0", "main": "left.js"}\n'
    write(packages, {"package.json": left, "left.js": "module.exports = 'left is padded'\n"})
    run(packages, "npm", "pack", "--offline")
    npm = ("npm", "install", "--offline", "--no-audit", "--no-fund")
    run(project, *npm, str(packages / "left-1.0.0.tgz"))
    wheel = packages / "greeting-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in WHEEL.items():
            archive.writestr(name, text)
    run(project, sys.executable, "-m", "venv", ".venv")
    run(project, ".venv/bin/pip", "install", "--no-index", str(wheel))


@programs.needs("make", "npm", "node")
def test_the_page(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CASFS_STORE", str(cli.root))
    for name, value in {**OWNER, **COMMITTER}.items():
        monkeypatch.setenv(name, value)
    project = tmp_path / "app"
    test = "console.log(require('left'))\n"
    write(
        project,
        {
            "Makefile": MAKEFILE,
            "src/app.txt": "one\n",
            ".gitignore": IGNORED,
            "package.json": PACKAGE,
            "test.js": test,
        },
    )
    install(project, tmp_path / "packages")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "one")
    write(project, {"src/app.txt": "one\nand\n"})
    console_docs.run("make -s", "", project)
    for line, shown in console_docs.commands(PAGE.read_text("utf-8")):
        console_docs.run(line, shown, project)
    assert (project / "src/app.txt").read_text() == "one\nand\ntwo\n"

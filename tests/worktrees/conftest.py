"""A project in git with all that a worktree has to bring along."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.cli import implicit_mount
from casfs.store.store import Store
from casfs.workspaces import overlay_mount, registry
from tests.support.engine import Cli

OWNER = {"GIT_AUTHOR_NAME": "T", "GIT_AUTHOR_EMAIL": "t@example.org"}
COMMITTER = {"GIT_COMMITTER_NAME": "T", "GIT_COMMITTER_EMAIL": "t@example.org"}
HOUR_NS = 3_600_000_000_000


def git(directory: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=directory,
        env={**os.environ, **OWNER, **COMMITTER},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout.rstrip("\n")


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def age(directory: Path) -> None:
    """Makes all files an hour old: git reads those again whose time is that of the index."""
    for path in directory.rglob("*"):
        if ".git" not in path.parts and not path.is_dir():
            old = path.lstat().st_mtime_ns - HOUR_NS
            os.utime(path, ns=(old, old), follow_symlinks=False)


def make_project(path: Path, *options: str) -> Path:
    path.mkdir()
    git(path, "init", "-q", "-b", "main", *options)
    write(
        path,
        {
            ".gitignore": "node_modules/\n.env\nbuild/\n*.log\n",
            "package.json": "{}",
            "src/a.py": "one\ntwo\nthree\n",
            "src/b.py": "b\n",
            "gone.txt": "was here\n",
            "run.sh": "#!/bin/sh\n",
        },
    )
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("src/a.py")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "first")
    age(path)
    git(path, "status")  # refreshes the index
    write(
        path,
        {
            ".env": "KEY=value-of-mine\n",
            "node_modules/left/pad.js": "pad",
            "build/out.o": "built",
            "src/a.py": "one\n2\nthree\n",
            "src/new.py": "new\n",
            "staged.txt": "staged\n",
        },
    )
    (path / "gone.txt").unlink()
    git(path, "add", "staged.txt")
    return path


def add(cli: Cli, name: str, *options: str) -> Path:
    """Creates a worktree of the project; returns its directory."""
    return Path(cli("worktree", "add", name, *options, "--json").json["directory"])


def kill_servers(point: Path) -> None:
    """Kills the processes that serve a mount point, and waits for their end."""
    servers = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if os.fsencode(point) in path.read_bytes().split(b"\0")
    ]
    assert servers
    for server in servers:
        fd = os.pidfd_open(server)
        os.kill(server, signal.SIGKILL)
        select.select([fd], [], [], 10)
        os.close(fd)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = make_project(tmp_path / "project")
    monkeypatch.chdir(path)
    return path


@pytest.fixture(autouse=True)
def unmounted(cli: Cli) -> Iterator[None]:
    """Unmounts at the end what a test has left."""
    yield
    with Store.open(cli.root) as store:
        for workspace in registry.listing(store):
            overlay_mount.unmount(workspace.path, lazy=True)
    implicit_mount.end(cli.root, os.environ)

"""What is here only: agents see all of a project, and the steps of a thread have the work."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED
from casfs.trees import tree
from casfs.workspaces import ignored_files
from engine.workflow import registry as workflows
from tests.support.engine import Cli, daemon, loop, says, states
from tests.support.helpers import read_tree, write_tree

PROJECT: dict[str, Any] = {
    ".env": b"KEY=1\n",
    ".casfsignore": b"/data/\n",
    "package.json": b"{}",
    "node_modules": {"m": b"m"},
    ".venv": {"pyvenv.cfg": b"", "x": b""},
    "data": {"big": b"d", "run": b"#!"},
    "src": b"s",
}
SEEN = "ls -A | sort | tr '\\n' ' ' >>{}; echo >>{}; stat -c %a .env data/run >>{}"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = write_tree(tmp_path / "project", PROJECT)
    (place / ".env").chmod(0o600)
    (place / "data/run").chmod(0o711)
    subprocess.run(["git", "init", "-q", place], check=True)
    return place


def names(store: Store, root: str) -> set[str]:
    return {name.decode() for name in tree.load(store, root)}


WORK = {".casfsignore", "package.json", "src"}
ALL = WORK | {".git", ".env", "node_modules", ".venv"}


ROLE = "a=command:"


def begin(cli: Cli, project: Path, script: str) -> str:
    """Starts a thread of two steps on the project, and waits for its end; returns its id."""
    agent = ROLE + json.dumps(says({}, script))
    options = ("--agent", agent, "--workspace", project, "--json")
    id = str(cli("thread", "start", "sample", "--input", "Do it.", *options).json["id"])
    assert daemon_socket.request(cli.root, "wait", id=id)["status"] == ENDED
    return id


def test_what_is_no_file_is_left_out_of_the_copy_of_ignored_files(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", {"data": {"f": b"1", "d": {}}})
    os.mkfifo(source / "data/d/pipe")
    ignored_files._copy(source / "data", tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == {b"f": b"1", b"d": {}}


def test_agents_see_all_and_steps_have_the_work(cli: Cli, project: Path, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    changes = "; echo more >>src; echo 2 >>.env; mkdir -p x/__pycache__"
    script = SEEN.replace("{}", str(seen)) + changes
    with Store.open(cli.root) as store, daemon(cli.root):
        workflows.add(store, loop(2))
        id = begin(cli, project, script)
        first, modes_env, modes_run, second, *_ = seen.read_text().splitlines()
        assert (modes_env, modes_run) == ("600", "711")
        assert set(first.split()) == ALL | {"data"}
        assert set(second.split()) == ALL | {"data", "x"}
        recorded = states(store, threads.get(store, id))
        for state in recorded:
            assert names(store, state.tree) == WORK | {"x"}
            assert names(store, state.full) == ALL | {"x"}
        made = daemon_socket.request(cli.root, "fork", id=id, at=1)["id"]
        assert daemon_socket.request(cli.root, "wait", id=made)["status"] == ENDED
        (again,) = states(store, threads.get(store, made))[1:]
        assert again.local == recorded[1].local, "private files come back as they were"
        changed = cli("thread", "diff", id).text
        assert "src" in changed
        assert "M .env  (private)" in changed
        assert "node_modules" not in changed
        left = store.root / ignored_files.FOLDER
        assert [*left.iterdir()] == [], "the copy of ignored files goes with the thread"

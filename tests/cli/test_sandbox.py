"""What an agent gets from casfs inside its sandbox: it reads, whatever runs outside, and what it
cannot do is said to be refused there."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from casfs.system import daemon_socket
from casfs.system.sandbox import MARKS
from tests.support import agent_sandbox, programs
from tests.support.agent_sandbox import Kind
from tests.support.helpers import read_tree

pytestmark = programs.needs("bwrap")
CASFS = (sys.executable, "-W", "error", "-P", "-m", "casfs")
DATABASE = ("store.db", "store.db-wal", "store.db-shm")
# What runs outside: a daemon, nothing, or what kill -9 has left of it, of which the index of the
# database's WAL may be lost.
Outside = Literal["daemon", "nothing", "killed", "no-index"]
READING = {
    "status": "store ",
    "log a.txt": "c2@",
    "log --json a.txt": "c2@",
    "blame a.txt": "three",
    "diff c1 c2": "M a.txt",
    "cat c2:a.txt": "three",
    "ls c1": "a.txt",
    "checkpoint list": "c1@",
    "grep three": "a.txt, line 3",
    "search solve": "nodes/",
    "status .": "no changes",
    "thread list": "",
    "sessions list": "",
    "worktree list": "",
    "workspace list": "",
    "undo --list": "",
    "stats": "schema",
    "fsck": "no faults",
    "doctor": "nothing is stale",
}
FEW = ("log a.txt", "blame a.txt", "grep three", "fsck")
WRITING = (
    "checkpoint create c3 .",
    "checkpoint restore c1 out",
    "init",
    "attach claude",
    "worktree add other",
    "gc",
    "daemon",
    "web",
)
# At the end of its input, the server drops what it has not answered.
UNTIL_ANSWERED = """
    answers=$TMPDIR/answers
    touch $answers
    (cat; until grep -q '"id":2' $answers; do sleep 0.1; done) | "$@" > $answers
    cat $answers
"""
REFUSED = "as in an agent's sandbox"
MCP = (
    {
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
        "id": 1,
    },
    {"method": "notifications/initialized"},
    {
        "method": "tools/call",
        "params": {"name": "list_checkpoints", "arguments": {}},
        "id": 2,
    },
)


class Sandboxed(NamedTuple):
    project: Path
    root: Path
    outside: Outside

    def casfs(
        self, kind: Kind, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run(kind, *CASFS, *arguments, **variables)

    def run(
        self, kind: Kind, *argv: str, given: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        env = {**variables, "CASFS_STORE": str(self.root)}
        ended = agent_sandbox.run(kind, self.project, *argv, env=env, given=given)
        assert "Traceback" not in ended.stderr
        return ended

    def said(self, kind: Kind, *arguments: str) -> str:
        """What a command prints that must succeed."""
        ended = self.casfs(kind, *arguments)
        assert ended.returncode == 0, (arguments, ended.stderr)
        return ended.stdout


def casfs(root: Path, project: Path, *arguments: str) -> None:
    subprocess.run(
        [*CASFS, "--store", root, *arguments], cwd=project, check=True, capture_output=True
    )


@pytest.fixture(scope="module", params=["daemon", "nothing", "killed", "no-index"])
def sandboxed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sandboxed]:
    top = tmp_path_factory.mktemp("sandbox")
    project, root, kept = top / "project", top / "store", top / "kept"
    project.mkdir()
    kept.mkdir()
    (project / "a.txt").write_text("one\ntwo\n")
    casfs(root, project, "init")
    casfs(root, project, "checkpoint", "create", "c1", ".")
    with closing(sqlite3.connect(root / DATABASE[0])) as holder:
        holder.execute("SELECT count(*) FROM heads").fetchone()  # the last one removes the WAL
        (project / "a.txt").write_text("one\ntwo\nthree\n")
        casfs(root, project, "checkpoint", "create", "c2", ".")
        for name in DATABASE:
            shutil.copy(root / name, kept)
    if request.param in ("killed", "no-index"):
        for name in DATABASE[: 3 if request.param == "killed" else 2]:
            shutil.copy(kept / name, root)
    elif request.param == "daemon":
        casfs(root, project, "daemon")
    try:
        yield Sandboxed(project, root, request.param)
    finally:
        if daemon_socket.runs(root):
            daemon_socket.stop(root)


def test_what_reads(sandboxed: Sandboxed) -> None:
    files = {name for name in DATABASE if (sandboxed.root / name).exists()}
    commands = READING if sandboxed.outside in ("daemon", "nothing") else FEW
    for command in commands:
        said = sandboxed.said("codex", *command.split())
        assert READING[command] in said, command
    if sandboxed.outside == "daemon":
        for command in FEW:
            assert READING[command] in sandboxed.said("claude", *command.split())
    assert files == {name for name in DATABASE if (sandboxed.root / name).exists()}


@pytest.mark.parametrize("kind", ["codex", "claude"])
def test_the_mcp_server_reads(sandboxed: Sandboxed, kind: Kind) -> None:
    asked = "".join(json.dumps({"jsonrpc": "2.0", **message}) + "\n" for message in MCP)
    said = sandboxed.run(kind, "sh", "-c", UNTIL_ANSWERED, "sh", *CASFS, "mcp", given=asked)
    answers = [json.loads(line) for line in said.stdout.splitlines()]
    (result,) = [answer["result"] for answer in answers if answer.get("id") == 2]
    assert not result.get("isError"), result
    assert "c1@" in json.dumps(result)


def test_what_writes_is_refused_and_changes_nothing(sandboxed: Sandboxed) -> None:
    before = read_tree(sandboxed.root), read_tree(sandboxed.project)
    pid = (daemon_socket.find(sandboxed.root) or {}).get("pid")
    for command in WRITING:
        ended = sandboxed.casfs("codex", *command.split())
        assert ended.returncode in (1, 4, 5), command
        assert REFUSED in ended.stderr.splitlines()[-1], (command, ended.stderr)
    assert (read_tree(sandboxed.root), read_tree(sandboxed.project)) == before
    assert (daemon_socket.find(sandboxed.root) or {}).get("pid") == pid


@pytest.mark.parametrize("kind", ["codex", "claude"])
def test_a_daemon_is_not_said_to_be_dead(sandboxed: Sandboxed, kind: Kind) -> None:
    if sandboxed.outside != "daemon":
        return
    mark = next(iter(MARKS))
    pid = (daemon_socket.find(sandboxed.root) or {})["pid"]
    status = json.loads(sandboxed.said(kind, "status", "--json"))["daemon"]
    assert status["pid"] == pid
    assert status["unreachable"].startswith(f"the daemon runs (pid {pid}) and cannot be asked")
    for command in ("daemon stop", "daemon restart", "thread start solve-issue --input {}"):
        ended = sandboxed.casfs(kind, *command.split(), **{mark: "1"})
        assert ended.returncode == 5, command
        assert f"the daemon runs (pid {pid})" in ended.stderr
        assert MARKS[mark] in ended.stderr
    assert (daemon_socket.find(sandboxed.root) or {})["pid"] == pid

"""docs/attach.md, typed line by line with the real claude."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from casfs.attach import spool
from casfs.store.store import Store
from casfs.system import daemon_socket
from tests.agents_real.conftest import ready
from tests.support import console_docs
from tests.support.agent_model import Model, script
from tests.support.engine import until

pytestmark = pytest.mark.agents
PAGE = Path(__file__).resolve().parents[2] / "docs" / "attach.md"


def test_the_page(
    disk_store: Store, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASFS_STORE", str(disk_store.root))
    ready("claude-code", model.url, monkeypatch)
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("notes\n")
    work = script(("run", "rm notes.txt"), ("say", "Done."))
    try:
        for line, shown in console_docs.commands(PAGE.read_text("utf-8")):
            if line.startswith("claude "):
                (prompt,) = shlex.split(line)[1:]
                argv = ["claude", "-p", "--permission-mode", "bypassPermissions"]
                subprocess.run(
                    [*argv, f"{prompt}\n{work}"],
                    cwd=project,
                    check=True,
                    stdin=subprocess.DEVNULL,
                    timeout=300,
                )
                until(lambda: spool.names(disk_store.root) == [], "an empty spool")
            else:
                console_docs.run(line, shown, project)
    finally:
        if daemon_socket.runs(disk_store.root):
            daemon_socket.stop(disk_store.root)
    assert os.listdir(project) == ["notes.txt"]

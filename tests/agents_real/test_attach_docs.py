"""docs/attach.md and docs/review.md, typed line by line with the real claude."""

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
DOCS = Path(__file__).resolve().parents[2] / "docs"
DONE = ("say", "Done.")
WORK = {  # what the agent does for each prompt of a page
    "attach.md": [[("run", "rm notes.txt"), DONE]],
    "review.md": [
        [("write", "total.py", "total = None\nfor each in items: total += each\n"), DONE],
        [DONE],
    ],
}


@pytest.mark.parametrize("page", WORK)
def test_the_page(
    page: str, disk_store: Store, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASFS_STORE", str(disk_store.root))
    ready("claude-code", model.url, monkeypatch)
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("notes\n")
    work = iter(WORK[page])
    try:
        for line, shown in console_docs.commands((DOCS / page).read_text("utf-8")):
            if line.startswith("claude "):
                *options, prompt = shlex.split(line)[1:]
                argv = ["claude", "-p", *options, "--permission-mode", "bypassPermissions"]
                subprocess.run(
                    [*argv, f"{prompt}\n{script(*next(work))}"],
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
    assert "notes.txt" in os.listdir(project)

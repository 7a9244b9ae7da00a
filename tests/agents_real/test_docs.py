"""The example of docs/agents.md with a known agent, typed line by line for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import ENDED, SUSPENDED
from engine.workflow import shipped
from tests.agents_real.conftest import FULLY, Play
from tests.support import console_docs
from tests.support.agent_model import script

pytestmark = pytest.mark.agents
PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
TASK = '"Fix the failing test"'
LINES = [(line, shown) for line, shown in console_docs.commands(PAGE.read_text("utf-8"))
         if "opencode" in line and not line.startswith("npm ")]  # fmt: skip


@pytest.mark.parametrize("play", FULLY, indirect=True)
def test_a_known_agent_does_a_task(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions are granted by the config: `casfs run` has no terminal here."""
    monkeypatch.setenv("CASFS_STORE", str(play.root))
    shipped.install(play.store)
    (tmp_path / "project").mkdir()
    task = script(("write", "hello.txt", "hello\n"), ("say", "Done."))
    (tmp_path / "task.md").write_text(f"Fix it.\n\n{task}\n")
    assert [line for line, _ in LINES][-1].startswith("casfs run acp:opencode")
    try:
        for line, shown in LINES:
            given = line.replace("opencode", play.name).replace(TASK, "@task.md")
            console_docs.run(given, shown.replace("opencode", play.name), tmp_path)
        (thread,) = threads.list_threads(play.store)
        while (found := play.wait(thread.id)).status == SUSPENDED:
            assert found.record["cause"] == "human", found.record["reason"]
            daemon_socket.request(play.root, "resume", id=thread.id, input="allow")
        assert (found.status, found.record["returnCode"]) == (ENDED, 0)
        console_docs.run("casfs thread apply @last project", "…\n", tmp_path)
    finally:
        console_docs.run("casfs daemon stop", "…\n", tmp_path)
    assert (tmp_path / "project" / "hello.txt").read_text() == "hello\n"

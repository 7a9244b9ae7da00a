"""Real agents outside casfs that are attached: what they do is in the store, and they run on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casfs.attach import spool
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import sessions, threads
from casfs.threads.threads import Thread
from casfs.trees import tree
from engine import content
from tests.agents_real.conftest import ready
from tests.support.agent_model import Model, script
from tests.support.engine import Cli, until

pytestmark = pytest.mark.agents
RUN = {"claude-code": ("claude", "-p", "--permission-mode", "bypassPermissions")}


@dataclass(frozen=True)
class Attached:
    """An agent that is attached to a store, in a project."""

    cli: Cli
    store: Store
    model: Model
    project: Path
    argv: tuple[str, ...]

    def ask(self, prompt: str, *actions: tuple[Any, ...], options: tuple[str, ...] = ()) -> str:
        """Gives the agent a prompt whose model acts so; returns what it printed."""
        argv = [*self.argv, *options, f"{prompt}\n{script(*actions)}"]
        ended = subprocess.run(
            argv,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        assert ended.returncode == 0, ended.stderr
        if daemon_socket.runs(self.store.root):
            until(lambda: spool.names(self.store.root) == [], "an empty spool")
        return ended.stdout

    def thread(self) -> Thread:
        return next(iter(sessions.newest_first(self.store)))

    def turns(self, index: int) -> list[dict[str, Any]]:
        step = threads.step_at(self.store, self.thread(), index).payload
        hashes = self.store.node(step["detail"], "react-session").payload["turns"]
        return [dict(self.store.node(hash, "react-turn").payload) for hash in hashes]

    def call(self, turn: dict[str, Any]) -> dict[str, Any]:
        (hash,) = turn["toolCalls"]
        return dict(self.store.node(hash, "react-tool-call").payload)

    def names(self, root: str) -> set[bytes]:
        return {path for path, _ in tree.walk(self.store, root) if not path.startswith(b".")}  # type: ignore[arg-type]


@pytest.fixture
def attached(
    cli: Cli,
    disk_store: Store,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Attached]:
    ready("claude-code", model.url, monkeypatch)
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run(["git", "init", "-q", project], check=True)
    (project / "README").write_text("A project.\n")
    monkeypatch.chdir(project)
    cli("attach", "claude")
    yield Attached(cli, disk_store, model, project, RUN["claude-code"])
    if daemon_socket.runs(disk_store.root):
        daemon_socket.stop(disk_store.root)


def test_a_session(attached: Attached) -> None:
    said = attached.ask(
        "Make two files",
        ("write", "a.txt", "hello"),
        ("run", "sed -i s/hello/bye/ a.txt; echo new > b.txt"),
        ("run", "exit 3"),
        ("say", "All done."),
    )
    assert "All done." in said
    thread = attached.thread()
    assert thread.pending is None
    (step,) = threads.last_steps(attached.store, thread, None)
    prompt = content.text(attached.store, step.payload["prompt"]["text"])
    assert prompt.startswith("Make two files")
    assert content.text(attached.store, step.payload["content"]) == "All done."
    turns = attached.turns(1)
    calls = [attached.call(turn) for turn in turns]
    assert [call["name"] for call in calls] == ["Write", "Bash", "Bash"]
    assert [call["status"] for call in calls] == ["completed", "completed", "failed"]
    trees = [attached.names(turn["workspace"]) for turn in turns]
    assert trees == [{b"README", b"a.txt"}, *[{b"README", b"a.txt", b"b.txt"}] * 2]
    befores = [attached.names(turn["before"]) for turn in turns]
    assert befores == [{b"README"}, *trees[:2]]
    assert [call.get("foreign") for call in calls] == [None] * 3


def test_a_session_that_is_resumed(attached: Attached) -> None:
    attached.ask("one", ("say", "First."))
    id = sessions.about(attached.store, attached.thread())["id"]
    attached.ask("two", ("write", "b", "2"), ("say", "Second."), options=("--resume", id))
    steps = threads.last_steps(attached.store, attached.thread(), None)
    answers = [content.text(attached.store, step.payload["content"]) for step in steps]
    assert answers == ["First.", "Second."]


def test_without_a_daemon(attached: Attached) -> None:
    """The agent runs on; its next session starts the daemon, and nothing is lost."""
    root = attached.store.root
    daemon_socket.stop(root)
    script_file = root / "hooks/start-daemon"
    text = script_file.read_text()
    script_file.write_text("#!/bin/sh\nexit 1\n")
    assert "Done." in attached.ask("one", ("run", "echo 1 > a"), ("say", "Done."))
    assert len(spool.names(root)) == 6
    script_file.write_text(text)
    attached.ask("two", ("say", "Done."))
    until(lambda: daemon_socket.runs(root), "a daemon")
    until(lambda: spool.names(root) == [], "an empty spool")
    assert len(list(sessions.newest_first(attached.store))) == 2


def test_a_store_that_is_gone(attached: Attached) -> None:
    root = attached.store.root
    daemon_socket.stop(root)
    os.rename(root, root.with_name("moved"))
    try:
        assert "Done." in attached.ask("one", ("run", "echo 1 > a"), ("say", "Done."))
    finally:
        os.rename(root.with_name("moved"), root)
    attached.cli("detach", "claude")
    assert not (attached.project / ".claude").exists()
    assert "Done." in attached.ask("two", ("say", "Done."))
    assert list(sessions.newest_first(attached.store)) == []


def test_rewind_and_go_on(attached: Attached) -> None:
    """The files are back, and the model is asked with exactly the turns that were kept."""
    attached.ask(
        "first",
        ("run", "echo 1 > a"),
        ("run", "sed -i s/1/one/ a; echo 2 > b"),
        ("say", "First."),
    )
    id = sessions.about(attached.store, attached.thread())["id"]
    attached.ask("second", ("run", "rm a"), ("say", "Second."), options=("--resume", id))
    done = attached.cli("rewind", id, "--to", "2", "--what", "both", "--json").json
    assert (attached.project / "a").read_text() == "one\n"
    new = done["conversation"]["id"]
    seen = len(attached.model.requests)
    attached.ask("third", ("say", "Third."), options=("--resume", new))
    texts = [text for _, text in attached.model.requests[seen].turns]
    asked = [text.split()[0] for text in texts if "SCRIPT" in text]
    assert asked == ["first", "third"]
    fork = next(thread for thread in sessions.newest_first(attached.store) if thread.fields["fork"])
    steps = threads.last_steps(attached.store, fork, None)
    prompts = [content.text(attached.store, step.payload["prompt"]["text"]) for step in steps]
    assert [text.split()[0] for text in prompts] == ["first", "third"]
    within = attached.cli("rewind", id, "--to", "1.2", "--what", "conversation", "--json").json
    seen = len(attached.model.requests)
    attached.ask("fourth", ("say", "."), options=("--resume", within["conversation"]["id"]))
    turns = attached.model.requests[seen].turns
    assert [kind for kind, text in turns if kind == "result" or "SCRIPT" in text] == [
        "user",
        "result",
        "user",
    ]

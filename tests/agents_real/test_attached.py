"""Real agents outside casfs that are attached: what they do is in the store, and they run on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from casfs.attach import spool
from casfs.digest import BlobHash, NodeHash, TreeHash
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import sessions, threads
from casfs.threads.threads import Thread
from casfs.trees import tree
from engine import content
from tests.agents_real.conftest import ready
from tests.support.agent_model import Model, script
from tests.support.engine import Cli, until
from tests.support.outside_programs import PROGRAMS, Program
from tests.support.sessions import turns_with_call

pytestmark = pytest.mark.agents


@dataclass(frozen=True)
class Attached:
    """An agent that is attached to a store, in a project."""

    cli: Cli
    store: Store
    model: Model
    project: Path
    program: Program

    def ask(self, prompt: str, *actions: tuple[Any, ...], session: str | None = None) -> str:
        """Gives the agent a prompt whose model acts so; returns what it printed."""
        text = f"{prompt}\n{script(*actions)}"
        argv = self.program.argv(session)
        given = {"input": text} if self.program.by_stdin else {"stdin": subprocess.DEVNULL}
        ended = subprocess.run(
            argv if self.program.by_stdin else [*argv, text],
            cwd=self.project,
            # opencode works where this says, whatever its working directory is.
            env={**os.environ, "PWD": str(self.project)},
            capture_output=True,
            text=True,
            timeout=300,
            **given,  # type: ignore[call-overload]
        )
        assert ended.returncode == 0, ended.stderr
        if daemon_socket.runs(self.store.root):
            until(lambda: spool.names(self.store.root) == [], "an empty spool")
        return str(ended.stdout)

    def thread(self) -> Thread:
        return next(iter(sessions.newest_first(self.store)))

    @property
    def session(self) -> str:
        return str(sessions.about(self.store, self.thread())["id"])

    def turns(self, index: int) -> list[dict[str, Any]]:
        """The turns of a step that have a call."""
        return turns_with_call(self.store, self.thread(), index)

    def call(self, turn: dict[str, Any]) -> dict[str, Any]:
        (hash,) = turn["toolCalls"]
        return dict(self.store.node(hash, "react-tool-call").payload)

    def names(self, root: str) -> set[bytes]:
        paths = (path for path, _ in tree.walk(self.store, TreeHash(NodeHash(BlobHash(root)))))
        return {path for path in paths if not path.startswith(b".")}

    def prompts(self, thread: Thread) -> list[str]:
        """The first word of each prompt."""
        steps = threads.last_steps(self.store, thread, None)
        texts = [content.text(self.store, step.payload["prompt"]["text"]) for step in steps]
        return [text.split()[0].strip('"') for text in texts]

    def requests_since(self, count: int) -> list[tuple[str, str]]:
        """What the model was told in the first request after so many: (user or result, first
        word)."""
        turns = self.model.requests[count].turns
        told = [(kind, text) for kind, text in turns if kind == "result" or "SCRIPT [[" in text]
        return [(kind, text.split()[0].strip('"') if kind == "user" else "") for kind, text in told]


@contextmanager
def attached_in(
    project: Path, name: str, cli: Cli, store: Store, model: Model, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Attached]:
    """Attaches an agent, which is set up, in a new project; ends the daemon with the block."""
    program = PROGRAMS[name]
    project.mkdir()
    subprocess.run(["git", "init", "-q", project], check=True)
    monkeypatch.chdir(project)
    cli("attach", program.agent, *["--trust"] * (program.agent == "codex"))
    try:
        yield Attached(cli, store, model, project, program)
    finally:
        if daemon_socket.runs(store.root):
            daemon_socket.stop(store.root)


@pytest.fixture(params=PROGRAMS)
def attached(
    request: pytest.FixtureRequest,
    cli: Cli,
    disk_store: Store,
    model: Model,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Attached]:
    ready(request.param, model.url, monkeypatch)
    project = tmp_path / "project"
    with attached_in(project, request.param, cli, disk_store, model, monkeypatch) as made:
        (project / "README").write_text("A project.\n")
        yield made


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
    assert prompt.strip('"').startswith("Make two files")
    assert content.text(attached.store, step.payload["content"]).endswith("All done.")
    turns = attached.turns(1)
    calls = [attached.call(turn) for turn in turns]
    assert len(calls) == 3
    trees = [attached.names(turn["workspace"]) for turn in turns]
    assert trees == [{b"README", b"a.txt"}, *[{b"README", b"a.txt", b"b.txt"}] * 2]
    befores = [attached.names(turn["before"]) for turn in turns]
    assert befores == [{b"README"}, *trees[:2]]
    assert [call.get("foreign") for call in calls] == [None] * 3
    session = attached.store.node(step.payload["detail"], "react-session").payload
    if attached.program.agent != "opencode":  # keeps no transcript
        assert session["totalTokens"] > 0
        assert content.text(attached.store, turns[0]["output"]).startswith("I shall use a tool.")
    if attached.program.agent == "claude":
        assert [call["name"] for call in calls] == ["Write", "Bash", "Bash"]
        statuses = [call["status"] for call in calls]
        assert statuses == ["completed", "completed", "failed"]


def test_a_session_that_is_resumed(attached: Attached) -> None:
    attached.ask("one", ("say", "First."))
    attached.ask("two", ("write", "b", "2"), ("say", "Second."), session=attached.session)
    steps = threads.last_steps(attached.store, attached.thread(), None)
    answers = [content.text(attached.store, step.payload["content"]) for step in steps]
    assert [answer.split()[-1] for answer in answers] == ["First.", "Second."]


def test_rewind_and_go_on(attached: Attached) -> None:
    """The files are back, and the model is asked with exactly the turns that were kept."""
    attached.ask(
        "first",
        ("run", "echo 1 > a"),
        ("run", "sed -i s/1/one/ a; echo 2 > b"),
        ("say", "First."),
    )
    id = attached.session
    attached.ask("second", ("run", "rm a"), ("say", "Second."), session=id)
    done = attached.cli("rewind", id, "--to", "2", "--what", "both", "--json").json
    assert (attached.project / "a").read_text() == "one\n"
    count = len(attached.model.requests)
    attached.ask("third", ("say", "Third."), session=done["conversation"]["id"])
    told = attached.requests_since(count)
    assert [word for kind, word in told if kind == "user"] == ["first", "third"]
    fork = next(thread for thread in sessions.newest_first(attached.store) if thread.fields["fork"])
    assert attached.prompts(fork) == ["first", "third"]
    within = attached.cli("rewind", id, "--to", "1.2", "--what", "conversation", "--json").json
    count = len(attached.model.requests)
    attached.ask("fourth", ("say", "."), session=within["conversation"]["id"])
    kinds = [kind for kind, _ in attached.requests_since(count)]
    # gemini tells its model each result twice, also where nothing was cut.
    results = 2 if attached.program.agent == "gemini" else 1
    assert kinds == ["user", *["result"] * results, "user"]


def test_without_a_daemon(attached: Attached) -> None:
    """The agent runs on; its next session starts the daemon, and nothing is lost."""
    root = attached.store.root
    daemon_socket.stop(root)
    script_file = root / "hooks/start-daemon"
    text = script_file.read_text()
    script_file.write_text("#!/bin/sh\nexit 1\n")
    assert "Done." in attached.ask("one", ("run", "echo 1 > a"), ("say", "Done."))
    assert len(spool.names(root)) >= 5
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
    attached.cli("detach", attached.program.agent)
    assert "Done." in attached.ask("two", ("say", "Done."))
    assert list(sessions.newest_first(attached.store)) == []


@pytest.mark.parametrize("attached", ["claude-code", "codex-cli", "opencode-cli"], indirect=True)
def test_a_subagent(attached: Attached) -> None:
    """What it changes is of its own call; where it has a transcript, it is a thread, too."""
    agent = attached.program.agent
    waits: list[tuple[Any, ...]] = []
    if agent == "codex":  # by default it has none, and goes on beside it
        with (Path.home() / ".codex/config.toml").open("a") as file:
            file.write("\n[features]\nmulti_agent_v2 = true\n")
        waits.append(("tool", "wait_agent", {"timeout_ms": 20_000}))
    attached.ask(
        "one",
        ("run", "echo 1 > a"),
        ("delegate", "Do a part", [("run", "echo part >> a"), ("say", "The part is done.")]),
        *waits,
        ("run", "echo 2 >> a"),
        ("say", "Done."),
    )
    rows = attached.cli("blame", "a", "--json").json
    commands = [call["name"] for call in map(attached.call, attached.turns(1))]
    shells = [number for number, name in enumerate(commands, 1) if name.lower() == "bash"]
    assert [int(row["version"]["revision"].rpartition(".")[2]) for row in rows] == shells
    thread = attached.thread()
    children = list(threads.with_field(attached.store, "parent", [thread.id]))
    if agent == "opencode":  # keeps no transcript
        assert children == []
        return
    (child,) = children
    (step,) = threads.last_steps(attached.store, child, None)
    assert content.text(attached.store, step.payload["content"]) == "The part is done."
    assert "Do a part" in content.text(attached.store, step.payload["prompt"]["text"])
    (caller,) = threads.last_steps(attached.store, thread, None)
    assert caller.payload["childThreads"] == [child.hash]

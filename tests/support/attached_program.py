"""A real agent that is attached to a store, and works in a project outside casfs."""

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
from tests.support.agent_model import Model, script
from tests.support.engine import Cli, until
from tests.support.outside_programs import PROGRAMS, Program
from tests.support.sessions import turns_with_call


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

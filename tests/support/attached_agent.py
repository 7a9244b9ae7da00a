"""An outside agent that is played here: its calls are recorded as the daemon records them, without
a daemon and without hooks, so that thousands of calls take seconds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from casfs.errors import Refused
from casfs.sessions import session_steps
from casfs.sessions.session_steps import StepRecord
from casfs.store.store import Store
from casfs.threads import sessions
from casfs.threads.threads import Thread
from engine.sessions.boundary import Boundary
from engine.sessions.recorder import SessionRecorder
from tests.support.following import OwnSessionDirectory
from tests.support.sessions import ClaudeEvents, name


class AttachedAgent:
    """`copies`: where a copy of the directory is kept at each point of the session, if anywhere."""

    def __init__(
        self,
        store: Store,
        directory: Path,
        followed: OwnSessionDirectory,
        copies: Path | None = None,
        session: str = "one",
        pid: int | None = None,
    ) -> None:
        self.store = store
        self.directory = directory
        self.copies = copies
        self._followed = followed
        self._events = ClaudeEvents(directory, session=session, pid=pid or os.getpid())
        self._recorder = SessionRecorder(store, {})
        self._step = 0
        self._calls = 0
        self._transcript: Path | None = None

    def prompt(self, text: str = "go") -> None:
        self._step += 1
        self._calls = 0
        self._copy(str(self._step))
        self._report(self._events.prompt(text))

    def call(
        self,
        act: Callable[[], object],
        tool: str = "Bash",
        path: str | None = None,
        fault: str | None = None,
        **more: str,
    ) -> str:
        """Has the agent do something by a tool; returns the point before it. `fault`: what the tool
        says of a failure; `more`: arguments of the call."""
        self._calls += 1
        point = f"{self._step}.{self._calls}"
        arguments: dict[str, Any] = {"command": "x"}
        if path is not None:
            arguments = {"file_path": str(self.directory / path)}
        arguments |= more
        self._copy(point)
        self._report(self._events.call(point, tool, **arguments))
        act()
        result = self._events.result(point, tool, **arguments)
        if fault is not None:
            result |= {"hook_event_name": "PostToolUseFailure", "error": fault}
        self._report(result)
        return point

    # -- parts of a call, for those that overlap or are interrupted --

    def begin(self, id: str, **more: str) -> None:
        self._report({**self._events.call(id, command=id), **more})

    def end(self, id: str) -> None:
        self._report(self._events.result(id, command=id))

    def shell(self, command: str) -> None:
        """What a process of the agent does while a call is open."""
        subprocess.run(["sh", "-c", command], cwd=self.directory, check=True)

    def answered(self, id: str, text: str, folder: Path) -> None:
        """Writes the result of a call into the transcript, as an agent does that reports none."""
        part = {"type": "tool_result", "tool_use_id": id, "content": text, "is_error": True}
        line = {"type": "user", "message": {"content": [part]}}
        self._transcript = folder / "transcript.jsonl"
        with self._transcript.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def resume(self) -> None:
        self._report(self._events.payload("SessionStart", source="resume"))

    def quit(self) -> None:
        self._report(self._events.payload("SessionEnd", reason="other"))

    @contextmanager
    def another_daemon(self) -> Iterator[AttachedAgent]:
        """The same session, recorded by a daemon that has seen nothing of it."""
        followed = OwnSessionDirectory(self.store, self.directory, None)
        try:
            agent = AttachedAgent(
                self.store, self.directory, followed, session=self._events.session
            )
            yield agent
        finally:
            followed.close()

    def run(self, command: str) -> str:
        """Has the agent run a line of a shell."""
        return self.call(lambda: subprocess.run(["sh", "-c", command], cwd=self._events.directory))

    def write(self, path: str, text: str) -> str:
        """Has the agent write a file by its edit tool."""
        file = self.directory / path

        def act() -> None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

        return self.call(act, "Write", path)

    def move(self, directory: Path) -> None:
        """Has the agent work in another directory from now on; its session stays where it began."""
        self._events = replace(self._events, directory=directory)

    def stop(self, text: str = "Done.") -> None:
        self._report(self._events.stop(text))

    @property
    def thread(self) -> Thread:
        ours = (
            thread
            for thread in sessions.newest_first(self.store)
            if sessions.about(self.store, thread)["id"] == self._events.session
        )
        return next(ours)

    @property
    def has_session(self) -> bool:
        return self._step > 0

    def steps(self) -> list[StepRecord]:
        return session_steps.load(self.store, self.thread)

    def copy_of(self, point: str) -> Path:
        assert self.copies is not None
        return self.copies / point

    def _report(self, payload: dict[str, Any]) -> None:
        if self._transcript is not None:
            payload = {**payload, "transcript_path": str(self._transcript)}
        event = self._events.event(payload)
        try:
            boundary = self._followed.boundary(event, lambda: None)
        except Refused as error:  # as `Directories.boundary`
            boundary = Boundary(fault=str(error))
        self._recorder.record(event, boundary, name())

    def _copy(self, point: str) -> None:
        if self.copies is not None:
            shutil.copytree(self.directory, self.copies / point, symlinks=True)


def contents(directory: Path) -> dict[str, tuple[str, bytes]]:
    """What a directory holds: by path the kind with the x bit, and the content or target."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_symlink():
            found[name] = ("link", str(path.readlink()).encode())
        elif path.is_dir():
            found[name] = ("directory", b"")
        else:
            found[name] = (f"file {path.stat().st_mode & 0o100:o}", path.read_bytes())
    return found

"""Events of outside agents, as their hooks report them, without the agents."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from casfs.attach import spool
from casfs.store.store import Store
from casfs.system.clock import now_ms
from casfs.threads import threads
from casfs.threads.threads import Thread
from engine.sessions import events
from engine.sessions.events import SessionEvent
from engine.sessions.hook_events import READERS as READERS

PYTHON = os.path.realpath(sys.executable)
_numbers = itertools.count(1)


@dataclass
class ClaudeEvents:
    """Makes the payloads of one session of claude in a directory. `pid`: of the agent."""

    directory: Path
    session: str = "3f0e0c1a-0000-4000-8000-000000000001"
    pid: int = field(default_factory=os.getpid)

    def payload(self, name: str, **more: Any) -> dict[str, Any]:
        transcript = f"/home/user/.claude/projects/x/{self.session}.jsonl"
        common = {"session_id": self.session, "transcript_path": transcript}
        return {**common, "cwd": str(self.directory), "hook_event_name": name, **more}

    def prompt(self, text: str) -> dict[str, Any]:
        return self.payload("UserPromptSubmit", prompt=text, prompt_id=f"p-{len(text)}")

    def call(self, id: str, tool: str = "Bash", **arguments: Any) -> dict[str, Any]:
        return self.payload("PreToolUse", tool_name=tool, tool_input=arguments, tool_use_id=id)

    def result(
        self, id: str, tool: str = "Bash", response: Any = "ok", **arguments: Any
    ) -> dict[str, Any]:
        call = {**self.call(id, tool, **arguments), "hook_event_name": "PostToolUse"}
        return {**call, "tool_response": response, "duration_ms": 7}

    def failure(self, id: str, error: str) -> dict[str, Any]:
        call = {**self.call(id), "hook_event_name": "PostToolUseFailure"}
        return {**call, "error": error, "is_interrupt": False}

    def stop(self, text: str = "Done.") -> dict[str, Any]:
        return self.payload("Stop", stop_hook_active=False, last_assistant_message=text)

    def event(self, payload: dict[str, Any]) -> SessionEvent:
        """The event as the daemon reads it."""
        line = f"casfs 1 claude {now_ms()} {self.pid}\n"
        event = events.read(spool.parse((line + json.dumps(payload)).encode()), READERS)
        assert event is not None
        return event


def turns_with_call(store: Store, thread: Thread, step: int) -> list[dict[str, Any]]:
    """Returns the payloads of the turns of a step that have a call."""
    detail = threads.step_at(store, thread, step).payload["detail"]
    hashes = store.node(detail, "react-session").payload["turns"]
    turns = [dict(store.node(hash, "react-turn").payload) for hash in hashes]
    return [turn for turn in turns if turn["toolCalls"]]


def name() -> str:
    """Returns the name of a file in the spool."""
    return f"aaaaaaaa-{time.monotonic_ns():020d}-{next(_numbers)}"


def report(root: Path, payload: dict[str, Any]) -> None:
    """Runs the hook of a store as an agent does."""
    argv = [PYTHON, "-IS", str(root / "hooks/report.py"), "claude"]
    subprocess.run(argv, input=json.dumps(payload).encode(), check=True, timeout=20)

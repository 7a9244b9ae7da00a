"""A model server for real agents: it does what the prompt scripts, in the wire format of each.

Agents ask in their own time, and ask more than their prompt: titles, lists of models. So the
script stands in the prompt, `SCRIPT [["write", "a.txt", "hello"], ["say", "Done."]]`, and the
server finds its place in it from the conversation: a tool's result or a correction is one further.

    ["write", PATH, CONTENT]   a file, by the agent's own tool
    ["run", COMMAND]           a command, by the agent's own tool
    ["delegate", PROMPT, ACTIONS]   a subagent, by the agent's own tool, which acts so
    ["tool", NAME, ARGUMENTS]  a tool of an MCP server, whose name each agent puts in its own form
    ["say", TEXT]              the answer
    ["hold", FILE]             no answer before FILE is there; FILE.asked tells that it is held

A request without tools, or without a script, is answered with a short text. Every answer counts
as INPUT and OUTPUT tokens.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.agent_wire import FORMATS, Answer, Asked, WireFormat

INPUT, OUTPUT = 100, 10  # tokens of every answer
CORRECTION = "# Correction"  # in the prompt of a correction
INTERRUPTED = "# You were interrupted"  # in the prompt of a session that goes on
DIRECTORY = re.compile(
    r"(?:[Ww]orking directory|in the directory|<cwd>|Workspace Directories)"
    r"[^/\w<]{0,12}(/[^\s<\"]+)"
)
WRITERS = ("write", "write_file", "Write")
SHELLS = ("bash", "run_shell_command", "terminal", "Bash", "exec_command")
DELEGATES = ("Agent", "Task", "task", "collaboration.spawn_agent")
_ids = itertools.count(1)


def script(*actions: tuple[Any, ...]) -> str:
    """The line of a prompt that scripts these actions."""
    return f"SCRIPT {json.dumps(actions)}"


@dataclass
class Model:
    """`url`: of the server; `answers`: how many were given by script; `requests`: what was asked
    for these; `faults`: what went wrong in the server itself; `observe` is called with what is
    asked and the answer, before that is given."""

    url: str = ""
    answers: int = 0
    requests: list[Asked] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    observe: Callable[[Asked, Answer], object] = lambda asked, answer: None

    def answer(self, asked: Asked) -> Answer:
        answer = self._answer(asked)
        self.observe(asked, answer)
        return answer

    def _answer(self, asked: Asked) -> Answer:
        actions, place = _script(asked)
        if not actions or not asked.tools:
            return Answer("A title.")
        self.answers += 1
        self.requests.append(asked)
        while place < len(actions) and actions[place][0] == "hold":
            self._hold(Path(actions[place][1]))
            place += 1
        name, *arguments = actions[min(place, len(actions) - 1)]
        if name == "say":
            return Answer(arguments[0])
        if name == "tool":
            call = next(one for one in asked.tools if one.endswith(arguments[0])), arguments[1]
        elif name == "delegate":
            call = _delegate(asked, *arguments)
        else:
            call = _write(asked, *arguments) if name == "write" else _run(asked, arguments[0])
        return Answer("I shall use a tool. ", (f"call_{next(_ids)}", *call))

    def _hold(self, file: Path) -> None:
        Path(f"{file}.asked").touch()
        while not file.exists() and not self.closing.is_set():
            time.sleep(0.02)


def _script(asked: Asked) -> tuple[list[list[str]], int]:
    """Returns the actions of the last script, and how many were done since it began: an agent that
    was interrupted begins again."""
    scripts = [text for _, text in asked.turns if "SCRIPT [[" in text]
    if not scripts:
        return [], 0
    text = scripts[-1]
    actions, _ = json.JSONDecoder().raw_decode(text, text.rindex("SCRIPT [[") + len("SCRIPT "))
    begins = [
        at for at, (_, text) in enumerate(asked.turns) if "SCRIPT [[" in text or INTERRUPTED in text
    ]
    after = asked.turns[begins[-1] + 1 :]
    done = sum(kind == "result" or CORRECTION in text for kind, text in after)
    held = sum(action[0] == "hold" for action in actions[:done])
    return actions, done + held


def _write(asked: Asked, path: str, content: str) -> tuple[str, dict[str, Any]]:
    tool = next((name for name in WRITERS if name in asked.tools), None)
    if tool is None:
        command = f"mkdir -p $(dirname {path}) && printf '{content}' >{path}"
        return _run(asked, command.replace("\n", "\\n"))
    where = next(name for name in asked.tools[tool] if "path" in name.lower())
    found = DIRECTORY.search(asked.text)
    directory = found[1] if found else "."
    return tool, {where: str(Path(directory, path)), "content": content}


def _delegate(asked: Asked, prompt: str, actions: list[Any]) -> tuple[str, dict[str, Any]]:
    tool = next(name for name in DELEGATES if name in asked.tools)
    text = f"{prompt}\n{script(*actions)}"
    known = {
        "description": "A subagent of the test",
        "prompt": text,
        "message": text,
        "task_name": "test",
        "subagent_type": "general" if tool == "task" else "general-purpose",
        "run_in_background": False,
    }
    return tool, {name: value for name, value in known.items() if name in asked.tools[tool]}


def _run(asked: Asked, command: str) -> tuple[str, dict[str, Any]]:
    tool = next(name for name in SHELLS if name in asked.tools)
    known = {
        "command": command,
        "cmd": command,
        "description": "A command of the test.",
        "is_background": False,
        "sandbox_permissions": "require_escalated",
        "justification": "A command of the test.",
    }
    # A codex that may not ask refuses to be asked for more.
    if "danger-full-access" in asked.text or "Approval policy is currently never" in asked.text:
        del known["sandbox_permissions"], known["justification"]
    return tool, {name: known[name] for name in asked.tools[tool] if name in known}


@contextmanager
def served() -> Iterator[Model]:
    model = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send("application/json", b'{"object": "list", "data": []}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            path = self.path.partition("?")[0]
            wire: WireFormat | None = next((one for one in FORMATS if one.fits(path)), None)
            if wire is None:
                self.send_error(404)
                return
            try:
                answer = model.answer(wire.read(body))
                events = wire.write(answer, INPUT, OUTPUT)
            except Exception as error:
                model.faults.append(f"{path}: {type(error).__name__}: {error}")
                self.send_error(500)
                return
            with suppress(BrokenPipeError, ConnectionResetError):  # an agent that was ended
                if wire.streams(path, body):
                    self._send("text/event-stream", b"".join(map(_event, events)))
                else:
                    self._send("application/json", json.dumps(wire.whole(events)).encode())

        def _send(self, kind: str, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Not on the test's stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield model
    finally:
        model.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _event(event: Mapping[str, Any]) -> bytes:
    name = f"event: {event['type']}\n" if "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()

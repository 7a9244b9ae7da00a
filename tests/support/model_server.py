"""A server that speaks the wire format of chat completions, and says what a test has scripted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Say = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class Model:
    """`script`: what is said to each request, in turn; `asked`: the bodies, `headers`: theirs."""

    url: str = ""
    script: list[Say] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def served(*script: Say) -> Iterator[Model]:
    model = Model(script=list(script))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/chat/completions"
            model.asked.append(json.loads(body))
            model.headers.append({name.lower(): value for name, value in self.headers.items()})
            model.script.pop(0)(self)

        def log_message(self, format: str, *args: Any) -> None:
            """Not on the test's stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice]}


def usage(given: int, got: int) -> dict[str, Any]:
    figures = {"prompt_tokens": given, "completion_tokens": got, "total_tokens": given + got}
    return {"object": "chat.completion.chunk", "choices": [], "usage": figures}


def stream(*events: dict[str, Any], done: bool = True) -> Say:
    """Server-sent events, one at a time."""

    def say(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.end_headers()
        handler.wfile.write(b": a comment\n\n")
        for event in events:
            handler.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            handler.wfile.flush()
        if done:
            handler.wfile.write(b"data: [DONE]\n\n")

    return say


def text(said: str, given: int = 10, got: int = 5, finish: str = "stop") -> Say:
    """A text in pieces of a few characters, and what it took."""
    pieces = [chunk({"content": said[at : at + 7]}) for at in range(0, len(said), 7)]
    first = chunk({"role": "assistant", "content": None})
    return stream(first, *pieces, chunk({}, finish), usage(given, got))


def tool_calls(*calls: tuple[str, str], given: int = 20, got: int = 8, said: str = "") -> Say:
    """Calls of (name, arguments), their deltas interleaved: the id and the name come first,
    then the arguments in pieces."""
    events = [chunk({"role": "assistant", "content": said or None})]
    for index, (name, _) in enumerate(calls):
        head = {"index": index, "id": f"id{index}", "type": "function"}
        function = {"name": name, "arguments": ""}
        events.append(chunk({"tool_calls": [{**head, "function": function}]}))
    for at in range(0, max(len(arguments) for _, arguments in calls), 5):
        for index, (_, arguments) in enumerate(calls):
            piece = {"index": index, "function": {"arguments": arguments[at : at + 5]}}
            events.append(chunk({"tool_calls": [piece]}))
    return stream(*events, chunk({}, "tool_calls"), usage(given, got))


def status(code: int, body: str = "", **headers: str) -> Say:
    def say(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body.encode())))
        handler.end_headers()
        handler.wfile.write(body.encode())

    return say


def whole(answer: dict[str, Any]) -> Say:
    """An answer that is not streamed."""
    return status(200, json.dumps(answer), Content_Type="application/json")

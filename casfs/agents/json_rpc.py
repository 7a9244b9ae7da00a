"""JSON-RPC 2.0 over two byte streams, an object a line, with requests in both directions.

Notifications are handled in the order in which they come, each before the next line is read;
requests of the other side run side by side, MAX_REQUESTS at most. A line that is not a message of
the protocol is counted, its beginning is kept, and the rest goes on. One that is longer than
MAX_LINE_BYTES ends the conversation: what follows cannot be told from the rest of it.

What a request raises is its answer; the handler of notifications must raise nothing. Only
notifications may hold lone surrogates.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import trio

from casfs.errors import CasfsError, Failed, Invalid, NotFound
from casfs.system import surrogates

MAX_LINE_BYTES = 64 << 20
MAX_INLINE_BYTES = 1 << 20  # of a line that the event loop parses itself
MAX_REQUESTS = 64  # of the other side at once
MAX_KEPT_BYTES = 64 << 10  # of malformed lines
MAX_KEPT_LINE_BYTES = 1 << 10
NO_METHOD = -32601
INTERNAL = -32603
CODES: dict[type[Exception], int] = {Invalid: -32602, NotFound: -32002}
GONE = (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel)
Handler = Callable[[str, Any, int], Awaitable[Any]]  # method, parameters, size of the line


class RpcError(Failed):
    """A request was answered with an error, or is to be."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Closed(Failed):
    """The other side has closed its stream."""


class Peer:
    """`malformed`: the beginnings of lines that were no messages; `malformed_count`: of them;
    `fault`: why the conversation was ended here, if it was."""

    def __init__(
        self,
        output: trio.abc.SendStream,
        input: trio.abc.ReceiveStream,
        request: Handler,
        notification: Handler,
        redact: Callable[[bytes], bytes] = bytes,
    ) -> None:
        """`redact`: replaces secrets in what is kept."""
        self._output = output
        self._input = input
        self._request = request
        self._notification = notification
        self._redact = redact
        self._sending = trio.Lock()
        self._is_over = False
        self._waiting: dict[int, trio.MemorySendChannel[Mapping[str, Any]]] = {}
        self._last_id = self._running = 0
        self._held = bytearray()
        self._searched = 0
        self.malformed = bytearray()
        self.malformed_count = 0
        self.fault = ""

    async def call(self, method: str, params: Any) -> Any:
        """Sends a request; returns its result. Raises RpcError, Closed."""
        self._last_id = id = self._last_id + 1
        self._waiting[id], receive = trio.open_memory_channel[Mapping[str, Any]](1)
        try:
            await self._send({"id": id, "method": method, "params": params})
            answer = {} if self._is_over else await receive.receive()
        except GONE:
            answer = {}
        finally:
            del self._waiting[id]
        if not answer:
            raise Closed(self.fault or "it has closed its output")
        error = answer.get("error")
        if error is None:
            return answer.get("result")
        about = error if isinstance(error, Mapping) else {}
        code = about.get("code")
        raise RpcError(code if type(code) is int else INTERNAL, str(about.get("message", "")))

    async def notify(self, method: str, params: Any) -> None:
        """Sends a notification, unless the other side has ended."""
        with suppress(*GONE):
            await self._send({"method": method, "params": params})

    async def run(self) -> None:
        """Handles what comes until the stream ends, then ends the calls that wait."""
        try:
            async with trio.open_nursery() as nursery:
                with suppress(*GONE):
                    async for piece in self._input:
                        for line in self._lines(piece):
                            await self._receive(line, nursery)
                        if len(self._held) > MAX_LINE_BYTES:
                            self.fault = f"it sent a line of more than {MAX_LINE_BYTES >> 20} MiB"
                            self._keep_malformed(bytes(self._held[:MAX_KEPT_BYTES]))
                            break
                nursery.cancel_scope.cancel()
        finally:
            self._is_over = True
            for channel in self._waiting.values():
                channel.close()

    async def _send(self, message: Mapping[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":"))
        async with self._sending:
            await self._output.send_all(line.encode() + b"\n")

    def _lines(self, piece: bytes | bytearray) -> Iterator[bytes]:
        """Yields the lines that end in a piece."""
        self._held += piece
        while (end := self._held.find(b"\n", self._searched)) >= 0:
            line = bytes(self._held[:end])
            self._searched = 0
            del self._held[: end + 1]
            if line.strip():
                yield line
        # The next piece is not searched from the line's beginning: a long one comes in thousands.
        self._searched = len(self._held)

    def _keep_malformed(self, line: bytes) -> None:
        self.malformed_count += 1
        if len(self.malformed) < MAX_KEPT_BYTES:
            self.malformed += self._redact(line[:MAX_KEPT_BYTES])[:MAX_KEPT_LINE_BYTES] + b"\n"

    def _take_answer(self, id: Any, message: Mapping[str, Any]) -> None:
        waiting = self._waiting.get(id) if type(id) is int else None
        if waiting is not None:
            with suppress(trio.WouldBlock):  # a second answer to it
                waiting.send_nowait(message)

    async def _receive(self, line: bytes, nursery: trio.Nursery) -> None:
        try:
            is_long = len(line) > MAX_INLINE_BYTES
            message = await trio.to_thread.run_sync(_decode, line) if is_long else _decode(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self._keep_malformed(line)
            return
        method, id, params = (message.get(name) for name in ("method", "id", "params"))
        if not isinstance(method, str):
            self._take_answer(id, message)
        elif id is None:
            await self._notification(method, params, len(line))
        elif self._running < MAX_REQUESTS:
            self._running += 1
            nursery.start_soon(self._serve, method, params, id, len(line))
        else:
            many = {"code": INTERNAL, "message": f"more than {MAX_REQUESTS} requests at once"}
            await self._send({"id": id, "error": many})

    async def _serve(self, method: str, params: Any, id: Any, size: int) -> None:
        try:
            answer: dict[str, Any] = {"result": await self._request(method, params, size)}
        except Exception as error:  # hostile values must not end the task that reads
            code = error.code if isinstance(error, RpcError) else CODES.get(type(error), INTERNAL)
            said = str(error) if isinstance(error, CasfsError) else type(error).__name__
            answer = {"error": {"code": code, "message": said}}
        await self._answer(id, answer)
        self._running -= 1

    async def _answer(self, id: Any, answer: Mapping[str, Any]) -> None:
        with suppress(*GONE):
            await self._send({"id": id, **answer})


def _decode(line: bytes) -> Any:
    message = json.loads(line)
    if b"\\ud" not in line.lower() or not isinstance(message, dict):
        return message
    is_notification = "method" in message and message.get("id") is None
    return message if is_notification else surrogates.replace_in_json(message)

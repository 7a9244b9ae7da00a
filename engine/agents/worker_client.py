"""The daemon's side of the process in which an agent package runs (`casfs.agents.worker`).

One process for an attempt: it is started for its first prompt, asked again for a correction, and
ended by the context's exit stack. It is a subprocess like that of any agent: in a group of its own,
with the token of its step, ended with all that it started. What it sends is bounded: a frame is
refused once its lengths are read. What it prints is live output; the last of it is an artifact of
the step, or the detail of an attempt that failed without one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import Any, cast

import trio

from casfs import canonical, live_output
from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult, Call, Waiting, messages
from casfs.agents.messages import LENGTHS, Message
from casfs.digest import BlobHash, Digest, is_hash
from casfs.errors import CasfsError, Failed, Invalid
from casfs.system import processes
from casfs.system.processes import DRAIN_TIMEOUT_S, TERM_GRACE_S
from engine.agents import program
from engine.blocking import blocking
from engine.processes import (
    MAX_OUTPUT_BYTES,
    OutputTooLarge,
    ProcessResult,
    end_process,
    open_process,
)

ARGV = (sys.executable, "-u", "-P", "-m", "casfs.agents.worker")
END_TIMEOUT_S = 10.0  # for an agent's exit stack
MAX_JSON_BYTES = 4 << 20  # of a message
READ_BYTES = 1 << 18
PRINTED_BYTES = 1 << 20  # that are kept of what it prints
PROCESS = "process"  # in `context.conversation`; the agent's own is in the process
CONTEXT = "thread role step depth run env kept attempts parent agent".split()


@dataclass(frozen=True)
class PackageCode:
    """The code of an entry point; `distribution`: its name, and the version that is to run."""

    point: EntryPoint
    distribution: tuple[str | None, str]

    def create(self, config: Mapping[str, Any]) -> AgentFn:
        """Returns an agent that runs in a process of its own."""

        async def agent(context: AgentContext) -> AgentResult:
            if context.store.root is None:  # only this process has a store in memory
                inside: AgentFn = self.point.load().create_agent(config)
                return await inside(context)
            process = cast("PackageProcess | None", context.conversation.get(PROCESS))
            if process is None:
                process = context.conversation[PROCESS] = PackageProcess(self, context)
                await process.start(config)
            return await process.ask(context)

        return agent


class PackageProcess:
    def __init__(self, code: PackageCode, context: AgentContext) -> None:
        """Starts the process, which `context.exit_stack` ends. Raises OSError."""
        self._code, self._context, self._begin = code, context, time.monotonic()
        self._printed = bytearray()
        self._calls: dict[int, trio.CancelScope] = {}
        self._is_asked = self._has_ended = self._has_detail = False
        self._sending = trio.Lock()
        live = live_output.recording(context.store.root, context.run, context.secrets)
        self._live = context.exit_stack.enter_context(live)
        ours, theirs = socket.socketpair()
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        with theirs:
            self._process = open_process(
                ARGV,
                context.run or None,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=context.workspace or "/",
                env=program.environment(context),
                start_new_session=True,
            )
        context.exit_stack.push_async_callback(self._exit)

    async def start(self, config: Mapping[str, Any]) -> None:
        given = self._context
        await given.started(self._process.pid)
        workspace = None if given.workspace is None else str(given.workspace)
        context = {name: getattr(given, name) for name in CONTEXT}
        message = {
            "target": self._code.point.value,
            "distribution": self._code.distribution,
            "path": [os.path.abspath(one) for one in sys.path],
            "config": config,
            "root": str(given.store.root),
            "secrets": given.secrets.values,
            "context": {**context, "workspace": workspace},
        }
        await self._send(message)

    async def ask(self, context: AgentContext) -> AgentResult:
        """Asks the agent. Raises what it raises, AgentFailed where its process ends."""
        outcome: AgentResult | CasfsError | None = None
        self._is_asked = True
        prompt = messages.from_prompt(context.prompt)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_printed)
            nursery.start_soon(self._watch, nursery.cancel_scope)
            await self._send({"id": 0, "prompt": prompt, "answer": context.answer})
            outcome = await self._serve(nursery)
            nursery.cancel_scope.cancel()
        self._is_asked = False
        if isinstance(outcome, AgentResult):
            if not self._printed:
                return outcome
            printed = await blocking(lambda: context.store.put(bytes(self._printed)))
            return replace(outcome, artifacts=(*outcome.artifacts, printed.hash))
        if outcome and (isinstance(outcome, Waiting) or getattr(outcome, "detail", None)):
            raise outcome
        await self._end(END_TIMEOUT_S)
        if outcome and not self._printed:
            raise outcome
        reason, detail = outcome or self._how_it_ended(), await blocking(self._put_detail)
        raise AgentFailed(str(reason), detail) from outcome

    async def _send(self, message: Message) -> None:
        async with self._sending:
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # see `_serve`
                await self._stream.send_all(messages.frame(message))

    async def _receive(self) -> tuple[Message, str] | None:
        """Returns a message and its text, None at the end of the stream. Raises Invalid,
        OutputTooLarge."""
        if len(head := await self._read(LENGTHS.size)) < LENGTHS.size:
            return None
        length, text_length = LENGTHS.unpack(head)
        if length > MAX_JSON_BYTES:
            raise Invalid(f"it has {length} bytes")
        if text_length > MAX_OUTPUT_BYTES:
            raise OutputTooLarge(f"its output has more than {MAX_OUTPUT_BYTES >> 20} MiB")
        data, text = await self._read(length), await self._read(text_length)
        if len(data) + len(text) < length + text_length:
            return None
        return canonical.parse(bytes(data)), text.decode()

    async def _read(self, count: int) -> bytearray:
        data = bytearray()
        with suppress(trio.BrokenResourceError):  # it died, and left something unread
            while left := count - len(data):
                piece = await self._stream.receive_some(min(READ_BYTES, left))
                if not piece:
                    break
                data += piece
        return data

    async def _serve(self, nursery: trio.Nursery) -> AgentResult | CasfsError | None:
        """Answers requests until the agent has a result; returns None at the end of the stream."""
        try:
            while (received := await self._receive()) is not None:
                message, text = received
                op = message["op"]
                if op == "result":
                    return _result(message, text)
                if op == "failed":
                    for name in ("detail", "question"):
                        message.get(name) is None or _hash(message[name])
                    return messages.to_error(message)
                if op == "interrupted":
                    self._context.interrupted(_hash(message["detail"]))
                    self._has_detail = True
                elif op == "cancel":
                    if message["id"] in self._calls:
                        self._calls[message["id"]].cancel()
                else:
                    scope = self._calls[int(message["id"])] = trio.CancelScope()
                    nursery.start_soon(self._answer, scope, message, text)
        except OutputTooLarge as error:
            return error
        except (CasfsError, LookupError, TypeError, ValueError) as error:
            return Failed(f"its process sent a message that is not valid: {error}")
        return None

    async def _answer(self, scope: trio.CancelScope, message: Message, text: str) -> None:
        value = None
        with scope:
            try:
                if message["op"] == "call":
                    call = Call(**{**message["call"], "input": text})
                    value = vars(await self._context.call(call))
                elif message["op"] == "started":
                    await self._context.started(int(message["value"]))
                else:
                    report = {"turn": self._context.turn, "keep": self._context.keep}
                    await report[message["op"]](_hash(message["value"]))
                answer: Message = {"value": value}
            except Exception as error:
                answer = messages.from_error(error)
            await self._send({"id": message["id"], **answer})
        del self._calls[message["id"]]

    async def _read_printed(self) -> None:
        assert self._process.stdout is not None
        async for piece in self._process.stdout:
            self._live.write(bytes(piece))
            self._printed += piece
            del self._printed[:-PRINTED_BYTES]

    async def _watch(self, scope: trio.CancelScope) -> None:
        """Ends `scope` soon after the process has ended: a child of it may hold the socket."""
        await self._process.wait()
        processes.send(self._process.pid, signal.SIGKILL)
        scope.deadline = trio.current_time() + DRAIN_TIMEOUT_S

    async def _exit(self) -> None:
        await self._end(TERM_GRACE_S if self._is_asked else END_TIMEOUT_S)
        if self._is_asked and not self._has_detail:  # it was cancelled
            with trio.CancelScope(shield=True):
                self._context.interrupted(await blocking(self._put_detail))

    async def _end(self, grace: float) -> None:
        """Ends the process, which has `grace` seconds to end by itself."""
        if self._has_ended:
            return
        self._has_ended = True
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read_printed)
                with trio.move_on_after(grace):
                    self._stream.socket.shutdown(socket.SHUT_WR)
                    await self._serve(nursery)
                    await self._process.wait()
                await end_process(self._process, self._context.run or None)
                nursery.cancel_scope.deadline = trio.current_time() + DRAIN_TIMEOUT_S
            self._stream.socket.close()
            assert self._process.stdout is not None
            await self._process.stdout.aclose()

    def _how_it_ended(self) -> str:
        code = self._process.returncode or 0
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        last = program.last_line(self._context, bytes(self._printed))
        return f"the process of agent {self._code.point.name} {ended}{last and ': '}{last}"

    def _put_detail(self) -> str:
        ms = round((time.monotonic() - self._begin) * 1000)
        printed = ProcessResult(self._process.returncode or 0, bytes(self._printed), b"", ms)
        with self._context.store.batch() as batch:
            return program.put_detail(batch, [*ARGV, self._code.point.name], printed).hash


def _hash(value: object) -> BlobHash:
    if not is_hash(value):
        raise Invalid("a hash in it is not one")
    return value


def _result(message: Message, output: str) -> AgentResult:
    (hash, size), artifacts, tree = message["detail"], message["artifacts"], message["workspace"]
    detail = Digest(_hash(hash), int(size))
    tree = None if tree is None else _hash(tree)
    return AgentResult(output, detail, tuple(map(_hash, artifacts)), tree, int(message["tokens"]))

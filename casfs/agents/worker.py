"""The process of an agent package: `python -P -m casfs.agents.worker`, one for an attempt.

It imports the package, so that its code runs in no other process of casfs: what it prints, blocks,
crashes or ends is this process alone. Its stdin is a socket to the daemon, which answers for the
callbacks of the agent's context (`casfs.agents.messages`); the store is opened here. With
arguments, an entry point's value and the import path as JSON, it prints the package's descriptor
instead, and plays nothing.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import socket
import sys
import traceback
from contextlib import AsyncExitStack
from functools import partial
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import trio

from casfs import canonical
from casfs.agents import messages
from casfs.agents.cancellation import reraise_cancellation
from casfs.agents.contract import AgentContext, AgentFn, AgentResult, Call, Called
from casfs.agents.messages import LENGTHS, Message
from casfs.agents.secrets import Secrets, redacting_store
from casfs.errors import CasfsError, Failed, Invalid
from casfs.store import Store
from casfs.system import syscalls

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PROMPT = 0  # id of a prompt; of requests they are higher


def describe(target: str, path: str) -> int:
    """Prints {"descriptor", "files"}, the files that were imported, or {"error"}."""
    answers = os.dup(1)
    os.dup2(2, 1)  # the package may print
    sys.path[:] = json.loads(path)
    answer: Message
    try:
        point = EntryPoint("", target, "")
        exported, package = point.load(), point.module.partition(".")[0]
        descriptor = canonical.decode(canonical.encode(dict(exported.package_descriptor)))
        if not callable(exported.create_agent):
            raise Invalid("create_agent cannot be called")
        modules = [one for name, one in sys.modules.items() if name.partition(".")[0] == package]
        files = [file for one in modules if (file := getattr(one, "__file__", None))]
        answer = {"descriptor": descriptor, "files": files}
    except CasfsError as error:
        answer = {"error": str(error)}
    except BaseException as error:  # third-party code may raise anything
        answer = {"error": messages.describe(error, "")}
    with os.fdopen(answers, "wb") as file:
        file.write(json.dumps(answer).encode())
    return 0


class Player:
    """Plays the agent for the prompts of one attempt. When the stream ends, an agent that still
    runs is cancelled; then its exit stack is closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._file = connection, connection.makefile("rb")
        self._ids = itertools.count(PROMPT + 1)
        self._received: dict[int, trio.MemorySendChannel[Message]] = {}
        self._received[PROMPT], self._prompts = trio.open_memory_channel[Message](math.inf)
        self._scope = trio.CancelScope()
        self._is_asked = self._is_over = self._has_failed = False

    async def run(self) -> int:
        """Returns the exit code of the process."""
        async with trio.open_nursery() as nursery:
            start = self._receive()
            read = partial(trio.to_thread.run_sync, self._read, abandon_on_cancel=True)
            nursery.start_soon(read)
            with self._scope:
                await self._play(start, Secrets(start["secrets"]))
            nursery.cancel_scope.cancel()
        return int(self._has_failed)

    def _send(self, message: Message, text: str = "") -> None:
        self._connection.sendall(messages.frame(message, text))

    def _receive(self) -> Message:
        """Returns a message, an empty one at the end of the stream."""
        head = self._file.read(LENGTHS.size)
        message: Message = json.loads(self._file.read(LENGTHS.unpack(head)[0])) if head else {}
        return message

    def _read(self) -> None:
        while message := self._receive():
            trio.from_thread.run_sync(self._take, message)
        trio.from_thread.run_sync(self._end)

    def _take(self, message: Message) -> None:
        if channel := self._received.get(message["id"]):
            channel.send_nowait(message)

    def _end(self) -> None:
        self._is_over = True
        for channel in self._received.values():
            channel.close()
        if self._is_asked:
            self._scope.cancel()

    async def _play(self, start: Message, secrets: Secrets) -> None:
        sys.path[:] = start["path"]
        point = EntryPoint("", start["target"], "")
        distribution, version = start["distribution"]
        try:
            agent: AgentFn = point.load().create_agent(start["config"])
            if distribution and (now := metadata.version(distribution)) != version:
                raise Failed(f"version {now} was installed when {version} started; resume it")
        except BaseException as error:  # third-party code may raise anything
            self._fail(error, "", secrets)
            return
        given = start["context"]
        workspace = None if given["workspace"] is None else Path(given["workspace"])
        with Store.open(Path(start["root"])) as store:
            async with AsyncExitStack() as stack:
                fields: Message = {
                    **given,
                    "workspace": workspace,
                    "store": redacting_store(store, secrets),
                    "attempts": tuple(given["attempts"]),
                    **{op: partial(self._report, op) for op in ("started", "turn", "keep")},
                    "interrupted": lambda hash: self._send({"op": "interrupted", "detail": hash}),
                    "call": self._call,
                    "conversation": {},
                    "exit_stack": stack,
                    "secrets": secrets,
                }
                package = point.module.partition(".")[0]
                async for asked in self._prompts:
                    prompt = messages.to_prompt(asked["prompt"])
                    context = AgentContext(**fields, prompt=prompt, answer=asked["answer"])
                    await self._ask(agent, context, package)

    async def _ask(self, agent: AgentFn, context: AgentContext, package: str) -> None:
        self._is_asked = True
        try:
            result = await agent(context)
            if not isinstance(result, AgentResult) or not isinstance(result.output, str):
                raise TypeError(f"{type(result).__name__} is not an AgentResult with a text")
            fields = {**vars(result), "detail": [result.detail.hash, result.detail.size_bytes]}
            self._send({"op": "result", **fields, "output": None}, result.output)
        except BaseException as error:  # third-party code may raise anything
            reraise_cancellation(error)
            self._fail(error, package, context.secrets)
        self._is_asked = False

    def _fail(self, error: BaseException, package: str, secrets: Secrets) -> None:
        self._has_failed = True
        self._send({"op": "failed", **secrets.redact_json(messages.from_error(error, package))})

    async def _request(self, message: Message, text: str = "") -> Any:
        """Returns what the daemon answers. Raises the error that it answers with."""
        id = next(self._ids)
        if self._is_over:
            raise Failed("the attempt is over")
        self._received[id], answers = trio.open_memory_channel[Message](1)
        self._send({**message, "id": id}, text)
        try:
            answer = await answers.receive()
        except trio.EndOfChannel:
            raise Failed("the attempt is over") from None
        except trio.Cancelled:
            self._send({"op": "cancel", "id": id})
            raise
        finally:
            del self._received[id]
        if "error" in answer:
            raise messages.to_error(answer)
        return answer["value"]

    async def _report(self, op: str, value: object) -> None:
        await self._request({"op": op, "value": value})

    async def _call(self, call: Call) -> Called:
        message = {"op": "call", "call": {**vars(call), "input": None}}
        return Called(**await self._request(message, call.input))


def play() -> int:
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    syscalls.call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)  # a blocked loop sees no end of stream
    return trio.run(lambda: Player(connection).run())


if __name__ == "__main__":
    code = 1
    try:
        code = describe(*sys.argv[1:]) if len(sys.argv) > 1 else play()
    except BaseException:  # third-party code may raise anything
        traceback.print_exc()
    finally:
        os._exit(code)  # it may have left threads

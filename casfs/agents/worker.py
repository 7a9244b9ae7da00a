"""The process of an agent package: `python -P -m casfs.agents.worker`, one for an attempt.

It imports the package, so that its code runs in no other process of casfs: what it prints, blocks,
crashes or ends is this process alone. Its stdin is a socket to the daemon, the store it opens
itself (`casfs.agents.messages`). With arguments, an entry point's value and the import path as
JSON, it prints the package's descriptor instead.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, NoReturn

import trio

from casfs import canonical
from casfs.agents import json_rpc, messages
from casfs.agents.cancellation import reraise_cancellation
from casfs.agents.contract import AgentContext, AgentFn, AgentResult, Call, Called
from casfs.agents.messages import Message
from casfs.agents.secrets import Secrets, redacting_store
from casfs.errors import CasfsError, Failed, Invalid
from casfs.store.store import Store
from casfs.system import syscalls

PR_SET_PDEATHSIG = 1  # linux/prctl.h
MAX_LINE_BYTES = json_rpc.MAX_LINE_BYTES  # that the daemon takes


def describe(target: str, path: str) -> int:
    """Prints {"descriptor", "files"}, the files that were imported, or {"error"}."""
    answers = os.dup(1)
    os.dup2(2, 1)  # the package may print
    sys.path[:] = json.loads(path)
    answer: Message
    try:
        point = EntryPoint("", target, "")
        exported = point.load()
        package = point.module.partition(".")[0]
        descriptor = canonical.decode(canonical.encode(dict(exported.package_descriptor)))
        if not callable(exported.create_agent):
            raise Invalid("create_agent cannot be called")
        modules = [
            module for name, module in sys.modules.items() if name.partition(".")[0] == package
        ]
        files = [file for module in modules if (file := getattr(module, "__file__", None))]
        answer = {"descriptor": descriptor, "files": files}
    except CasfsError as error:
        answer = {"error": str(error)}
    except BaseException as error:  # third-party code may raise anything
        answer = {"error": messages.describe(error, "")}
    with os.fdopen(answers, "wb") as file:
        file.write(json.dumps(answer).encode())
    return 0


class Player:
    """Plays the agent for the prompts of one attempt. When that ends, an agent that still runs is
    cancelled; then its exit stack is closed."""

    def __init__(self, connection: socket.socket) -> None:
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        self._peer = json_rpc.Peer(stream, stream, request=self._take, notification=self._take)
        self._received, self._given = trio.open_memory_channel[Message](math.inf)
        self._scope = trio.CancelScope()
        self._is_asked = self._has_failed = False

    async def run(self) -> int:
        """Returns the exit code of the process."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._peer.run)
            async with trio.open_nursery() as self._reports:
                with self._scope:
                    start = await self._given.receive()
                    await self._play(start, messages.to_secrets(start["secrets"]))
            nursery.cancel_scope.cancel()
        return int(self._has_failed)

    async def _take(self, method: str, params: Any, size: int) -> None:
        if method != "end":
            return self._received.send_nowait(params)
        self._received.close()
        return self._scope.cancel() if self._is_asked else None

    async def _request(self, method: str, params: Any) -> Any:
        """Returns what the daemon answers. Raises the error that it answers with."""
        if len(json.dumps(params, allow_nan=False)) > MAX_LINE_BYTES - 1024:
            raise Failed(f"its {method} has more than {MAX_LINE_BYTES >> 20} MiB")
        answer = await self._peer.call(method, params)
        if "error" in answer:
            raise messages.to_error(answer)
        return answer["value"]

    async def _play(self, start: Message, secrets: Secrets) -> None:
        sys.path[:] = start["path"]
        point = EntryPoint("", start["target"], "")
        (distribution, version) = start["distribution"]
        try:
            agent: AgentFn = point.load().create_agent(start["config"])
            if distribution and (installed_version := metadata.version(distribution)) != version:
                raise Failed(
                    f"version {installed_version} was installed when {version} started; resume it"
                )
        except BaseException as error:  # third-party code may raise anything
            await self._fail(error, "", secrets)
            return
        context_fields = start["context"]
        reports = self._reports
        fields: Message = {
            **context_fields,
            **{name: partial(self._request, name) for name in ("started", "turn", "keep")},
            "interrupted": lambda hash: reports.start_soon(self._request, "interrupted", hash),
            "call": self._call,
            "workspace": None
            if context_fields["workspace"] is None
            else Path(context_fields["workspace"]),
            "attempts": tuple(context_fields["attempts"]),
            "conversation": {},
            "secrets": secrets,
        }
        with Store.open(Path(start["root"])) as store:
            async with AsyncExitStack() as stack:
                fields |= {"store": redacting_store(store, secrets), "exit_stack": stack}
                async for request in self._given:
                    prompt = messages.to_prompt(request["prompt"])
                    context = AgentContext(**fields, prompt=prompt, answer=request["answer"])
                    await self._ask(agent, context, point.module.partition(".")[0])

    async def _ask(self, agent: AgentFn, context: AgentContext, package: str) -> None:
        self._is_asked = True
        try:
            result = await agent(context)
            if not isinstance(result, AgentResult) or not isinstance(result.output, str):
                raise TypeError(f"{type(result).__name__} is not an AgentResult with a text")
            await self._request("output", messages.from_result(result))
        except BaseException as error:  # third-party code may raise anything
            reraise_cancellation(error)
            await self._fail(error, package, context.secrets)
        self._is_asked = False

    async def _fail(self, error: BaseException, package: str, secrets: Secrets) -> None:
        self._has_failed = True
        await self._request("failed", secrets.redact_json(messages.from_error(error, package)))

    async def _call(self, call: Call) -> Called:
        return Called(**await self._request("call", vars(call)))


def play() -> int:
    connection = socket.socket(fileno=os.dup(0))
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    syscalls.call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)  # a blocked loop sees no end of stream
    json_rpc.MAX_LINE_BYTES = sys.maxsize  # from the daemon
    return trio.run(lambda: Player(connection).run())


def exit_with(run: Callable[[], int]) -> NoReturn:
    """Ends this process with the code that `run` returns."""
    code = 1
    try:
        code = run()
    except BaseException:  # third-party code may raise anything
        traceback.print_exc()
    finally:
        os._exit(code)  # it may have left threads


if __name__ == "__main__":
    exit_with(lambda: describe(*sys.argv[1:]) if len(sys.argv) > 1 else play())

"""The daemon's side of the process in which an agent package runs (`casfs.agents.worker`).

One process for an attempt: it is started for its first prompt, asked again for a correction, and
ended by the context's exit stack, with all that it started. What it prints is live output; the last
of it is an artifact of the step, or the detail of an attempt that failed without one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import Any

import trio

from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult, Call, Waiting, messages
from casfs.agents.json_rpc import Peer
from casfs.agents.messages import Message
from casfs.errors import CasfsError, Invalid
from casfs.system import processes
from casfs.system.processes import DRAIN_TIMEOUT_S, TERM_GRACE_S
from casfs.threads import live_output
from engine.agents import program
from engine.agents.worker_processes import WORKER, WORKERS
from engine.blocking import blocking
from engine.processes.subprocesses import Process, ProcessResult, end_process

END_TIMEOUT_S = 10.0  # for an agent's exit stack
PRINTED_BYTES = 1 << 20  # that are kept of what it prints
PROCESS = "process"  # in `context.conversation`; the agent's own is in the process
CONTEXT = "thread role step depth run env kept attempts parent agent".split()


def create_agent(
    point: EntryPoint, distribution: tuple[str | None, str], config: Mapping[str, Any]
) -> AgentFn:
    """Returns an agent of an entry point, which runs in a process of its own; `distribution`: its
    name, and the version that is to run."""

    async def agent(context: AgentContext) -> AgentResult:
        process: PackageProcess | None = context.conversation.get(PROCESS)
        if process is None:
            process = PackageProcess(point.name, context)
            message = {"target": point.value, "distribution": distribution, "config": config}
            await process.start(message)
            context.conversation[PROCESS] = process
        return await process.ask(context)

    return agent


class PackageProcess:
    _process: Process
    _peer: Peer

    def __init__(self, name: str, context: AgentContext) -> None:
        self._name = name
        self._context = context
        self._begin = time.monotonic()
        self._printed = bytearray()
        self._is_asked = self._has_detail = False
        self._outcome: AgentResult | CasfsError | None = None
        self._answered = trio.Event()
        self._ended = trio.Event()
        self._scope = trio.CancelScope(shield=True)
        live = live_output.recording(context.store.root, context.run, context.secrets)
        self._live = context.exit_stack.enter_context(live)

    async def start(self, message: Message) -> None:
        """Raises OSError."""
        agent_context = self._context
        self._process, stream = await WORKERS.start(
            agent_context.run or None,
            agent_context.workspace or "/",
            program.environment(agent_context),
        )
        agent_context.exit_stack.push_async_callback(stream.aclose)
        self._peer = Peer(stream, stream, request=self._serve, notification=self._serve)
        manager = trio.open_nursery()
        (await manager.__aenter__()).start_soon(self._run)
        # without the exception that closes the stack, which it would wrap in a group
        agent_context.exit_stack.push_async_callback(manager.__aexit__, None, None, None)
        agent_context.exit_stack.push_async_callback(self._exit)
        await agent_context.started(self._process.pid)
        context = {name: getattr(agent_context, name) for name in CONTEXT}
        context["workspace"] = (
            None if agent_context.workspace is None else str(agent_context.workspace)
        )
        path = [os.path.abspath(directory) for directory in sys.path]
        root = str(agent_context.store.root)
        secrets = messages.from_secrets(agent_context.secrets)
        extra_fields = {"path": path, "root": root, "secrets": secrets, "context": context}
        await self._peer.notify("start", {**message, **extra_fields})
        # For the next attempt, while this one plays; it is started then where that fails now.
        with suppress(OSError):
            WORKERS.prepare(program.environment(agent_context))

    async def ask(self, context: AgentContext) -> AgentResult:
        """Asks the agent. Raises what it raises, AgentFailed where its process ends."""
        self._is_asked = True
        prompt = messages.from_prompt(context.prompt)
        await self._peer.notify("prompt", {"prompt": prompt, "answer": context.answer})
        if not self._ended.is_set():
            await self._answered.wait()
        self._is_asked = False
        outcome = self._outcome
        if isinstance(outcome, AgentResult):
            self._outcome = None
            self._answered = trio.Event()
            if not self._printed:
                return outcome
            printed = await blocking(lambda: context.store.put(self._kept()))
            return replace(outcome, artifacts=(*outcome.artifacts, printed.hash))
        if outcome and (isinstance(outcome, Waiting) or getattr(outcome, "detail", None)):
            raise outcome
        await self._end(END_TIMEOUT_S)
        if outcome and not self._printed:
            raise outcome
        reason = outcome or self._how_it_ended()
        detail = await blocking(self._put_detail)
        raise AgentFailed(str(reason), detail) from outcome

    async def _serve(self, method: str, params: Any, size: int) -> Message:
        try:
            return {"value": await self._carry_out(method, params)}
        except Exception as error:  # as an answer it ends nothing
            return messages.from_error(error)

    async def _carry_out(self, method: str, params: Any) -> Any:
        context = self._context
        match method:
            case "output" | "failed":
                converter = messages.to_result if method == "output" else messages.to_error
                self._outcome = converter(params)
                self._answered.set()
            case "call":
                return vars(await context.call(Call(**params)))
            case "started":
                await context.started(int(params))
            case "turn" | "keep":
                await getattr(context, method)(str(params))
            case "interrupted":
                if await blocking(lambda: context.store.blobs.info([str(params)])):
                    context.interrupted(params)
                    self._has_detail = True
            case _:
                raise Invalid(f"no method {method}")
        return None

    async def _read_printed(self) -> None:
        assert self._process.stdout is not None
        async for piece in self._process.stdout:
            await blocking(self._context.secrets.look_again)
            self._live.write(bytes(piece))
            self._printed += piece
            if len(self._printed) > 2 * PRINTED_BYTES:
                self._printed[:] = self._kept()

    def _kept(self) -> bytes:
        """Redacted before it is cut: half of a secret would not be found any more."""
        return self._context.secrets.redact_bytes(bytes(self._printed))[-PRINTED_BYTES:]

    async def _run(self) -> None:
        """Serves the process until it has ended; also where the attempt is cancelled."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                async with trio.open_nursery() as reading:
                    reading.start_soon(self._read_printed)
                    await self._peer.run()
                await self._process.wait()
                nursery.cancel_scope.cancel()
        self._ended.set()
        self._answered.set()

    async def _watch(self) -> None:
        """A child of it that lives on may hold its socket and its output."""
        await self._process.wait()
        processes.send(self._process.pid, signal.SIGKILL)
        await trio.sleep(DRAIN_TIMEOUT_S)
        self._scope.cancel()

    async def _end(self, grace: float) -> None:
        """Ends the process, which has `grace` seconds to end by itself."""
        with trio.CancelScope(shield=True):
            with trio.move_on_after(grace):
                await self._peer.notify("end", {})
                await self._ended.wait()
            await end_process(self._process)
            await self._ended.wait()

    async def _exit(self) -> None:
        await self._end(TERM_GRACE_S if self._is_asked else END_TIMEOUT_S)
        if self._is_asked and not self._has_detail:  # it was cancelled
            with trio.CancelScope(shield=True):
                self._context.interrupted(await blocking(self._put_detail))

    def _how_it_ended(self) -> str:
        code = self._process.returncode or 0
        ended = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        last = program.last_line(self._context, bytes(self._printed))
        return f"the process of agent {self._name} {ended}{last and ': '}{last}"

    def _put_detail(self) -> str:
        ms = round((time.monotonic() - self._begin) * 1000)
        printed = ProcessResult(
            self._process.returncode or 0, self._kept(), stderr=b"", duration_ms=ms
        )
        with self._context.store.batch() as batch:
            return program.put_detail(batch, [*WORKER, self._name], printed).hash

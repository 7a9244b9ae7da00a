"""An agent's process and its session, for one attempt at a step and its corrections.

The process is started within the attempt's exit stack and ends with it: first `session/cancel`
where a prompt is under way, then its process group, then everything that it left running. The task
that reads from it is shielded: a cancelled attempt still records what the agent says until it ends.
What handlers raise ends the prompt that waits, not the task that reads.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from casfs.agents import AgentContext
from casfs.agents.json_rpc import Closed, Peer, RpcError
from casfs.errors import CasfsError, Failed, Invalid
from casfs.system.files import os_errors
from casfs.version import VERSION
from engine.acp import protocol
from engine.acp.host import CANCELLED, Host
from engine.acp.recorder import Recorder
from engine.processes.subprocesses import RUN_VARIABLE, OutputTooLarge, end_process, open_process

HANDSHAKE_S = 120.0  # an agent may install itself at its first start
CANCEL_GRACE_S = 3.0
EXIT_GRACE_S = 1.0
MAX_STDERR_BYTES = 64 << 10
MAX_NAMED_CHARS = 200
UPDATE = "session/update"
PERMISSION = "session/request_permission"
CONFIGURE = "session/set_config_option"


@dataclass(frozen=True)
class Launch:
    """How an agent is started. `config`: its `mode`, `model` and `login`; `servers`: of MCP;
    `last_line`: a line for a reason, of what it wrote to stderr."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    config: Mapping[str, Any]
    servers: Sequence[Mapping[str, Any]]
    last_line: Callable[[bytes], str]


class Client:
    """`session`: its id; `name`: of the agent, with its version; `model`: that it says it uses."""

    def __init__(
        self, launch: Launch, context: AgentContext, recorder: Recorder, host: Host
    ) -> None:
        """Starts the process. Raises Failed."""
        self._launch = launch
        self._context = context
        self._recorder = recorder
        self._host = host
        self._program = launch.argv[0]
        token = launch.env.get(RUN_VARIABLE)
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        options = {"cwd": launch.cwd, "env": dict(launch.env), "start_new_session": True}
        with os_errors(f"cannot run {self._program}"):
            self._process = open_process(launch.argv, token, **pipes, **options)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        redact = context.secrets.redact_bytes  # before anything is cut: half a secret is not found
        self._peer = Peer(
            self._process.stdin,
            self._process.stdout,
            request=self._serve,
            notification=self._note,
            redact=redact,
        )
        self._scope = trio.CancelScope(shield=True)
        self._ended = trio.Event()
        self._wake = trio.Event()  # of the prompt
        self._answered = trio.Event()
        self._stderr = bytearray()
        self._stop: CasfsError | None = None
        self._ignoring = False  # updates: `session/load` replays the past
        self.session = self.name = self.model = ""

    async def enter(self) -> None:
        """Serves the process until the attempt's exit stack is closed, and then ends it."""
        stack = self._context.exit_stack
        manager = trio.open_nursery()
        self._nursery = await manager.__aenter__()
        # without the exception that closes the stack, which it would wrap in a group
        stack.push_async_callback(manager.__aexit__, None, None, None)
        stack.push_async_callback(self._close)
        self._nursery.start_soon(self._run)
        await self._context.started(self._process.pid)

    async def _run(self) -> None:
        with self._scope:
            async with trio.open_nursery() as self._tasks:
                self._tasks.start_soon(self._drain)
                async with trio.open_nursery() as while_open:
                    while_open.start_soon(self._end_children)
                    await self._peer.run()
                    while_open.cancel_scope.cancel()
        self._ended.set()

    async def _end_children(self) -> None:
        """Ends what the process left running at its end, which may keep the pipes open."""
        await self._process.wait()
        await trio.sleep(EXIT_GRACE_S)  # for output that is under way
        await end_process(self._process)

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        async for piece in self._process.stderr:
            self._stderr += piece
            del self._stderr[: -2 * MAX_STDERR_BYTES]

    async def _close(self) -> None:
        with trio.CancelScope(shield=True):
            await self._host.close()
            await end_process(self._process)
            self._scope.cancel()
            await self._ended.wait()
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                assert pipe is not None
                await pipe.aclose()  # also ends a prompt that is still being written

    # -- the session ----------------------------------------------------------------------

    async def open(self, earlier: str) -> bool:
        """Begins a session, or goes on with an earlier one; returns whether it does that. Raises
        Failed."""
        hello = {
            "protocolVersion": protocol.VERSION,
            "clientCapabilities": await self._host.capabilities(),
            "clientInfo": {"name": "casfs", "version": VERSION},
        }
        handshake = None
        with trio.move_on_after(HANDSHAKE_S):
            handshake = await self._call("initialize", "Initialize", hello)
        if handshake is None:
            raise Failed(f"{self._program} does not answer; is it an agent that speaks ACP?")
        if handshake.protocol_version != protocol.VERSION:
            versions = f"version {handshake.protocol_version} of ACP, casfs {protocol.VERSION}"
            raise Failed(f"{self._program} speaks {versions}")
        if info := handshake.agent_info:
            self.name = f"{info.name} {info.version}"
        session_params = {"cwd": str(self._launch.cwd), "mcpServers": list(self._launch.servers)}
        if earlier and handshake.agent_capabilities and handshake.agent_capabilities.load_session:
            self._ignoring = True
            with suppress(RpcError):  # the agent does not have it any more
                load_params = {**session_params, "sessionId": earlier}
                state = await self._call("session/load", "LoadSession", load_params)
                self.session = earlier
            self._ignoring = False
        if not (goes_on := bool(self.session)):
            try:
                state = await self._call("session/new", "NewSession", session_params)
            except RpcError as error:
                if error.code != protocol.AUTH_REQUIRED:
                    raise
                await self._log_in([method.id for method in handshake.auth_methods or ()])
                state = await self._call("session/new", "NewSession", session_params)
            self.session = state.session_id
        await self._set_up(state)
        return goes_on

    async def _log_in(self, methods: Sequence[str]) -> None:
        if "login" not in self._launch.config:
            named = ", ".join(methods)[:MAX_NAMED_CHARS]
            hint = f"log in by its own command, or set config.login ({named or 'it names none'})"
            raise Failed(f"{self._program} must be logged in: {hint}")
        await self._call("authenticate", "Authenticate", {"methodId": self._launch.config["login"]})

    async def _set_up(self, state: Any) -> None:
        """Chooses the mode and the model that the config names."""
        for name in ("mode", "model"):
            wanted = self._launch.config.get(name)
            options = [
                option.id for option in state.config_options or () if option.category == name
            ]
            method = f"session/set_{name}"
            params = {f"{name}Id": wanted}
            if options and not (name == "mode" and state.modes):
                method = CONFIGURE
                params = {"configId": options[0], "value": wanted}
            try:
                if wanted is not None:
                    await self._request(method, {"sessionId": self.session, **params})
                    self.model = wanted if name == "model" else self.model
            except RpcError as error:
                fault = f"does not take {name} {wanted!r}: {error}"
                raise Failed(f"{self._program} {fault}") from None

    async def prompt(self, text: str) -> Any:
        """Returns the agent's answer to a prompt. Where the task is cancelled, or a handler stops
        it, the agent is asked to end it first. Raises Failed, or what stopped it."""
        self._answered = trio.Event()
        answers: list[Any] = []
        self._nursery.start_soon(self._send_prompt, text, answers)
        try:
            await self._wake.wait()
        finally:
            if not self._answered.is_set():
                with trio.move_on_after(CANCEL_GRACE_S, shield=True):
                    await self._peer.notify("session/cancel", {"sessionId": self.session})
                    await self._answered.wait()
        if self._stop is not None:
            raise self._stop
        self._wake = trio.Event()
        return answers[0]

    async def _send_prompt(self, text: str, answers: list[Any]) -> None:
        params = {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}
        with trio.CancelScope(shield=True):
            try:
                answers.append(await self._call("session/prompt", "Prompt", params))
            except CasfsError as error:
                self._stop = self._stop or error
            self._answered.set()
            self._wake.set()

    async def _call(self, method: str, model: str, fields: Mapping[str, Any]) -> Any:
        """Raises RpcError, Failed where the agent has ended."""
        try:
            answer = await self._request(method, protocol.make(f"{model}Request", fields))
            self.model = protocol.current_model(answer) or self.model
            return protocol.read(f"{model}Response", {} if answer is None else answer)
        except RpcError as error:
            raise RpcError(error.code, f"{self._program}: {method}: {error}") from None

    async def _request(self, method: str, params: Mapping[str, Any]) -> Any:
        try:
            return await self._peer.call(method, params)
        except Closed as closed:
            if self._peer.fault:
                raise OutputTooLarge(f"{self._program}: {closed}") from None
            with trio.move_on_after(EXIT_GRACE_S):
                await self._ended.wait()  # all of stderr
                await self._process.wait()
            code = self._process.returncode
            how = "closed its output" if code is None else f"exited with {code}"
            last = self._launch.last_line(bytes(self._stderr)) or "no output"
            raise Failed(f"{self._program} {how}: {last}") from None

    def facts(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Returns what the record of the session says of the agent, and its blobs."""
        peer = self._peer
        named = {"sessionId": self.session, "agentName": self.name}
        named |= {"model": self.model} if self.model else {}
        said = self._context.secrets.redact_bytes(bytes(self._stderr))[-MAX_STDERR_BYTES:]
        streams = {"malformed": bytes(peer.malformed), "stderr": said}
        return {**named, "malformedLines": peer.malformed_count}, streams

    # -- what the agent sends -------------------------------------------------------------

    async def _serve(self, method: str, params: Any, size: int) -> Any:
        if self._is_of_other_session(params):
            raise Invalid("no such session")
        if method != PERMISSION:
            return await self._host.request(method, params, self._tasks)
        if self._stop is not None or self._answered.is_set():  # no prompt is under way
            return {"outcome": CANCELLED}
        params = {**params, "toolCall": self._recorder.asked(params, size)}
        try:
            return await self._host.request(method, params, self._tasks)
        except Invalid:
            raise
        except CasfsError as why:  # it is to be answered later, or it could not be asked
            self._stop = self._stop or why
            self._wake.set()
        return {"outcome": CANCELLED}

    async def _note(self, method: str, params: Any, size: int) -> None:
        if method == UPDATE and self._ignoring:
            return
        try:
            other = {"method": method, "params": params}
            if method == UPDATE and self._is_of_other_session(params):
                await self._recorder.other_session(params, size)
            else:
                await self._recorder.update(params if method == UPDATE else other, size)
                if method == UPDATE and isinstance(params, Mapping):
                    self.model = protocol.current_model(params.get("update")) or self.model
        except Exception as error:  # hostile values must not end the task that reads
            reason = error if isinstance(error, CasfsError) else Failed(f"{type(error).__name__}")
            self._stop = self._stop or reason
            self._wake.set()

    def _is_of_other_session(self, params: Any) -> bool:
        """Returns whether a message names a session that is not ours. Before ours has an id, none
        is known to be another."""
        named = params.get("sessionId") if isinstance(params, Mapping) else None
        return isinstance(named, str) and bool(self.session) and named != self.session

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from casfs.agents import AgentContext, Waiting
from casfs.errors import CasfsError, Failed
from casfs.version import VERSION
from engine.acp import protocol
from engine.acp.host import CANCELLED, Host
from engine.acp.json_rpc import Closed, Peer, RpcError
from engine.acp.recorder import Recorder
from engine.processes import RUN_VARIABLE, end_process, open_process

CANCEL_GRACE_S = 3.0
EXIT_GRACE_S = 1.0
MAX_STDERR_BYTES = 64 << 10
MAX_NAMED = 12  # in a message
UPDATE, PERMISSION = "session/update", "session/request_permission"


@dataclass(frozen=True)
class Launch:
    """How an agent is started. `last_line`: a line for a reason, of what it wrote to stderr;
    `servers`: of MCP; `login`: the method to authenticate by, where the agent asks; `files`:
    whether it is offered to read and write files."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    last_line: Callable[[bytes], str]
    mode: str | None = None
    model: str | None = None
    login: str | None = None
    servers: Sequence[Mapping[str, Any]] = field(default_factory=tuple)
    files: bool = True


class Client:
    """`session`: its id; `name`: of the agent, with its version."""

    def __init__(
        self, launch: Launch, context: AgentContext, recorder: Recorder, host: Host
    ) -> None:
        """Starts the process. Raises Failed."""
        self._launch, self._context = launch, context
        self._recorder, self._host = recorder, host
        self._token = launch.env.get(RUN_VARIABLE)
        try:
            self._process = open_process(
                launch.argv,
                self._token,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=launch.cwd,
                env=dict(launch.env),
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(f"cannot run {launch.argv[0]}: {error.strerror}") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._peer = Peer(
            self._process.stdin, self._process.stdout, self._serve, self._handle_notification
        )
        self._scope, self._ended = trio.CancelScope(shield=True), trio.Event()
        self._stderr = bytearray()
        self._wake, self._answered = trio.Event(), trio.Event()  # of the prompt
        self._stop: CasfsError | None = None
        self._ignoring = False  # updates: `session/load` replays the past
        self.session, self.name = "", ""

    async def enter(self) -> None:
        """Serves the process until the attempt's exit stack is closed, and then ends it."""
        stack, manager = self._context.exit_stack, trio.open_nursery()
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
                await self._host.close()
        self._ended.set()

    async def _end_children(self) -> None:
        """Ends what the process left running at its end, which may keep the pipes open."""
        await self._process.wait()
        await trio.sleep(EXIT_GRACE_S)  # for output that is under way
        await end_process(self._process, self._token)

    async def _drain(self) -> None:
        assert self._process.stderr is not None
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async for piece in self._process.stderr:
                self._stderr += piece
                del self._stderr[:-MAX_STDERR_BYTES]

    async def _close(self) -> None:
        with trio.CancelScope(shield=True):
            await self._host.close()
            await end_process(self._process, self._token)
            self._scope.cancel()
            await self._ended.wait()

    # -- the session ----------------------------------------------------------------------

    async def open(self, earlier: str | None) -> bool:
        """Begins a session, or goes on with an earlier one; returns whether it does that. Raises
        Failed."""
        hello = await self._call("initialize", "InitializeRequest", {
            "protocolVersion": protocol.VERSION,
            "clientCapabilities": await self._host.capabilities(),
            "clientInfo": {"name": "casfs", "version": VERSION},
        })  # fmt: skip
        found = protocol.read("InitializeResponse", hello)
        if found.protocol_version != protocol.VERSION:
            versions = f"version {found.protocol_version} of ACP, casfs {protocol.VERSION}"
            raise Failed(f"{self._launch.argv[0]} speaks {versions}")
        if info := found.agent_info:
            self.name = f"{info.name} {info.version}"
        place = {"cwd": str(self._launch.cwd), "mcpServers": list(self._launch.servers)}
        if earlier and found.agent_capabilities.load_session:
            try:
                self._ignoring = True
                given = {**place, "sessionId": earlier}
                state = await self._call("session/load", "LoadSessionRequest", given)
            except RpcError:  # it has forgotten it
                pass
            else:
                self.session = earlier
                await self._set_up(state)
                return True
            finally:
                self._ignoring = False
        state = await self._new_session(place, [one.id for one in found.auth_methods or ()])
        self.session = protocol.read("NewSessionResponse", state).session_id
        await self._set_up(state)
        return False

    async def _new_session(self, place: Mapping[str, Any], methods: Sequence[str]) -> Any:
        try:
            return await self._call("session/new", "NewSessionRequest", place)
        except RpcError as error:
            if error.code != protocol.AUTH_REQUIRED:
                raise
            login = self._launch.login
            if login is None:
                named = ", ".join(methods[:MAX_NAMED]) or "none is named"
                hint = f"log in by its own command, or set `login` in its config ({named})"
                raise Failed(f"{self._launch.argv[0]} must be logged in: {hint}") from None
        await self._call("authenticate", "AuthenticateRequest", {"methodId": login})
        return await self._call("session/new", "NewSessionRequest", place)

    async def _set_up(self, state: Any) -> None:
        """Chooses the mode and the model that the config names."""
        state = state if isinstance(state, Mapping) else {}
        options = state.get("configOptions")
        for name, wanted, method in (
            ("mode", self._launch.mode, "session/set_mode"),
            ("model", self._launch.model, "session/set_model"),
        ):
            if wanted is None:
                continue
            config = [
                one["id"]
                for one in (options if isinstance(options, list) else ())
                if isinstance(one, Mapping) and one.get("category") == name and "id" in one
            ]
            if isinstance(state.get(f"{name}s"), Mapping) or not config:
                given: dict[str, Any] = {f"{name}Id": wanted}
            else:
                method, given = (
                    "session/set_config_option",
                    {"configId": config[0], "value": wanted},
                )
            try:
                await self._peer.call(method, {"sessionId": self.session, **given})
            except RpcError as error:
                fault = f"does not take {name} {wanted!r}: {error}"
                raise Failed(f"{self._launch.argv[0]} {fault}") from None

    async def prompt(self, text: str) -> Any:
        """Returns the agent's answer to a prompt. Where the task is cancelled, or a handler stops
        it, the agent is asked to end it first. Raises Failed, or what stopped it."""
        self._answered = trio.Event()
        answer: list[Any] = []
        self._nursery.start_soon(self._send_prompt, text, answer)
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
        return protocol.read("PromptResponse", answer[0])

    async def _send_prompt(self, text: str, answer: list[Any]) -> None:
        given = {"sessionId": self.session, "prompt": [{"type": "text", "text": text}]}
        with trio.CancelScope(shield=True):
            try:
                answer.append(await self._call("session/prompt", "PromptRequest", given))
            except CasfsError as error:
                self.stop(error)
            self._answered.set()
            self._wake.set()

    def stop(self, error: CasfsError) -> None:
        """Ends the prompt that waits, and every later one."""
        self._stop = self._stop or error
        self._wake.set()

    def facts(self) -> dict[str, Any]:
        """Returns what the record of the session says of the agent."""
        count = {"malformedLines": self._peer.malformed_count} if self._peer.malformed_count else {}
        named = {"sessionId": self.session, "agentName": self.name}
        return {**count, **{key: value for key, value in named.items() if value}}

    def streams(self) -> dict[str, bytes]:
        return {"malformed": bytes(self._peer.malformed), "stderr": bytes(self._stderr)}

    async def _call(self, method: str, model: str, fields: Mapping[str, Any]) -> Any:
        """Raises RpcError, Failed where the agent has ended."""
        try:
            return await self._peer.call(method, protocol.make(model, fields))
        except RpcError as error:
            raise RpcError(error.code, f"{self._launch.argv[0]}: {method}: {error}") from None
        except Closed:
            with trio.move_on_after(EXIT_GRACE_S):
                await self._ended.wait()  # all of stderr
                await self._process.wait()
            code = self._process.returncode
            how = "closed its output" if code is None else f"exited with {code}"
            last = self._launch.last_line(bytes(self._stderr)) or "no output"
            raise Failed(f"{self._launch.argv[0]} {how}: {last}") from None

    # -- what the agent sends -------------------------------------------------------------

    async def _serve(self, method: str, params: Any, size: int) -> Any:
        if self._stop is None or method != PERMISSION:
            try:
                return await self._host.request(method, params, self._tasks)
            except Waiting as why:
                self.stop(why)
        return {"outcome": CANCELLED}

    async def _handle_notification(self, method: str, params: Any, size: int) -> None:
        if method != UPDATE:
            params = {"method": method, "params": params}
        elif self._ignoring:
            return
        try:
            await self._recorder.update(params, size)
        except CasfsError as error:
            self.stop(error)

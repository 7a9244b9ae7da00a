"""Requests of an agent: files of the workspace, commands in the sandbox, permissions.

Files and commands are those of a model's tools (`engine.llm.tools`): a path never leads out of the
workspace, and a command sees what `run_command` lets it see. What a command prints is kept up to
MAX_OUTPUT_BYTES, the newest of it.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import signal
import subprocess
from pathlib import Path, PurePosixPath
from typing import Any

import trio

from casfs.agents import AgentContext
from casfs.agents.json_rpc import NO_METHOD, RpcError
from casfs.errors import Failed, Invalid, NotFound, Refused
from casfs.system import processes
from casfs.system.processes import DRAIN_TIMEOUT_S
from engine.acp import protocol
from engine.acp.permissions import Permissions
from engine.llm import sandbox
from engine.llm.sandbox import Settings
from engine.llm.tools import TOOLS, Toolbox
from engine.processes import Process, end_process, open_process

MAX_TERMINALS = 32
MAX_OUTPUT_BYTES = 1 << 20
CANCELLED = {"outcome": "cancelled"}
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class Terminal:
    """A command that runs. `limit`: bytes of its output that are kept."""

    def __init__(self, process: Process, limit: int) -> None:
        self.process, self.ended = process, trio.Event()
        self._limit, self._output, self._truncated = limit, bytearray(), False

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read)
            await self.process.wait()
            processes.send(self.process.pid, signal.SIGKILL)  # a child may keep its output open
            nursery.cancel_scope.deadline = trio.current_time() + DRAIN_TIMEOUT_S
        self.ended.set()

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async with self.process.stdout as pipe:
            async for piece in pipe:
                self._output += piece
                if (excess := len(self._output) - self._limit) > 0:
                    del self._output[:excess]
                    self._truncated = True

    def exit_status(self) -> dict[str, Any]:
        code = self.process.returncode
        return {"signal": str(-code)} if code is not None and code < 0 else {"exitCode": code}

    def output(self) -> dict[str, Any]:
        """Returns the output, of a truncated one from the first whole character on."""
        whole = self._output.lstrip(bytes(range(0x80, 0xC0))) if self._truncated else self._output
        state = {"exitStatus": self.exit_status()} if self.ended.is_set() else {}
        return {"output": whole.decode("utf-8", "replace"), "truncated": self._truncated, **state}


class Host:
    """Answers the requests of one attempt. `shell`: settings of the sandbox; `files`: whether to
    offer to read and write files."""

    def __init__(
        self, context: AgentContext, shell: Settings, permissions: Permissions, files: bool = True
    ) -> None:
        self._context, self._shell, self._permissions = context, shell, permissions
        self._files = files and context.workspace is not None
        self._box = Toolbox(context, shell)
        self._terminals: dict[str, Terminal] = {}

    async def capabilities(self) -> dict[str, Any]:
        """Returns what we offer: nothing without a workspace, no terminal without a sandbox."""
        terminal = True
        try:
            await self._sandboxed("true")
        except Refused:
            terminal = False
        files = {"readTextFile": self._files, "writeTextFile": self._files}
        return {"fs": files, "terminal": terminal}

    async def request(self, method: str, params: Any, nursery: trio.Nursery) -> Any:
        """Returns the answer to a request. `nursery`: of the agent's process. Raises Waiting where
        a person is to answer, CasfsError."""
        match method:
            case "session/request_permission":
                choice = await self._permissions.choose(params)
                chosen = {"outcome": "selected", "optionId": choice}
                return {"outcome": CANCELLED if choice is None else chosen}
            case "fs/read_text_file":
                found = protocol.read("ReadTextFileRequest", params)
                given = {"path": self._path(found.path), "line": found.line or 1}
                given |= {} if found.limit is None else {"lines": found.limit}
                return {"content": await TOOLS["read_file"].run(self._box, given)}
            case "fs/write_text_file":
                found = protocol.read("WriteTextFileRequest", params)
                given = {"path": self._path(found.path), "text": found.content}
                await TOOLS["write_file"].run(self._box, given)
                return {}
            case "terminal/create":
                terminal = await self._create(protocol.read("CreateTerminalRequest", params))
                nursery.start_soon(terminal.run)
                id = secrets.token_hex(8)
                self._terminals[id] = terminal
                return {"terminalId": id}
            case "terminal/output":
                output = self._terminal(params).output()
                return {**output, "output": self._context.secrets.redact_values(output["output"])}
            case "terminal/wait_for_exit":
                await (terminal := self._terminal(params)).ended.wait()
                return terminal.exit_status()
            case "terminal/kill":
                await end_process(self._terminal(params).process)
            case "terminal/release":
                await end_process(self._terminal(params, release=True).process)
            case _:
                raise RpcError(NO_METHOD, f"casfs has no method {method[:80]}")
        return {}

    async def close(self) -> None:
        while self._terminals:
            await end_process(self._terminals.popitem()[1].process)

    def _terminal(self, params: Any, release: bool = False) -> Terminal:
        id = protocol.read("ReleaseTerminalRequest", params).terminal_id
        found = self._terminals.pop(id, None) if release else self._terminals.get(id)
        if found is None:
            raise NotFound("no such terminal")
        return found

    async def _create(self, wanted: Any) -> Terminal:
        if len(self._terminals) >= MAX_TERMINALS:
            raise Refused(f"more than {MAX_TERMINALS} terminals; release some")
        line = shlex.join([wanted.command, *wanted.args]) if wanted.args else wanted.command
        variables = [f"{one.name}={one.value}" for one in wanted.env or ()]
        if not all(VARIABLE.fullmatch(one.partition("=")[0]) for one in variables):
            raise Invalid("the name of an environment variable is invalid")
        if variables:  # set inside the sandbox: outside they could change how it is made
            line = f"export {shlex.join(variables)}\n{line}"
        if wanted.cwd is not None:
            line = f"cd -- {shlex.quote(self._path(wanted.cwd) or '.')} || exit 126\n{line}"
        argv, env = await self._sandboxed(line)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        place = {"cwd": self._context.workspace, "env": env, "stdin": subprocess.DEVNULL}
        try:
            process = open_process(
                argv, self._context.run, **pipes, **place, start_new_session=True
            )
        except OSError as error:
            raise Failed(f"cannot run {argv[0]}: {error.strerror}") from None
        limit = MAX_OUTPUT_BYTES if wanted.output_byte_limit is None else wanted.output_byte_limit
        return Terminal(process, min(limit, MAX_OUTPUT_BYTES))

    def _workspace(self) -> Path:
        if self._context.workspace is None:
            raise Refused("the thread has no workspace")
        return self._context.workspace

    async def _sandboxed(self, line: str) -> tuple[list[str], dict[str, str]]:
        where = self._workspace(), self._context.run, self._context.env
        return await sandbox.sandboxed_command(line, *where, self._shell)

    def _path(self, path: str) -> str:
        """Returns a path relative to the workspace. Raises Refused where it is not below it."""
        for root in (self._workspace(), os.path.realpath(self._workspace())):
            if PurePosixPath(path).is_relative_to(root):
                return str(PurePosixPath(path).relative_to(root))
        if path.startswith("/"):
            raise Refused(f"{path!r}: only paths below the workspace")
        return path

"""Requests of an agent: files of the workspace, commands in the sandbox, permissions.

Files and commands are those of a model's tools (`engine.llm.tools`): a path never leads out of the
workspace, and a command sees what `run_command` lets it see. All of it is recorded.
"""

from __future__ import annotations

import re
import secrets
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import trio

from casfs.agents import AgentContext
from casfs.agents.json_rpc import NO_METHOD, RpcError
from casfs.errors import CasfsError, Invalid, NotFound, Refused
from casfs.system.files import os_errors
from engine.acp import protocol
from engine.acp.permissions import Permissions
from engine.acp.recorder import Recorder
from engine.acp.terminal import MAX_OUTPUT_BYTES, Command, Terminal
from engine.acp.tool_calls import READ, WRITE, FileRequest
from engine.llm import sandbox
from engine.llm.sandbox import Settings
from engine.llm.tools import TOOLS, Toolbox
from engine.llm.workspace_files import relative_path
from engine.processes.subprocesses import end_process, open_process

MAX_TERMINALS = 32
CANCELLED = {"outcome": "cancelled"}
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class Host:
    """Answers the requests of one attempt. `shell`: settings of the sandbox; `files`: whether to
    offer to read and write files."""

    def __init__(
        self,
        context: AgentContext,
        shell: Settings,
        permissions: Permissions,
        recorder: Recorder,
        files: bool = True,
    ) -> None:
        self._recorder = recorder
        self._context = context
        self._shell = shell
        self._permissions = permissions
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
                return {"content": (await self._file(READ, params)).text}
            case "fs/write_text_file":
                await self._file(WRITE, params)
                return {}
            case "terminal/create":
                terminal = await self._create(params)
                nursery.start_soon(terminal.run)
                id = secrets.token_hex(8)
                self._terminals[id] = terminal
                self._recorder.terminal(id, terminal)
                return {"terminalId": id}
            case "terminal/output":
                output = self._terminal(params).output()
                return {**output, "output": self._context.secrets.redact_values(output["output"])}
            case "terminal/wait_for_exit":
                await (terminal := self._terminal(params)).ended.wait()
                return terminal.exit_status()
            case "terminal/kill":
                await self._kill(self._terminal(params))
            case "terminal/release":
                await self._release(params)
            case _:
                raise RpcError(NO_METHOD, f"casfs has no method {method[:80]}")
        return {}

    async def close(self) -> None:
        while self._terminals:
            await end_process(self._terminals.popitem()[1].process)

    async def _kill(self, terminal: Terminal) -> None:
        terminal.is_killed = terminal.process.returncode is None
        await end_process(terminal.process)
        await terminal.ended.wait()

    async def _release(self, params: Any) -> None:
        terminal = self._terminal(params, release=True)
        if not terminal.ended.is_set():
            await self._kill(terminal)
        terminal.is_released = True
        await self._recorder.released(params["terminalId"])

    async def _file(self, access: str, params: Any) -> FileRequest:
        """Reads or writes a file, and records it, also where it is refused."""
        model = "ReadTextFileRequest" if access == READ else "WriteTextFileRequest"
        wanted = protocol.read(model, params)
        request = FileRequest(access, wanted.path, _without_content(params))
        try:
            request.path = self._path(wanted.path)
            arguments: dict[str, Any] = {"path": request.path}
            if access == READ:
                arguments["line"] = wanted.line or 1
                arguments |= {} if wanted.limit is None else {"lines": wanted.limit}
                request.text = await TOOLS["read_file"].run(self._box, arguments)
            else:
                request.text = wanted.content
                await TOOLS["write_file"].run(self._box, {**arguments, "text": wanted.content})
        except CasfsError as error:
            request.fault = str(error)
            raise
        finally:
            await self._recorder.file(request)
        return request

    def _terminal(self, params: Any, release: bool = False) -> Terminal:
        id = protocol.read("ReleaseTerminalRequest", params).terminal_id
        terminal = self._terminals.pop(id, None) if release else self._terminals.get(id)
        if terminal is None:
            raise NotFound("no such terminal")
        return terminal

    async def _create(self, params: Any) -> Terminal:
        wanted = protocol.read("CreateTerminalRequest", params)
        try:
            return await self._started(wanted, _without_content(params))
        except CasfsError as error:
            request = _without_content(params)
            await self._recorder.refused("terminal/create", request, str(error))
            raise

    async def _started(self, wanted: Any, request: Mapping[str, Any]) -> Terminal:
        if len(self._terminals) >= MAX_TERMINALS:
            raise Refused(f"more than {MAX_TERMINALS} terminals; release some")
        line = shlex.join([wanted.command, *wanted.args]) if wanted.args else wanted.command
        variables = [f"{variable.name}={variable.value}" for variable in wanted.env or ()]
        if not all(VARIABLE.fullmatch(variable.partition("=")[0]) for variable in variables):
            raise Invalid("the name of an environment variable is invalid")
        if variables:  # set inside the sandbox: outside they could change how it is made
            line = f"export {shlex.join(variables)}\n{line}"
        cwd = "." if wanted.cwd is None else self._path(wanted.cwd) or "."
        if wanted.cwd is not None:
            line = f"cd -- {shlex.quote(cwd)} || exit 126\n{line}"
        argv, env = await self._sandboxed(line)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        options = {"cwd": self._context.workspace, "env": env, "stdin": subprocess.DEVNULL}
        with os_errors(f"cannot run {argv[0]}"):
            process = open_process(
                argv, self._context.run, **pipes, **options, start_new_session=True
            )
        limit = MAX_OUTPUT_BYTES if wanted.output_byte_limit is None else wanted.output_byte_limit
        argv = [wanted.command, *(wanted.args or ())]
        return Terminal(process, Command(argv, cwd, request=request, limit=limit))

    def _workspace(self) -> Path:
        if self._context.workspace is None:
            raise Refused("the thread has no workspace")
        return self._context.workspace

    async def _sandboxed(self, line: str) -> tuple[list[str], dict[str, str]]:
        where = self._workspace(), self._context.run, self._context.env
        return await sandbox.sandboxed_command(line, *where, self._shell)

    def _path(self, path: str) -> str:
        """Returns a path relative to the workspace. Raises Refused where it is not below it."""
        relative = relative_path(self._workspace(), path)
        if relative is not None:
            return relative
        if path.startswith("/"):
            raise Refused(f"{path!r}: only paths below the workspace")
        return path


def _without_content(params: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parameters of a request but for what is recorded elsewhere."""
    return {name: param for name, param in params.items() if name not in ("content", "sessionId")}

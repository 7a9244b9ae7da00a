"""The tools of the reactor's model: workspace files, a shell, the store.

A tool gets validated arguments and returns a text. An error (a path that leads out, a missing
file, arguments that do not fit) is a result that starts with `error:`, so that the model can
correct itself; it never ends the run. A long result is truncated, with a note. Search is for
plain text: a regular expression of a model could block a worker thread indefinitely.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import trio

from casfs.agents import AgentContext
from casfs.errors import CasfsError, Failed, Invalid, NotFound
from casfs.store.nodes.schema import Schema
from engine import content
from engine.llm import sandbox
from engine.llm.sandbox import Settings
from engine.llm.workspace_files import WorkspaceFiles
from engine.processes import subprocesses

MAX_RESULT_CHARS = 32_000
MAX_FILE_BYTES = 4 << 20
MAX_SEARCHED_FILE_BYTES = 1 << 20
MAX_HITS = 200
MAX_HIT_LINE_CHARS = 300
Arguments = Mapping[str, Any]


@dataclass
class Toolbox:
    """The context of one agent's tools. `artifacts`: hashes that `cas_put` returned."""

    context: AgentContext
    settings: Settings = field(default_factory=Settings)
    artifacts: list[str] = field(default_factory=list)

    @property
    def files(self) -> WorkspaceFiles:
        assert self.context.workspace is not None
        return WorkspaceFiles(self.context.workspace)


@dataclass(frozen=True)
class Tool:
    """`parameters`: a JSON Schema of the arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    run: Callable[[Toolbox, Arguments], Awaitable[str]]
    needs_workspace: bool = True

    @property
    def form(self) -> dict[str, Any]:
        """The tool in the protocol's form of a function."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }


def available_tools(context: AgentContext, names: list[str] | None) -> list[Tool]:
    """Returns the tools for a step in a fixed order: all, or those that the config names."""
    return [
        tool
        for tool in TOOLS.values()
        if (names is None or tool.name in names)
        and (context.workspace is not None or not tool.needs_workspace)
    ]


async def call_tool(toolbox: Toolbox, tools: list[Tool], name: str, arguments: str) -> str:
    """Returns the result or error of a call, without the values of secrets. The scanner has its say
    where it is stored: a file that is read with a mark in it might be written back with it."""
    try:
        text = await _run_tool(
            toolbox, {tool.name: tool for tool in tools}, name=name, arguments=arguments
        )
    except CasfsError as error:
        text = f"error: {error}"
    return truncate(toolbox.context.secrets.redact_values(text))


async def _run_tool(toolbox: Toolbox, tools: Mapping[str, Tool], name: str, arguments: str) -> str:
    if name not in tools:
        raise NotFound(f"no tool {name!r}; there are {', '.join(tools)}")
    try:
        parsed_arguments = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the arguments are not JSON: {error}") from None
    _schema(name).check(parsed_arguments)
    return await tools[name].run(toolbox, parsed_arguments)


@cache
def _schema(name: str) -> Schema:
    return Schema(TOOLS[name].parameters)


def truncate(text: str, limit: int = MAX_RESULT_CHARS) -> str:
    """Returns a text of at most about `limit` characters: its beginning and its end."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"


def _blocking(
    function: Callable[[Toolbox, Arguments], str],
) -> Callable[[Toolbox, Arguments], Awaitable[str]]:
    """Runs a tool in a worker thread, so that it does not block the daemon's loop."""

    async def run(toolbox: Toolbox, arguments: Arguments) -> str:
        return await trio.to_thread.run_sync(function, toolbox, arguments)

    return run


# -- files --------------------------------------------------------------------------------


def _text(toolbox: Toolbox, path: str) -> str:
    data = toolbox.files.read(path, MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise Failed(f"{path!r} is larger than {MAX_FILE_BYTES >> 20} MiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Failed(f"{path!r} is not UTF-8 text") from None


def _read_file(toolbox: Toolbox, arguments: Arguments) -> str:
    lines = _text(toolbox, arguments["path"]).splitlines(keepends=True)
    first = arguments.get("line", 1) - 1
    return "".join(lines[first : first + arguments.get("lines", len(lines))])


def _write_file(toolbox: Toolbox, arguments: Arguments) -> str:
    data = arguments["text"].encode()
    toolbox.files.write(arguments["path"], data)
    return f"wrote {len(data)} bytes"


def _edit_file(toolbox: Toolbox, arguments: Arguments) -> str:
    text = _text(toolbox, arguments["path"])
    old = arguments["old"]
    count = text.count(old)
    if count != 1:
        raise Invalid(f"`old` stands {count} times in {arguments['path']!r}, and must once")
    toolbox.files.write(arguments["path"], text.replace(old, arguments["new"]).encode())
    return "changed"


def _list_dir(toolbox: Toolbox, arguments: Arguments) -> str:
    entries = toolbox.files.entries(arguments.get("path", "."))
    shown = {"directory": "/", "link": "@", "other": "?"}
    lines = [
        f"{entry.name}{shown.get(entry.kind, '')}"
        + (f" {entry.size}" if entry.kind == "file" else "")
        for entry in entries
    ]
    return _printable("\n".join(lines) or "empty")


def _search(toolbox: Toolbox, arguments: Arguments) -> str:
    wanted = arguments["text"].encode()
    hits: list[str] = []
    for path, data in toolbox.files.walk(arguments.get("path", "."), MAX_SEARCHED_FILE_BYTES):
        if wanted not in data or b"\0" in data[:8192]:
            continue
        for number, line in enumerate(data.split(b"\n"), 1):
            if wanted in line:
                text = toolbox.context.secrets.redact_values(line.decode("utf-8", "replace"))
                hits.append(f"{path}:{number}:{text[:MAX_HIT_LINE_CHARS]}")
                if len(hits) == MAX_HITS:
                    return _printable("\n".join([*hits, f"[only the first {MAX_HITS}]"]))
    return _printable("\n".join(hits) or "nothing found")


def _printable(text: str) -> str:
    """Replaces bytes of file names that are not UTF-8: a node cannot hold them."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# -- commands -----------------------------------------------------------------------------


async def _run_command(toolbox: Toolbox, arguments: Arguments) -> str:
    context = toolbox.context
    settings = toolbox.settings
    assert context.workspace is not None
    argv, env = await sandbox.sandboxed_command(
        arguments["command"], context.workspace, run=context.run, env=context.env, settings=settings
    )
    outcome = await subprocesses.run(
        argv,
        b"",
        cwd=context.workspace,
        env=env,
        timeout=min(arguments.get("timeoutS", settings.timeout), settings.timeout),
        started=context.started,
    )
    said = (text.decode("utf-8", "replace") for text in (outcome.stdout, outcome.stderr))
    out, err = map(context.secrets.redact_values, said)  # before they are cut
    parts = [f"exit code {outcome.exit_code}", truncate(out, MAX_RESULT_CHARS // 2).rstrip("\n")]
    if err:
        parts += ["stderr:", truncate(err, MAX_RESULT_CHARS // 3).rstrip("\n")]
    return "\n".join(part for part in parts if part)


# -- the store ----------------------------------------------------------------------------


def _cas_get(toolbox: Toolbox, arguments: Arguments) -> str:
    store = toolbox.context.store
    data = store.get(store.expand(arguments["hash"]))
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Failed(f"{arguments['hash']} is not UTF-8 text: {len(data)} bytes") from None


def _cas_put(toolbox: Toolbox, arguments: Arguments) -> str:
    hash = content.put(toolbox.context.store, arguments["text"])
    toolbox.artifacts.append(hash)
    return hash


def _form(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


STRING = {"type": "string"}
PATH = {"type": "string", "description": "Relative to the workspace."}
COUNT = {"type": "integer", "minimum": 1}
TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            "read_file",
            "The text of a file, or of `lines` lines from `line` on.",
            parameters=_form({"path": PATH}, {"line": COUNT, "lines": COUNT}),
            run=_blocking(_read_file),
        ),
        Tool(
            "write_file",
            "Make a file with this text, or replace it whole.",
            parameters=_form({"path": PATH, "text": STRING}),
            run=_blocking(_write_file),
        ),
        Tool(
            "edit_file",
            "Replace `old`, which must stand in the file exactly once, by `new`.",
            parameters=_form(
                {"path": PATH, "old": {"type": "string", "minLength": 1}, "new": STRING}
            ),
            run=_blocking(_edit_file),
        ),
        Tool(
            "list_dir",
            "The names in a directory: files with their size, directories with `/`.",
            parameters=_form({}, {"path": PATH}),
            run=_blocking(_list_dir),
        ),
        Tool(
            "search",
            "Lines that contain a plain text, in the files below a directory.",
            parameters=_form({"text": {"type": "string", "minLength": 1}}, {"path": PATH}),
            run=_blocking(_search),
        ),
        Tool(
            "run_command",
            "Run a shell command in the workspace: exit code, output, errors.",
            parameters=_form(
                {"command": STRING}, {"timeoutS": {"type": "number", "exclusiveMinimum": 0}}
            ),
            run=_run_command,
        ),
        Tool(
            "cas_get",
            "What the store has under a hash.",
            parameters=_form({"hash": STRING}),
            run=_blocking(_cas_get),
            needs_workspace=False,
        ),
        Tool(
            "cas_put",
            "Put a text into the store; the result is its hash.",
            parameters=_form({"text": STRING}),
            run=_blocking(_cas_put),
            needs_workspace=False,
        ),
    )
}

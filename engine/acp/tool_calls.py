"""Tool calls of an agent as nodes: those that it reports, and what it asked us to do.

An update of a tool call replaces members of it. What is replaced is kept as well (`earlier` of
`more`), unless the new value only goes on with the old one. All that has no member of its own is
kept as it came.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from casfs.agents import AgentContext
from casfs.store.write_batch import Batch
from casfs.system import surrogates
from engine import content
from engine.acp import protocol
from engine.acp.terminal import Terminal

MAX_NAME_CHARS = 200
MAX_COUNT = 10**12  # of tokens, of lines: a node holds no number of any size
RECORDED = {"toolCallId", "sessionUpdate", "title", "kind", "status", "rawInput"}
PASSING = ("sessionUpdate", "status")
GROWING = ("content", "rawInput", "rawOutput")
DIFF = ("type", "path", "oldText", "newText")
CONTENT_PARTS = {"content": ("type", "content"), "diff": DIFF, "terminal": ("type", "terminalId")}
READ = "read"
WRITE = "write"
FILE_REQUESTS = {READ: "fs/read_text_file", WRITE: "fs/write_text_file"}
KINDS = {READ: "read", WRITE: "edit"}


@dataclass
class ToolCall:
    """`raw`: the newest members of its updates; `earlier`: those that were replaced; `terminals`:
    ids of those that it names; `hash`: once it is over."""

    raw: dict[str, Any] = field(default_factory=dict)
    earlier: list[dict[str, Any]] = field(default_factory=list)
    terminals: list[str] = field(default_factory=list)
    begin: float = field(default_factory=time.monotonic)
    hash: str | None = None

    def update(self, members: Mapping[str, Any]) -> None:
        for name, value in members.items():
            if value is None:
                continue
            old = self.raw.get(name)
            is_kept = old is None or name in PASSING or old == value
            if not is_kept and not (name in GROWING and _is_beginning(old, value)):
                self.earlier.append({name: old})
            self.raw[name] = value
        for id in _terminal_ids(members.get("content")):
            if id not in self.terminals:
                self.terminals.append(id)


@dataclass
class FileRequest:
    """A file that the agent read or wrote through us. `text`: what was read or written; `request`:
    its parameters without that; `fault`: why it was refused."""

    access: str
    path: str
    request: Mapping[str, Any]
    text: str = ""
    fault: str | None = None
    begin: float = field(default_factory=time.monotonic)

    def result(self) -> str:
        if self.fault is not None:
            return f"error: {self.fault}"
        verb = "read" if self.access == READ else "wrote"
        return f"{verb} {len(self.text.encode())} bytes"


def _terminal_ids(parts: Any) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, Mapping) and isinstance(part.get("terminalId"), str):
            yield part["terminalId"]


def _is_beginning(old: Any, new: Any) -> bool:
    """Returns whether a value holds all of an old one: texts, lists and objects that have grown."""
    if isinstance(old, str) and isinstance(new, str):
        return new.startswith(old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) <= len(new) and all(map(_is_beginning, old, new))
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return all(name in new and _is_beginning(member, new[name]) for name, member in old.items())
    return type(old) is type(new) and bool(old == new)


def _has_only(value: Any, names: Sequence[str]) -> bool:
    """Returns whether a value is an object that says no more than the members `names`."""
    return isinstance(value, Mapping) and all(
        name in names or member is None for name, member in value.items()
    )


def _is_plain(part: Any) -> bool:
    """Returns whether a part of a tool call's content has no more than its node has members for."""
    if not isinstance(part, Mapping):
        return False
    block = part.get("content")
    if block is not None and not (
        _has_only(block, ("type", "text")) and block.get("type") == "text"
    ):
        return False
    return _has_only(part, CONTENT_PARTS.get(str(part.get("type")), ()))


class ToolCallWriter:
    """Puts the tool calls of a session. Terminals are known to it until they are released and the
    record of them is put."""

    def __init__(self, context: AgentContext) -> None:
        self._store = context.store
        self._secrets = context.secrets
        self._root = f"{context.workspace}/" if context.workspace else ""
        self.terminals: dict[str, Terminal] = {}
        self.recorded: set[str] = set()  # terminals that a tool call holds as they ended

    def put_reported(self, call: ToolCall, tree: Mapping[str, str]) -> str:
        """Puts a tool call that the agent reported, with the terminals that it names."""
        raw = surrogates.replace_in_json(call.raw)
        known = protocol.read("ToolCallUpdate", raw)
        parts = known.content or []
        raw_input = known.raw_input
        output = known.raw_output
        diffs = [part for part in parts if part.type == "diff"]
        texts = [
            part.content.text for part in parts if getattr(part, "content", part).type == "text"
        ]
        recorded = set(RECORDED)
        if not texts and output is not None:
            recorded.add("rawOutput")
            texts = [output if isinstance(output, str) else as_json(output)]
        name = self._secrets.redact(known.title or known.kind or "?")  # before it is cut
        terminals = [id for id in call.terminals if id in self.terminals]
        named = set(_terminal_ids(raw.get("content")))
        if (
            isinstance(raw.get("content"), list)
            and all(map(_is_plain, raw["content"]))
            and named <= set(terminals)
        ):
            recorded.add("content")
        places = raw.get("locations")
        if isinstance(places, list) and all(
            _has_only(location, ("path", "line")) for location in places
        ):
            recorded.add("locations")
        read = {"sessionUpdate": raw.get("sessionUpdate"), **protocol.dump(known)}
        extra_members = {
            member: raw_value
            for member, raw_value in call.raw.items()
            if member not in recorded or raw_value != read.get(member)
        }
        if len(name) > MAX_NAME_CHARS:
            extra_members["title"] = call.raw["title"]
        if call.earlier:
            extra_members["earlier"] = call.earlier
        with self._store.batch() as batch:
            payload = {
                "name": name[:MAX_NAME_CHARS],
                "arguments": content.put(batch, as_json({} if raw_input is None else raw_input)),
                "result": content.put(batch, "\n".join(texts)),
                "durationMs": ms_since(call.begin),
                "kind": known.kind,
                "status": known.status,
                "locations": [
                    {"path": self._relative(location.path), "line": _line(location)}
                    for location in known.locations or ()
                ],
                "diffs": [self._diff(batch, diff) for diff in diffs],
                "terminals": [self._terminal(batch, id) for id in terminals],
                **tree,
                **({"more": content.put(batch, as_json(extra_members))} if extra_members else {}),
            }
            return batch.put_known("react-tool-call", payload).hash

    def put_file(self, request: FileRequest, tree: Mapping[str, str]) -> str:
        """Puts the reading or writing of a file as a tool call of its own."""
        files: list[dict[str, Any]] = []
        with self._store.batch() as batch:
            if request.fault is None:
                text = batch.put(request.text.encode()).hash
                files = [{"path": request.path, "access": request.access, "content": text}]
            members = {
                "durationMs": ms_since(request.begin),
                "kind": KINDS[request.access],
                "status": "completed" if request.fault is None else "failed",
                "locations": [{"path": request.path, "line": None}],
                "files": files,
                **tree,
            }
            name = FILE_REQUESTS[request.access]
            return _put_request(
                batch, name, request=request.request, result=request.result(), members=members
            )

    def put_terminal(self, id: str, tree: Mapping[str, str]) -> str:
        """Puts a terminal that no tool call names as a tool call of its own."""
        terminal = self.terminals[id]
        facts = terminal.facts()
        ended = "failed" if facts.get("exitCode") != 0 else "completed"
        how = [f"{name} {facts[name]}" for name in ("exitCode", "signal") if name in facts]
        with self._store.batch() as batch:
            members = {
                "durationMs": facts["durationMs"],
                "kind": "execute",
                "status": ended if how else "in_progress",
                "terminals": [self._terminal(batch, id)],
                **tree,
            }
            result = how[0] if how else "it still ran"
            request = terminal.command.request
            return _put_request(
                batch, "terminal/create", request=request, result=result, members=members
            )

    def put_refused(self, name: str, request: Mapping[str, Any], fault: str) -> str:
        """Puts a request for a terminal that was refused."""
        members = {"durationMs": 0, "kind": "execute", "status": "failed"}
        with self._store.batch() as batch:
            return _put_request(
                batch, name, request=request, result=f"error: {fault}", members=members
            )

    def forget_terminals(self) -> None:
        """Forgets the terminals that are recorded and that nobody asks for any more."""
        for id in list(self.recorded):
            if self.terminals[id].is_released:
                del self.terminals[id]
                self.recorded.remove(id)

    def _terminal(self, batch: Batch, id: str) -> dict[str, Any]:
        terminal = self.terminals[id]
        command = terminal.command
        output = terminal.recorded_output(self._secrets.redact_bytes)
        if terminal.ended.is_set():
            self.recorded.add(id)
        return {
            "id": id,
            "argv": list(command.argv),
            "cwd": command.cwd,
            "request": content.put(batch, as_json(command.request)),
            "output": batch.put(output).hash,
            **terminal.facts(),
        }

    def _diff(self, batch: Batch, diff: Any) -> dict[str, Any]:
        old = None if diff.old_text is None else batch.put(diff.old_text.encode()).hash
        new = batch.put(diff.new_text.encode()).hash
        return {"path": self._relative(diff.path), "old": old, "new": new}

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._root)


def _put_request(
    batch: Batch,
    name: str,
    request: Mapping[str, Any],
    result: str,
    members: Mapping[str, Any],
) -> str:
    """Puts a request of the agent as a tool call of its own; returns its hash."""
    payload = {
        "name": name,
        "arguments": content.put(batch, as_json(request)),
        "result": content.put(batch, result),
        **members,
    }
    return batch.put_known("react-tool-call", payload).hash


def as_json(value: Any) -> str:
    """Returns a JSON text of a value as it came: a lone half of a character stays, escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    return text.encode("utf-8", "backslashreplace").decode()


def ms_since(begin: float) -> int:
    return round((time.monotonic() - begin) * 1000)


def _line(location: Any) -> int | None:
    return None if location.line is None else min(location.line, MAX_COUNT)

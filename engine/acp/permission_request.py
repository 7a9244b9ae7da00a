"""Reads from a tool call what it would do: the diffs of files, a command with its directory.

An agent sends the text before and after an edit, often of the changed part alone: it is looked for
in the file, so that people see the whole change with the lines around it.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from casfs.errors import CasfsError
from casfs.threads.permission import PermissionRequest
from casfs.trees.diff import unified_diff
from engine.llm.tools import truncate
from engine.llm.workspace_files import WorkspaceFiles

EXECUTE = "execute"
MAX_PATCH_CHARS = 200_000
SHELL_ENDS = ("-c", "-lc", "-ic")  # of an argv whose last member is a line of a shell
COMMAND_NAMES = ("command", "cmd")
DIRECTORY_NAMES = ("cwd", "workdir", "directory")


def read(
    call: Mapping[str, Any], title: str, kind: str, workspace: Path | None
) -> PermissionRequest:
    """`call`: the tool call of a request, without secrets."""
    patch = b"".join(_patches(call.get("content"), workspace)).decode(errors="replace")
    command = _command(call) if kind == EXECUTE else None
    arguments = ""
    if not patch and command is None:
        shown = {name: value for name, value in call.items() if value is not None}
        arguments = json.dumps(shown, ensure_ascii=False, indent=2)
    return PermissionRequest(
        title,
        kind,
        command=command,
        directory=_directory(call, workspace),
        patch=truncate(patch, MAX_PATCH_CHARS),
        arguments=truncate(arguments),
    )


def _command(call: Mapping[str, Any]) -> str | None:
    """Returns the command that a call would run; None where that stands in its title alone, perhaps
    beside other words."""
    members = _members(call)
    for name in COMMAND_NAMES:
        command = members.get(name)
        if isinstance(command, str) and command.strip():
            return command
        if isinstance(command, Sequence) and command and all(isinstance(c, str) for c in command):
            is_line = len(command) == 3 and command[1] in SHELL_ENDS
            return str(command[2]) if is_line else shlex.join(command)
    return None


def _members(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what the tool was given."""
    members = call.get("rawInput")
    return members if isinstance(members, Mapping) else {}


def _directory(call: Mapping[str, Any], workspace: Path | None) -> str:
    members = _members(call)
    for name in DIRECTORY_NAMES:
        if isinstance(path := members.get(name), str) and path:
            return _relative(path, workspace)
    return "."


def _relative(path: str, workspace: Path | None) -> str:
    for root in () if workspace is None else (workspace, Path(os.path.realpath(workspace))):
        if Path(path).is_relative_to(root):
            return str(Path(path).relative_to(root))
    return path


def _patches(parts: Any, workspace: Path | None) -> Iterator[bytes]:
    """Yields the patch of each diff of a call. Several of one file build on each other."""
    known: dict[str, bytes | None] = {}
    for part in parts if isinstance(parts, list) else ():
        is_diff = isinstance(part, Mapping) and part.get("type") == "diff"
        if not is_diff or not isinstance(part.get("path"), str):
            continue
        path = _relative(part["path"], workspace)
        if path not in known:
            known[path] = _content(path, workspace)
        old, new = _sides(known[path], _bytes(part.get("oldText")), _bytes(part.get("newText")))
        known[path] = new
        yield unified_diff.of_contents(os.fsencode(path), old, new)


def _bytes(text: Any) -> bytes | None:
    return text.encode(errors="replace") if isinstance(text, str) else None


def _content(path: str, workspace: Path | None) -> bytes | None:
    """Returns a file of the workspace; None where it is none, is outside of it, or is large."""
    if workspace is None:
        return None
    try:
        data = WorkspaceFiles(workspace).read(path, unified_diff.MAX_FILE_BYTES + 1)
    except (CasfsError, ValueError):
        return None
    return data if len(data) <= unified_diff.MAX_FILE_BYTES else None


def _sides(
    content: bytes | None, old: bytes | None, new: bytes | None
) -> tuple[bytes | None, bytes | None]:
    """Returns a file before and after; the parts alone where they cannot be placed in it."""
    if content is None or old == content:
        return old, new
    if old is None or not old.strip():  # all of it is written anew
        return content, new
    if new is not None and content.count(old) == 1:
        return content, content.replace(old, new)
    return old, new

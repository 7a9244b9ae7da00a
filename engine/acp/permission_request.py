"""Reads from a tool call what it would do: the diffs of files, a command with its directory, and
all else that the tool is given.

An agent sends the text before and after an edit, often of the changed part alone: it is looked for
in the file, so that people see the whole change with the lines around it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from casfs.errors import CasfsError
from casfs.threads.permission import PermissionRequest
from casfs.trees.diff import unified_diff
from engine.llm.workspace_files import WorkspaceFiles

EXECUTE = "execute"
MAX_CHARS = 200_000  # of the patch, of the command, of the arguments
SHELL = re.compile(r"(?:/bin/|/usr/bin/)?(?:ba|da|z)?sh\Z")
SHELL_ENDS = ("-c", "-lc", "-ic")  # of an argv whose last member is a line of a shell
COMMAND_NAMES = ("command", "cmd")
ARGUMENTS = "args"
DIRECTORY_NAMES = ("cwd", "workdir", "directory")
# The content around an edit of such a file is its owner's alone.
PRIVATE = re.compile(r"\.env(\..*)?\Z|.*\.(?:pem|key)\Z|id_[a-z0-9]+\Z", re.IGNORECASE)
Redact = Callable[[str], str]


def read(
    call: Mapping[str, Any], title: str, kind: str, workspace: Path | None, redact: Redact
) -> PermissionRequest:
    """`call`: the tool call of a request, without secrets; `redact`: takes them out of what the
    workspace has beside it."""
    members = _members(call)
    patches = list(_patches(call.get("content"), workspace))
    shown = {text for part in _diffs(call.get("content")) for text in part.values()}
    command = _command(members) if kind == EXECUTE else None
    if command is not None:
        shown |= {*COMMAND_NAMES, ARGUMENTS, *DIRECTORY_NAMES}
    left = {
        name: member
        for name, member in members.items()
        if not (command is not None and name in shown) and not _is_in(member, shown)
    }
    arguments = json.dumps(left, ensure_ascii=False, indent=2) if left else ""
    if not patches and command is None and not left:
        known = {name: value for name, value in call.items() if value is not None}
        arguments = json.dumps(known, ensure_ascii=False, indent=2)
    patch = redact(b"".join(patches).decode(errors="replace"))  # before anything is cut
    texts = [patch, arguments, command or ""]
    return PermissionRequest(
        title,
        kind,
        command=None if command is None else command[:MAX_CHARS],
        directory=_directory(members, workspace)[:MAX_CHARS],
        patch=patch[:MAX_CHARS],
        arguments=arguments[:MAX_CHARS],
        is_cut=any(len(text) > MAX_CHARS for text in texts),
    )


def _is_in(member: Any, shown: set[Any]) -> bool:
    return isinstance(member, str) and member in shown


def _members(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what the tool was given."""
    members = call.get("rawInput")
    return members if isinstance(members, Mapping) else {}


def _command(members: Mapping[str, Any]) -> str | None:
    """Returns the command that a call would run; None where that stands in its title alone, perhaps
    beside other words."""
    for name in COMMAND_NAMES:
        command = members.get(name)
        arguments = members.get(ARGUMENTS)
        if isinstance(command, str) and command.strip():
            return shlex.join([command, *arguments]) if _are_texts(arguments) else command
        if _are_texts(command) and command:
            is_line = len(command) == 3 and command[1] in SHELL_ENDS and SHELL.match(command[0])
            return str(command[2]) if is_line else shlex.join(command)
    return None


def _are_texts(values: Any) -> TypeGuard[Sequence[str]]:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(value, str) for value in values)
    )


def _directory(members: Mapping[str, Any], workspace: Path | None) -> str:
    for name in DIRECTORY_NAMES:
        if isinstance(path := members.get(name), str) and path:
            return _relative(path, workspace)
    return "."


def _relative(path: str, workspace: Path | None) -> str:
    for root in () if workspace is None else (workspace, Path(os.path.realpath(workspace))):
        if Path(path).is_relative_to(root):
            return str(Path(path).relative_to(root))
    return path


def _diffs(parts: Any) -> Iterator[dict[str, str]]:
    """Yields the texts of each diff of a call: path, oldText, newText."""
    for part in parts if isinstance(parts, list) else ():
        is_diff = isinstance(part, Mapping) and part.get("type") == "diff"
        if is_diff and isinstance(part.get("path"), str):
            names = ("path", "oldText", "newText")
            yield {name: part[name] for name in names if isinstance(part.get(name), str)}


def _patches(parts: Any, workspace: Path | None) -> Iterator[bytes]:
    """Yields the patch of each diff of a call. Several of one file build on each other."""
    contents: dict[str, bytes | None] = {}
    for part in _diffs(parts):
        path = _relative(part["path"], workspace)
        if path not in contents:
            contents[path] = _content(path, workspace)
        before, after = (_shown(part.get(name)) for name in ("oldText", "newText"))
        content = contents[path]
        whole = _placed(content, before, after)
        if whole is not None:
            contents[path] = whole
            yield unified_diff.of_contents(os.fsencode(path), content, whole)
        else:
            yield unified_diff.of_contents(os.fsencode(path), before, after)


def _shown(text: str | None) -> bytes | None:
    """Returns a text as a line of a diff can show it."""
    return None if text is None else text.encode(errors="replace").replace(b"\0", b"\\0")


def _content(path: str, workspace: Path | None) -> bytes | None:
    """Returns a file of the workspace; None where it is none, is outside of it, private, large, or
    no text."""
    if workspace is None or PRIVATE.match(os.path.basename(path)):
        return None
    try:
        data = WorkspaceFiles(workspace).read(path, unified_diff.MAX_FILE_BYTES + 1)
    except (CasfsError, ValueError):
        return None
    return None if len(data) > unified_diff.MAX_FILE_BYTES or b"\0" in data else data


def _placed(content: bytes | None, old: bytes | None, new: bytes | None) -> bytes | None:
    """Returns a file after an edit of a part of it; None where that cannot be placed."""
    if content is None or new is None:
        return None
    if not old or old == content:  # all of it is written anew
        return new
    return content.replace(old, new) if content.count(old) == 1 else None

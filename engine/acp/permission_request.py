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
from engine.llm import workspace_files
from engine.llm.workspace_files import WorkspaceFiles

EXECUTE = "execute"
MAX_CHARS = 200_000  # of the patch, of the command, of the arguments
SHELL = re.compile(r"(?:/bin/|/usr/bin/)?(?:ba|da|z)?sh\Z")
SHELL_ENDS = ("-c", "-lc", "-ic")  # of an argv whose last member is a line of a shell
COMMAND_NAMES = ("command", "cmd")
ARGUMENTS = "args"
HUNK = re.compile(r"@@ -[0-9]+(,[0-9]+)? \+[0-9]+(,[0-9]+)? @@", re.ASCII)
# Of the one file of a unified diff, as the library of opencode writes them.
HEADERS = r"(?:Index: {0}\n=+\n)?--- {0}(?:\t[^\n]*)?\n\+\+\+ {1}(?:\t[^\n]*)?"
NO_NEWLINE = "\\ No newline at end of file"
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
    # What the patch shows stands often among the arguments, too.
    diffs = list(_diffs(call.get("content")))
    shown = b"".join(patches)
    left = {
        name: member
        for name, member in members.items()
        if name in COMMAND_NAMES or not _is_shown(member, diffs, shown, workspace)
    }
    # Each takes what it shows out of `left`.
    command = _command(left) if kind == EXECUTE else None
    directory = "." if command is None else _directory(left, workspace)
    if not patches and command is None and not left:
        left = {name: value for name, value in call.items() if value is not None}
    arguments = json.dumps(left, ensure_ascii=False, indent=2) if left else ""
    patch = redact(shown.decode(errors="replace"))  # before anything is cut
    texts = [patch, arguments, command or ""]
    return PermissionRequest(
        title if workspace is None else _shown_path(title, workspace),
        kind,
        command=None if command is None else command[:MAX_CHARS],
        directory=directory[:MAX_CHARS],
        patch=patch[:MAX_CHARS],
        arguments=arguments[:MAX_CHARS],
        is_cut=any(len(text) > MAX_CHARS for text in texts),
    )


def _members(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what the tool was given."""
    members = call.get("rawInput")
    return members if isinstance(members, Mapping) else {}


def _is_shown(
    member: Any, diffs: Sequence[Mapping[str, str]], patch: bytes, workspace: Path | None
) -> bool:
    """Returns whether the patch of a call shows what a member of its arguments says: a text of its
    diffs, or a unified diff of its only file that changes no line which the patch does not, in its
    order, and has no other line that is not of the file."""
    if not isinstance(member, str):
        return False
    if any(member in diff.values() for diff in diffs):
        return True
    if len(diffs) != 1:
        return False
    (diff,) = diffs
    head, separator, hunks = member.partition("\n@@ ")
    path = re.escape(diff["path"])
    if not separator or not re.fullmatch(HEADERS.format(path, path), head):
        return False
    content = _content(_shown_path(diff["path"], workspace), workspace) or b""
    of_file = {f" {line}" for line in content.decode(errors="replace").split("\n")}
    shown = iter(patch.decode(errors="replace").split("\n"))
    return all(
        HUNK.fullmatch(line) or line == NO_NEWLINE or line in of_file or line in shown
        for line in f"@@ {hunks}".removesuffix("\n").split("\n")
    )


def _command(members: dict[str, Any]) -> str | None:
    """Takes the command that a call would run out of its arguments; None where it stands in its
    title alone, perhaps beside other words."""
    for name in COMMAND_NAMES:
        command = members.get(name)
        if isinstance(command, str) and command.strip():
            del members[name]
            arguments = members.get(ARGUMENTS)
            if not _are_texts(arguments):
                return command
            del members[ARGUMENTS]
            return shlex.join([command, *arguments])
        if _are_texts(command) and command:
            del members[name]
            is_line = len(command) == 3 and command[1] in SHELL_ENDS and SHELL.match(command[0])
            return str(command[2]) if is_line else shlex.join(command)
    return None


def _are_texts(values: Any) -> TypeGuard[Sequence[str]]:
    return (
        isinstance(values, Sequence)
        and not isinstance(values, str)
        and all(isinstance(value, str) for value in values)
    )


def _directory(members: dict[str, Any], workspace: Path | None) -> str:
    for name in DIRECTORY_NAMES:
        if isinstance(path := members.get(name), str) and path:
            del members[name]
            return _shown_path(path, workspace)
    return "."


def _shown_path(path: str, workspace: Path | None) -> str:
    relative = None if workspace is None else workspace_files.relative_path(workspace, path)
    return relative if relative is not None else path


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
        path = _shown_path(part["path"], workspace)
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

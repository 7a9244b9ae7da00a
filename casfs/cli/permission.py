"""The question of an agent for permission on the terminal: its diff or command, and one key."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from casfs.cli.diff_output import print_patch
from casfs.cli.keyboard import read_key, read_line
from casfs.cli.output import echo_line, warn, write_line
from casfs.cli.terminal import paint
from casfs.errors import CasfsError
from casfs.system import daemon_socket
from casfs.system.safe_text import escape
from casfs.threads.permission import ALLOW, ALWAYS, DENIAL, DENY, PermissionRequest
from casfs.threads.threads import ThreadId

KEYS = {"y": ALLOW, "a": ALWAYS, "n": DENY}
PREVIEW = "p"
REASON = "r"
PROMPT = "y yes, a always (every {}), n no, r a reason{}> "
MAY_TRY = ", p what would it change? "


def ask(
    root: Path, id: ThreadId, request: PermissionRequest, is_open: Callable[[], bool]
) -> str | None:
    """Shows a request and returns the answer; None where the person gives none. Raises
    AnsweredElsewhere where it is not `is_open` any more."""
    echo_line(f"The agent asks for permission: {request.title}")
    _show(request)
    may_try = request.command is not None
    while True:
        key = read_key(PROMPT.format(request.kind, MAY_TRY if may_try else ""), is_open)
        if key is None:
            return None
        if key in KEYS:
            return KEYS[key]
        if key == REASON and (reason := read_line("Your reason, which the agent reads: ")):
            return DENIAL + reason
        if key == PREVIEW and may_try:
            _show_preview(root, id)


def _show(request: PermissionRequest) -> None:
    if request.command is not None:
        for line in f"$ {request.command}".splitlines():
            _print(line, colour="cyan")
        _print(f"in {request.directory}", dim=True)
    if request.patch:
        print_patch(os.fsencode(request.patch))
    for line in request.arguments.splitlines():
        _print(line)
    if request.is_cut:
        _print("It is too long to be shown whole.", colour="red")


def _print(line: str, colour: str | None = None, *, bold: bool = False, dim: bool = False) -> None:
    write_line(paint(escape(line, one_line=True), colour, bold=bold, dim=dim))


def _show_preview(root: Path, id: ThreadId) -> None:
    _print("it runs in a copy …", dim=True)
    try:
        preview = daemon_socket.request(root, "preview", id=id)
    except CasfsError as error:
        warn(f"cannot be tried: {error}")
        return
    for line in preview["output"].rstrip().splitlines():
        _print(line)
    code = preview["exit_code"]
    how = "ended" if code is None else f"exit {code}"
    _print(f"{how}, {preview['duration_ms'] / 1000:.1f} s", bold=True)
    if preview["patch"]:
        print_patch(os.fsencode(preview["patch"]))
    unshown = [*preview["local"], *preview["repositories"]]
    for line in unshown:
        _print(line)
    if not preview["patch"] and not unshown:
        _print("It changes no file.")
    for note in preview["notes"]:
        _print(note, dim=True)

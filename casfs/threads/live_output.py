"""The output of an agent's program while it runs: the file `live/<token>` in the store.

The daemon appends what the program writes, with secrets redacted, and deletes the file when the
program has ended; from then on the output is in the step, or in the attempt's detail. The mount and
the command line read it. It is no content: a file that cannot be written is done without.

`live/<token>.tools` holds the tool calls that run now, replaced at each change.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from casfs.system import surrogates

if TYPE_CHECKING:
    from casfs.agents.secrets import Secrets

FOLDER = "live"
TAIL_BYTES = 1 << 20
MAX_TOOL_CHARS = 200  # of each text of a tool call
TOKEN = re.compile("[0-9a-f]{32}")  # of an intent; one of an imported thread may be anything


class LiveOutput:
    """The output of one program, and the tool calls that run. `tools`: the file of those."""

    def __init__(self, fd: int | None, secrets: Secrets, tools: Path | None = None) -> None:
        self._fd = fd
        self._tools = tools
        self._running: Sequence[Mapping[str, str | None]] = ()
        self._secrets = secrets
        self._held = b""  # may be the beginning of a secret

    def write(self, data: bytes) -> None:
        if self._fd is None:
            return
        data = self._secrets.redact_values_in_bytes(self._held + data)
        count = self._secrets.begins_at_end(data)
        self._held = data[len(data) - count :]
        # after the cut: the beginning of a token may look like a shorter one
        shown = self._secrets.marks.in_bytes(data[: len(data) - count])
        with suppress(OSError):  # a full disk
            os.write(self._fd, shown)

    def show_tools(self, running: Sequence[Mapping[str, str | None]]) -> None:
        """Shows which tool calls run now: `id`, `title`, `kind`, `status` of each."""
        if self._tools is None or running == self._running:
            return
        self._running = running
        shown = [  # redacted before it is cut: half a secret is not found
            {name: text[:MAX_TOOL_CHARS] for name, text in call.items() if text is not None}
            for call in self._secrets.redact_json(surrogates.replace_in_json(running))
        ]
        new = self._tools.with_suffix(".new")
        with suppress(OSError):
            new.write_text(json.dumps(shown))
            new.replace(self._tools)


@contextmanager
def recording(root: Path, token: str, secrets: Secrets) -> Iterator[LiveOutput]:
    """Makes the file of a program's output, and deletes it at the end of the block. `root`: of the
    store."""
    path = _place(root, token)
    fd = None
    if path is not None:
        with suppress(OSError):
            path.parent.mkdir(0o700, exist_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        yield LiveOutput(fd, secrets, path and _tools_path(path))
    finally:
        if fd is not None and path is not None:
            os.close(fd)
            with suppress(OSError):
                path.unlink(missing_ok=True)
                _tools_path(path).unlink(missing_ok=True)


def exists(root: Path, token: object) -> bool:
    """Returns whether the program with that token has such a file."""
    path = _place(root, token)
    return path is not None and path.exists()


def tail(root: Path, token: object, count: int = TAIL_BYTES) -> tuple[bytes, int] | None:
    """Returns the last `count` bytes of a program's output so far and their mtime (ns); None where
    there is no such file."""
    try:
        with open(_place(root, token) or "", "rb") as file:
            file_stat = os.fstat(file.fileno())
            file.seek(max(0, file_stat.st_size - count))
            return file.read(count), file_stat.st_mtime_ns
    except FileNotFoundError:
        return None


def read(root: Path, token: object, offset: int) -> bytes:
    """Returns at most TAIL_BYTES of a program's output from `offset` on; empty where there are
    none."""
    try:
        with open(_place(root, token) or "", "rb") as file:
            file.seek(offset)
            return file.read(TAIL_BYTES)
    except FileNotFoundError:
        return b""


class Running(NamedTuple):
    """The tool calls that run now, and when that changed (ns)."""

    calls: list[dict[str, str]]
    changed_ns: int


def tools(root: Path, token: object) -> Running:
    """Returns the tool calls of a program that run now."""
    path = _place(root, token)
    if path is not None:
        with suppress(FileNotFoundError), open(_tools_path(path)) as file:
            return Running(json.load(file), os.fstat(file.fileno()).st_mtime_ns)
    return Running([], 0)


def tool_line(call: Mapping[str, Any]) -> str:
    """Returns a tool call in one line: title, kind and status, where its agent tells them."""
    known = [str(call[name]) for name in ("kind", "status") if call.get(name)]
    title = " ".join(str(call.get("title") or call.get("name")).split())
    return f"- {title}" + (f" ({', '.join(known)})" if known else "")


def sweep(root: Path) -> None:
    """Deletes what a killed daemon left. Raises Failed."""
    from casfs.system import rmtree

    rmtree.empty(root / FOLDER)


def _tools_path(path: Path) -> Path:
    return path.with_suffix(".tools")


def _place(root: Path, token: object) -> Path | None:
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        return None
    return root / FOLDER / token

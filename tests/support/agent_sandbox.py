"""The sandboxes that agents run their commands in, as namespaces and a filter of system calls.

Both show all but the project and a directory of temporary files read-only, without a network, in a
namespace of processes of their own; `codex` refuses `connect`, `claude` unix sockets.
"""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tests.support import programs

Kind = Literal["codex", "claude"]
AF_UNIX = 1
SOCKET_AND_CONNECT = {"x86_64": (41, 42), "aarch64": (198, 203)}  # their numbers
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06  # of the kernel's filter language
NUMBER, FIRST_ARGUMENT = 0, 16  # offsets in what a filter sees
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # the latter with EPERM
NAMESPACES = ("--unshare-net", "--unshare-pid", "--die-with-parent")
FILES = ("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc")


def run(
    kind: Kind, project: Path, *argv: str, env: Mapping[str, str], given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a project, in the sandbox of an agent; `given`: its standard input."""
    bwrap = programs.path("bwrap")
    with tempfile.TemporaryFile() as program, tempfile.TemporaryDirectory() as temporary:
        program.write(_filter(kind))
        program.seek(0)
        writable = ("--bind", project, project, "--bind", temporary, temporary)
        options = (*FILES, *writable, *NAMESPACES, "--chdir", project)
        return subprocess.run(
            [bwrap, *options, "--seccomp", str(program.fileno()), "--", *argv],
            env={**os.environ, **env, "TMPDIR": temporary},
            input=given,
            capture_output=True,
            text=True,
            pass_fds=[program.fileno()],
            timeout=60,
        )


def _filter(kind: Kind) -> bytes:
    socket, connect = SOCKET_AND_CONNECT[platform.machine()]
    refuse = _operation(RETURN, REFUSE)
    allow = _operation(RETURN, ALLOW)
    number = _operation(LOAD, NUMBER)
    if kind == "codex":
        return number + _unless_equal(connect, skipped=1) + refuse + allow
    family = _operation(LOAD, FIRST_ARGUMENT) + _unless_equal(AF_UNIX, skipped=1)
    return number + _unless_equal(socket, skipped=3) + family + refuse + allow


def _operation(code: int, value: int) -> bytes:
    return struct.pack("HBBI", code, 0, 0, value)


def _unless_equal(value: int, skipped: int) -> bytes:
    """Skips so many operations where the loaded value is another one."""
    return struct.pack("HBBI", JUMP_IF_EQUAL, 0, skipped, value)

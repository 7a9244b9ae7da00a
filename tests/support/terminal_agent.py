"""A real agent in a terminal of its own, as a person has it: typed to, and read from its screen."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import termios
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from casfs.system import processes
from tests.support.real_agents import KEY

MARK = "CASFS_TEST_TERMINAL"
SIZE = struct.pack("HHHH", 40, 120, 0, 0)
START_S = 60
TYPED_S = 0.5  # before Enter: agents take a faster one for a part of what is pasted
# What terminals are asked, and answer.
QUERIES = {b"\x1b[6n": b"\x1b[1;1R", b"\x1b[c": b"\x1b[?1;2c"}


@dataclass
class TerminalAgent:
    pid: int
    fd: int
    screen: bytearray = field(default_factory=bytearray)

    def type(self, line: str) -> None:
        os.write(self.fd, line.encode())
        time.sleep(TYPED_S)
        os.write(self.fd, b"\r")

    def read(self) -> None:
        with suppress(OSError):  # it has ended
            while piece := os.read(self.fd, 1 << 16):
                self.screen += piece
                for query, answer in QUERIES.items():
                    if query in piece:
                        os.write(self.fd, answer)


@contextmanager
def started(
    argv: Sequence[str], directory: Path, env: Mapping[str, str]
) -> Iterator[TerminalAgent]:
    """Starts an agent in a directory; ends it with the block."""
    mark = uuid.uuid4().hex
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execvpe(argv[0], list(argv), {**env, MARK: mark})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, SIZE)
    agent = TerminalAgent(pid, fd)
    reader = threading.Thread(target=agent.read, daemon=True)
    reader.start()
    try:
        yield agent
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        # codex has started a server, which would outlive it.
        processes.end_carrying(MARK, mark)
        os.close(fd)
        reader.join(10)


def until_idle_claude(agent: TerminalAgent, home: Path) -> None:
    """Waits until claude takes a prompt; answers what it asks first with its second choice."""
    file = home / f".claude/sessions/{agent.pid}.json"
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        time.sleep(0.5)
        status = json.loads(file.read_text()).get("status") if file.exists() else ""
        if status == "idle":
            return
        if status == "waiting":
            os.write(agent.fd, b"\x1b[B")
            time.sleep(TYPED_S)
            os.write(agent.fd, b"\r")
    raise AssertionError(agent.screen[-2000:].decode("utf-8", "replace"))


def accept_all_of_claude(home: Path, project: Path) -> None:
    """Answers beforehand what claude asks when it is first started in a terminal."""
    settings = {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "customApiKeyResponses": {"approved": [KEY[-20:]]},
        "bypassPermissionsModeAccepted": True,
        "projects": {str(project): {"hasTrustDialogAccepted": True}},
    }
    (home / ".claude.json").write_text(json.dumps(settings))
    file = home / ".claude/settings.json"
    known = json.loads(file.read_text())
    permissions = {"defaultMode": "acceptEdits", "allow": ["Bash"]}
    file.write_text(json.dumps({**known, "permissions": permissions}))


def trust_project_of_codex(home: Path, project: Path) -> None:
    with (home / ".codex/config.toml").open("a") as file:
        file.write(f'\n[projects."{project}"]\ntrust_level = "trusted"\n')

"""How an agent that is idle is given a message, by a way of its own, never typed into its terminal.

- claude (2.1.224 or later) has a socket for each session, named in `sessions/<pid>.json` of its
  configuration. A message there starts a turn where the session is idle, and comes between two
  calls where it works. Where permissions are bypassed it asks its person first: such a session
  is left alone until its next hook.
- codex queues messages of `codex queue`, and takes them a few seconds after its turn is over.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from casfs.system import processes

INBOX = "inbox"
QUEUE = "queue"
WAYS = {"claude": INBOX, "codex": QUEUE}
TIMEOUT_S = 10.0
MAX_FILE_BYTES = 1 << 16
KEPT_VARIABLES = ("HOME", "CODEX_HOME", "PATH")


def give(agent: str, about: Mapping[str, Any], pid: int, message: str) -> bool:
    """Returns whether an agent has taken a message, or may have; `about`: of its session."""
    with suppress(OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        if agent == "claude":
            return _give_claude(Path(about["transcript"]), pid, message)
        if agent == "codex":
            return _queue_codex(about["id"], pid, message)
    return False


def _give_claude(transcript: Path, pid: int, message: str) -> bool:
    # <configuration>/projects/<directory>/<session>.jsonl
    registered = transcript.parents[2] / "sessions" / f"{pid}.json"
    with registered.open("rb") as file:
        session = json.loads(file.read(MAX_FILE_BYTES))
    if session["sessionId"] != transcript.stem:
        return False
    # The same message has the same id, so that claude, which has taken it, does not take it twice.
    line = {
        "type": "user",
        "msgV": 1,
        "msg_id": str(uuid.uuid5(uuid.NAMESPACE_OID, message)),
        "priority": "next",
        "message": {"role": "user", "content": message},
    }
    path = session["messagingSocketPath"]
    if os.stat(path).st_uid != os.getuid():
        return False
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(TIMEOUT_S)
        connection.connect(path)
        connection.sendall(json.dumps(line).encode() + b"\n")
    return True


def _queue_codex(session: str, pid: int, message: str) -> bool:
    # The program that runs, and its own home: another one would queue for a session that it has
    # never seen, and say that all is well.
    program = os.readlink(f"/proc/{pid}/exe")
    variables = processes.environment(pid) or {}
    with suppress(subprocess.TimeoutExpired):  # it may be in the queue
        return _queue(program, session, message, variables)
    return True


def _queue(program: str, session: str, message: str, variables: Mapping[str, str]) -> bool:
    ended = subprocess.run(
        [program, "queue", "--thread", session, "--message", message],
        env={name: variables[name] for name in KEPT_VARIABLES if name in variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=False,
    )
    return ended.returncode == 0

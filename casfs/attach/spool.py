"""The spool of a store: what agents' hooks have reported and the daemon has not recorded yet.

    hooks/report.py      the hook program, which agents run
    hooks/socket         a link to the daemon's socket
    hooks/start-daemon   a script, run where a session begins and no daemon runs
    hooks/worktree       a script, which makes and removes worktrees for an agent
    spool/<name>         an event each: a line of the hook program, then the agent's own JSON
    spool/aside/<name>   one that could not be recorded: of an unknown form, damaged
    spool/missed         empty; its times say when events were lost, as the disk was full

A file is deleted once what it says is committed, so a daemon that is killed loses none.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.attach import report
from casfs.system import daemon_socket, foreign_json, processes
from casfs.system.clock import now_ms
from casfs.system.files import os_errors, replacing

SPOOL = "spool"
HOOKS = "hooks"
MISSED = "missed"
ASIDE = "aside"
MISSED_SHOWN_MS = 7 * 86_400_000
PROGRAM = "report.py"
WORKTREE_SCRIPT = "worktree"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
KEPT_VARIABLES = ("HOME", "PATH", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "XDG_RUNTIME_DIR")


@dataclass(frozen=True)
class Event:
    """`reported_ms`: when, since 1970 UTC; `pid`: the agent's process, 0 where it cannot be seen;
    `fault`: why `payload` is empty."""

    agent: str
    reported_ms: int
    pid: int
    payload: Mapping[str, Any]
    fault: str | None = None


def prepare(root: Path, env: Mapping[str, str]) -> Path:
    """Writes the hook program and what belongs to it; returns its path. Raises Failed."""
    hooks = root / HOOKS
    program = hooks / PROGRAM
    with os_errors(f"cannot write {hooks}"):
        for folder in (hooks, root / SPOOL):
            folder.mkdir(mode=0o700, exist_ok=True)
        source = Path(report.__file__).read_bytes()
        if not program.exists() or program.read_bytes() != source:
            with replacing(program, durable=True) as file:
                file.write(source)
        _write_start_script(root, env)
        _write_worktree_script(root, env)
        missed = root / SPOOL / MISSED
        if not missed.exists():
            missed.touch(mode=0o600)
            os.utime(missed, (0, 0))
        announce(root, daemon_socket.socket_path(root, env))
    return program


def announce(root: Path, path: Path) -> None:
    """Has hooks find the daemon's socket. Nothing is done where no agent is attached."""
    link = root / HOOKS / "socket"
    if not link.parent.is_dir():
        return
    # A daemon starts without it, too: hooks spool what they have, and it takes that.
    with suppress(OSError):
        if not (link.is_symlink() and link.readlink() == path):
            temp = link.with_name(f".socket.{os.getpid()}")
            temp.unlink(missing_ok=True)
            temp.symlink_to(path)
            temp.replace(link)


def daemon_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a daemon that no person's shell starts."""
    # Not the environment of the agent that starts it, which holds keys.
    settings = {name: env[name] for name in KEPT_VARIABLES if name in env}
    return settings | {name: value for name, value in env.items() if name.startswith("CASFS_")}


def _write_start_script(root: Path, env: Mapping[str, str]) -> None:
    settings = daemon_settings(env)
    words = ["exec", "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in settings.items())]
    words += [sys.executable, "-P", "-m", "casfs", "--store", str(root), "daemon", "start"]
    script = root / HOOKS / "start-daemon"
    with replacing(script) as file:
        file.write(f"#!/bin/sh\n{shlex.join(words)}\n".encode())
    script.chmod(0o700)


def _write_worktree_script(root: Path, env: Mapping[str, str]) -> None:
    # In the environment of the agent: git may need what a person has set there.
    settings = [f"{name}={value}" for name, value in env.items() if name.startswith("CASFS_")]
    words = ["exec", "/usr/bin/env", *settings, sys.executable, "-P", "-m", "casfs"]
    words += ["--store", str(root), "worktree", "hook"]
    script = root / HOOKS / WORKTREE_SCRIPT
    with replacing(script) as file:
        file.write(f'#!/bin/sh\n{shlex.join(words)} "$1"\n'.encode())
    script.chmod(0o700)


def names(root: Path) -> list[str]:
    """Returns the files of the spool in the order in which they were written. Those of an earlier
    boot come first; boots are ordered by the clock."""
    folder = root / SPOOL
    with suppress(OSError):  # no agent is attached; or the disk cannot be read now
        files = [
            name for name in os.listdir(folder) if name[0] != "." and name not in (MISSED, ASIDE)
        ]
        return sorted(files, key=lambda name: _order(folder, name))
    return []


def _order(folder: Path, name: str) -> tuple[bool, int, str]:
    boot, _, moment = name.partition("-")
    if boot == current_boot():
        return True, 0, moment
    # Of another boot: when it was written, for all of that boot in seconds since it began.
    with suppress(OSError, ValueError):
        begun = (folder / name).stat().st_mtime_ns - int(moment.partition("-")[0])
        return False, begun // 1_000_000_000, moment
    return False, 0, moment


def current_boot() -> str:
    return BOOT_ID.read_text()[:8]


def read(root: Path, name: str) -> Event | None:
    """Returns an event of the spool; None where it was deleted meanwhile."""
    path = root / SPOOL / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        return Event("", now_ms(), 0, {}, f"{path}: {error.strerror}")
    return parse(data)


def parse(data: bytes) -> Event:
    """Returns what a hook has reported; one that cannot be read has a `fault`."""
    line, _, text = data.partition(b"\n")
    try:
        word, version, agent, reported_ms, number, *namespace = line.split(b" ")
        if (word, version) != (b"casfs", b"1") or len(namespace) > 1:
            raise ValueError
        pid = int(number)
        if namespace:
            pid = processes.of_namespace(pid, namespace[0])
        event = Event(agent.decode("ascii"), int(reported_ms), pid, {})
    except ValueError:
        return Event("", now_ms(), 0, {}, "not a report of an agent's hook")
    try:
        payload = foreign_json.parse(text)
        if not isinstance(payload, dict):
            raise ValueError
    except ValueError:
        fault = f"{event.agent} reported {len(text)} bytes that are not a JSON object"
        return Event(event.agent, event.reported_ms, event.pid, {}, fault)
    return Event(event.agent, event.reported_ms, event.pid, payload)


def delete(root: Path, name: str) -> bool:
    """Returns whether the file is gone."""
    with suppress(OSError):
        (root / SPOOL / name).unlink(missing_ok=True)
        return True
    return False


def set_aside(root: Path, name: str) -> bool:
    """Keeps an event that cannot be recorded, where no daemon takes it again; returns whether it is
    out of the way."""
    aside = root / SPOOL / ASIDE
    with suppress(OSError):
        aside.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):  # it could not be spooled
            (root / SPOOL / name).rename(aside / name)
        return True
    return False


def set_aside_count(root: Path) -> int:
    with suppress(OSError):
        return len(os.listdir(root / SPOOL / ASIDE))
    return 0


def missed(root: Path) -> tuple[int, int] | None:
    """Returns when the first and the last event were lost, in ms since 1970 UTC; None: none, for
    MISSED_SHOWN_MS now."""
    with suppress(OSError):
        status = (root / SPOOL / MISSED).stat()
        first, last = (ns // 1_000_000 for ns in (status.st_atime_ns, status.st_mtime_ns))
        if last > now_ms() - MISSED_SHOWN_MS:
            return first, last
    return None

"""The daemon's client protocol: one JSON line each way over a unix socket.

    request   {"op": …, …}
    answer    {"ok": …}  or  {"error": "<class of casfs.errors>", "message": …}
              or  {"lacking": [names of variables]}, where the request is to be sent again with
              their values in "lent"

The socket is 0600 in a directory of 0700, short because a socket's path holds 107 bytes.
`daemon.json` in the store says where it is, and `daemon.lock` is locked as long as the
daemon lives: one daemon a store. This half has no trio in it, so a client starts fast.
"""

from __future__ import annotations

import json
import os
import select
import signal
import stat
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from casfs import canonical, errors
from casfs.digest import hash_bytes
from casfs.errors import CasfsError, DaemonUnreachable, Failed, NoDaemon, Refused
from casfs.system.files import closing_fd, os_errors, replacing
from casfs.system.locks import lock_file, try_lock
from casfs.version import VERSION

MAX_MESSAGE_BYTES = 64 << 20  # of one request or answer
MAX_SOCKET_PATH_BYTES = 107  # the kernel's limit
LOCK_TRIES = 20  # 10 ms apart: `find` holds the lock briefly
REQUEST_TIMEOUT_S = 30.0  # until a request has come whole; then the connection is closed
STOP_TIMEOUT_S = 30.0
PEER = struct.Struct("3i")  # pid, uid and gid of SO_PEERCRED
STATUS_TIMEOUT_S = 5.0
LACKING = "lacking"
NO_DAEMON = "no daemon runs for the store at"


def socket_path(root: Path, env: Mapping[str, str]) -> Path:
    """Returns the path at which the daemon of the store at `root` listens."""
    base = env.get("XDG_RUNTIME_DIR")
    name = f"{hash_bytes(os.fsencode(root))[:16]}.sock"
    path = Path(base or "/") / "casfs" / name
    if base and len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    return Path(f"/tmp/casfs-{os.getuid()}") / name


def private_directory(folder: Path) -> None:
    """Creates a directory of mode 0700. Raises Refused where it belongs to another user."""
    with os_errors(f"cannot make {folder}"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder_stat = folder.lstat()
    if (
        not stat.S_ISDIR(folder_stat.st_mode)
        or folder_stat.st_uid != os.getuid()
        or folder_stat.st_mode & 0o077
    ):
        raise Refused(f"{folder} must be a directory of yours with mode 0700")


def lock(root: Path) -> int:
    """Takes the lock of a store's daemon; returns its descriptor. Raises Refused while another
    daemon runs."""
    for _ in range(LOCK_TRIES):
        if (fd := lock_file(root / "daemon.lock")) is not None:
            return fd
        time.sleep(0.01)
    raise Refused(f"a daemon of the store at {root} is running already")


def announce(root: Path, path: Path) -> None:
    with replacing(root / "daemon.json") as file:
        file.write(
            json.dumps({"pid": os.getpid(), "socket": str(path), "version": VERSION}).encode()
        )


def runs(root: Path) -> bool:
    """Returns whether a process holds the lock of the store's daemon."""
    try:
        # Read-only: a shared lock asks for no more, and a sandbox may allow no more.
        fd = os.open(root / "daemon.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    with closing_fd(fd):
        return not try_lock(fd, shared=True)


def find(root: Path) -> dict[str, Any] | None:
    """Returns {"pid", "socket", "version"} of a store's running daemon, else None."""
    if not runs(root):
        return None
    try:
        daemon: dict[str, Any] = json.loads((root / "daemon.json").read_text())
    except (OSError, ValueError):  # it is starting, or ending
        return None
    return daemon


def status(root: Path) -> dict[str, Any] | None:
    """Returns what `find` does and, from the daemon, its limit of running threads, the ids of the
    `running`, `called` and `queued` ones, and how the processes of attempts are held. Of a daemon
    that starts or ends, or of an older version, `limit` and `containment` are None; `unreachable`
    says why it cannot be asked."""
    daemon = find(root)
    if daemon is None:
        return None
    unknown: dict[str, Any] = {
        "version": "",
        "limit": None,
        "running": [],
        "called": [],
        "queued": [],
        "containment": None,
        "unreachable": None,
    }
    try:
        answer = request(root, "status", timeout=STATUS_TIMEOUT_S)
    except DaemonUnreachable as error:
        answer = {"unreachable": str(error)}
    except NoDaemon:
        answer = {}
    return {**unknown, **daemon, **{name: answer[name] for name in unknown.keys() & answer.keys()}}


def request(root: Path, op: str, *, timeout: float | None = None, **arguments: Any) -> Any:
    """Sends a request to the daemon; returns its answer. Raises NoDaemon, and the error that the
    daemon answers with."""
    return _result(_exchange(root, op, timeout=timeout, arguments=arguments))


def request_of_agents(root: Path, env: Mapping[str, str], op: str, **arguments: Any) -> Any:
    """`request` for an operation that has agents play. The variables that their configs name and
    that the daemon does not have are lent to it from `env`: it keeps them in memory, for this
    thread alone. Only for a caller whose user chose the agents: one may send them anywhere."""
    answer = _exchange(root, op, timeout=None, arguments={**arguments, "lent": {}})
    if LACKING in answer:
        lent = {name: env.get(name, "") for name in answer[LACKING]}
        answer = _exchange(root, op, timeout=None, arguments={**arguments, "lent": lent})
    return _result(answer)


def _exchange(
    root: Path, op: str, timeout: float | None, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    daemon = find(root)
    if daemon is None:
        raise NoDaemon(f"{NO_DAEMON} {root}; start one with `casfs daemon`")
    import socket  # 3 ms, and many a command finds no daemon

    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(daemon["socket"])
            connection.sendall(canonical.encode({"op": op, **arguments}) + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline(MAX_MESSAGE_BYTES)
    except PermissionError as error:
        from casfs.system import sandbox

        raise DaemonUnreachable(
            f"the daemon runs (pid {daemon['pid']}) and cannot be asked from here:"
            f" {error.strerror}{sandbox.hint()}"
        ) from None
    except OSError as error:
        raise NoDaemon(
            f"the daemon (pid {daemon['pid']}) went away: {error.strerror or error}"
        ) from None
    if not line.endswith(b"\n"):
        raise NoDaemon(f"the daemon (pid {daemon['pid']}) went away without an answer")
    answer: dict[str, Any] = canonical.parse(line)
    return answer


def _result(answer: Mapping[str, Any]) -> Any:
    if "error" in answer:
        raise _error(answer["error"])(answer["message"])
    return answer["ok"]


def stop(root: Path) -> int:
    """Stops the daemon and waits until its process has ended; returns the process id.

    A daemon that cannot be reached, as its socket file is gone, gets SIGTERM. Raises NoDaemon,
    DaemonUnreachable, Failed.
    """
    if (daemon := find(root)) is None:
        raise NoDaemon(f"{NO_DAEMON} {root}")
    pid = int(daemon["pid"])
    # In another pid namespace, the pid is unknown or that of an unrelated process.
    if not _has_open(pid, root / "daemon.lock") and runs(root):
        from casfs.system import sandbox

        raise DaemonUnreachable(f"the daemon runs (pid {pid}) and is not seen here{sandbox.hint()}")

    def ask(process: int) -> None:
        try:
            request(root, "stop")
        except DaemonUnreachable:
            raise
        except NoDaemon:
            if runs(root):  # the process of daemon.json holds the lock
                signal.pidfd_send_signal(process, signal.SIGTERM)

    _end(pid, ask, f"see {root / 'log'}")
    return pid


def _has_open(pid: int, path: Path) -> bool:
    """Returns whether a process has a file open."""
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):  # it ends, or is another user's
        file = path.stat()
        for fd in os.listdir(folder):
            with suppress(FileNotFoundError):  # closed meanwhile
                if os.path.samestat(file, os.stat(f"{folder}/{fd}")):
                    return True
    return False


def stop_all(env: Mapping[str, str]) -> list[int]:
    """Stops the daemons that listen in the user's runtime directory, also those whose store was
    removed; returns their process ids. Raises Failed."""
    import socket

    ended = []
    for path in sorted(socket_path(Path("/"), env).parent.glob("*.sock")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(str(path))
                peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
            except OSError:  # what a killed daemon left
                continue
            pid = PEER.unpack(peer)[0]

            def ask(process: int) -> None:
                signal.pidfd_send_signal(process, signal.SIGTERM)

            try:
                _end(pid, ask, f"it listens at {path}")
            except NoDaemon:
                continue
        ended.append(pid)
    return ended


def _end(pid: int, ask: Callable[[int], None], where: str) -> None:
    """Has `ask`, called with a process's descriptor, end the process, and waits for its end."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        raise NoDaemon(f"the daemon (pid {pid}) went away") from None
    with closing_fd(process):
        ask(process)
        gone, _, _ = select.select([process], [], [], STOP_TIMEOUT_S)
    if not gone:
        raise Failed(f"the daemon (pid {pid}) does not end; {where}")


def _error(name: str) -> type[CasfsError]:
    error_class = getattr(errors, name, CasfsError)
    return (
        error_class
        if isinstance(error_class, type) and issubclass(error_class, CasfsError)
        else CasfsError
    )

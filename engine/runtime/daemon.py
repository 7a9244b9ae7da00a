"""The daemon: runs the threads of one store and answers the command line.

One trio nursery holds a task per running thread (`engine.runtime.supervisor`) and one per
connection; the operations are in `engine.runtime.daemon_requests`. At its start it launches every
thread whose head says `running`, so a daemon that was killed loses nothing. When the daemon is
stopped, running agents are ended with it and their threads stay `running` in the store: the next
daemon runs their pending steps again.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from casfs import canonical
from casfs.attach import spool
from casfs.errors import CasfsError, NotFound
from casfs.store.store import FORMAT_FILE, Store
from casfs.system import daemon_socket, reserve
from casfs.system.files import closing_fd
from casfs.system.log import Log, silent
from casfs.threads import live_output
from casfs.workspaces import desk
from engine.agents.worker_processes import WORKERS
from engine.followers import Followers
from engine.moderator.evaluator_pool import WorkerPool
from engine.processes import containment
from engine.runtime.daemon_requests import DaemonApi
from engine.runtime.project_states import ProjectStates
from engine.runtime.run_services import RunServices
from engine.runtime.supervisor import Supervisor
from engine.runtime.thread_requests import VariablesLacking
from engine.runtime.watches import Watches
from engine.runtime.workspace import COPYING, Workspaces, sweep
from engine.runtime.worktrees import Worktrees
from engine.secrets import redaction
from engine.sessions.service import SessionService

if TYPE_CHECKING:
    from engine.llm.llm_extractor import Extractor

Answer = dict[str, Any]
Maintenance = Callable[[Store], None]
MAINTENANCE_INTERVAL_S = 600
STORE_GONE_INTERVAL_S = 2
MAX_IDLE_CONNECTIONS = 64  # that have sent no request; the oldest gives way to a new one


@dataclass(frozen=True)
class DaemonSettings:
    """`env`: the environment of agents; `limit`: threads that run at once, more wait;
    `maintenance` is called every MAINTENANCE_INTERVAL_S; `extractor`: the model that finds a meta;
    `hold`: no thread is launched at the start; `keep_waiting_s`: as `RunServices`."""

    env: Mapping[str, str]
    limit: int
    log: Log = silent
    maintenance: Maintenance | None = None
    workspaces: Workspaces = COPYING
    extractor: Extractor | None = None
    hold: bool = False
    keep_waiting_s: int = 0


class Daemon:
    def __init__(self, store: Store, settings: DaemonSettings) -> None:
        self._store = store
        self._settings = settings
        self._log = settings.log
        self._idle: list[trio.CancelScope] = []  # of connections without a request, oldest first
        self._evaluator = WorkerPool(settings.log)
        extractor = settings.extractor
        services = RunServices(
            store,
            settings.log,
            workspaces=settings.workspaces,
            evaluator=self._evaluator,
            extractor=extractor,
            keep_waiting_s=settings.keep_waiting_s,
        )
        self._supervisor = Supervisor(services, settings.env, settings.limit)
        self._followers = Followers(store, settings.log)
        self._watches = Watches(store, self._followers, settings.log)
        self._sessions = SessionService(store, settings.env, self._followers, settings.log)
        self._projects = ProjectStates(store, self._followers)
        self._operations = {
            **self._watches.operations,
            **self._sessions.operations,
            **self._projects.operations,
            **Worktrees(store, self._projects, settings.log).operations,
        }
        key = None if extractor is None else extractor.key_env
        secrets = redaction.from_env([key] if key else [], settings.env)
        redacting = redaction.redacting_store(store, secrets)
        self._api = DaemonApi(redacting, settings.env, self._supervisor)

    async def serve(self, path: Path, ready: Callable[[], None]) -> None:
        """Listens at `path` until SIGTERM, SIGINT or the operation `stop`."""
        listener = _listen(path)
        leases = self._supervisor.leases
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with self._evaluator, trio.open_nursery() as nursery:
                self._supervisor.nursery = nursery
                if leases is not None:
                    nursery.start_soon(leases.run, self._supervisor)
                if not self._settings.hold:
                    await self._supervisor.launch_all()
                self._followers.start(nursery)
                self._watches.start_all(nursery)
                nursery.start_soon(self._projects.let_go_unused)
                nursery.start_soon(self._sessions.run)
                nursery.start_soon(trio.serve_listeners, self._handle_connection, [listener])
                if self._settings.maintenance is not None:
                    nursery.start_soon(self._run_maintenance, self._settings.maintenance)
                nursery.start_soon(_end_without_store, self._store.root)
                self._log("ready", socket=str(path))
                ready()
                if leases is not None:  # threads come at any time, many at once
                    nursery.start_soon(trio.to_thread.run_sync, self._settings.workspaces.prepare)
                async for number in signals:
                    self._log("ending", signal=number)
                    break
                nursery.cancel_scope.cancel()
        if leases is not None:
            await leases.close()
        path.unlink(missing_ok=True)

    async def _run_maintenance(self, maintenance: Maintenance) -> None:
        """Enforces the limits of the store's settings, such as gc's."""
        while True:
            try:
                await trio.to_thread.run_sync(maintenance, self._store)
            except CasfsError as error:
                self._log("maintenance failed", error=str(error))
            await trio.sleep(MAINTENANCE_INTERVAL_S)

    # -- connections ----------------------------------------------------------------------

    async def _handle_connection(self, stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with stream:
                line = None
                with trio.move_on_after(daemon_socket.REQUEST_TIMEOUT_S) as scope:
                    self._idle.append(scope)
                    if len(self._idle) > MAX_IDLE_CONNECTIONS:
                        self._idle.pop(0).cancel()
                    try:
                        line = await _read_line(stream)
                    finally:
                        if scope in self._idle:
                            self._idle.remove(scope)
                if line is not None:
                    answer = await self._answer_while_connected(line, stream)
                    await stream.send_all(canonical.encode(answer) + b"\n")

    async def _answer_while_connected(self, line: bytes, stream: trio.SocketStream) -> Answer:
        """Answers; a `wait` is cancelled when the client disconnects."""
        if b'"session_event"' in line:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._print_by_hook, line, stream)
                return await self._answer(line)
        if b'"wait"' not in line:
            return await self._answer(line)
        answer: Answer = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_closed, stream, nursery.cancel_scope)
            answer = await self._answer(line)
            nursery.cancel_scope.cancel()
        return answer

    async def _print_by_hook(self, line: bytes, stream: trio.SocketStream) -> None:
        output = await self._sessions.output_of_hook(line)
        if output is not None:
            with suppress(trio.BrokenResourceError):  # its hook has gone
                await stream.send_all(output)

    async def _answer(self, line: bytes) -> Answer:
        try:
            request = canonical.parse(line)
            op = request.pop("op")
            if op == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
                return {"ok": {"pid": os.getpid()}}
            operation = self._api.find(op) or self._operations.get(op)
            if operation is None:
                raise NotFound(f"the daemon has no operation {op!r}")
            return {"ok": await operation(**request)}
        except VariablesLacking as lacking:
            return {daemon_socket.LACKING: lacking.names}
        except CasfsError as error:
            return _error(type(error).__name__, str(error))
        except (TypeError, KeyError, AttributeError) as error:
            return _error("Invalid", f"not a request of this daemon's form: {error}")
        except Exception as error:  # one bad request must not end the threads of others
            self._log("failed", error=repr(error))
            return _error("Failed", f"internal error: {error!r}")


def serve(root: Path, path: Path, settings: DaemonSettings, ready: Callable[[], None]) -> None:
    """Runs the daemon of the store at `root` until it is stopped; `path`: of its socket. Raises
    Refused if there is one already."""
    lock = daemon_socket.lock(root)
    with closing_fd(lock), Store.open(root) as store:
        daemon_socket.private_directory(path.parent)
        path.unlink(missing_ok=True)
        left = containment.prepare(root)
        if left:
            settings.log("ended", attempts=left)
        desk.unmount_all(root)
        _sweep(store, settings.log)
        daemon = Daemon(store, settings)

        def announce() -> None:
            daemon_socket.announce(root, path)
            spool.announce(root, path)
            reserve.allocate(root)
            ready()

        WORKERS.is_daemon = True
        try:
            trio.run(daemon.serve, path, announce)
        finally:
            WORKERS.is_daemon = False
            WORKERS.close()
            desk.unmount_all(root)
            settings.workspaces.release()
        (root / "daemon.json").unlink(missing_ok=True)


def _sweep(store: Store, log: Log) -> None:
    """Cleans up after a daemon that was killed; a failure is only logged."""
    try:
        live_output.sweep(store.root)
        count = sweep(store)
    except CasfsError as error:
        log("sweep failed", error=str(error))
    else:
        if count:
            log("swept", workspaces=count)


def _listen(path: Path) -> trio.SocketListener:
    """Listens at `path`. The mode is set before it listens: no connection is earlier."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(str(path))
    path.chmod(0o600)
    listening.listen(64)
    return trio.SocketListener(trio.socket.from_stdlib_socket(listening))


async def _end_without_store(root: Path) -> None:
    """Ends the daemon when the store's directory is removed, or is another one."""
    # Of a directory that is open, the kernel gives the inode number to no other.
    directory = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with closing_fd(directory):
        held = os.fstat(directory)
        while not _is_gone(root, held):
            await trio.sleep(STORE_GONE_INTERVAL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_gone(root: Path, held: os.stat_result) -> bool:
    try:
        (root / FORMAT_FILE).stat()  # `init` may replace this file: it is not compared
        return not os.path.samestat(root.stat(), held)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # not to be told now
        return False


def _error(kind: str, message: str) -> Answer:
    """Returns an error as an answer; a file name in the message may not be UTF-8."""
    return {"error": kind, "message": message.encode("utf-8", "replace").decode()}


async def _read_line(stream: trio.SocketStream) -> bytes | None:
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = await stream.receive_some()
        if not piece or len(line) > daemon_socket.MAX_MESSAGE_BYTES:
            return None
        line += piece
    return bytes(line)


async def _cancel_when_closed(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    """Cancels `scope` when the client disconnects."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.receive_some()
    scope.cancel()

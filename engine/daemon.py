"""The daemon: runs the threads of one store and answers the command line.

One trio nursery holds a task per running thread and one per connection. At its start it
carries on every thread whose head says `running`, so a daemon that was killed loses
nothing. A thread that fails, even by a bug, is suspended and logged; it takes nothing else
with it. When the daemon is asked to end, agents in flight are ended with it and their
threads stay `running` in the store: the next daemon begins those steps again.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from casfs import canonical, threads
from casfs.errors import CasfsError, Conflict, NotFound
from casfs.log import Log
from casfs.store import Store
from casfs.threads import RUNNING, Thread
from engine import catalog, control, journal, layered
from engine.binding import Binding
from engine.cached import Turns
from engine.journal import Request
from engine.run import Run, end_orphans, workspace
from engine.workspace import PLAIN, Workspaces, sweep

Answer = dict[str, Any]
Upkeep = Callable[[Store], None]
UPKEEP_EVERY = 600  # seconds


@dataclass
class Task:
    """A thread that this daemon is running."""

    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    done: trio.Event = field(default_factory=trio.Event)


class Daemon:
    def __init__(
        self,
        store: Store,
        env: Mapping[str, str],
        log: Log,
        limit: int,
        upkeep: Upkeep | None = None,
        workspaces: Workspaces = PLAIN,
    ) -> None:
        """`env` is what agents see; `limit`: threads that run at once, more wait; `upkeep` is
        called now and then."""
        self._store = store
        self._env = env
        self._log = log
        self._slots = trio.CapacityLimiter(limit)
        self._upkeep = upkeep
        self._workspaces = workspaces
        self._turns = Turns()
        self._tasks: dict[str, Task] = {}
        self._operations: dict[str, Callable[..., Awaitable[Answer]]] = {
            "status": self._status,
            "start": self._start,
            "fork": self._fork,
            "resume": self._resume,
            "cancel": self._cancel,
            "wait": self._wait,
        }

    async def serve(self, path: Path, ready: Callable[[], None]) -> None:
        """Listen at `path` until SIGTERM, SIGINT or the operation `stop`."""
        listener = _listen(path)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for thread in await trio.to_thread.run_sync(threads.listing, self._store):
                    if thread.status == RUNNING:
                        self._launch(thread.id)
                nursery.start_soon(trio.serve_listeners, self._talk, [listener])
                if self._upkeep is not None:
                    nursery.start_soon(self._keep_up, self._upkeep)
                self._log("ready", socket=str(path))
                ready()
                async for number in signals:
                    self._log("ending", signal=number)
                    break
                nursery.cancel_scope.cancel()
        path.unlink(missing_ok=True)

    async def _keep_up(self, upkeep: Upkeep) -> None:
        """Hold the store to the limits that its owner set."""
        while True:
            try:
                await trio.to_thread.run_sync(upkeep, self._store)
            except CasfsError as error:
                self._log("upkeep failed", error=str(error))
            await trio.sleep(UPKEEP_EVERY)

    # -- threads --------------------------------------------------------------------------

    def _launch(self, id: str) -> None:
        self._tasks[id] = Task()
        self._nursery.start_soon(self._run, id, self._tasks[id])

    async def _run(self, id: str, task: Task) -> None:
        try:
            with task.scope:
                async with self._slots:
                    thread = await trio.to_thread.run_sync(threads.get, self._store, id)
                    await self._guarded(thread)
        finally:
            if self._tasks.get(id) is task:  # it may have been resumed already
                del self._tasks[id]
            task.done.set()

    async def _guarded(self, thread: Thread) -> None:
        """Run a thread; whatever it raises stays here."""
        try:
            run = Run(self._store, thread, self._env, self._log, self._workspaces, self._turns)
            await run()
        except Conflict as error:
            self._log("conflict", thread=thread.id, error=str(error))
        except Exception as error:
            self._log("failed", thread=thread.id, error=repr(error))
            with suppress(CasfsError, KeyError):
                now = threads.get(self._store, thread.id)
                if now.status == RUNNING:
                    journal.suspend(self._store, now, f"internal error: {error!r}")

    # -- operations -----------------------------------------------------------------------

    async def _status(self) -> Answer:
        return {"pid": os.getpid(), "running": sorted(self._tasks)}

    async def _start(
        self,
        workflow: str,
        input: str,
        agents: dict[str, Any],
        workspace: str | None = None,
        max_rounds: int = journal.MAX_ROUNDS,
    ) -> Answer:
        def create() -> Thread:
            hash = catalog.find(self._store, workflow)
            request = Request(hash, input, _bindings(agents), workspace, max_rounds)
            return journal.create(self._store, request)

        thread = await trio.to_thread.run_sync(create)
        self._launch(thread.id)
        return {"id": thread.id, "start": thread.hash}

    async def _fork(
        self, id: str, at: int | None = None, agents: dict[str, Any] | None = None
    ) -> Answer:
        def fork() -> Thread:
            found = threads.get(self._store, id)
            return journal.fork(self._store, found, at, _bindings(agents or {}))

        thread = await trio.to_thread.run_sync(fork)
        self._launch(thread.id)
        return {"id": thread.id, "start": thread.record["start"], **thread.record["fork"]}

    async def _resume(self, id: str) -> Answer:
        thread = await trio.to_thread.run_sync(threads.get, self._store, id)
        await trio.to_thread.run_sync(journal.resume, self._store, thread)
        self._launch(id)
        return {"id": id}

    async def _cancel(self, id: str) -> Answer:
        task = self._tasks.get(id)
        if task is not None:
            task.scope.cancel()
            await task.done.wait()

        def end() -> None:
            thread = threads.get(self._store, id)
            ended = journal.cancel(self._store, thread)
            end_orphans(thread)
            workspace(self._store, ended, self._workspaces).remove()

        await trio.to_thread.run_sync(end)
        return {"id": id}

    async def _wait(self, id: str) -> Answer:
        """Answers when the thread rests."""
        while (task := self._tasks.get(id)) is not None:
            await task.done.wait()
        thread = await trio.to_thread.run_sync(threads.get, self._store, id)
        return {"id": id, "status": thread.status}

    # -- connections ----------------------------------------------------------------------

    async def _talk(self, stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with stream:
                line = await _read_line(stream)
                if line is not None:
                    answer = await self._attended(line, stream)
                    await stream.send_all(canonical.encode(answer) + b"\n")

    async def _attended(self, line: bytes, stream: trio.SocketStream) -> Answer:
        """Answer; when all that the client does is wait, stop as soon as it goes away."""
        if b'"wait"' not in line:
            return await self._answer(line)
        answer: Answer = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_closed, stream, nursery.cancel_scope)
            answer = await self._answer(line)
            nursery.cancel_scope.cancel()
        return answer

    async def _answer(self, line: bytes) -> Answer:
        try:
            request = canonical.parse(line)
            op = request.pop("op")
            if op == "stop":
                os.kill(os.getpid(), signal.SIGTERM)
                return {"ok": {"pid": os.getpid()}}
            if op not in self._operations:
                raise NotFound(f"the daemon has no operation {op!r}")
            return {"ok": await self._operations[op](**request)}
        except CasfsError as error:
            return _fault(type(error).__name__, str(error))
        except (TypeError, KeyError, AttributeError) as error:
            return _fault("Invalid", f"not a request of this daemon's form: {error}")
        except Exception as error:  # one bad request must not end the threads of others
            self._log("failed", error=repr(error))
            return _fault("Failed", f"internal error: {error!r}")


def serve(
    root: Path,
    path: Path,
    env: Mapping[str, str],
    limit: int,
    upkeep: Upkeep | None,
    log: Log,
    ready: Callable[[], None],
    workspaces: Workspaces = PLAIN,
) -> None:
    """Be the daemon of the store at `root` until told to end. Raises Refused if there is one."""
    lock = control.lock(root)
    try:
        with Store.open(root) as store:
            control.private_directory(path.parent)
            path.unlink(missing_ok=True)
            layered.clean(root)
            _sweep(store, log)
            daemon = Daemon(store, env, log, limit, upkeep, workspaces)

            def announce() -> None:
                control.announce(root, path)
                ready()

            try:
                trio.run(daemon.serve, path, announce)
            finally:
                layered.clean(root)
                workspaces.release()
            (root / "daemon.json").unlink(missing_ok=True)
    finally:
        os.close(lock)


def _bindings(agents: dict[str, Any]) -> dict[str, Binding]:
    return {
        role: Binding(one["name"], one.get("config", {}), one.get("version", ""))
        for role, one in agents.items()
    }


def _sweep(store: Store, log: Log) -> None:
    """Clean up after a daemon that was killed; what cannot be deleted is in nobody's way."""
    try:
        count = sweep(store)
    except CasfsError as error:
        log("sweep failed", error=str(error))
    else:
        if count:
            log("swept", workspaces=count)


def _listen(path: Path) -> trio.SocketListener:
    listening = trio.socket.from_stdlib_socket(_bound(path))
    return trio.SocketListener(listening)


def _bound(path: Path) -> socket.socket:
    """A socket at `path`. The mode is set before it listens: nobody can connect earlier."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    path.chmod(0o600)
    made.listen(64)
    return made


def _fault(kind: str, message: str) -> Answer:
    """An error as an answer; a file name in the message may be no UTF-8."""
    return {"error": kind, "message": message.encode("utf-8", "replace").decode()}


async def _read_line(stream: trio.SocketStream) -> bytes | None:
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = await stream.receive_some()
        if not piece or len(line) > control.LINE:
            return None
        line += piece
    return bytes(line)


async def _until_closed(stream: trio.SocketStream, scope: trio.CancelScope) -> None:
    """Nobody waits for the answer any more: stop working on it."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.receive_some()
    scope.cancel()

"""The daemon's part of attached agents: takes events from the spool and records them in order.

A hook writes its event into the spool and then asks for `session_event`. The answer to a call and
its result comes once the directory was read, so an agent's tool runs before or after that; to all
other events once they are recorded. The hook waits a short time only. Sessions are recorded side
by side, the events of one in the order of the spool. An event is deleted once it is committed; one
that cannot be recorded now stays, and is tried again.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from casfs import canonical
from casfs.attach import attachments, spool
from casfs.backend.capabilities import SharedByMachines
from casfs.errors import CasfsError, Conflict, Invalid, NotFound
from casfs.sessions import find_session
from casfs.store.store import Store
from casfs.system.log import Log
from casfs.system.processes import start_time
from casfs.threads import sessions
from casfs.threads.state import CLOSED, state
from engine.blocking import blocking
from engine.followers import Followers
from engine.sessions import events, session_rewind, session_thread
from engine.sessions.directories import Directories
from engine.sessions.events import Kind, SessionEvent
from engine.sessions.hook_events import READERS
from engine.sessions.recorder import SessionRecorder
from engine.sessions.review_delivery import ReviewDelivery
from engine.sessions.session_rewind import RewindRequest
from engine.sessions.session_thread import session_end

Answer = dict[str, Any]
RETRY_S = 10.0
LOST_S = 30.0
ASK_S = 0.1  # between a hook's writing of its event and its request
LOST = "lost-"  # prefix of the names of END events that the daemon makes, without a hook
MAX_QUEUED = 1000  # events of one session in memory; the others wait in the spool


class SessionService:
    """`env`: as of the agents that the daemon runs."""

    def __init__(
        self, store: Store, env: Mapping[str, str], followers: Followers, log: Log
    ) -> None:
        self._store = store
        self._directories = Directories(store, env, followers, log)
        self._env = env
        self._log = log
        self._taken: set[str] = set()  # files of the spool that are being recorded
        self._released: set[str] = set()  # files being recorded whose agents may go on
        self._awaited: dict[str, trio.Event] = {}  # by file: what hooks wait for
        self._asked: set[str] = set()  # files whose hooks have asked for them
        self._reviews = ReviewDelivery(store, log)
        self._sessions: dict[str, trio.MemorySendChannel[tuple[str, SessionEvent]]] = {}
        self._wake = trio.Event()
        self._unspooled = 0
        self.operations: dict[str, Callable[..., Awaitable[Answer]]] = {
            "session_event": self._session_event,
            "session_rewind": self._session_rewind,
            "session_settle": self._session_settle,
            "session_state": self._session_state,
            **self._reviews.operations,
        }

    async def run(self) -> None:
        """Records what is in the spool, and what comes."""
        if (lost := spool.missed(self._store.root)) is not None:
            self._log("session events lost", first=lost[0], last=lost[1])
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._end_lost)
            nursery.start_soon(self._reviews.run)
            while True:
                self._wake = trio.Event()
                await self._take_all()
                with trio.move_on_after(RETRY_S):
                    await self._wake.wait()

    async def _end_lost(self) -> None:
        """Ends the sessions whose agents were killed, for which no hook runs."""
        lost: set[str] = set()
        while True:
            await trio.sleep(LOST_S)
            ends: dict[str, SessionEvent] = {}
            try:
                ends = await blocking(self._lost)
            except Exception as error:  # the database of a shared store may be away
                self._log("sessions not looked at", error=str(error) or repr(error))
            for id, event in ends.items():
                # Seen twice: its last events may be in the spool still.
                if id in lost:
                    await self._send(f"{LOST}{id}-{event.reported_ms}", event)
            lost = set(ends)

    def _lost(self) -> dict[str, SessionEvent]:
        """Returns the end of each session with a pending step whose process is gone, by thread, and
        closes those without one."""
        ends: dict[str, SessionEvent] = {}
        is_shared = isinstance(self._store.backend, SharedByMachines)
        for thread, _ in sessions.readable(self._store):
            session = thread.record["session"]
            begun = session.get("pidStart")
            # Without a start the process was gone when it reported: it was not the agent's own.
            if begun is None or state(thread) == CLOSED:
                continue
            # Of another machine nothing is known here.
            if is_shared and session.get("host") != os.uname().nodename:
                continue
            if start_time(session["pid"]) == begun:
                continue
            if thread.pending is not None:
                ends[thread.id] = session_end(self._store, thread)
                continue
            with suppress(Conflict):  # an agent goes on with it
                session_thread.close(self._store, thread)
        return ends

    def _is_lost(self, event: SessionEvent) -> bool:
        """Returns whether a session is still that of an agent that is gone: events that were
        recorded meanwhile may be of the next one."""
        thread = session_thread.find(self._store, event)
        if thread is None or thread.pending is None:
            return False
        session = thread.record["session"]
        return session["pid"] == event.pid and start_time(event.pid) != session.get("pidStart")

    async def _session_event(self, file: str | None = None, hex: str | None = None) -> Answer:
        """Answers once the agent may go on: `file` is its event in the spool; `hex`: one that could
        not be spooled, in hexadecimal digits."""
        if file is None:
            self._unspooled += 1
            file = f"unspooled-{self._unspooled}"
            self._asked.add(file)
            done = self._awaited[file] = trio.Event()
            await self._take(file, spool.parse(bytes.fromhex(hex or "")))
        elif file in self._released:
            self._asked.add(file)
            return {}
        else:
            self._asked.add(file)
            # The loop takes it, after those before it.
            done = self._awaited.setdefault(file, trio.Event())
            self._wake.set()
        await done.wait()
        return {}

    async def output_of_hook(self, request: bytes) -> bytes | None:
        """Returns the line that a hook, which asks `session_event`, is to get before its answer:
        what it prints does not wait for the look, nor for the events before its own."""
        output = await self._reviews.output_of_hook(partial(self._event_of, request))
        return None if output is None else b'{"print":"%s"}\n' % output.hex().encode()

    def _event_of(self, request: bytes) -> spool.Event | None:
        file = canonical.parse(request).get("file")
        is_name = isinstance(file, str) and "/" not in file
        return spool.read(self._store.root, file) if is_name else None

    async def _session_settle(self, id: str) -> Answer:
        """Records which calls of a session are over though its agent has not said so: it was
        killed, or its transcript has their results."""
        event = await blocking(partial(self._settling, id))
        if event is not None:
            name = f"settle-{id}-{event.reported_ms}"
            done = self._awaited[name] = trio.Event()
            self._taken.add(name)
            await self._send(name, event)
            await done.wait()
        return {}

    async def _session_state(self, directory: str) -> Answer:
        """Answers with the directory of sessions as it is now, where it is followed."""
        state = await self._directories.state(Path(directory))
        return {} if state is None else {"tree": state.tree, "fields": state.fields}

    def _settling(self, id: str) -> SessionEvent | None:
        thread = find_session.named(self._store, id)
        session = thread.record["session"]
        begun = session.get("pidStart")
        if thread.pending is None or session.get("boot") != spool.current_boot():
            return None
        event = session_end(self._store, thread)
        if begun is not None and start_time(session["pid"]) != begun:
            return event
        return replace(event, kind=Kind.CHECK)

    async def _session_rewind(self, **members: Any) -> Answer:
        """`members`: of RewindRequest."""
        request = RewindRequest(**members)
        return await blocking(partial(session_rewind.rewind, self._store, request))

    async def _take_all(self) -> None:
        """Takes the files of the spool in their order."""
        awaited = list(self._awaited)
        for name, event in await blocking(self._read_new):
            await self._take(name, event)
        # The others are recorded, and deleted: before their hook asked.
        for name in awaited:
            if name not in self._taken:
                self._answer(name)

    def _read_new(self) -> list[tuple[str, spool.Event]]:
        root = self._store.root
        names = [name for name in spool.names(root) if name not in self._taken]
        return [(name, event) for name in names if (event := spool.read(root, name)) is not None]

    async def _take(self, name: str, reported: spool.Event) -> None:
        self._taken.add(name)
        self._reviews.note_mode(reported)
        try:
            event = events.read(reported, READERS)
            is_recorded = event is not None and not await blocking(partial(self._is_paused, event))
        except Exception as error:  # what comes from outside ends no daemon
            await self._set_aside(name, error)
            return
        if event is None or not is_recorded:
            await self._conclude(name)
            return
        await self._send(name, event)

    async def _send(self, name: str, event: SessionEvent) -> None:
        """Has an event recorded after those of its session before it."""
        key = f"{event.agent} {event.session}"
        if key not in self._sessions:
            sender, receiver = trio.open_memory_channel[tuple[str, SessionEvent]](MAX_QUEUED)
            self._sessions[key] = sender
            self._nursery.start_soon(self._record_session, key, receiver)
        await self._sessions[key].send((name, event))

    def _is_paused(self, event: SessionEvent) -> bool:
        with suppress(Invalid):
            return attachments.load(self._store.root).is_paused(event.directory)
        return False

    async def _record_session(
        self, key: str, queue: trio.MemoryReceiveChannel[tuple[str, SessionEvent]]
    ) -> None:
        recorder = SessionRecorder(self._store, self._env)
        async for name, event in queue:
            try:
                while not await self._record(recorder, name, event):
                    await trio.sleep(RETRY_S)
            except Exception as error:  # must not end what else the daemon does
                # What does not fit a schema today does not fit it later.
                await self._set_aside(name, error)
            else:
                await self._conclude(name)
            if event.call is None:
                self._reviews.wake()  # the agent may be idle now
            # Without an `await` between the question and the end: nothing comes meanwhile.
            if event.kind is Kind.END and queue.statistics().current_buffer_used == 0:
                del self._sessions[key]
                return

    async def _record(self, recorder: SessionRecorder, name: str, event: SessionEvent) -> bool:
        """Returns whether the event is recorded. Raises Invalid, NotFound where it can never be."""
        if name.startswith(LOST) and not await blocking(partial(self._is_lost, event)):
            return True
        try:
            # Looked at again where the record failed: the state is of then, and marked late.
            boundary = await self._directories.boundary(
                recorder.directory(event), event, partial(self._let_go, name, event)
            )
            if event.call is not None and not await self._has_waited(name):
                boundary = replace(boundary, is_late=True)
            await blocking(partial(recorder.record, event, boundary, name))
        except (Invalid, NotFound):
            raise
        except CasfsError as error:
            self._log("session event not recorded yet", file=name, error=str(error))
            return False
        return True

    async def _has_waited(self, name: str) -> bool:
        """Returns whether the hook of a call has asked for it, so that the agent waited for the
        look. While a daemon starts, its socket refuses connections, and the agent goes on."""
        if name not in self._asked:
            await trio.sleep(ASK_S)
        return name in self._asked

    async def _set_aside(self, name: str, error: Exception) -> None:
        self._log("session event set aside", file=name, error=str(error) or repr(error))
        is_gone = await blocking(partial(spool.set_aside, self._store.root, name))
        self._forget(name, is_gone)

    async def _conclude(self, name: str) -> None:
        is_gone = await blocking(partial(spool.delete, self._store.root, name))
        self._forget(name, is_gone)

    def _forget(self, name: str, is_gone: bool) -> None:
        # A file that cannot be deleted must not be recorded again.
        if is_gone:
            self._taken.discard(name)
        self._released.discard(name)
        self._asked.discard(name)
        self._answer(name)

    def _let_go(self, name: str, event: SessionEvent) -> None:
        # Readers of what was recorded wait for the end of a prompt, not of a call.
        if event.call is not None and name in self._taken:
            self._released.add(name)
            self._answer(name)

    def _answer(self, name: str) -> None:
        if (done := self._awaited.pop(name, None)) is not None:
            done.set()

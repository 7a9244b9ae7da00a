"""Records what agents report, event by event: the thread of the session, its steps and turns.

Synchronous; `engine.sessions.service` calls it in worker threads, for one session at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from casfs.agents.secrets import Secrets
from casfs.directories.projects import work_tree_of
from casfs.errors import Invalid
from casfs.store.store import Store
from casfs.threads import sessions
from casfs.threads.threads import Thread
from engine.secrets import redaction
from engine.sessions import session_thread, subagents, transcript_reader
from engine.sessions.boundary import Boundary
from engine.sessions.events import Kind, SessionEvent
from engine.sessions.subagents import SubagentPart
from engine.sessions.transcript_reader import TranscriptPart


class SessionRecorder:
    """Records one session. What a scanner of secrets finds, and the values in private files of its
    directory, are marked in every text."""

    def __init__(self, store: Store, env: Mapping[str, str]) -> None:
        self._store = store
        self._env = env
        self._secrets: Secrets | None = None
        self._read_local: str | None = None
        self._words: dict[str, bool] = {}
        self._directory: Path | None = None

    def directory(self, event: SessionEvent) -> Path:
        """Returns the directory that is recorded with the session: the same until it ends, wherever
        its agent goes."""
        if self._directory is None:
            thread = session_thread.find(self._store, event)
            if thread is not None:
                self._directory = Path(sessions.about(self._store, thread)["directory"])
            else:
                self._directory = work_tree_of(Path(event.directory))
        return self._directory

    def record(
        self,
        event: SessionEvent,
        boundary: Boundary,
        name: str,
        part: TranscriptPart | None = None,
    ) -> Thread | None:
        """Records an event; `name`: of its file in the spool. One that is recorded already changes
        nothing. `part`: of the transcript that a step ends with, by default what it has gained.
        Returns the thread, if there is one. Raises CasfsError."""
        thread = session_thread.find(self._store, event)
        if thread is not None and session_thread.last_event(thread) == name:
            return thread
        store = self._redacting(thread, event, boundary)
        if thread is not None and thread.pending is not None and boundary.interrupted:
            thread = session_thread.end_interrupted(store, thread, event, boundary)
        match event.kind:
            case Kind.PROMPT:
                thread = thread or self._create(store, event, boundary)
                # It has ended without an answer.
                if thread.pending is not None:
                    thread = self._end_step(store, thread, event, boundary, name="")
                return session_thread.begin_step(store, thread, event, boundary, name)
            case Kind.CALL | Kind.RESULT:
                return self._record_call(store, thread, event, boundary, name)
            case Kind.CHECK:
                return thread
            case Kind.BEGIN | Kind.ANSWER | Kind.END:
                if thread is None:
                    return None
                if thread.pending is not None:
                    return self._end_step(store, thread, event, boundary, name, part)
                return session_thread.note(store, thread, event, boundary, name)

    def _record_call(
        self,
        store: Store,
        thread: Thread | None,
        event: SessionEvent,
        boundary: Boundary,
        name: str,
    ) -> Thread:
        thread = thread or self._create(store, event, boundary)
        if thread.pending is None:
            # A subagent in the background goes on after its parent has answered; or the agent was
            # attached in the middle of a prompt.
            thread = session_thread.begin_step(store, thread, event, boundary, name="")
        if event.kind is Kind.CALL:
            return session_thread.begin_call(store, thread, event, boundary, name)
        return session_thread.end_call(store, thread, event, boundary, name)

    def _end_step(
        self,
        store: Store,
        thread: Thread,
        event: SessionEvent,
        boundary: Boundary,
        name: str,
        part: TranscriptPart | None = None,
    ) -> Thread:
        transcript = sessions.about(self._store, thread).get("transcript") or event.transcript
        begin = thread.record["session"].get("transcriptBytes", 0)
        if part is None and transcript is not None:
            part = transcript_reader.read_part(self._store, event.agent, transcript, begin)
        called: Sequence[SubagentPart] = ()
        if transcript is not None:
            callers = None if part is None else part.callers
            called = subagents.gained(store, event.agent, transcript, thread, callers)
        try:
            return session_thread.end_step(store, thread, event, boundary, name, part, called)
        except Invalid:
            if not called:
                raise
            # What a subagent's transcript says fits no node. Its parent is recorded without it.
            return session_thread.end_step(store, thread, event, boundary, name, part)

    def _create(self, store: Store, event: SessionEvent, boundary: Boundary) -> Thread:
        return session_thread.create(store, event, boundary, self.directory(event))

    def _redacting(self, thread: Thread | None, event: SessionEvent, boundary: Boundary) -> Store:
        is_first = self._secrets is None
        if self._secrets is None:
            highest = 0 if thread is None else thread.record.get("secretMarks", 0)
            marks = redaction.new_marks(self._store, self._env, highest=highest)
            self._secrets = Secrets({}, marks=marks)
        state = boundary.state
        if is_first or event.kind in (Kind.BEGIN, Kind.PROMPT):
            root = None if state is None else state.tree
            directory = self.directory(event)
            in_directory = redaction.ValuesInDirectory(self._store, directory, root, self._words)
            self._secrets.add_private(in_directory())
        if event.call is not None:
            self._secrets.add_private(redaction.values_in_call(event.call.arguments))
        if state is not None and state.local not in (None, self._read_local):
            values = redaction.values_in_private_files(self._store, state, self._words)
            self._secrets.add_private(values)
            self._read_local = state.local
        return redaction.redacting_store(self._store, self._secrets)

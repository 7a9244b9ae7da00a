"""The directory of sessions: its states at their events, and whose changes lie between them.

The directory is looked at when a prompt, a tool call or its result is reported. A change between
two looks is of the call that was open, of one of several, or of a person:

- of an edit tool, where it names the path, and nobody else was seen to write there;
- of a shell command, where a process of its agent wrote, or one that had ended before it could be
  looked up while no other command was open;
- of a person, where no call was open, or a process wrote that still runs and is neither a
  descendant of an agent nor started in an open call;
- ambiguous in every other case: two agents, an agent and a person, a path that an edit tool does
  not name, what was moved while a person and an agent wrote to one file, all that changed in a call
  whose beginning this daemon has not seen.

Which process wrote, the kernel tells root alone (`casfs.system.directory_events`). Without it every
change while one command is open is taken for its. So is, with it, what a person's process writes
that ends while the state before the command is stored, some hundredths of a second.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from casfs.attach.agents import AGENTS
from casfs.checkpoints import extents
from casfs.checkpoints.followed_directory import FollowedDirectory
from casfs.directories.projects import work_tree_of
from casfs.sessions.session_steps import AMBIGUOUS, ANOTHER_CALL
from casfs.store.store import Store
from casfs.system import processes
from casfs.system.clock import now_ms
from casfs.system.directory_events import Event
from casfs.system.paths import printable
from casfs.transcripts.messages import ResultMessage
from casfs.trees import tree
from casfs.trees.recorded_state import RecordedState
from casfs.trees.tree import Change
from engine.sessions import transcript_reader
from engine.sessions.boundary import Boundary, InterruptedCall
from engine.sessions.events import Kind, SessionEvent
from engine.sessions.transcript_reader import has_reader

LATE_MS = 300  # after which a hook lets its agent go on
MAX_ANCESTORS = 64
PERSON = "a person"
OTHER_SESSION = "another session"


@dataclass
class OpenCall:
    """A tool call that runs. `paths`: the only ones that it accounts for, None for any;
    `transcript_bytes`: of its agent's transcript when it began; `asks`: a person may have been
    asked for it; `begun`: in clock ticks after boot; `own` and `foreign`: what has changed since
    it began, the latter with the reason; `written`: what a process of its agent was seen to
    write."""

    session: str
    id: str
    paths: frozenset[bytes] | None
    transcript_bytes: int = 0
    asks: bool = True
    begun: int = 0
    own: set[bytes] = field(default_factory=set)
    written: set[bytes] = field(default_factory=set)
    may_be_refused: bool = False
    foreign: dict[bytes, str] = field(default_factory=dict)

    def add_foreign(self, path: bytes, reason: str) -> None:
        # Calls at once are taken back together, so what another of them does takes nothing away.
        if reason == ANOTHER_CALL:
            self.foreign.setdefault(path, reason)
            return
        # Also of another one's: what both have changed cannot be told apart by whole files.
        is_shared = path in self.own or self.foreign.get(path) == ANOTHER_CALL
        self.foreign[path] = AMBIGUOUS if is_shared else reason

    def add_own(self, path: bytes) -> None:
        if self.foreign.get(path, ANOTHER_CALL) != ANOTHER_CALL:
            self.foreign[path] = AMBIGUOUS
        self.own.add(path)


class SessionDirectory:
    """Every method may block."""

    def __init__(self, store: Store, directory: FollowedDirectory, max_bytes: int | None) -> None:
        self._store = store
        self._path = directory.path
        self._extent = extents.of_session(max_bytes)
        self._followed = directory
        self._followed.observe = self._note_writer
        self._state: RecordedState | None = None
        self._is_torn = False
        self._open: list[OpenCall] = []
        # By the process of an agent: when that started, and its session.
        self._agents: dict[int, tuple[int | None, str]] = {}
        self._writers: dict[bytes, set[str | None]] = defaultdict(set)
        self._owners: dict[int, str | None] = {}  # of processes that wrote since the last look
        self._renamed: set[bytes] = set()  # what was moved since then

    def state(self) -> RecordedState | None:
        """Returns the directory as it is now. Raises CasfsError, OSError."""
        with self._followed.lock:
            self._look(now_ms(), lambda: None)
            return self._state

    def boundary(self, event: SessionEvent, let_go: Callable[[], None]) -> Boundary:
        """Returns the directory as it is at an event. `let_go`: called as soon as all of it is
        read, when the agent may go on while it is stored. Raises CasfsError, OSError."""
        session = f"{event.agent} {event.session}"
        with self._followed.lock:
            if event.pid:  # 0: a process that cannot be seen from here
                self._agents[event.pid] = processes.start_time(event.pid), session
            over = self._over(event, session)
            if event.kind is Kind.BEGIN:
                self._followed.mark_everything_if_old()
            # Before the agent goes on: what it writes then is behind the beginning of its call.
            transcript_bytes = transcript_reader.size(event.transcript)
            is_late = self._look(event.reported_ms, let_go)
            match event.kind:
                case Kind.CALL:
                    boundary = self._begin(
                        event, session, is_late, transcript_bytes=transcript_bytes
                    )
                case Kind.RESULT:
                    boundary = self._end(event, session, is_late)
                case _:
                    boundary = Boundary(self._state, is_late)
            if over:
                self._open = [call for call in self._open if call not in over]
                interrupted = tuple(InterruptedCall(call.id, _reasons(call)) for call in over)
                boundary = replace(boundary, interrupted=interrupted)
            boundary = replace(boundary, is_torn=self._is_torn, fault=self._elsewhere(event))
            # Who has written while the state was stored, as long as they live.
            self._followed.drain()
            return boundary

    def is_idle(self) -> bool:
        # While it is looked at a call may begin, whose first changes count.
        return not self._open and not self._followed.lock.locked()

    def release(self) -> None:
        """Ends the use of the directory, which others may follow still."""
        with self._followed.lock:
            # Sessions that began since have one of their own.
            if self._followed.observe == self._note_writer:
                self._followed.observe = None
            self._followed.release(self._extent)

    # -- calls ----------------------------------------------------------------------------

    def _begin(
        self, event: SessionEvent, session: str, is_late: bool, transcript_bytes: int
    ) -> Boundary:
        assert event.call is not None
        if event.call.writes:
            paths = None
            if event.call.paths is not None:
                paths = frozenset().union(*(self._names(event, path) for path in event.call.paths))
            begun = processes.ticks_since_boot(now_ms() - event.reported_ms)
            call = OpenCall(session, event.call.id, paths, transcript_bytes, event.asks, begun)
            self._open.append(call)
        return Boundary(self._state, is_late)

    def _over(self, event: SessionEvent, session: str) -> list[OpenCall]:
        """Returns the open calls of a session that are over without a report, as this event tells.
        What has changed until now is taken for theirs. One that reports its end after all counts as
        unseen."""
        over = []
        answers: dict[int, dict[str, ResultMessage]] = {}  # most calls began together
        is_step_over = event.kind in (Kind.ANSWER, Kind.END, Kind.BEGIN)
        if event.kind is Kind.PROMPT and not has_reader(event.agent, event.transcript):
            is_step_over = True
        for call in [call for call in self._open if call.session == session]:
            if event.kind is Kind.RESULT and event.call is not None and event.call.id == call.id:
                continue
            # Behind where it began: an id may be one that was used before.
            since = call.transcript_bytes
            if since not in answers:
                answers[since] = transcript_reader.answers(event.agent, event.transcript, since)
            answer = answers[since].get(call.id)
            # Of several calls at once each reports its end, and some after it stands there.
            if is_step_over or (answer is not None and event.kind is not Kind.RESULT):
                over.append(call)
                call.may_be_refused = call.asks and answer is not None and answer.is_refusal
        return over

    def _end(self, event: SessionEvent, session: str, is_late: bool) -> Boundary:
        assert event.call is not None
        name = (session, event.call.id)
        ended = [call for call in self._open if (call.session, call.id) == name]
        self._open = [call for call in self._open if call not in ended]
        foreign: dict[str, str] = {}
        is_unseen = not ended and event.call.writes
        for call in ended:
            foreign |= _reasons(call)
        return Boundary(self._state, is_late, foreign, is_unseen=is_unseen)

    def _elsewhere(self, event: SessionEvent) -> str | None:
        """Returns why a call may have changed what is not recorded with its session: its tool names
        a file outside, or its agent works in another repository by now, such as a work tree beside
        the project."""
        if event.call is None or not event.call.writes:
            return None
        for path in event.call.paths or ():
            if any(name.split(b"/")[0] == b".." for name in self._names(event, path)):
                return f"{path} is outside of {self._path}, which alone is recorded"
        try:
            project = work_tree_of(Path(event.directory))
            if project.is_relative_to(self._path) or not (project / ".git").exists():
                return None
        except OSError:  # it cannot be searched
            return None
        return f"it worked in {project}, and {self._path} alone is recorded"

    def _names(self, event: SessionEvent, path: str) -> set[bytes]:
        """Returns which path of the directory a tool's file is: the one to which it leads, and the
        link itself where it is one, since a tool may write either."""
        above, name = os.path.split(os.path.join(event.directory, path))
        there = os.path.join(os.path.realpath(above), name)
        paths = {there, os.path.realpath(there)}
        return {os.path.relpath(os.fsencode(path), os.fsencode(self._path)) for path in paths}

    # -- looking --------------------------------------------------------------------------

    def _look(self, reported_ms: int, let_go: Callable[[], None]) -> bool:
        """Returns whether who reported at that time may have gone on before all was read."""
        read_ms: list[int] = []

        def note_read() -> None:
            read_ms.append(now_ms())
            let_go()

        self._followed.drain()
        before = self._state
        look = self._followed.look(before, self._extent, note_read)
        self._state = look.state
        self._is_torn = look.is_torn
        if not read_ms:
            note_read()  # nothing has changed
        # Read again, since gc had deleted what the first reading relied on: after `let_go`.
        is_again = len(read_ms) > 1
        if before is not None and self._open:
            for change in tree.diff(self._store, before.full, self._state.full):
                self._attribute(change, is_ambiguous=is_again)
        self._writers.clear()
        self._renamed.clear()
        self._owners.clear()
        return is_again or read_ms[-1] - reported_ms > LATE_MS

    def _attribute(self, change: Change, *, is_ambiguous: bool) -> None:
        """Decides whose a change is, for each open call. `is_ambiguous`: it may also be of the call
        that is about to begin."""
        path = change.path
        owner = self._owner(path)
        if is_ambiguous or self._may_hold_a_persons(change):
            owner = AMBIGUOUS
        for call in self._open:
            if call is owner:
                call.add_own(path)
                if call.session in self._writers_of(path):
                    call.written.add(path)
            elif isinstance(owner, OpenCall):
                is_own_session = owner.session == call.session
                call.add_foreign(path, ANOTHER_CALL if is_own_session else OTHER_SESSION)
            else:
                call.add_foreign(path, owner)

    def _may_hold_a_persons(self, change: Change) -> bool:
        """Returns whether a file may have come from one that a person has written meanwhile: moved
        there by an agent, it would go with the agent's change."""
        is_from_elsewhere = change.old is None or change.path in self._renamed
        return is_from_elsewhere and any(
            PERSON in writers and writers != {PERSON} for writers in self._writers.values()
        )

    def _owner(self, path: bytes) -> OpenCall | str:
        """Returns the call that has changed a path, or why none of them has for sure."""
        writers = self._writers_of(path)
        if PERSON in writers:
            return PERSON if writers == {PERSON} else AMBIGUOUS
        sessions = {writer for writer in writers if writer is not None}
        naming = [call for call in self._open if call.paths is not None and path in call.paths]
        shells = [call for call in self._open if call.paths is None]
        if sessions:
            naming = [call for call in naming if call.session in sessions]
            shells = [call for call in shells if call.session in sessions]
        candidates = naming or shells
        if len({call.session for call in candidates}) != 1:
            return AMBIGUOUS
        # Of several calls of one session the newest: all are undone before those before them.
        return candidates[-1]

    def _writers_of(self, path: bytes) -> set[str | None]:
        """Returns who wrote to a path, or moved a directory above it; None: a process that has
        ended."""
        parts = path.split(b"/")
        above = (b"/".join(parts[:count]) for count in range(1, len(parts) + 1))
        return {writer for name in above for writer in self._writers.get(name, ())}

    def _note_writer(self, path: bytes, event: Event) -> None:
        # Between calls every change is a person's.
        pid = event.pid
        if pid and self._open:
            if pid not in self._owners:
                self._owners[pid] = self._owner_of_process(pid)
            self._writers[path].add(self._owners[pid])
            if event.is_renamed:
                self._renamed.add(path)

    def _owner_of_process(self, pid: int) -> str | None:
        """Returns the session of the agent that started a process, PERSON where none did; None
        where the process has ended."""
        current: int | None = pid
        oldest = pid
        for _ in range(MAX_ANCESTORS):
            if current is None:
                return None
            begun, session = self._agents.get(current, (None, ""))
            # Its number may be another process's by now.
            if session and processes.start_time(current) == begun:
                return session
            if processes.is_init(current):
                break
            oldest = current
            current = processes.parent(current)
        return self._owner_by_environment(pid, oldest)

    def _owner_by_environment(self, pid: int, oldest: int) -> str | None:
        """Returns the same of a process that no agent is an ancestor of: what a command leaves
        behind has none any more. `oldest`: of its ancestors; where that is of a call that is over,
        it may be a person's editor or terminal by now."""
        started = processes.start_time(oldest)
        environment = processes.environment(pid)
        if started is None or environment is None:
            return None
        names = (
            f"{agent.name} {environment.get(agent.session_variable)}" for agent in AGENTS.values()
        )
        open_since = {call.session: call.begun for call in reversed(self._open)}
        owners = [name for name in names if open_since.get(name, started + 1) <= started]
        # An agent in a call of another one has the variables of both.
        return owners[0] if len(owners) == 1 else AMBIGUOUS if owners else PERSON


def _reasons(call: OpenCall) -> dict[str, str]:
    """Returns what is not known to be a call's, with the reasons. Of one that was perhaps never
    made only that is its which a process of its agent was seen to write."""
    foreign = dict(call.foreign)
    if call.may_be_refused:
        foreign |= {path: AMBIGUOUS for path in call.own - call.written if path not in foreign}
    return {printable(path): reason for path, reason in sorted(foreign.items())}

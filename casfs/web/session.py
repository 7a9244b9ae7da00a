"""The session of an outside agent as a conversation: prompts, answers, and the calls between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from typing import Any, TypeAlias

from starlette.responses import Response

from casfs.backend.protocols import HeadName
from casfs.checkpoints import revisions
from casfs.errors import CasfsError, NotFound
from casfs.review import comments
from casfs.sessions import points, session_steps
from casfs.sessions.session_steps import StepRecord
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.summary import detail_payload
from casfs.threads.threads import StepNode, Thread
from casfs.transcripts import resume
from casfs.trees import recorded_state
from casfs.trees.diff import unified_diff
from casfs.trees.recorded_state import RecordedState
from casfs.web import patch, private_files, session_calls, texts
from casfs.web.patch import FilePatch
from casfs.web.session_calls import CallView
from casfs.web.site import Call
from casfs.web.texts import Text
from casfs.web.thread_table import Row, ThreadTable, row_of

WINDOW = 20  # prompts
MAX_WINDOW = 100
# That the page itself has, of the newest prompts; those of others are fetched when it is unfolded.
MAX_CALLS = 40
MAX_LINES = 800  # of the diffs of edits, which stand open until then
STEP_CALLS = 200  # of a prompt, at once
STEP_LINES = 5000
NO_CALLS = slice(0)


@dataclass(frozen=True)
class Said:
    """What the model said without a call, in the middle of its work; or the message of a review
    that it heard there, of the `round`."""

    text: Text
    at_ms: int
    round: int | None = None


Act: TypeAlias = CallView | Said


@dataclass(frozen=True)
class Changes:
    """What a prompt changed. `repositories`: what became of git repositories, in words."""

    files: Sequence[FilePatch] = ()
    repositories: Sequence[str] = ()
    private: Sequence[bytes] = ()

    @property
    def added(self) -> int:
        return sum(file.added for file in self.files)

    @property
    def removed(self) -> int:
        return sum(file.removed for file in self.files)


@dataclass(frozen=True)
class Exchange:
    """A prompt and its answer, None while the agent works on it. `acts`: calls, of `call_count` in
    all, and what was said between them; None where they are fetched when they are unfolded;
    `children`: threads of subagents."""

    index: int
    prompt: Text
    asked_ms: int
    changes: Changes
    answer: Text | None = None
    duration_ms: int = 0
    tokens: int = 0
    model: str | None = None
    acts: Sequence[Act] | None = None
    call_count: int = 0
    children: Sequence[Row] = ()
    has_turns: bool = False
    hash: str | None = None

    @property
    def shown_count(self) -> int:
        return sum(isinstance(act, CallView) for act in self.acts or ())


@dataclass(frozen=True)
class Page:
    """`exchanges`: a window of them, from number `first` on, of `total` with the pending one;
    `command`: goes on with the session; None for one from elsewhere, or of a subagent."""

    row: Row
    title: str
    about: Mapping[str, str]
    command: str | None
    exchanges: Sequence[Exchange]
    first: int
    total: int
    fork: Mapping[str, Any] | None
    has_parent: bool

    @property
    def last(self) -> int:
        return self.first + len(self.exchanges) - 1


def is_recorded(store: Store, thread: Thread) -> bool:
    """Whether a thread is a session of an outside agent, or of a subagent of one."""
    return thread.fault is None and "session" in threads.start(store, thread).payload


def show(call: Call, thread: Thread) -> Response:
    count = min(max(call.index("count", WINDOW), 1), MAX_WINDOW)
    part = NO_CALLS if call.query.get("fragment") == "about" else None
    model = page(
        call.store,
        call.site.threads,
        thread,
        first=call.index("from") or None,
        count=count,
        part=part,
    )
    return call.page("session.html", page=model, row=model.row, count=count)


def show_step(call: Call, thread: Thread, index: int) -> Response:
    """One prompt with its calls, from the index `first` on; `call`: only that one, unfolded."""
    store = call.store
    number = call.index("call")
    first = number - 1 if number else call.index("first")
    part = slice(first, first + (1 if number else STEP_CALLS))
    if call.query.get("fragment") == "changes":
        part = NO_CALLS
    model = page(
        store,
        call.site.threads,
        thread,
        first=index,
        count=1,
        part=part,
        is_unfolded=number > 0,
    )
    if index != model.first or not model.exchanges:
        raise NotFound(f"session {thread.id} has no prompt {index}; it has {model.total}")
    (exchange,) = model.exchanges
    if number > exchange.call_count:
        raise NotFound(f"prompt {index} has no call {number}; it has {exchange.call_count}")
    return call.page(
        "session_step.html",
        etag=exchange.hash,
        page=model,
        row=model.row,
        one=exchange,
        number=number,
        first=first,
        size=STEP_CALLS,
    )


def page(
    store: Store,
    table: ThreadTable,
    thread: Thread,
    first: int | None,
    count: int,
    part: slice | None = None,
    *,
    is_unfolded: bool = False,
) -> Page:
    """Returns a window of a session. `first`: number of the first prompt, None: the newest ones;
    `part`: of the calls of each; None: the newest ones of the newest prompts. Raises NotFound,
    Corrupt."""
    row = row_of(thread.name, thread.head)
    done = threads.length(store, thread)
    pending = thread.pending if sessions.is_session(thread) else None
    total = done + (pending is not None)
    first = max(total - count + 1, 1) if first is None else min(first, max(total, 1))
    last = min(first + count - 1, total)
    nodes = threads.steps_between(store, thread, first=first, last=min(last, done))
    reader = _Reader(store, thread, table.children(thread.id), part=part, is_unfolded=is_unfolded)
    # From the newest on: that is what a person looks for, and what the calls are shown of.
    newest_first = [reader.pending()] if last > done else []
    newest_first += [reader.exchange(node) for node in reversed(nodes)]
    about = sessions.about(store, thread)
    is_here = sessions.is_session(thread) and "origin" not in thread.fields
    return Page(
        row,
        table.title(row),
        about,
        command=resume.command(about["agent"], about["id"]) if is_here else None,
        exchanges=newest_first[::-1],
        first=first,
        total=total,
        fork=thread.fields.get("fork"),
        has_parent=bool(row.parent and store.heads.get(HeadName(f"{threads.HEADS}{row.parent}"))),
    )


class _Reader:
    """Reads the exchanges of a page, newest first, while there is room for their calls."""

    def __init__(
        self,
        store: Store,
        thread: Thread,
        children: Sequence[Row],
        part: slice | None,
        is_unfolded: bool,
    ) -> None:
        self._store = store
        self._thread = thread
        self._children = children
        self._part = part
        self._is_unfolded = is_unfolded
        self._review = comments.load(store, thread.id)
        self._calls_left = MAX_CALLS
        self._lines_left = MAX_LINES if part is None else STEP_LINES

    def exchange(self, node: StepNode) -> Exchange:
        step = node.payload
        ends = set(step["childThreads"])
        session = detail_payload(self._store, step["detail"])
        record = None
        if session.get("turns") and self._has_room():
            record = session_steps.of_node(self._store, node, self._calls())
        return Exchange(
            step["index"],
            prompt=texts.content(self._store, step["prompt"]["text"]),
            asked_ms=step["startedAt"],
            answer=texts.content(self._store, step["content"]),
            duration_ms=step["completedAt"] - step["startedAt"],
            tokens=session.get("totalTokens", 0),
            model=session.get("model"),
            changes=self._changes(node),
            acts=self._acts(record, step["content"], step["completedAt"]) if record else None,
            call_count=record.call_count if record else 0,
            children=[child for child in self._children if child.head in ends],
            has_turns=bool(session.get("turns")),
            hash=node.hash,
        )

    def pending(self) -> Exchange:
        record = session_steps.pending_step(self._store, self._thread, self._calls())
        assert record is not None
        return Exchange(
            record.index,
            prompt=texts.bounded(record.prompt),
            asked_ms=record.reported_ms,
            acts=self._acts(record),
            call_count=record.call_count,
            changes=self._so_far(record),
        )

    def _so_far(self, record: StepRecord) -> Changes:
        states = [call.after for call in record.calls if call.after is not None]
        changes = None
        with suppress(CasfsError):  # one is damaged
            changes = _changes(self._store, record.before, states[-1] if states else None)
        return changes or Changes()

    def _has_room(self) -> bool:
        return self._part is not None or self._calls_left > 0

    def _calls(self) -> slice:
        return slice(-self._calls_left, None) if self._part is None else self._part

    def _acts(
        self, record: StepRecord, answer: str | None = None, ended_ms: float = inf
    ) -> list[Act]:
        """Returns the calls, and what was said between them but for the answer."""
        about = sessions.about(self._store, self._thread)
        views: list[CallView] = []
        for view in session_calls.of_step(self._store, record, about, self._is_unfolded):
            self._lines_left -= view.line_count
            views.append(view if self._lines_left >= 0 else view.folded)
        self._calls_left -= len(views)
        begin = record.calls[0].began_ms if record.calls else 0
        spoken = []
        for hash in record.texts:
            turn = self._store.node(hash, "react-turn").payload
            if turn["output"] != answer and turn.get("reportedAt", 0) >= begin:
                said = texts.content(self._store, turn["output"])
                spoken.append(Said(said, turn.get("reportedAt", 0)))
        for number, sent in enumerate(self._review.rounds, 1):
            is_between = max(begin, record.reported_ms) <= sent.offered_at <= ended_ms
            if sent.way == comments.HOOK and sent.state == comments.HEARD and is_between:
                message = texts.content(self._store, sent.message)
                spoken.append(Said(message, sent.offered_at, number))
        return sorted([*views, *spoken], key=lambda act: act.at_ms)

    def _changes(self, node: StepNode) -> Changes:
        store = self._store
        prompt = node.payload["prompt"]
        changes = None
        with suppress(CasfsError):  # its trees are not kept any more
            if "turn" in prompt:  # a subagent's has no trees
                before = recorded_state.of_turn(store.whole, prompt["turn"])
                after = revisions.state_of_node(store.whole, node.hash)
                changes = _changes(store, before, after)
        if changes is None:
            changes = Changes(patch.stored(store, node.payload["changes"]))
        return replace(changes, private=private_files.names(store, node))


def _changes(
    store: Store, before: RecordedState | None, after: RecordedState | None
) -> Changes | None:
    """Returns what differs between two states. Raises NotFound, Corrupt."""
    if before is None or after is None:
        return None
    key = f"changes of a session {before.full} {after.full}"
    known: Changes | None = store.cache.get(key)
    if known is None:
        generation = store.cache.generation
        # Not the stored patch of a step, which has also what a person did before the prompt.
        files = patch.parse(unified_diff.patch(store, before.tree, after.tree))
        _, repositories = points.changed(store.whole, before.full, after.full)
        known = Changes(files, repositories)
        size = sum(len(file.lines) for file in files) + len(repositories) + 1
        store.cache.put(key, known, size, generation)
    return known

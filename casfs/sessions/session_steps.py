"""The prompts and tool calls of a session, each with the directory before and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from casfs.checkpoints import revisions
from casfs.digest import NodeHash
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.system import foreign_json
from casfs.threads import threads
from casfs.threads.summary import content_text
from casfs.threads.threads import StepNode, Thread
from casfs.trees import recorded_state
from casfs.trees.recorded_state import RecordedState

ALL = slice(None)
IN_PROGRESS = "in_progress"
INTERRUPTED = "interrupted"
NOT_KEPT = "its trees are not kept any more (attach.max_turn_trees)"
UNSEEN = "the daemon was not there when the call began"
MAX_POINT_CHARS = 20
ANOTHER_CALL = "another call"  # of the same session, which ran at the same time
AMBIGUOUS = "ambiguous"  # of a change: a call or a person may have made it


@dataclass(frozen=True)
class CallRecord:
    """`number`: in its step, from 1; `before`, `after`: the directory, None where it was not looked
    at; `foreign`: printable paths that changed meanwhile and are not known to be its changes, with
    the reason; `paths`: that an edit tool names, relative to the directory, None for any;
    `is_unseen`: none of its changes is known to be its, but of these; `is_late`: it had begun when
    the directory before it was looked at; `is_torn`: a git repository never stood still when the
    directory was looked at; `fault`: why its changes are not known; `began_ms`: when it was
    reported to begin, `reported_ms` to end; `members`: the numbers of the calls that it stands for,
    where it is a group (`grouped`); `kind`: what the tool does, as `react-tool-call` has it;
    `turn`: the node that holds it."""

    step: int
    number: int
    id: str
    tool: str
    arguments: str
    status: str
    reported_ms: int
    before: RecordedState | None
    after: RecordedState | None
    foreign: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] | None = None
    is_unseen: bool = False
    is_late: bool = False
    is_torn: bool = False
    fault: str | None = None
    began_ms: int = 0
    members: tuple[int, ...] = ()
    kind: str = "other"
    turn: NodeHash | None = None

    @property
    def numbers(self) -> tuple[int, ...]:
        return self.members or (self.number,)

    @property
    def has_trees(self) -> bool:
        return self.before is not None and self.after is not None

    @property
    def is_running(self) -> bool:
        """Whether it may change files and is not known to be over."""
        return self.before is not None and self.after is None and self.status == IN_PROGRESS

    def overlaps(self, other: CallRecord) -> bool:
        """Whether both ran at the same time."""
        return (
            self.step == other.step
            and self.began_ms < other.reported_ms
            and other.began_ms < self.reported_ms
        )

    @property
    def is_interrupted(self) -> bool:
        """Its end was never reported: it has the directory as it was at the next event."""
        return self.status == INTERRUPTED


@dataclass(frozen=True)
class StepRecord:
    """A prompt and what was done for it. `before`: the directory when it was given; `prompt_id`: as
    the agent's transcript has it; `calls`: all `call_count` of them, or a part, before which the
    directory was `before_calls`; `texts`: turns in which the model only spoke."""

    index: int
    prompt: str
    prompt_id: str | None
    reported_ms: int
    before: RecordedState | None
    calls: tuple[CallRecord, ...]
    call_count: int = 0
    before_calls: RecordedState | None = None
    texts: tuple[NodeHash, ...] = ()


def load(store: Store, thread: Thread) -> list[StepRecord]:
    """Returns the steps of a session, oldest first, with the pending one. Raises NotFound,
    Corrupt."""
    steps = [of_node(store, node) for node in threads.last_steps(store, thread, None)]
    if (pending := pending_step(store, thread)) is not None:
        steps.append(pending)
    return steps


def of_node(store: Store, node: StepNode, part: slice = ALL) -> StepRecord:
    """Returns a recorded step, with a part of its calls. Raises NotFound, Corrupt."""
    step = node.payload
    turns = revisions.turns(store, step["detail"])
    prompt = step["prompt"]
    if "turn" in prompt:
        record = _prompt(store, step["index"], prompt["turn"], prompt.get("id"))
    else:  # of a subagent: nothing was looked at when it was asked
        text = content_text(store, prompt["text"])
        began_ms = step["startedAt"]
        record = StepRecord(step["index"], text, None, reported_ms=began_ms, before=None, calls=())
    return _with_turns(store, record, turns, part)


def pending_step(store: Store, thread: Thread, part: slice = ALL) -> StepRecord | None:
    """Returns the step that the agent works on, with a part of its calls; None where it waits for a
    prompt. Raises NotFound, Corrupt."""
    intent = thread.pending
    if intent is None:
        return None
    fields: Mapping[str, Any] = intent
    open_turns = thread.record["session"]["open"].values()
    turns = [*threads.turns(store, intent), *open_turns]
    record = _prompt(store, intent["index"], fields["prompt"], fields.get("promptId"))
    return _with_turns(store, record, turns, part)


def in_order(store: Store, turns: list[NodeHash]) -> list[NodeHash]:
    """Returns turns by when they were reported last. One of a call that its agent has refused is
    known to be over only when the step is."""
    return sorted(
        turns, key=lambda hash: store.node(hash, "react-turn").payload.get("reportedAt", 0)
    )


def _prompt(store: Store, index: int, prompt: NodeHash, prompt_id: str | None) -> StepRecord:
    turn = store.node(prompt, "react-turn").payload
    text = content_text(store, turn["input"])
    before = recorded_state.of_turn(store, prompt)
    reported_ms = turn.get("reportedAt", 0)
    return StepRecord(index, text, prompt_id, reported_ms=reported_ms, before=before, calls=())


def _with_turns(
    store: Store, step: StepRecord, turns: Sequence[NodeHash], part: slice
) -> StepRecord:
    # An answer without a call is a turn, too.
    has_call = {hash: bool(store.node(hash, "react-turn").payload["toolCalls"]) for hash in turns}
    with_call = [hash for hash in turns if has_call[hash]]
    numbered = list(enumerate(with_call, 1))[part]
    begin = numbered[0][0] - 1 if numbered else 0
    return replace(
        step,
        before_calls=_last_state(store, with_call[:begin]) or step.before,
        calls=tuple(_call(store, step.index, number, hash) for number, hash in numbered),
        call_count=len(with_call),
        texts=tuple(hash for hash in turns if not has_call[hash]),
    )


def _reasons(text: str) -> dict[str, str]:
    """Returns what a call lists of foreign paths; nothing of a list in another form, as a session
    from elsewhere may have."""
    try:
        reasons = foreign_json.parse(text)
    except ValueError:
        return {}
    named = reasons.items() if isinstance(reasons, dict) else ()
    return {path: reason for path, reason in named if isinstance(reason, str)}


def _last_state(store: Store, turns: Sequence[NodeHash]) -> RecordedState | None:
    """Returns the directory as it was recorded last in some turns."""
    for hash in reversed(turns):
        # Where it is kept, a turn of which nothing was looked at has none.
        if "workspace" in store.node(hash, "react-turn").payload:
            return recorded_state.of_turn(store, hash)
    return None


def _call(store: Store, step: int, number: int, hash: NodeHash) -> CallRecord:
    turn = store.node(hash, "react-turn").payload
    call = store.node(turn["toolCalls"][0], "react-tool-call").payload
    after = recorded_state.of_turn(store, hash)
    before = None
    began_ms = turn.get("reportedAt", 0)
    is_begun_late = is_begun_torn = False
    fault = turn.get("fault")
    if (begun := turn.get("begun")) is not None:
        before = recorded_state.of_turn(store, begun)
        begun_turn = store.node(begun, "react-turn").payload
        began_ms = begun_turn.get("reportedAt", 0)
        is_begun_late = "isLate" in begun_turn
        is_begun_torn = "isTorn" in begun_turn
        fault = begun_turn.get("fault", fault)
    elif not call.get("isUnseen", False):
        # Its end was never reported: it runs, or its agent has refused it. What a turn has without
        # the beginning of its call (`isUnseen`) is the directory after it.
        before, after = after, None
    elif fault is None:
        fault = UNSEEN
    if not revisions.have_trees(store, [hash]):
        fault = NOT_KEPT
    foreign = {}
    if (listed := call.get("foreign")) is not None:
        foreign = _reasons(content_text(store, listed))
    paths = None
    if call.get("kind") == "edit":
        paths = tuple(location["path"] for location in call.get("locations", ()))
    return CallRecord(
        step,
        number,
        turn.get("callId", ""),
        call["name"],
        content_text(store, call["arguments"]),
        call["status"],
        turn.get("reportedAt", 0),
        before,
        after,
        foreign=foreign,
        paths=paths,
        is_unseen=call.get("isUnseen", False),
        is_late="isLate" in turn or is_begun_late,
        is_torn="isTorn" in turn or is_begun_torn,
        began_ms=began_ms,
        fault=fault,
        kind=call.get("kind", "other"),
        turn=hash,
    )


@dataclass(frozen=True)
class Point:
    """A place in a session, before the prompt of a step, or before one of its calls."""

    step: int
    call: int | None = None

    def __str__(self) -> str:
        return str(self.step) if self.call is None else f"{self.step}.{self.call}"

    @classmethod
    def parse(cls, text: str) -> Point:
        """Raises NotFound."""
        step, dot, call = text.partition(".")
        is_point = step.isdecimal() and (call.isdecimal() or not dot)
        if not is_point or len(text) > MAX_POINT_CHARS:
            raise NotFound(f"{text!r} is neither a prompt (3) nor a call (3.2)")
        return cls(int(step), int(call) if dot else None)


def calls_from(steps: list[StepRecord], point: Point, *, is_only: bool = False) -> list[CallRecord]:
    """Returns the calls that come at a point or after it, newest first; `is_only`: those of the
    point alone. Raises NotFound."""
    step = find_step(steps, point.step)
    if point.call is not None and not 1 <= point.call <= len(step.calls):
        raise NotFound(f"prompt {point.step} has no call {point.call}; it has {len(step.calls)}")
    first = (point.step, point.call or 0)
    every = [call for step in steps for call in step.calls][::-1]
    groups = grouped(every)
    if is_only:
        own = [group for group in groups if group.step == point.step]
        return [group for group in own if point.call is None or point.call in group.numbers]
    # A group is taken back together, though the point is in the middle of it.
    return [group for group in groups if (group.step, max(group.numbers)) >= first]


def grouped(calls: Sequence[CallRecord]) -> list[CallRecord]:
    """Returns the calls, given newest first, with those that ran at the same time as one: what two
    of them have written cannot be told apart by whole states. A group has the number of its first
    call; what another call of it has changed is its own."""
    groups: list[list[CallRecord]] = []
    for call in calls:
        # Newest first by their ends, so a group grows to older ones.
        is_at_once = groups and call.has_trees and groups[-1][0].has_trees
        if is_at_once and any(call.overlaps(member) for member in groups[-1]):
            groups[-1].append(call)
        else:
            groups.append([call])
    return [group[0] if len(group) == 1 else _as_one(group) for group in groups]


def _as_one(group: Sequence[CallRecord]) -> CallRecord:
    first = min(group, key=lambda call: (call.began_ms, call.number))
    last = max(group, key=lambda call: (call.reported_ms, call.number))
    foreign: dict[str, str] = {}
    for call in group:
        for path, reason in call.foreign.items():
            if reason != ANOTHER_CALL:
                foreign[path] = reason
    naming = [call.paths for call in group if call.paths is not None]
    return replace(
        first,
        after=last.after,
        reported_ms=last.reported_ms,
        foreign=foreign,
        paths=tuple(path for paths in naming for path in paths),
        is_unseen=any(call.is_unseen for call in group),
        is_late=any(call.is_late for call in group),
        is_torn=any(call.is_torn for call in group),
        fault=next((call.fault for call in group if call.fault is not None), None),
        members=tuple(sorted(call.number for call in group)),
    )


def find_step(steps: list[StepRecord], index: int) -> StepRecord:
    """Raises NotFound."""
    for step in steps:
        if step.index == index:
            return step
    raise NotFound(f"the session has no prompt {index}; it has {len(steps)}")


def state_at(steps: list[StepRecord], point: Point) -> RecordedState:
    """Returns the directory as it was at a point. Raises NotFound."""
    step = find_step(steps, point.step)
    state = step.before
    if point.call is not None:
        earliest = calls_from(steps, point)[-1]
        state = earliest.before
        if state is None and earliest.fault is not None and step.before is not None:
            raise NotFound(
                f"the directory before {point} is not known: {earliest.fault}; that before prompt"
                f" {point.step} is"
            )
    if state is None:
        raise NotFound(f"the directory was not recorded at {point}")
    return state


def newest_state(steps: list[StepRecord]) -> RecordedState | None:
    """Returns the directory as it was recorded last."""
    for step in reversed(steps):
        for call in reversed(step.calls):
            if (state := call.after or call.before) is not None:
                return state
        if step.before is not None:
            return step.before
    return None

"""The prompts and tool calls of a session, each with the directory before and after it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from casfs.checkpoints import revisions
from casfs.digest import NodeHash
from casfs.errors import NotFound
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.summary import content_text
from casfs.threads.threads import Thread
from casfs.trees import recorded_state
from casfs.trees.recorded_state import RecordedState


@dataclass(frozen=True)
class CallRecord:
    """`number`: in its step, from 1; `before`, `after`: the directory, None where it was not looked
    at; `foreign`: printable paths that changed meanwhile and are not known to be its changes, with
    the reason; `paths`: that an edit tool names, relative to the directory, None for any;
    `is_unseen`: none of its changes is known to be its, but of these; `is_late`: it had begun when
    the directory before it was looked at; `is_lost`: its trees are not kept any more."""

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
    is_lost: bool = False


@dataclass(frozen=True)
class StepRecord:
    """A prompt and what was done for it. `before`: the directory when it was given; `prompt_id`: as
    the agent's transcript has it."""

    index: int
    prompt: str
    prompt_id: str | None
    reported_ms: int
    before: RecordedState | None
    calls: tuple[CallRecord, ...]


def load(store: Store, thread: Thread) -> list[StepRecord]:
    """Returns the steps of a session, oldest first, with the pending one. Raises NotFound,
    Corrupt."""
    steps = []
    for node in threads.last_steps(store, thread, None):
        step = node.payload
        turns = revisions.turns(store, step["detail"])
        prompt = step["prompt"]
        steps.append(_step(store, step["index"], prompt["turn"], prompt.get("id"), turns))
    if (intent := thread.pending) is not None:
        fields: Mapping[str, Any] = intent
        open_turns = thread.record["session"]["open"].values()
        turns = [*threads.turns(store, intent), *open_turns]
        prompt_id = fields.get("promptId")
        steps.append(_step(store, intent["index"], fields["prompt"], prompt_id, turns))
    return steps


def in_order(store: Store, turns: list[NodeHash]) -> list[NodeHash]:
    """Returns turns by when they were reported last. One of a call that its agent has refused is
    known to be over only when the step is."""
    return sorted(
        turns, key=lambda hash: store.node(hash, "react-turn").payload.get("reportedAt", 0)
    )


def _step(
    store: Store, index: int, prompt: NodeHash, prompt_id: str | None, turns: list[NodeHash]
) -> StepRecord:
    turn = store.node(prompt, "react-turn").payload
    text = content_text(store, turn["input"])
    before = recorded_state.of_turn(store, prompt)
    calls = _calls(store, index, turns)
    return StepRecord(index, text, prompt_id, turn.get("reportedAt", 0), before, calls)


def _calls(store: Store, step: int, turns: list[NodeHash]) -> tuple[CallRecord, ...]:
    # An answer without a call is a turn, too.
    with_call = [hash for hash in turns if store.node(hash, "react-turn").payload["toolCalls"]]
    return tuple(_call(store, step, number, hash) for number, hash in enumerate(with_call, 1))


def _call(store: Store, step: int, number: int, hash: NodeHash) -> CallRecord:
    turn = store.node(hash, "react-turn").payload
    call = store.node(turn["toolCalls"][0], "react-tool-call").payload
    after = recorded_state.of_turn(store, hash)
    before = None
    if (begun := turn.get("begun")) is not None:
        before = recorded_state.of_turn(store, begun)
    elif not call.get("isUnseen", False):
        # Its end was never reported: it runs, or its agent has refused it. What a turn has without
        # the beginning of its call (`isUnseen`) is the directory after it.
        before, after = after, None
    foreign = {}
    if (listed := call.get("foreign")) is not None:
        foreign = json.loads(content_text(store, listed))
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
        is_late=turn.get("isLate", False),
        is_lost=not revisions.have_trees(store, [hash]),
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
        if not step.isdecimal() or (dot and not call.isdecimal()):
            raise NotFound(f"{text!r} is neither a prompt (3) nor a call (3.2)")
        return cls(int(step), int(call) if dot else None)


def calls_from(steps: list[StepRecord], point: Point) -> list[CallRecord]:
    """Returns the calls that come at a point or after it, newest first. Raises NotFound."""
    step = find_step(steps, point.step)
    if point.call is not None and not 1 <= point.call <= len(step.calls):
        raise NotFound(f"prompt {point.step} has no call {point.call}; it has {len(step.calls)}")
    first = (point.step, point.call or 0)
    calls = [call for step in steps for call in step.calls if (call.step, call.number) >= first]
    return calls[::-1]


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
        if earliest.is_lost:
            raise NotFound(
                f"the directory before {point} is not kept any more (attach.max_turn_trees); that"
                f" before prompt {point.step} is"
            )
    if state is None:
        raise NotFound(f"the directory was not recorded at {point}")
    return state

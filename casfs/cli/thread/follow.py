"""A thread as it goes on: each attempt as it starts, what its program prints, turns, steps."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from casfs.backend.derived import version_of
from casfs.store.store import Store
from casfs.threads import live_output, threads
from casfs.threads.state import state
from casfs.threads.threads import RUNNING, StepNode, Thread

POLL_INTERVAL_S = 0.1  # reading the store's version takes microseconds


@dataclass(frozen=True)
class Started:
    """An attempt began; `fields`: index, role, attempt, since."""

    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Turn:
    """A turn of the attempt; `fields`: index, role, turn, hash."""

    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Tool:
    """A tool call of the attempt runs; `fields`: index, role, tool (id, title, kind, status)."""

    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Output:
    """Some output of the attempt's program; `fields`: index, role."""

    fields: Mapping[str, Any]
    text: str


@dataclass(frozen=True)
class Finished:
    """A step was recorded. `shown`: the output of its program so far, in `Output` events."""

    step: StepNode
    shown: str


@dataclass(frozen=True)
class Suspended:
    """The thread was suspended; what its last attempts left is in its record."""

    thread: Thread


Event = Started | Turn | Tool | Output | Finished | Suspended
KEYS = ("index", "role", "attempt", "since")


class FollowedAttempt:
    """The attempt in flight, as far as it was reported."""

    def __init__(self) -> None:
        self.begin({})

    def begin(self, intent: Mapping[str, Any]) -> None:
        """Nothing of the attempt of this pending step was reported yet."""
        self.run = intent.get("run")
        self.fields = {key: intent[key] for key in KEYS if key in intent}
        self.place = {key: intent[key] for key in ("index", "role") if key in intent}
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = self._turns = 0
        self._tools: dict[str, str] = {}  # by id what was reported of those that run

    def live(self, store: Store) -> Iterator[Output | Tool]:
        """Yields what is known before it is in a turn."""
        yield from self.output(store)
        for call in live_output.tools(store.root, self.run).calls:
            line = live_output.tool_line({**call, "status": None})
            if self._tools.get(call["id"]) != line:
                self._tools[call["id"]] = line
                yield Tool({**self.place, "tool": call})

    def output(self, store: Store) -> Iterator[Output]:
        while data := live_output.read(store.root, self.run, self._offset):
            self._offset += len(data)
            if text := self._decoder.decode(data):
                self.shown += text
                yield Output(self.place, text)

    def turns(self, store: Store, intent: Mapping[str, Any]) -> Iterator[Turn]:
        count = intent.get("turnCount", 0)
        turn_hashes = intent.get("turns", [])
        if count - len(turn_hashes) > self._turns:
            turn_hashes = threads.turns(store, intent)
        for number, hash in enumerate(turn_hashes, start=count - len(turn_hashes) + 1):
            if number > self._turns:
                yield Turn({**self.place, "turn": number, "hash": hash})
        self._turns = max(self._turns, count)


def follow(
    store: Store,
    thread: Thread,
    last: int | None = None,
    after: int = 0,
    over: Callable[[Thread], bool] = lambda thread: thread.status != RUNNING,
    attempt: FollowedAttempt | None = None,
) -> Iterator[Event]:
    """Yields what happens to a thread, first the `last` steps (all for None) with an index above
    `after`. Returns when `over`, which is asked before the thread is read for the last time.
    `attempt`: of an earlier call, after which the thread went on."""
    version_now = version_of(store.backend)
    attempt = attempt or FollowedAttempt()
    while True:
        version = version_now()
        ending = over(thread)
        thread = threads.get(store, thread.id)
        for node in threads.last_steps(store, thread, count=last, after=after):
            after = node.payload["index"]
            same = attempt.place.get("index") == after
            yield Finished(node, attempt.shown if same else "")
        last = None
        intent: Mapping[str, Any] = thread.pending or {}
        if intent.get("run") != attempt.run:
            attempt.begin(intent)
            if intent and state(thread) == RUNNING:
                yield Started(attempt.fields)
        yield from attempt.live(store)
        yield from attempt.turns(store, intent)
        if ending:
            if thread.status == threads.SUSPENDED:
                yield Suspended(thread)
            return
        while version_now() == version and not over(thread):
            yield from attempt.live(store)
            time.sleep(POLL_INTERVAL_S)

"""What a model is told of the past of a thread: the newest summary, and all after it.

A step may carry a `compact`, which stands for all steps before it (seed 000). So a context is
found by walking back from the head to the newest step that has one: the summary, that step and
what came after. A summary that was made since the last step stands for all of them; the thread's
record holds it until the next step can carry it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from casfs import threads
from casfs.nodes.node import Node
from casfs.store import Store
from casfs.threads import RUNNING, SUSPENDED, Thread
from engine.prompt import Turn

BYTES_A_TOKEN = 4  # roughly; what a server counts is known only afterwards


@dataclass(frozen=True)
class Recall:
    summary: str | None = None
    turns: Sequence[Turn] = field(default_factory=tuple)

    def tokens(self) -> int:
        """An estimate of what it takes in a model's context."""
        size = len(self.summary or "")
        size += sum(len(turn.output) + len(str(turn.meta)) for turn in self.turns)
        return size // BYTES_A_TOKEN

    def then(self, turn: Turn, compact: str | None) -> Recall:
        """After one more step, whose own `compact` is this text, if it has one."""
        if compact is not None:
            return Recall(compact, (turn,))
        return Recall(self.summary, (*self.turns, turn))


class Past:
    """All that has happened in a thread, kept while it runs. `steps`: the payloads, for the
    moderator; `recall`: what models are told; `last`: the newest step."""

    def __init__(self, store: Store, thread: Thread, start: Mapping[str, Any]) -> None:
        nodes = list(threads.backwards(store, thread))[::-1]
        self._store = store
        self._start = start
        self.steps: list[Mapping[str, Any]] = [node.payload for node in nodes]
        self.recall = recall(store, thread)
        self.last: Node | None = nodes[-1] if nodes else None

    @property
    def tree(self) -> str | None:
        """The tree that the next step starts from."""
        found: str | None = (self.steps[-1] if self.steps else self._start)["workspace"]
        return found

    def add(self, thread: Thread, step: Mapping[str, Any], output: str) -> None:
        """After `thread` got one more step. Once it is over there is none after that."""
        over = thread.status not in (RUNNING, SUSPENDED)
        self.last = None if over else self._store.node(thread.hash, "thread-step")
        self.steps.append(step)
        said = Turn(step["index"], step["role"], output, step["meta"])
        compact = step["compact"]
        self.recall = self.recall.then(said, compact and text(self._store, compact))


def recall(store: Store, thread: Thread) -> Recall:
    """Raises NotFound, Corrupt."""
    pending = thread.record.get("compact")
    if pending is not None:
        return Recall(text(store, pending))
    turns: list[Turn] = []
    summary = None
    for node in threads.backwards(store, thread):
        turns.append(turn(store, node.payload))
        if node.payload["compact"] is not None:
            summary = text(store, node.payload["compact"])
            break
    return Recall(summary, tuple(turns[::-1]))


def turn(store: Store, step: Mapping[str, Any]) -> Turn:
    return Turn(step["index"], step["role"], text(store, step["content"]), step["meta"])


def text(store: Store, content: str) -> str:
    found: str = store.node(content, "content").payload["text"]
    return found

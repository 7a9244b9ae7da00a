"""What a model is told of the past of a thread: the newest summary, and all after it.

A step may carry a `compact`, which stands for all steps before it (seed 000). So a context is
found by walking back from the head to the newest step that has one: the summary, that step and
what came after. A summary that was made since the last step stands for all of them; the thread's
record holds it until the next step can carry it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from casfs import threads
from casfs.agents.prompt import EarlierStep
from casfs.nodes.node import Node
from casfs.store import Store
from casfs.threads import Thread
from engine.content import text

CHARS_PER_TOKEN = 4  # roughly; what a server counts is known only afterwards


class EarlierSteps(Sequence[EarlierStep]):
    """Turns, the oldest first. What comes `then` shares them, so a step of a long thread costs
    no more than one of a short thread."""

    def __init__(self, turns: list[EarlierStep]) -> None:
        """`turns` is taken over."""
        self._turns, self._count = turns, len(turns)

    def then(self, turn: EarlierStep) -> EarlierSteps:
        """These and one more."""
        shared = self._turns if len(self._turns) == self._count else list(self)
        shared.append(turn)
        return EarlierSteps(shared)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> EarlierStep: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[EarlierStep]: ...
    def __getitem__(self, place: int | slice) -> EarlierStep | Sequence[EarlierStep]:
        if isinstance(place, slice):
            return [self._turns[index] for index in range(*place.indices(self._count))]
        return self._turns[range(self._count)[place]]


@dataclass(frozen=True)
class PromptHistory:
    summary: str | None = None
    turns: EarlierSteps = field(default_factory=lambda: EarlierSteps([]))

    def tokens(self) -> int:
        """An estimate of what it takes in a model's context."""
        size = len(self.summary or "")
        size += sum(len(turn.output) + len(str(turn.meta)) for turn in self.turns)
        return size // CHARS_PER_TOKEN

    def then(self, turn: EarlierStep, compact: str | None) -> PromptHistory:
        """After one more step, whose own `compact` is this text, if it has one."""
        if compact is not None:
            return PromptHistory(compact, EarlierSteps([turn]))
        return PromptHistory(self.summary, self.turns.then(turn))


class ThreadHistory:
    """All that has happened in a thread, kept while it runs. `steps`: the payloads, for the
    moderator; `hashes`: their nodes; `prompt_history`: what models are told."""

    def __init__(self, store: Store, thread: Thread, start: Mapping[str, Any]) -> None:
        nodes = list(threads.backwards(store, thread))[::-1]
        self._store = store
        self._start = start
        self.steps: list[Mapping[str, Any]] = [node.payload for node in nodes]
        self.recall = prompt_history(store, thread, nodes[::-1])
        self.hashes = [node.hash for node in nodes]

    @property
    def tree(self) -> str | None:
        """The tree that the next step starts from."""
        found: str | None = (self.steps[-1] if self.steps else self._start)["workspace"]
        return found

    def add(self, hash: str, step: Mapping[str, Any], output: str) -> None:
        """After the thread got one more step, or ended with it: then `hash` is the end's."""
        self.hashes.append(hash)
        self.steps.append(step)
        said = EarlierStep(step["index"], step["role"], output, step["meta"])
        compact = step["compact"]
        self.recall = self.recall.then(said, compact and text(self._store, compact))


def prompt_history(
    store: Store, thread: Thread, newest_first: Iterable[Node] | None = None
) -> PromptHistory:
    """`newest_first`: its steps, where they have been read. Raises NotFound, Corrupt."""
    pending = thread.record.get("compact")
    if pending is not None:
        return PromptHistory(text(store, pending))
    turns: list[EarlierStep] = []
    summary = None
    for node in threads.backwards(store, thread) if newest_first is None else newest_first:
        turns.append(earlier_step(store, node.payload))
        if node.payload["compact"] is not None:
            summary = text(store, node.payload["compact"])
            break
    return PromptHistory(summary, EarlierSteps(turns[::-1]))


def earlier_step(store: Store, step: Mapping[str, Any]) -> EarlierStep:
    return EarlierStep(step["index"], step["role"], text(store, step["content"]), step["meta"])

"""The history of a thread as prompts show it: the newest summary, and all steps after it.

A step may carry a `compact`, a summary that stands for all steps before it (seed 000). So the
history is found by walking back from the head to the newest step that has one: the summary, that
step and all later ones. A summary made since the last step stands for all of them; the thread's
record holds it until the next step can carry it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from casfs.agents.prompt import EarlierStep
from casfs.checkpoints import revisions
from casfs.digest import NodeHash
from casfs.store.store import Store
from casfs.threads import prompts, threads
from casfs.threads.threads import StepNode, Thread
from casfs.trees.recorded_state import RecordedState

CHARS_PER_TOKEN = 4  # an estimate; the server's count is known only afterwards


class EarlierSteps(Sequence[EarlierStep]):
    """An immutable list of steps, oldest first. `then` shares the list, so a step of a long
    thread costs no more than one of a short thread."""

    def __init__(self, steps: list[EarlierStep]) -> None:
        """Takes ownership of `steps`."""
        self._steps = steps
        self._count = len(steps)

    def then(self, step: EarlierStep) -> EarlierSteps:
        """Returns the steps with one more."""
        shared = self._steps if len(self._steps) == self._count else list(self)
        shared.append(step)
        return EarlierSteps(shared)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, key: int) -> EarlierStep: ...
    @overload
    def __getitem__(self, key: slice) -> Sequence[EarlierStep]: ...
    def __getitem__(self, key: int | slice) -> EarlierStep | Sequence[EarlierStep]:
        if isinstance(key, slice):
            return [self._steps[index] for index in range(*key.indices(self._count))]
        return self._steps[range(self._count)[key]]


@dataclass(frozen=True)
class PromptHistory:
    """`summary`: of all steps before `steps`, if there is one."""

    summary: str | None = None
    steps: EarlierSteps = field(default_factory=lambda: EarlierSteps([]))

    def tokens(self) -> int:
        """Estimates its size in a model's context."""
        size = len(self.summary or "")
        size += sum(len(step.output) + len(str(step.meta)) for step in self.steps)
        return size // CHARS_PER_TOKEN

    def then(self, step: EarlierStep, summary: str | None) -> PromptHistory:
        """Returns the history with one more step; `summary`: of all steps before that."""
        if summary is not None:
            return PromptHistory(summary, EarlierSteps([step]))
        return PromptHistory(self.summary, self.steps.then(step))


class ThreadHistory:
    """The steps of a running thread. `steps`: the payloads, for the moderator; `hashes`: of
    their nodes; `prompt_history`: the part that prompts show; `state`: what the next step starts
    from."""

    def __init__(self, store: Store, thread: Thread, start: Mapping[str, Any]) -> None:
        nodes = list(threads.backwards(store, thread))[::-1]
        self.steps: list[Mapping[str, Any]] = [node.payload for node in nodes]
        self._store = store
        last = nodes[-1].hash if nodes else thread.record["start"]
        self.state = revisions.state_if_any(store, last)
        self.prompt_history = prompt_history(store, thread, nodes[::-1])
        self.hashes = [node.hash for node in nodes]

    def add(
        self,
        hash: NodeHash,
        step: Mapping[str, Any],
        state: RecordedState | None,
        output: str,
        summary: str | None,
    ) -> None:
        """Adds a committed step; `hash`: of the thread's newest node, which is the thread-end
        after its last step; `state`: of its directory; `summary`: the text of the step's
        `compact`."""
        self.hashes.append(hash)
        self.steps.append(step)
        self.state = state
        shown = EarlierStep(step["index"], step["role"], output=output, meta=step["meta"])
        self.prompt_history = self.prompt_history.then(shown, summary)


def prompt_history(
    store: Store, thread: Thread, newest_first: Iterable[StepNode] | None = None
) -> PromptHistory:
    """Returns the history that the next prompt shows. `newest_first`: the thread's steps, where
    they are loaded already. Raises NotFound, Corrupt."""
    nodes = threads.backwards(store, thread) if newest_first is None else newest_first
    summary, steps = prompts.history(store, nodes, thread.record.get("compact"))
    return PromptHistory(summary, EarlierSteps(steps))

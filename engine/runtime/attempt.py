"""One try at a step: ask the agent until its output fits, and no longer than is allowed.

What comes of an answer is done at once, in the worker thread that has read it: to go back to the
daemon's loop in between costs more than all the rest of a step without a model. It is done while
the time of the try runs, but never broken off; no checkpoint comes after it.

The meta is what a block of the output says; else what the configured extractor model finds in
it; else the output goes back to the same agent with what is wrong, CORRECTIONS times, and the
agent finds in `context.conversation` what it left there.
A try ends in an answer; in `AgentFailed`, after which the role's policy may allow another; or
in `Waiting` and `BudgetExceeded`, which are no failure. Agents are third-party code: whatever
they raise becomes one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import trio

from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult, Waiting
from casfs.errors import CasfsError, Invalid, NotFound
from casfs.nodes.schema import Schema
from casfs.store import Store
from casfs.threads import Thread
from engine.agents.loader import AGENT_ERRORS
from engine.blocking import blocking
from engine.llm.llm_extractor import Extractor
from engine.output_parser import DanglingRef, extract
from engine.processes import TimedOut
from engine.runtime.step_record import StepResult
from engine.runtime.thread_head import ThreadHead
from engine.threads.record import FAILURE, TIMEOUT, Budget, spent
from engine.threads.transitions import add_failed_attempt

MAX_CORRECTIONS = 2
T = TypeVar("T")


class BudgetExceeded(CasfsError):
    """The thread's budget is spent."""


class AttemptFailed(AgentFailed):
    """A try is over without an answer. `cause`: FAILURE or TIMEOUT."""

    def __init__(self, reason: str, detail: str | None = None, cause: str = FAILURE) -> None:
        super().__init__(reason, detail)
        self.cause = cause


@dataclass(frozen=True)
class RoleAgent:
    """Who plays a role: its agent, and what the meta of a step must fit. `timeout`: seconds
    that a try may take, None for as long as the budget lasts."""

    agent: AgentFn
    schema: Schema
    timeout: float | None
    extractor: Extractor | None = None


class Attempt(Generic[T]):
    """`detail_tokens`: what the details of this try say that it took."""

    def __init__(
        self,
        store: Store,
        hold: ThreadHead,
        player: RoleAgent,
        context: AgentContext,
        budget: Budget,
        then: Callable[[StepResult, int], T],
    ) -> None:
        """`then` gets the answer and the tokens, while the head is held still."""
        self.tokens = 0
        self._then = then
        self._store = store
        self._hold = hold
        self._player = player
        self._context = context
        self._budget = budget

    async def __call__(self) -> T:
        """What `then` made of the answer. Raises TryFailed, Waiting, Spent, and what that does."""
        role, timeout, left = self._context.role, self._player.timeout, self._left()
        limits = [seconds for seconds in (timeout, left) if seconds is not None]
        with trio.move_on_after(min(limits, default=float("inf"))) as scope:
            return await self._answer()
        assert scope.cancelled_caught
        if left is not None and (timeout is None or left <= timeout):
            raise BudgetExceeded(
                self._budget.exceeded(self._spent()) or "budget: no running time is left"
            )
        raise AttemptFailed(f"{role}: took longer than {timeout:g} s", None, TIMEOUT)

    async def _answer(self) -> T:
        context = self._context
        for tries in range(1 + MAX_CORRECTIONS):
            result = await self._ask(context)
            done = await self._hold.still(partial(self._read, result, tries))
            if not isinstance(done, Invalid):
                return done
            fault = str(done)
            dangling = isinstance(done, DanglingRef)
            if not dangling and (answer := await self._by_model(context, result, tries)):
                return await self._hold.still(partial(self._then, answer, self.tokens))
            detail = result.detail.hash
            if tries == MAX_CORRECTIONS:
                break
            await self._hold.move(partial(self._note, detail))
            if out := self._budget.exceeded(self._spent()):
                raise BudgetExceeded(out)
            context = replace(context, prompt=context.prompt.corrected(fault), answer=None)
        raise AttemptFailed(
            f"{context.role}: no usable output after {MAX_CORRECTIONS} corrections: {fault}", detail
        )

    async def _by_model(
        self, context: AgentContext, result: AgentResult, tries: int
    ) -> StepResult | None:
        """What the extractor model makes of an output; its turn becomes an artifact."""
        if self._player.extractor is None:
            return None
        found = await self._player.extractor(context, result.output, self._player.schema)
        if found is None:
            return None
        self.tokens += found.tokens
        if found.extracted is None:
            return None
        result = replace(result, artifacts=(*result.artifacts, found.turn))
        way = "correction" if tries else "model"
        return StepResult(result, found.extracted, way, result.workspace)

    async def _ask(self, context: AgentContext) -> AgentResult:
        try:
            result = await self._player.agent(context)
            if not isinstance(result, AgentResult) or not isinstance(result.output, str):
                raise TypeError(f"{type(result).__name__} is not an AgentResult with a text")
        except AGENT_ERRORS as error:
            if waits := _waiting(error):
                raise waits from error
            said = str(error) if isinstance(error, CasfsError) else repr(error)
            what = context.secrets.redact(said)  # before it is cut to fit a record
            detail = error.detail if isinstance(error, AgentFailed) else None
            self.tokens += await blocking(lambda: detail_tokens(self._store, detail))
            late = isinstance(error, TimedOut) or isinstance(error.__cause__, TimedOut)
            cause = TIMEOUT if late else FAILURE
            raise AttemptFailed(f"{context.role}: {what}", detail, cause) from error
        return replace(result, output=context.secrets.redact(result.output))

    def _read(self, result: AgentResult, tries: int) -> T | Invalid:
        """What came of an output; what is wrong with it, where it is no answer."""
        self.tokens += detail_tokens(self._store, result.detail.hash)
        try:
            found = extract(result.output, self._player.schema, self._store)
        except Invalid as error:
            return error
        way = "correction" if tries else "block"
        return self._then(StepResult(result, found, way, result.workspace), self.tokens)

    def _note(self, detail: str, thread: Thread) -> Thread:
        return add_failed_attempt(self._store, thread, detail)

    def _spent(self) -> dict[str, int]:
        return spent(self._hold.thread.record, self.tokens)

    def _left(self) -> float | None:
        """Seconds of running time that the budget has left."""
        if self._budget.wall_ms is None:
            return None
        return max(0, self._budget.wall_ms - self._spent()["wallMs"]) / 1000


def detail_tokens(store: Store, detail: str | None) -> int:
    """What an agent's own record says that its work took: an integer `totalTokens`."""
    if detail is None:
        return 0
    try:
        payload = store.node(detail).payload
    except NotFound:  # a blob; what is not there at all the step will be refused for
        return 0
    found = payload.get("totalTokens") if isinstance(payload, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _waiting(error: BaseException) -> Waiting | None:
    """An agent that calls several threads at once raises them in a group."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := _waiting(one))), None)
    return error if isinstance(error, Waiting) else None

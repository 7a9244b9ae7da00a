"""One attempt at a step: ask the agent until its output fits, within the time and the budget.

The meta is extracted by the first method that succeeds: a block of the output; the configured
extractor model; else the output goes back to the same agent with the validation error,
MAX_CORRECTIONS times, and the agent finds its state in `context.conversation`. An attempt ends in
a result; in `AttemptFailed`, after which the role's policy may allow another; or in `Waiting` or
`BudgetExceeded`, neither is a failure. Agents are third-party code: whatever they raise becomes
one of these.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from casfs.agents import AgentContext, AgentFailed, AgentFn, AgentResult, Waiting
from casfs.agents.cancellation import reraise_cancellation
from casfs.agents.messages import describe, find_waiting
from casfs.agents.payload_structure import redact_texts
from casfs.agents.prompt import Prompt
from casfs.errors import CasfsError, Invalid, NotFound
from casfs.store.nodes.schema import Schema
from casfs.store.store import Store
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import RecordedState
from engine.blocking import blocking
from engine.deadlines import standing_still
from engine.output import blocks
from engine.output.parser import DanglingRef, Extracted, extract, is_quick
from engine.processes import containment
from engine.processes.subprocesses import MAX_OUTPUT_BYTES, OutputTooLarge, TimedOut
from engine.runtime.thread_head import PAUSE_S, ThreadHead, unreachable
from engine.threads.record import FAILURE, TIMEOUT, Budget, spent
from engine.threads.transitions import correct

if TYPE_CHECKING:
    from casfs.payloads import Spent
    from engine.llm.llm_extractor import Extractor

MAX_CORRECTIONS = 2
TOKENS = "totalTokens"  # of a detail
MAX_TOKENS = 10**12  # of one attempt


class BudgetExceeded(CasfsError):
    """The thread's budget is spent. `detail`: of a program that was cancelled for that."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.detail = detail


class AttemptFailed(AgentFailed):
    """An attempt ended without a result. `cause`: FAILURE or TIMEOUT; `tokens`: of its detail;
    `is_unreachable`: since a server of the shared store does not answer."""

    is_unreachable = False

    def __init__(
        self, reason: str, detail: str | None = None, cause: str = FAILURE, tokens: int = 0
    ) -> None:
        super().__init__(reason, detail)
        self.cause = cause
        self.tokens = tokens


@dataclass(frozen=True)
class RoleAgent:
    """The agent of a role and the schema of its meta. `timeout`: seconds for an attempt, None
    for the rest of the budget; `limits`: tables of limits, the last has precedence."""

    agent: AgentFn
    schema: Schema
    timeout: float | None
    extractor: Extractor | None = None
    limits: Sequence[Mapping[str, Any]] = ()


@dataclass
class StepResult:
    """An agent's result to `prompt` and the meta extracted from it. `extraction`: by which method;
    `workspace`: the state that the agent left, None for what the directory holds;
    `changes`: the patch to that tree; `cached`: the step's field of that name on a cache hit, else
    None; `tokens`: spent by the attempt before this result; `duration_ms`: of the attempt;
    `containment`: how its processes were held."""

    result: AgentResult
    extracted: Extracted
    prompt: Prompt
    extraction: str
    workspace: RecordedState | None = None
    changes: bytes | None = None
    cached: Mapping[str, Any] | None = None
    tokens: int = 0
    duration_ms: int = 0
    containment: Mapping[str, Any] | None = None


class Attempt:
    """`tokens`: spent by the results that were not usable."""

    def __init__(
        self,
        store: Store,
        head: ThreadHead,
        role_agent: RoleAgent,
        context: AgentContext,
        budget: Budget,
    ) -> None:
        self.tokens = 0
        # What the attempt before left is not this one's.
        head.interrupted = None
        self._store = store
        self._head = head
        self._role_agent = role_agent
        self._ask_person = context.ask
        interrupted = self._note_interrupted
        self._context = replace(context, interrupted=interrupted, ask=self._without_time)
        self._limit: trio.CancelScope | None = None  # of its time
        self._waited_s = 0.0  # for a person
        self._budget = budget

    async def __call__(self) -> StepResult:
        """Raises AttemptFailed, Waiting, BudgetExceeded."""
        role = self._context.role
        timeout = self._role_agent.timeout
        left = self._seconds_left()
        limits = [seconds for seconds in (timeout, left) if seconds is not None]
        limit = min(limits, default=float("inf"))
        begin = time.monotonic()
        with trio.move_on_after(limit) as scope:
            self._limit = scope
            result = await self._contained()
            result.tokens = self.tokens
            result.duration_ms = round((time.monotonic() - begin - self._waited_s) * 1000)
            return result
        assert scope.cancelled_caught
        # Taken from there by who records it, so that it is recorded once.
        detail = self._head.interrupted
        self._head.interrupted = None
        if left is not None and (timeout is None or left <= timeout):
            # None where the clock of the record is a little behind that of the loop.
            reason = self._budget.exceeded(self._spent())
            raise BudgetExceeded(reason or "budget: no running time is left", detail)
        raise AttemptFailed(f"{role}: took longer than {timeout:g} s", detail, TIMEOUT)

    async def _contained(self) -> StepResult:
        try:
            confinement = containment.begin(self._context.run, *self._role_agent.limits)
        except CasfsError as error:
            raise AttemptFailed(f"{self._context.role}: {error}") from None
        try:
            async with self._context.exit_stack as stack:
                # Pushed first, so called last: the agent may first close its processes in order.
                stack.push_async_callback(confinement.close)
                result = await self._until_output_fits()
        except AttemptFailed as why:
            # Known only here: a confinement looks at what was reached when it is closed.
            if reached := confinement.reason():
                why.args = (f"{why}; {reached}",)
            raise
        result.containment = confinement.record()
        return result

    async def _until_output_fits(self) -> StepResult:
        context = self._context
        for corrections in range(1 + MAX_CORRECTIONS):
            result = await self._ask(context)
            if self._head.question is not None:
                await self._head.question.withdraw()
            state = _given_state(result)
            extracted = await self._extract(result.output)
            if isinstance(extracted, Extracted):
                method = "correction" if corrections else "block"
                return StepResult(
                    result, extracted, prompt=context.prompt, extraction=method, workspace=state
                )
            # The form fits, but a hash in it leads to nothing: a model that reads the same text
            # knows no better one, the agent may.
            if not isinstance(extracted, DanglingRef):
                step = await self._extract_by_model(context, result, corrections)
                if step is not None:
                    return step
            fault = str(extracted)
            detail = result.detail.hash
            self.tokens += await blocking(partial(result_tokens, self._store, result))
            if corrections == MAX_CORRECTIONS:
                break
            # Durable before the agent is asked again: a crash must not lose the detail.
            await self._head.move(partial(self._correct, detail, fault))
            if exceeded := self._budget.exceeded(self._spent()):
                raise BudgetExceeded(exceeded)
            context = replace(context, prompt=context.prompt.corrected(fault), answer=None)
        raise AttemptFailed(
            f"{context.role}: no usable output after {MAX_CORRECTIONS} corrections: {fault}", detail
        )

    async def _ask(self, context: AgentContext) -> AgentResult:
        """Calls the agent; returns its result with the output redacted."""
        try:
            result = await self._role_agent.agent(context)
            if not isinstance(result, AgentResult) or not isinstance(result.output, str):
                raise TypeError(f"{type(result).__name__} is not an AgentResult with a text")
            if len(result.output) > MAX_OUTPUT_BYTES:
                raise OutputTooLarge(f"its output has more than {MAX_OUTPUT_BYTES >> 20} MiB")
        except BaseException as error:  # third-party code may raise anything
            reraise_cancellation(error)
            if waiting := find_waiting(error):
                self.tokens += _bounded(waiting.tokens)
                raise waiting from error
            raise await self._failure(context, error) from error
        output = context.secrets.redact(result.output)
        if output == result.output:
            return result
        return replace(result, output=await blocking(partial(self._redacted, result.output)))

    def _redacted(self, output: str) -> str:
        """Redacts an output, but no names and values of the role's schema in its blocks."""
        secrets = self._context.secrets
        return blocks.map_json_blocks(
            output,
            change_text=secrets.redact,
            change_value=lambda meta: redact_texts(
                lambda: self._role_agent.schema.document, meta, secrets.redact_json
            ),
        )

    async def _failure(self, context: AgentContext, error: BaseException) -> AttemptFailed:
        """Returns the failure that an agent's error becomes."""
        message = str(error) if isinstance(error, CasfsError) else describe(error)
        reason = context.secrets.redact(message)  # before it is cut to fit a record
        detail = error.detail if isinstance(error, AgentFailed) else None
        self.tokens += await blocking(partial(detail_tokens, self._store, detail))
        # An agent of a program raises its own failure, with the detail, in place of TimedOut, which
        # is then its cause.
        timed_out = isinstance(error, TimedOut) or isinstance(error.__cause__, TimedOut)
        cause = TIMEOUT if timed_out else FAILURE
        failure = AttemptFailed(f"{context.role}: {reason}", detail, cause)
        # The step is tried again without counting it as a retry, so it waits here.
        if self._head.is_shared and unreachable(error):
            failure.is_unreachable = True
            await trio.sleep(PAUSE_S)
        return failure

    async def _extract(self, output: str) -> Extracted | Invalid:
        """Returns the meta of an output, or the fault."""
        schema = self._role_agent.schema
        try:
            # The way to a worker thread and back takes longer than a small output.
            if is_quick(output, schema):
                return extract(output, schema, self._store)
            return await blocking(partial(extract, output, schema, self._store))
        except Invalid as error:
            return error

    async def _extract_by_model(
        self, context: AgentContext, result: AgentResult, corrections: int
    ) -> StepResult | None:
        """Asks the extractor model for the meta of an output; its turn becomes an artifact."""
        if self._role_agent.extractor is None:
            return None
        schema = self._role_agent.schema
        answer = await self._role_agent.extractor(context, result.output, schema)
        if answer is None:
            return None
        self.tokens += answer.tokens
        if answer.extracted is None:
            return None
        result = replace(result, artifacts=(*result.artifacts, answer.turn))
        method = "correction" if corrections else "model"
        state = _given_state(result)
        return StepResult(
            result, answer.extracted, prompt=context.prompt, extraction=method, workspace=state
        )

    async def _without_time(self, why: Waiting) -> str | None:
        assert self._limit is not None
        begin = time.monotonic()
        try:
            with standing_still(self._limit):
                return await self._ask_person(why)
        finally:
            self._waited_s += time.monotonic() - begin

    def _note_interrupted(self, detail: str) -> None:
        self._head.interrupted = detail

    def _correct(self, detail: str, fault: str, current: Thread) -> Thread:
        return correct(self._store, current, detail=detail, fault=fault)

    def _spent(self) -> Spent:
        return spent(self._head.thread.record, self.tokens)

    def _seconds_left(self) -> float | None:
        """Seconds of running time that the budget has left; None without a limit."""
        if self._budget.wall_ms is None:
            return None
        return max(0, self._budget.wall_ms - self._spent()["wallMs"]) / 1000


def _given_state(result: AgentResult) -> RecordedState | None:
    """Returns the state that an agent gives, as one does that calls other threads."""
    if result.workspace is None:
        return None
    return RecordedState.of_fields(result.workspace, result.recorded)


def detail_tokens(store: Store, detail: str | None) -> int:
    """Returns the integer `totalTokens` of an agent's detail, 0 without one."""
    if detail is None or not _may_have_tokens(store, detail):
        return 0
    try:
        payload = store.node(detail).payload
    except NotFound:  # a blob; a missing detail makes the step fail later
        return 0
    tokens = payload.get(TOKENS) if isinstance(payload, dict) else None
    return _bounded(tokens)


def _may_have_tokens(store: Store, detail: str) -> bool:
    """Returns False where the detail's type says so, which saves reading it."""
    info = store.registry.cached([detail]).get(detail)
    type = None if info is None else info.type
    # The registry has only the types that are cached: the node has to be read.
    if type is None:
        return True
    document = store.registry.compiled(type)[1].document
    is_closed = document.get("additionalProperties") is False
    return not is_closed or TOKENS in document.get("properties", {})


def result_tokens(store: Store, result: AgentResult) -> int:
    """Returns the tokens of an agent's result: of its detail, else its own count."""
    return detail_tokens(store, result.detail.hash) or _bounded(result.tokens)


def _bounded(tokens: object) -> int:
    """Returns a count of third-party code within the bounds of a record, 0 for anything else."""
    # A bool is an int in Python, and no count.
    if not isinstance(tokens, int) or isinstance(tokens, bool):
        return 0
    return min(max(tokens, 0), MAX_TOKENS)

"""The steps of a thread's run, in the order in which things happen:

    begin       what was pending is found again, or the moderator decides the first step
    run         the history is summarised where it is too long; the prompt is built
    attempts    the agent is asked, again as often as the role's policy allows. A role that is
                marked cacheable is looked up in the step cache first (`engine.runtime.step_cache`)
    commit      the moderator decides what follows; the step, the move of the head and the next
                pending step (intent) are one transaction (`engine.runtime.step_commit`)

Each of them may suspend the thread instead. One attempt is `engine.runtime.attempt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from casfs.actions.key import Action
from casfs.actions.miss_reason import explain_miss
from casfs.agents import Waiting
from casfs.agents.prompt import Prompt
from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.system.log import Log
from casfs.threads.threads import RUNNING, SUSPENDED, Thread
from casfs.trees.recorded_state import RecordedState
from engine.blocking import blocking
from engine.moderator import decision as moderator
from engine.moderator.decision import Decision, Next
from engine.runtime import calls, compaction, step_cache
from engine.runtime.agent_context import AgentContextBuilder
from engine.runtime.attempt import Attempt, AttemptFailed, BudgetExceeded, StepResult
from engine.runtime.loaded_thread import LoadedThread
from engine.runtime.step_commit import StepCommitter
from engine.runtime.thread_head import ThreadHead, end_orphans
from engine.runtime.workspace import Workspaces
from engine.threads import call_stack, history, record, suspension, transitions
from engine.threads.record import BUDGET, FAILURE, TIMEOUT, UNKNOWN, spent, step_limit
from engine.threads.suspension import Suspension

if TYPE_CHECKING:
    from casfs.payloads import Intent


class StepRunner:
    """Runs the steps of a loaded thread."""

    def __init__(self, loaded: LoadedThread) -> None:
        self._loaded = loaded
        self._head = loaded.head
        self._store = loaded.store
        self._log = loaded.log
        self._config = loaded.config
        self._history = loaded.history
        self._contexts = AgentContextBuilder(loaded)
        self._committer = StepCommitter(loaded)

    @property
    def _thread(self) -> Thread:
        return self._head.thread

    # -- begin ----------------------------------------------------------------------------

    async def begin(self) -> Intent | None:
        """Commits and returns the first intent: a new attempt at the step that the last run left
        pending, else the moderator's decision. None where the thread does not run."""
        if self._thread.status != RUNNING:
            return None
        pending = self._thread.pending
        # Before anything is decided: a program of a killed daemon may still change the workspace.
        await blocking(partial(end_orphans, self._thread))
        # `begun` is false in the intent of a fork within a step: it has what an attempt of the
        # other thread left, but no attempt of its own.
        if pending is None or pending.get("begun") is False:
            decision = await self._decide(self._history.steps)
            attempt = 1
        else:
            suspends_unknown = self._config.flow.roles[pending["role"]].suspends_unknown
            lost_reason = partial(
                call_stack.lost_reason, self._store, self._thread, suspends_unknown
            )
            reason = await blocking(lost_reason)
            if reason is not None:
                await self._suspend(Suspension(reason, UNKNOWN))
                return None
            decision = Next(pending["role"], pending.get("rule"))
            # `goesOn` is true after a pause, which ended no attempt: it goes on under its number.
            goes_on = bool(pending.get("goesOn"))
            attempt = pending["attempt"] if goes_on else pending["attempt"] + 1
        done = len(self._history.steps)
        rounds = step_limit(self._thread.record, self._config.start)
        begin = partial(
            transitions.begin,
            self._store,
            decision=decision,
            done=done,
            rounds=rounds,
            attempt=attempt,
        )
        await self._head.move(begin)
        return self._next_intent()

    async def _decide(self, steps: list[Mapping[str, Any]]) -> Decision:
        decision_input = moderator.DecisionInput(steps, self._config.start, self._thread.id)
        evaluator = self._loaded.services.evaluator
        return await moderator.decide(self._config.flow.rules, decision_input, evaluator)

    def _next_intent(self) -> Intent | None:
        """The pending step of the head; None, logged, where the thread does not go on."""
        thread = self._thread
        if thread.status == RUNNING:
            self._log_step(thread.intent)
            return thread.intent
        self._log(thread.status, thread=thread.id, reason=thread.record["reason"])
        return None

    # -- run ------------------------------------------------------------------------------

    async def run(self, intent: Intent) -> Intent | None:
        """Runs a role and commits its step. Returns the next intent; None when the thread has
        ended or is suspended."""
        await self._compact(intent)
        prompt = self._config.prompt(intent, self._history, self._thread.record.get("hint"))
        if self._config.flow.roles[intent["role"]].cacheable:
            return await self._run_cacheable(intent, prompt)
        result = await self._attempts(intent, prompt)
        return None if result is None else await self._commit(result)

    async def _compact(self, intent: Intent) -> None:
        """Summarises the history where it is larger than the thread's limit. Where that fails the
        step goes on with the whole history."""
        policy = self._config.start.get("compact")
        past = self._history.prompt_history
        if policy is None or len(past.steps) < 2 or past.tokens() <= policy["above"]:
            return
        compaction_input = compaction.CompactionInput(
            self._thread.id,
            step=intent["index"],
            run=record.run_token(intent),
            task=self._config.task,
            history=past,
        )
        try:
            summary = await compaction.summarise(
                self._store, policy["agent"], compaction_input, env=self._loaded.env
            )
        except AttemptFailed as error:
            index = intent["index"]
            self._log("not compacted", thread=self._thread.id, index=index, error=str(error))
            # Spent all the same: they count for the budget.
            add_tokens = partial(transitions.add_tokens, self._store, tokens=error.tokens)
            await self._head.move(add_tokens)
            return

        def compact(current: Thread) -> Thread:
            return transitions.compact(
                self._store,
                current,
                summary=summary.content,
                # Never a conflict: this run alone adds steps, one after the other.
                head=current.hash,
                tokens=summary.tokens,
            )

        await self._head.move(compact)
        self._history.prompt_history = history.PromptHistory(summary.text)
        self._log("compact", thread=self._thread.id, index=intent["index"], content=summary.content)

    async def _run_cacheable(self, intent: Intent, prompt: Prompt) -> Intent | None:
        """As `run`, with the cached result of equal inputs where there is one."""
        inputs = self._contexts.step_inputs(intent, prompt, self._history.state)
        action = await blocking(partial(step_cache.identify, self._store, inputs))
        # An equal step that runs now, of any thread, leaves the result that this one takes over.
        async with self._loaded.services.single_flight.lock(action.hash):
            cached = await blocking(partial(self._look_up, action, intent, prompt))
            result = cached or await self._attempts(intent, prompt)
            if result is None:
                return None
            following = await self._commit(result)
            if cached is None:
                # After the commit, and still locked: an equal step that waits then finds it.
                await blocking(partial(self._save, action, result.duration_ms))
            return following

    def _look_up(self, action: Action, intent: Intent, prompt: Prompt) -> StepResult | None:
        schema = self._config.schemas[intent["role"]]
        hit = step_cache.lookup(self._store, action, prompt=prompt, schema=schema)
        fields = {"thread": self._thread.id, "index": intent["index"], "action": action.hash}
        if hit is None:
            self._log("miss", **fields, reason=explain_miss(self._store, action))
        else:
            # None only in the result of an attempt.
            assert hit.cached is not None
            self._log("hit", **fields, savedMs=hit.cached["savedMs"])
        return hit

    def _save(self, action: Action, duration_ms: int) -> None:
        """Saves the step that was committed last as the result of its inputs."""
        step = self._history.steps[-1]
        state = self._history.state
        try:
            step_cache.save(self._store, action, step=step, state=state, duration_ms=duration_ms)
        except CasfsError as error:  # the step is committed, and this is cache only
            thread = self._thread.id
            self._log("not cached", thread=thread, action=action.hash, error=str(error))

    # -- attempts -------------------------------------------------------------------------

    async def _attempts(self, intent: Intent, prompt: Prompt) -> StepResult | None:
        """Runs the agent, as often as the role's policy allows. Returns its result; None when the
        thread is suspended."""
        retries = self._config.flow.roles[intent["role"]].retries
        while True:
            attempt = await self._attempt(intent, prompt)
            # What the last attempt paused with, else what the last step left.
            before = record.pending_state(intent) or self._history.state
            try:
                if before is not None:
                    reset = partial(self._loaded.workspace.reset, before)
                    await self._head.while_unreachable(reset)
                return await attempt()
            except Waiting as why:
                await self._wait(why, attempt, has_directory=before is not None)
                return None
            except BudgetExceeded as why:
                details = [why.detail] if why.detail else []
                suspended = Suspension(str(why), BUDGET, failed=details, tokens=attempt.tokens)
                await self._suspend(suspended)
                return None
            except AttemptFailed as why:
                spending = spent(self._thread.record, attempt.tokens)
                exceeded = self._config.budget.exceeded(spending)
                # A server of the shared store that does not answer is no fault of the agent. One
                # that ended while it waited for a person is tried again with the answer.
                is_over = exceeded or self._thread.status == SUSPENDED
                if is_over or not (retries or why.is_unreachable):
                    await self._give_up(why, attempt, exceeded)
                    return None
                if not why.is_unreachable:
                    retries -= 1
                intent = await self._retry(intent, why, attempt.tokens)

    async def _attempt(self, intent: Intent, prompt: Prompt) -> Attempt:
        context = await self._contexts.context(intent, prompt, self._history.state)
        return Attempt(
            self._store,
            self._head,
            role_agent=self._config.role_agent(intent["role"]),
            context=context,
            budget=self._config.budget,
        )

    async def _retry(self, intent: Intent, why: AttemptFailed, tokens: int) -> Intent:
        """Commits and returns the intent of another attempt."""
        self._log("retry", thread=self._thread.id, index=intent["index"], reason=str(why))
        await blocking(self._cancel_children)
        failed = [why.detail] if why.detail else []
        retry = partial(
            transitions.retry, self._store, reason=str(why), failed=failed, tokens=tokens
        )
        moved = await self._head.move(retry)
        self._log_step(moved.intent)
        return moved.intent

    # -- commit ---------------------------------------------------------------------------

    async def _commit(self, result: StepResult) -> Intent | None:
        """Records a result, decides what follows its step and commits both. Returns the next
        intent."""
        await self._committer.record(result)
        build = partial(self._committer.build, result)
        role = self._thread.intent["role"]
        decision = moderator.unconditional(self._config.flow.rules, role)
        if decision is not None:
            # Nothing to evaluate: the step is built by the thread that commits it, in one trip from
            # the event loop to a worker thread.
            await self._committer.commit(build, decision)
        else:
            step = await blocking(build)
            try:
                decision = await self._decide([*self._history.steps, step.payload])
                await self._committer.commit(lambda: step, decision)
            except BaseException:
                step.batch.discard()
                raise
        return self._next_intent()

    # -- suspend --------------------------------------------------------------------------

    async def _wait(self, why: Waiting, attempt: Attempt, *, has_directory: bool) -> None:
        """Suspends the thread until what its agent waits for has come."""
        state: RecordedState | None = None
        # That of a process which has waited was recorded when it asked.
        if why.keeps_workspace and has_directory and self._thread.status != SUSPENDED:
            state = await blocking(self._loaded.workspace.record)
        waiting = Suspension(
            str(why), why.cause, tokens=attempt.tokens, question=why.question, state=state
        )
        await self._suspend(waiting)

    async def _give_up(self, why: AttemptFailed, attempt: Attempt, exceeded: str | None) -> None:
        """Suspends the thread after its last attempt. `exceeded`: the budget, if it is spent."""
        reason = f"{why}; {exceeded}" if exceeded else str(why)
        failed = [why.detail] if why.detail else []
        await self._suspend(Suspension(reason, why.cause, failed=failed, tokens=attempt.tokens))

    async def _suspend(self, why: Suspension) -> None:
        if self._thread.status == SUSPENDED:  # its agent has waited for a person; that stays
            await self._head.move(partial(transitions.add_tokens, self._store, tokens=why.tokens))
            return
        workspaces = self._loaded.services.workspaces
        await suspend(self._head, self._store, self._log, workspaces, why=why)

    def _cancel_children(self) -> None:
        calls.cancel_children(self._store, self._thread, self._loaded.services.workspaces)

    def _log_step(self, intent: Intent) -> None:
        fields = {key: intent[key] for key in ("role", "index", "attempt")}
        self._log("step", thread=self._thread.id, **fields)


async def suspend(
    head: ThreadHead, store: Store, log: Log, workspaces: Workspaces, why: Suspension
) -> None:
    """Suspends the thread of a run, and logs it."""
    if why.cause in (FAILURE, TIMEOUT):
        # The next attempt calls them anew: what still runs would have no caller.
        await blocking(partial(calls.cancel_children, store, head.thread, workspaces))

    def transition(current: Thread) -> Thread:
        moved = suspension.suspend(store, current, why)
        log(SUSPENDED, thread=current.id, cause=why.cause, reason=why.reason)
        return moved

    await head.move(transition)

"""A thread's run: decide, prepare, attempt, record, commit, until it ends or is suspended.

Before an agent starts, its pending step (intent) is durable in the thread's head; when it is
done, the step, the move of the head and the next intent are one transaction
(`engine.runtime.step_commit`). So after a crash at any instant the head says exactly what was
finished and what was pending, no step is recorded twice, and at most the pending step is run
again: first its orphaned processes are ended and its workspace is reset. A decision is computed
before its step is committed; it is pure, so computing it again gives the same.

A failing agent suspends the thread with the reason, once the role's policy allows no more
attempts; it never ends the thread. A role marked cacheable is looked up in the step cache first
(`engine.runtime.step_cache`), under single-flight. One attempt is `engine.runtime.attempt`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from casfs.agents import Waiting
from casfs.agents.prompt import Prompt
from casfs.agents.secrets import Secrets
from casfs.errors import CasfsError
from casfs.payloads import Intent
from casfs.scanner.private_values import MIN_LINE_CHARS
from casfs.store.store import Store
from casfs.system.log import Log, silent
from casfs.threads.threads import ENDED, RUNNING, SUSPENDED, Thread
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import ignored_files
from engine.blocking import blocking
from engine.moderator import decision as moderator
from engine.moderator.decision import Decision, Evaluator, Next
from engine.runtime import calls, compaction, step_cache
from engine.runtime.agent_context import AgentContextBuilder
from engine.runtime.attempt import Attempt, AttemptFailed, BudgetExceeded, StepResult
from engine.runtime.calls import ThreadRunner
from engine.runtime.commit_queue import CommitQueue
from engine.runtime.single_flight import SingleFlight
from engine.runtime.step_commit import StepCommitter
from engine.runtime.thread_config import ThreadConfig
from engine.runtime.thread_head import Guard, ThreadHead, end_orphans
from engine.runtime.workspace import COPYING, Workspaces, thread_workspace
from engine.secrets.redaction import redacting_store
from engine.threads import call_stack, history, record, suspension, transitions
from engine.threads.history import ThreadHistory
from engine.threads.record import BUDGET, FAILURE, TIMEOUT, UNKNOWN, spent, step_limit

if TYPE_CHECKING:
    from engine.llm.llm_extractor import Extractor


class ThreadRun:
    """Runs one thread from its head. Belongs to one trio task."""

    def __init__(
        self,
        store: Store,
        thread: Thread,
        env: Mapping[str, str],
        log: Log = silent,
        workspaces: Workspaces = COPYING,
        single_flight: SingleFlight | None = None,
        evaluator: Evaluator | None = None,
        run_child: ThreadRunner | None = None,
        extractor: Extractor | None = None,
        commits: CommitQueue | None = None,
        guard: Guard | None = None,
    ) -> None:
        """`env`: of agents; `single_flight` and `commits` are shared with other runs; `guard`: as
        `ThreadHead`. By default rules are evaluated in this process, child threads in this task."""
        self.head = ThreadHead(thread, guard)
        self._store = self._raw_store = store
        self._log = log
        self._raw_log = log
        self._env = env
        self._workspaces = workspaces
        self._workspace = thread_workspace(store, thread, workspaces)
        self._single_flight = single_flight or SingleFlight()
        if evaluator is None:
            from engine.moderator.conditions import LocalEvaluator

            evaluator = LocalEvaluator()
        self._evaluator = evaluator
        self._run_child = run_child or self._run_child_inline
        self._extractor = extractor
        self._commits = commits or CommitQueue()
        self._secrets: Secrets | None = None  # once it has begun
        self._redacted: list[str] = []  # texts that were purged while it runs

    @property
    def thread(self) -> Thread:
        return self.head.thread

    async def __call__(self) -> Thread:
        """Runs until the thread ends or is suspended; returns it. Raises Conflict where another
        writer moved the head."""
        try:
            await blocking(self._load)
            intent = await self._begin()
            while intent is not None:
                self._log_step(intent)
                intent = await self._run_step(intent)
        except self.head.ends:
            raise
        except CasfsError as error:  # damage in the store, a full disk
            await blocking(self._workspace.remove)  # may be what fills the disk
            await self._suspend(FAILURE, str(error))
        if self.thread.status == ENDED:
            await blocking(self._workspace.remove)
            token = self.thread.record.get("ignored")
            await blocking(partial(ignored_files.release, self._raw_store, token))
        return self.thread

    def redact(self, text: str) -> None:
        """Redacts a text in all that is recorded from now on; of several lines also the long ones
        alone."""
        long = (line.strip() for line in text.splitlines() if len(line) >= MIN_LINE_CHARS)
        self._redacted += [text, *long]
        if self._secrets is not None:
            self._secrets.add_private(self._redacted)

    async def _run_child_inline(self, child: Thread) -> Thread:
        shared = (self._raw_log, self._workspaces, self._single_flight, self._evaluator)
        models = (None, self._extractor, self._commits)
        return await ThreadRun(self._raw_store, child, self._env, *shared, *models)()

    def _load(self) -> None:
        self._config = config = ThreadConfig(
            self._raw_store, self.thread, env=self._env, extractor=self._extractor
        )
        self._secrets = config.secrets
        config.secrets.add_private(self._redacted)
        self._store = store = redacting_store(self._raw_store, config.secrets)
        self._log = log = config.secrets.redacting_log(self._raw_log)
        self._history = past = ThreadHistory(store, self.thread, config.start)
        head = self.head
        space = self._workspace
        context_args = (self._env, self._run_child)
        self._contexts = AgentContextBuilder(store, head, config, *context_args, space, log)
        places = (space, self._workspaces, self._commits)
        self._committer = StepCommitter(store, head, config, past, *places, log)

    # -- decide ---------------------------------------------------------------------------

    async def _begin(self) -> Intent | None:
        """Commits and returns the first intent: a new attempt at the step that the last run left
        pending, else the moderator's decision."""
        if self.thread.status != RUNNING:
            return None
        pending = self.thread.pending
        await blocking(lambda: end_orphans(self.thread))
        if pending is None or pending.get("begun") is False:
            decision = await self._decide(self._history.steps)
            attempt = 1
        else:
            once = self._config.flow.roles[pending["role"]].suspends_unknown
            lost = await blocking(lambda: call_stack.lost_attempts(self._store, self.thread, once))
            if lost is not None:
                await self._suspend(UNKNOWN, lost)
                return None
            decision = Next(pending["role"], pending.get("rule"))
            attempt = pending["attempt"] + (not pending.get("goesOn"))
        done = len(self._history.steps)
        rounds = step_limit(self.thread.record, self._config.start)
        await self.head.move(
            lambda current: transitions.begin(
                self._store, current, decision=decision, done=done, rounds=rounds, attempt=attempt
            )
        )
        return self._next_intent()

    async def _decide(self, steps: list[Mapping[str, Any]]) -> Decision:
        decision_input = moderator.DecisionInput(steps, self._config.start, self.thread.id)
        return await moderator.decide(self._config.flow.rules, decision_input, self._evaluator)

    def _next_intent(self) -> Intent | None:
        """The pending step of the head; None, logged, where the thread does not go on."""
        if self.thread.status == RUNNING:
            return self.thread.intent
        self._log(self.thread.status, thread=self.thread.id, reason=self.thread.record["reason"])
        return None

    # -- one step -------------------------------------------------------------------------

    async def _run_step(self, intent: Intent) -> Intent | None:
        """Runs a role and commits its step. Returns the next intent; None when the thread has
        ended or is suspended."""
        role = self._config.flow.roles[intent["role"]]
        await self._compact(intent)
        prompt = self._config.prompt(intent, self._history, self.thread.record.get("hint"))
        if not role.cacheable:
            result = await self._attempt(intent, prompt)
            return None if result is None else await self._commit(result)
        inputs = self._contexts.step_inputs(intent, prompt, self._history.state)
        action = await blocking(lambda: step_cache.identify(self._store, inputs))
        async with self._single_flight.lock(action.hash):
            log_fields = {"thread": self.thread.id, "index": intent["index"]}
            schema = self._config.schemas[intent["role"]]
            hit = await blocking(
                lambda: step_cache.lookup_logged(
                    self._store,
                    action,
                    prompt=prompt,
                    schema=schema,
                    log=self._log,
                    log_fields=log_fields,
                )
            )
            result = hit or await self._attempt(intent, prompt)
            if result is None:
                return None
            following = await self._commit(result)
            if hit is None:
                done = self._history.steps[-1]
                state = self._history.state
                ms = result.duration_ms
                thread = {"thread": self.thread.id}
                await blocking(
                    lambda: step_cache.save_logged(
                        self._store,
                        action,
                        step=done,
                        state=state,
                        duration_ms=ms,
                        log=self._log,
                        log_fields=thread,
                    )
                )
            return following

    async def _attempt(self, intent: Intent, prompt: Prompt) -> StepResult | None:
        """Runs the agent, as often as the role's policy allows. Returns its result; None when the
        thread is suspended."""
        retries = self._config.flow.roles[intent["role"]].retries
        while True:
            before = record.pending_state(intent) or self._history.state
            context = await self._contexts.context(intent, prompt, self._history.state)
            agent = self._config.role_agent(intent["role"])
            attempt = Attempt(
                self._store,
                self.head,
                role_agent=agent,
                context=context,
                budget=self._config.budget,
            )
            try:
                if before is not None:
                    await self.head.patiently(partial(self._workspace.reset, before))
                return await attempt()
            except Waiting as why:
                keeps = why.keeps_workspace and before is not None
                state = await blocking(self._workspace.record) if keeps else None
                await self._suspend(
                    why.cause,
                    str(why),
                    detail=None,
                    tokens=attempt.tokens,
                    question=why.question,
                    state=state,
                )
                return None
            except BudgetExceeded as why:
                await self._suspend(BUDGET, str(why), detail=None, tokens=attempt.tokens)
                return None
            except AttemptFailed as why:
                out = self._config.budget.exceeded(spent(self.thread.record, attempt.tokens))
                if not (retries or why.is_away) or out:
                    reason = f"{why}; {out}" if out else str(why)
                    await self._suspend(why.cause, reason, detail=why.detail, tokens=attempt.tokens)
                    return None
                retries -= not why.is_away
                intent = await self._retry(intent, why, attempt.tokens)

    async def _retry(self, intent: Intent, why: AttemptFailed, tokens: int) -> Intent:
        """Commits and returns the intent of another attempt."""
        self._log("retry", thread=self.thread.id, index=intent["index"], reason=str(why))
        await blocking(self._cancel_children)
        failed = [why.detail] if why.detail else []
        moved = await self.head.move(
            lambda current: transitions.retry(
                self._store, current, reason=str(why), failed=failed, tokens=tokens
            )
        )
        again = moved.intent
        self._log_step(again)
        return again

    async def _commit(self, result: StepResult) -> Intent | None:
        """Records a result, decides what follows its step and commits both. Returns the next
        intent."""
        await self._committer.record(result)
        build = partial(self._committer.build, result)
        role = self.thread.intent["role"]
        decision = moderator.unconditional(self._config.flow.rules, role)
        if decision is not None:
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

    async def _compact(self, intent: Intent) -> None:
        """Summarises the history where it is larger than the thread's limit. Where that fails the
        step goes on with the whole history."""
        policy = self._config.start.get("compact")
        past = self._history.prompt_history
        if policy is None or len(past.steps) < 2 or past.tokens() <= policy["above"]:
            return
        compaction_input = compaction.CompactionInput(
            self.thread.id,
            step=intent["index"],
            run=record.run_token(intent),
            task=self._config.task,
            history=past,
        )
        try:
            summary = await compaction.summarise(
                self._store, policy["agent"], compaction_input=compaction_input, env=self._env
            )
        except AttemptFailed as error:
            fields = {"index": intent["index"], "error": str(error)}
            self._log("not compacted", thread=self.thread.id, **fields)
            tokens = error.tokens
            await self.head.move(
                lambda current: transitions.add_tokens(self._store, current, tokens)
            )
            return
        await self.head.move(
            lambda current: transitions.compact(
                self._store,
                current,
                summary=summary.content,
                head=current.hash,
                tokens=summary.tokens,
            )
        )
        self._history.prompt_history = history.PromptHistory(summary.text)
        self._log("compact", thread=self.thread.id, index=intent["index"], content=summary.content)

    # -- suspend --------------------------------------------------------------------------

    async def _suspend(
        self,
        cause: str,
        reason: str,
        detail: str | None = None,
        tokens: int = 0,
        question: str | None = None,
        state: RecordedState | None = None,
    ) -> None:
        if cause in (FAILURE, TIMEOUT):
            await blocking(self._cancel_children)
        suspend_args = ([detail] if detail else [], cause, tokens, question, state)

        def suspend(current: Thread) -> Thread:
            moved = suspension.suspend(self._store, current, reason, *suspend_args)
            self._log(SUSPENDED, thread=current.id, cause=cause, reason=reason)
            return moved

        await self.head.move(suspend)

    def _cancel_children(self) -> None:
        calls.cancel_children(self._store, self.thread, self._workspaces)

    def _log_step(self, intent: Intent) -> None:
        fields = {key: intent[key] for key in ("role", "index", "attempt")}
        self._log("step", thread=self.thread.id, **fields)

"""A thread's run: decide, ask the agent, record, and again, until it ends or is suspended.

Before an agent starts, its intent is durable in the thread's head; when it is done, its
step, the move of the head and the next intent are one transaction. So after a crash at any
instant the head says exactly what was finished and what was in flight, no step is recorded
twice, and at most the step in flight is run again: first its orphaned processes are ended
and its workspace is reset. A decision is computed from the step before it is committed; it
is pure, so computed again it is the same.

What goes wrong with an agent suspends the thread with the reason, once the role's policy allows
no more tries; it never ends it. The agent of a role marked cacheable is asked only what it has
not answered yet (`engine.runtime.step_cache`). One try is `engine.runtime.attempt`; what is told of
the past `engine.threads.history`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from casfs.actions.cache import Action
from casfs.agents import Waiting
from casfs.agents.prompt import Prompt
from casfs.errors import CasfsError, Conflict
from casfs.store import Store
from casfs.system.log import Log, silent
from casfs.threads import ENDED, RUNNING, SUSPENDED, Thread
from engine.blocking import blocking
from engine.llm.llm_extractor import Extractor
from engine.moderator import decision as moderator
from engine.moderator.conditions import LocalEvaluator
from engine.moderator.decision import Decision, Evaluator, Next
from engine.runtime import calls, compaction, step_cache
from engine.runtime.agent_context import AgentContextBuilder
from engine.runtime.attempt import Attempt, AttemptFailed, BudgetExceeded
from engine.runtime.calls import ThreadRunner
from engine.runtime.step_cache import SingleFlight
from engine.runtime.step_record import StepPosition, StepResult, UncommittedStep, step_payload
from engine.runtime.thread_config import ThreadConfig
from engine.runtime.thread_head import ThreadHead, end_orphans, workspace
from engine.runtime.workspace import COPYING, Workspaces
from engine.secrets import redaction
from engine.secrets.redaction import redacting_store
from engine.threads import history, transitions
from engine.threads.history import ThreadHistory
from engine.threads.record import BUDGET, FAILURE, TIMEOUT, UNKNOWN, Intent, spent


class ThreadRun:
    """Carries one thread on from its head. It belongs to one task."""

    def __init__(
        self,
        store: Store,
        thread: Thread,
        env: Mapping[str, str],
        log: Log = silent,
        workspaces: Workspaces = COPYING,
        turns: SingleFlight | None = None,
        judge: Evaluator | None = None,
        nest: ThreadRunner | None = None,
        extractor: Extractor | None = None,
    ) -> None:
        """`env` is the environment that agents see; `turns` is shared with other runs. A run
        that has no `judge` evaluates the moderator's rules in this process; one that has no
        `nest` carries on the threads that its agents call."""
        self.hold = ThreadHead(thread)
        self._given = self._store = store
        self._env = env
        self._told = self._log = log
        self._workspaces = workspaces
        self._workspace = workspace(store, thread, workspaces)
        self._turns = turns or SingleFlight()
        self._judge = judge or LocalEvaluator()
        self._nest = nest or self._alone
        self._extractor = extractor

    @property
    def thread(self) -> Thread:
        return self.hold.thread

    async def __call__(self) -> Thread:
        """Raises Conflict when somebody else moved the head; then this run is over."""
        try:
            await blocking(self._load)
            intent = await self._first_intent()
            while intent is not None:
                self._log_step(intent)
                intent = await self._step(intent)
        except Conflict:
            raise
        except CasfsError as error:  # damage in the store, a full disk: say so and rest
            await self._rest(FAILURE, str(error))
        if self.thread.status == ENDED:
            await blocking(self._workspace.remove)
        return self.thread

    async def _alone(self, child: Thread) -> Thread:
        shared = (self._told, self._workspaces, self._turns, self._judge)
        return await ThreadRun(self._given, child, self._env, *shared, extractor=self._extractor)()

    def _load(self) -> None:
        self._script = ThreadConfig(self._given, self.thread, self._env, self._extractor)
        self._store = redacting_store(self._given, self._script.secrets)
        self._log = self._script.secrets.redacting_log(self._told)
        self._start = self._script.start
        self._past = ThreadHistory(self._store, self.thread, self._start)
        path = None if self._start["workspace"] is None else self._workspace.path
        self._hooks = AgentContextBuilder(
            self._store, self.hold, self._script, self._env, self._nest, path
        )

    # -- deciding -------------------------------------------------------------------------

    async def _first_intent(self) -> Intent | None:
        """What to begin with: what was in flight when the last run broke off, as a new
        attempt, else what the moderator says now."""
        if self.thread.status != RUNNING:
            return None
        broken = self.thread.record["intent"]
        await blocking(lambda: end_orphans(self.thread))
        if broken and self._unclear(broken):
            how = f"outcome unknown: the daemon ended during attempt {broken['attempt']}"
            return await self._rest(UNKNOWN, f"{broken['role']}: {how}")
        decision = Next(broken["role"]) if broken else await self._decide(self._past.steps)
        attempt = broken["attempt"] + 1 if broken else 1
        done, rounds = len(self._past.steps), self._start["maxRounds"]
        await self.hold.move(
            lambda now: transitions.begin(self._store, now, decision, done, rounds, attempt)
        )
        return self._rest_or_go()

    def _unclear(self, broken: Intent) -> bool:
        """Does the role's policy leave it to a person whether this try is repeated?"""
        careful = self._script.flow.roles[broken["role"]].suspends_unknown
        return careful and not broken.get("resumed")

    async def _decide(self, steps: list[Mapping[str, Any]]) -> Decision:
        context = moderator.DecisionInput(steps, self._start, self.thread.id)
        return await moderator.decide(self._script.flow.rules, context, self._judge)

    def _rest_or_go(self) -> Intent | None:
        """The intent to go on with, if any."""
        if self.thread.status == RUNNING:
            intent: Intent = self.thread.record["intent"]
            return intent
        self._log(self.thread.status, thread=self.thread.id, reason=self.thread.record["reason"])
        return None

    def _log_step(self, now: Intent) -> None:
        what = {key: now[key] for key in ("role", "index", "attempt")}
        self._log("step", thread=self.thread.id, **what)

    # -- one step -------------------------------------------------------------------------

    async def _step(self, intent: Intent) -> Intent | None:
        """Run a role and record it. Returns the next intent; None when the thread rests."""
        role = self._script.flow.roles[intent["role"]]
        try:
            await self._shorten(intent)
        except AttemptFailed as error:
            return await self._rest(error.cause, str(error), error.detail)
        prompt = self._script.prompt(intent["role"], self._past.recall)
        if not role.cacheable:
            return await self._play(intent, prompt)
        question = self._hooks.question(intent, prompt, self._past.tree)
        action = await blocking(lambda: step_cache.identify(self._store, question))
        async with self._turns.turn(action.hash):
            place = {"thread": self.thread.id, "index": intent["index"]}
            schema = self._script.schemas[intent["role"]]
            known = await blocking(
                lambda: step_cache.looked_up(self._store, action, schema, self._log, place)
            )
            if known is not None:
                made = await self.hold.still(lambda: self._made(intent, known, 0))
                return await self._recorded(made)
            return await self._play(intent, prompt, action)

    async def _play(
        self, intent: Intent, prompt: Prompt, action: Action | None = None
    ) -> Intent | None:
        """Let the agent work, as often as its policy says. What it made of an `action` is kept."""
        left = self._script.flow.roles[intent["role"]].retries
        while True:
            attempt = await self._attempt(intent, prompt)
            begin = time.monotonic()
            try:
                await self._prepare()
                made = await attempt()
                break
            except Waiting as why:
                return await self._rest(why.cause, str(why), None, attempt.tokens, why.question)
            except BudgetExceeded as why:
                return await self._rest(BUDGET, str(why), None, attempt.tokens)
            except AttemptFailed as why:
                out = self._script.budget.exceeded(spent(self.thread.record, attempt.tokens))
                if not left or out:
                    reason = f"{why}; {out}" if out else str(why)
                    return await self._rest(why.cause, reason, why.detail, attempt.tokens)
                left -= 1
                intent = await self._again(intent, why, attempt.tokens)
        duration = round((time.monotonic() - begin) * 1000)
        following = await self._recorded(made)
        if action is not None:
            told = (self._past.steps[-1], duration, self._log, {"thread": self.thread.id})
            await blocking(lambda: step_cache.kept(self._store, action, *told))
        return following

    async def _attempt(self, intent: Intent, prompt: Prompt) -> Attempt[UncommittedStep]:
        context = await self._hooks.context(intent, prompt, self._past.tree)
        player = self._script.player(intent["role"])
        made = partial(self._made, intent)
        return Attempt(self._store, self.hold, player, context, self._script.budget, made)

    async def _prepare(self) -> None:
        """Let the workspace hold what the step starts from."""
        before = self._past.tree
        if before is not None:
            await blocking(lambda: self._workspace.reset(before))

    def _warn(self, before: str | None, after: str) -> None:
        """Name the files that have a secret in them: they are recorded as they are. What a thread
        starts with is looked at with its first step."""
        if not self._past.steps and not self.thread.record["parent"]:
            before = None
        place = {"thread": self.thread.id, "index": self.thread.record["intent"]["index"]}
        for path, names in redaction.files_with_secrets(
            self._given, self._script.secrets, before, after
        ):
            self._log("secret in workspace", **place, path=path, variables=" ".join(names))

    async def _again(self, intent: Intent, why: AttemptFailed, tokens: int) -> Intent:
        self._log("retry", thread=self.thread.id, index=intent["index"], reason=str(why))
        await blocking(self._abandon)
        failed = [why.detail] if why.detail else []
        how = (str(why), failed, tokens)
        moved = await self.hold.move(lambda now: transitions.retry(self._store, now, *how))
        fresh: Intent = moved.record["intent"]
        self._log_step(fresh)
        return fresh

    async def _shorten(self, intent: Intent) -> None:
        """Have the past summarised where it has grown beyond the thread's limit."""
        wanted, past = self._start.get("compact"), self._past.recall
        if wanted is None or len(past.turns) < 2 or past.tokens() <= wanted["above"]:
            return
        place = (self.thread.id, intent["index"], intent["run"])
        what = compaction.CompactionInput(*place, self._script.task, past)
        made = await compaction.summarise(self._store, wanted["agent"], what, self._env)
        await self.hold.move(
            lambda now: transitions.compact(self._store, now, made.content, now.hash)
        )
        self._past.recall = history.PromptHistory(made.text)
        self._log("compact", thread=self.thread.id, index=intent["index"], content=made.content)

    # -- what comes of it -----------------------------------------------------------------

    async def _rest(
        self,
        cause: str,
        reason: str,
        detail: str | None = None,
        tokens: int = 0,
        question: str | None = None,
    ) -> Intent | None:
        """Suspend the thread: there is no next intent."""
        if cause in (FAILURE, TIMEOUT):
            await blocking(self._abandon)

        def suspend(now: Thread) -> Thread:
            failed = [detail] if detail else []
            rests = transitions.suspend(self._store, now, reason, failed, cause, tokens, question)
            self._log(SUSPENDED, thread=now.id, cause=cause, reason=reason)
            return rests

        await self.hold.move(suspend)
        return None

    def _abandon(self) -> None:
        """End the threads that the try called; what cannot be read cannot be ended."""
        if self.thread.record["intent"] is not None:
            with suppress(CasfsError):
                for child in calls.cancel_children(self._store, self.thread):
                    workspace(self._given, child, self._workspaces).remove()

    def _made(self, intent: Intent, answer: StepResult, tokens: int) -> UncommittedStep:
        """The step that an answer makes. It is recorded at once where it takes no judge to know
        what comes after it."""
        before = self._past.tree
        if before is not None and answer.workspace is None:
            answer = replace(answer, workspace=self._workspace.record())
        if answer.workspace is not None:
            self._warn(before, answer.workspace)
        self._abandon()
        made = self._put(intent, answer, tokens)
        decision = moderator.unconditional(self._script.flow.rules, intent["role"])
        if decision is not None:
            self._commit(made, decision)
        return made

    def _put(self, intent: Intent, answer: StepResult, tokens: int) -> UncommittedStep:
        agent = self._script.agents[intent["role"]]
        ends = calls.child_ends(self._store, self.thread)
        place = StepPosition(self.thread, intent, self._past.hashes, self._past.tree, agent, ends)
        batch = self._store.batch()
        return UncommittedStep(
            batch, step_payload(self._store, batch, place, answer), answer, tokens
        )

    async def _recorded(self, made: UncommittedStep) -> Intent | None:
        """See to it that a step is recorded. Returns the next intent."""
        with made.batch:
            if not made.recorded:
                decision = await self._decide([*self._past.steps, made.payload])
                await self.hold.still(lambda: self._commit(made, decision))
        return self._rest_or_go()

    def _commit(self, made: UncommittedStep, decision: Decision) -> None:
        """Commit the step, the move of the head and the next intent together."""
        now = self.thread
        made.payload["compact"] = now.record["compact"]  # made a moment ago, perhaps
        with made.batch as batch:
            rounds, budget = self._start["maxRounds"], self._script.budget
            moved = transitions.commit_step(
                batch, now, made.payload, decision, rounds, made.tokens, budget
            )
        self.hold.thread, made.recorded = moved, True
        self._past.add(moved.hash, made.payload, made.answer.result.output)

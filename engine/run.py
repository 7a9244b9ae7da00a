"""A thread's run: decide, ask the agent, record, and again, until it ends or is suspended.

Before an agent starts, its intent is durable in the thread's head; when it is done, its
step, the move of the head and the next intent are one transaction. So after a crash at any
instant the head says exactly what was finished and what was in flight, no step is recorded
twice, and at most the step in flight is run again: first its orphaned processes are ended
and its workspace is reset. A decision is computed from the step before it is committed; it
is pure, so computed again it is the same.

What goes wrong with an agent suspends the thread with the reason; it never ends it. The
agent of a role marked cacheable is asked only what it has not answered yet (`engine.cached`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import trio

from casfs import threads
from casfs.actions import nearest
from casfs.actions.cache import Action
from casfs.batch import Batch
from casfs.errors import CasfsError, Conflict, Failed, Invalid
from casfs.log import Log, silent
from casfs.store import Store
from casfs.threads import ENDED, RUNNING, SUSPENDED, Thread
from engine import agents, cached, catalog, journal, moderator, processes
from engine.agents import AgentContext, AgentFailed, AgentFn, AgentResult
from engine.answer import Answer, Place, step
from engine.cached import Question, Turns
from engine.extract import extract, role_schema
from engine.journal import Intent
from engine.moderator import Decision, Next
from engine.prompt import Prompt, Turn
from engine.workspace import PLAIN, Workspace, Workspaces

CORRECTIONS = 2
T = TypeVar("T")
Payload = Mapping[str, Any]


class Run:
    """Carries one thread on from its head. It belongs to one task."""

    def __init__(
        self,
        store: Store,
        thread: Thread,
        env: Mapping[str, str],
        log: Log = silent,
        workspaces: Workspaces = PLAIN,
        turns: Turns | None = None,
    ) -> None:
        """`env` is the environment that agents see; `turns` is shared with other runs."""
        self.thread = thread
        self._store = store
        self._env = env
        self._log = log
        self._workspace = workspace(store, thread, workspaces)
        self._turns = turns or Turns()
        self._functions: dict[str, AgentFn] = {}

    async def __call__(self) -> Thread:
        """Raises Conflict when somebody else moved the head; then this run is over."""
        try:
            await _blocking(self._load)
            intent = await self._first_intent()
            while intent is not None:
                self._log_step(intent)
                intent = await self._step(intent)
        except Conflict:
            raise
        except CasfsError as error:  # damage in the store, a full disk: say so and rest
            reason = error
            await _blocking(lambda: self._suspend(reason))
        if self.thread.status == ENDED:
            await _blocking(self._workspace.remove)
        return self.thread

    def _load(self) -> None:
        store = self._store
        self._start = threads.start(store, self.thread).payload
        self._agents = threads.agents(store, self.thread)
        self._flow = catalog.load(store, self._start["workflow"])
        self._schemas = {name: role_schema(role.schema) for name, role in self._flow.roles.items()}
        self._task = store.node(self._start["input"], "content").payload["text"]
        nodes = list(threads.backwards(store, self.thread))[::-1]
        self._steps: list[Payload] = [node.payload for node in nodes]
        self._history = [_turn(store, payload) for payload in self._steps]
        self._last = nodes[-1] if nodes else None

    # -- deciding -------------------------------------------------------------------------

    async def _first_intent(self) -> Intent | None:
        """What to begin with: what was in flight when the last run broke off, as a new
        attempt, else what the moderator says now."""
        if self.thread.status != RUNNING:
            return None
        broken = self.thread.record["intent"]
        await _blocking(lambda: end_orphans(self.thread))
        decision = Next(broken["role"]) if broken else await self._decide(self._steps)
        attempt = broken["attempt"] + 1 if broken else 1
        done, rounds = len(self._steps), self._start["maxRounds"]
        return await _blocking(
            lambda: self._rest_or_go(
                journal.begin(self._store, self.thread, decision, done, rounds, attempt)
            )
        )

    async def _decide(self, steps: list[Payload]) -> Decision:
        context = moderator.Context(steps, self._start, self.thread.id)
        return await moderator.decide(self._flow.rules, context)

    def _rest_or_go(self, thread: Thread) -> Intent | None:
        """Remember where the head is now; the intent to go on with, if any."""
        self.thread = thread
        if thread.status == RUNNING:
            intent: Intent = thread.record["intent"]
            return intent
        self._log(thread.status, thread=thread.id, reason=thread.record["reason"])
        return None

    def _log_step(self, intent: Intent) -> None:
        what = {key: intent[key] for key in ("role", "index", "attempt")}
        self._log("step", thread=self.thread.id, **what)

    # -- one step -------------------------------------------------------------------------

    async def _step(self, intent: Intent) -> Intent | None:
        """Run a role and record it. Returns the next intent; None when the thread rests."""
        role = self._flow.roles[intent["role"]]
        history = tuple(self._history)
        prompt = Prompt(role.system_prompt, self._task, history, role.extract_prompt, role.schema)
        if not role.cacheable:
            return await self._play(intent, prompt)
        action = await _blocking(lambda: self._identify(intent, prompt))
        async with self._turns.turn(action.hash):
            known = await _blocking(lambda: self._lookup(intent, action))
            if known is not None:
                return await self._record(intent, known)
            return await self._play(intent, prompt, action)

    async def _play(
        self, intent: Intent, prompt: Prompt, action: Action | None = None
    ) -> Intent | None:
        """Let the agent work. What it made of an `action` is kept."""
        before = self._before
        try:
            if before is not None:
                await _blocking(lambda: self._workspace.reset(before))
            begin = time.monotonic()
            answer = await self._answer(intent, prompt)
            duration = round((time.monotonic() - begin) * 1000)
            if before is not None:
                answer = replace(answer, workspace=await _blocking(self._workspace.record))
        except AgentFailed as error:
            reason = error
            return await _blocking(lambda: self._suspend(reason))
        following = await self._record(intent, answer)
        if action is not None:
            await _blocking(lambda: self._keep(action, duration))
        return following

    @property
    def _before(self) -> str | None:
        """The tree that the next step starts from."""
        tree: str | None = (self._steps[-1] if self._steps else self._start)["workspace"]
        return tree

    async def _answer(self, intent: Intent, prompt: Prompt) -> Answer:
        """Ask the agent until its output fits: once, and CORRECTIONS times more."""
        name = intent["role"]
        for tries in range(1 + CORRECTIONS):
            result = await self._ask(intent, prompt)
            try:
                found = await _blocking(
                    partial(extract, result.output, self._schemas[name], self._store)
                )
                return Answer(result, found, "correction" if tries else "block")
            except Invalid as error:
                fault = str(error)
            await self._note_failure(result.detail.hash)
            prompt = prompt.corrected(fault)
        raise AgentFailed(f"{name}: no usable output after {CORRECTIONS} corrections: {fault}")

    async def _ask(self, intent: Intent, prompt: Prompt) -> AgentResult:
        name = intent["role"]
        context = AgentContext(
            thread=self.thread.id,
            role=name,
            step=intent["index"],
            prompt=prompt,
            workspace=None if self._start["workspace"] is None else self._workspace.path,
            store=self._store,
            depth=self._start["depth"],
            run=intent["run"],
            env=self._env,
            started=self._started,
        )
        try:
            return await self._agent(name)(context)
        except Exception as error:  # an agent is a stranger's code
            what = str(error) if isinstance(error, CasfsError) else repr(error)
            detail = error.detail if isinstance(error, AgentFailed) else None
            raise AgentFailed(f"{name}: {what}", detail) from error

    def _agent(self, role: str) -> AgentFn:
        if role not in self._functions:
            node = self._store.node(self._agents[role], "agent").payload
            self._functions[role] = agents.load(node["package"]).create(node["config"])
        return self._functions[role]

    async def _started(self, pid: int) -> None:
        """Make a process of the step in flight known before it matters."""
        intent = {**self.thread.record["intent"], "pid": pid, "pidStart": processes.start_time(pid)}
        self.thread = await _blocking(lambda: journal.note(self._store, self.thread, intent=intent))

    async def _note_failure(self, detail: str) -> None:
        self.thread = await _blocking(lambda: journal.failed(self._store, self.thread, detail))

    def _suspend(self, error: CasfsError) -> None:
        details = [error.detail] if isinstance(error, AgentFailed) and error.detail else []
        self.thread = journal.suspend(self._store, self.thread, str(error), details)
        self._log(SUSPENDED, thread=self.thread.id, reason=str(error))

    async def _record(self, intent: Intent, answer: Answer) -> Intent | None:
        """Commit the step, the move of the head and the next intent together."""
        batch = self._store.batch()
        with batch:
            payload = await _blocking(lambda: self._payload(batch, intent, answer))
            decision = await self._decide([*self._steps, payload])
            rounds = self._start["maxRounds"]
            thread = await _blocking(
                lambda: journal.commit_step(batch, self.thread, payload, decision, rounds)
            )
        self._last = await _blocking(lambda: next(threads.backwards(self._store, thread)))
        self._steps.append(payload)
        self._history.append(
            Turn(intent["index"], intent["role"], answer.result.output, payload["meta"])
        )
        return self._rest_or_go(thread)

    def _payload(self, batch: Batch, intent: Intent, answer: Answer) -> dict[str, Any]:
        agent = self._agents[intent["role"]]
        place = Place(self.thread, intent, self._last, self._before, agent)
        return step(self._store, batch, place, answer)

    # -- the cache ------------------------------------------------------------------------

    def _identify(self, intent: Intent, prompt: Prompt) -> Action:
        name = intent["role"]
        question = Question(
            self._flow.roles[name],
            name,
            intent["index"],
            self._start["depth"],
            self._agents[name],
            prompt,
            self._before,
            self._env,
        )
        return cached.identify(self._store, question)

    def _lookup(self, intent: Intent, action: Action) -> Answer | None:
        found = cached.lookup(self._store, action, self._schemas[intent["role"]])
        what = {"thread": self.thread.id, "index": intent["index"], "action": action.hash}
        if found is None:
            self._log("miss", **what, reason=nearest.explain(self._store, action))
        elif found.cached is not None:
            self._log("hit", **what, savedMs=found.cached["savedMs"])
        return found

    def _keep(self, action: Action, duration_ms: int) -> None:
        """The step that was just recorded; that it cannot be kept must not fail it."""
        try:
            cached.keep(self._store, action, self._steps[-1], duration_ms)
        except CasfsError as error:
            self._log("not cached", thread=self.thread.id, action=action.hash, error=str(error))


def workspace(store: Store, thread: Thread, workspaces: Workspaces = PLAIN) -> Workspace:
    """The private directory of a thread. Raises Failed for a store in memory."""
    if store.root is None:
        raise Failed("a store in memory has no place for workspaces")
    return workspaces.open(store, Path(store.root) / "workspaces" / thread.id)


def end_orphans(thread: Thread) -> None:
    """End the processes that a dead daemon left of the step in flight."""
    intent = thread.record["intent"]
    if intent is not None:
        processes.end_orphans(intent["run"], intent["pid"], intent["pidStart"])


def _turn(store: Store, payload: Payload) -> Turn:
    text = store.node(payload["content"], "content").payload["text"]
    return Turn(payload["index"], payload["role"], text, payload["meta"])


async def _blocking(function: Callable[[], T]) -> T:
    """What reads or writes the store must not hold up the daemon's other threads."""
    return await trio.to_thread.run_sync(function)

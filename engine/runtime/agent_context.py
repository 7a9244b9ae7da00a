"""Builds the context of an attempt: prompt, place in the thread, and callbacks to the engine.

By the callbacks an agent reports its processes and turns and runs child threads; each report is
durable in the thread's head before the call returns, so a crash loses none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import trio

from casfs.agents import AgentContext, Waiting
from casfs.agents.prompt import Prompt
from casfs.digest import NodeHash
from casfs.errors import CasfsError
from casfs.threads.threads import Thread
from casfs.trees.recorded_state import FIELDS, TIMES, RecordedState
from engine import content
from engine.agents.loader import TURN_TREES
from engine.blocking import blocking
from engine.processes import subprocesses
from engine.runtime.ask_person import ask_person
from engine.runtime.calls import ThreadCalls
from engine.runtime.loaded_thread import LoadedThread
from engine.runtime.review_messages import ReviewMessages
from engine.runtime.step_cache import StepInputs
from engine.threads import transitions
from engine.threads.record import run_token

if TYPE_CHECKING:
    from casfs.payloads import Intent


class AgentContextBuilder:
    """Builds the contexts of a loaded thread's attempts."""

    def __init__(self, loaded: LoadedThread) -> None:
        self._store = loaded.store
        self._head = loaded.head
        self._config = loaded.config
        self._env = loaded.env
        self._run_child = loaded.run_child
        self._workspace = loaded.workspace
        self._log = loaded.log
        self._loaded = loaded
        self._messages: ReviewMessages | None = None
        self._recording = trio.Lock()  # tools and a question may come at once

    async def context(
        self, intent: Intent, prompt: Prompt, state: RecordedState | None
    ) -> AgentContext:
        """Returns the context of an attempt; `state`: what the step starts from."""
        self._messages = None  # of the attempt before
        record = self._head.thread.record
        hash: str | None = record["answer"]
        answer = hash and await blocking(lambda: content.text(self._store, hash))
        if state is not None:
            self._config.follow_private_files(self._workspace.path, state.tree)
        return AgentContext(
            thread=self._head.thread.id,
            role=intent["role"],
            step=intent["index"],
            prompt=replace(prompt, answer=answer) if answer else prompt,
            workspace=None if state is None else self._workspace.path,
            store=self._store,
            depth=self._config.start["depth"],
            run=run_token(intent),
            env=self._env,
            started=self._report_process,
            turn=self._report_turn,
            call=ThreadCalls(
                self._store, self._env, head=self._head, run=self._run_child, workspace=state
            ),
            answer=answer,
            ask=partial(self._ask_person, has_directory=state is not None),
            question=record["question"] if answer else None,
            message=self._following_message,
            keep=lambda hash: self._update_intent(kept=hash),
            kept=intent.get("kept"),
            attempts=(
                *self._head.thread.record["attempts"],
                *([intent["paused"]] if "paused" in intent else []),
            ),
            parent=self._config.start["parentState"],
            agent=self._config.agents[intent["role"]],
            secrets=self._config.secrets,
            **self._record_tree(intent, state),
        )

    async def _ask_person(self, why: Waiting, *, has_directory: bool) -> str | None:
        return await ask_person(self._loaded, why, self._record_turn if has_directory else None)

    async def _following_message(self) -> str:
        # Made when it is first asked for: few agents do.
        self._messages = self._messages or ReviewMessages(self._store, self._head)
        return await self._messages.following()

    async def _record_turn(self) -> RecordedState:
        async with self._recording:
            return await blocking(self._workspace.record_turn)

    def _record_tree(self, intent: Intent, state: RecordedState | None) -> dict[str, Any]:
        """Returns that field, where the agent has trees of turns. A failure never ends its work."""
        agent = self._config.bound_agent(intent["role"])
        if state is None or not (agent["config"].get(TURN_TREES) and self._config.has_turn_trees):
            return {}
        last = intent.get("tree", state.tree)

        async def record(turn: dict[str, str]) -> Mapping[str, str]:
            nonlocal last
            before = last
            for name in FIELDS:
                turn.pop(name, None)
            try:
                recorded = await self._record_turn()
                self._config.read_private_files(recorded)
                last = recorded.tree
                turn |= {"workspace": last, **recorded.fields}
            except CasfsError as error:
                self._log("no tree of a turn", thread=self._head.thread.id, error=str(error))
                turn.pop("workspace", None)
            if before == last:
                return {}
            turn.setdefault("before", before)
            return {name: turn[name] for name in ("workspace", TIMES) if name in turn}

        return {"record_tree": record}

    def step_inputs(
        self, intent: Intent, prompt: Prompt, state: RecordedState | None
    ) -> StepInputs:
        """Returns the same inputs for the key of the step cache."""
        return StepInputs(
            self._config.flow.roles[intent["role"]],
            intent["role"],
            index=intent["index"],
            depth=self._config.start["depth"],
            agent=self._config.agents[intent["role"]],
            prompt=prompt,
            workspace=state,
            env=self._env,
        )

    async def _report_process(self, pid: int) -> None:
        await self._update_intent(pid=pid, pidStart=subprocesses.start_time(pid))

    async def _update_intent(self, **fields: Any) -> None:
        def update(current: Thread) -> Thread:
            intent = {**current.intent, **fields}
            return transitions.update_record(self._store, current, intent=intent)

        await self._head.move(update)

    async def _report_turn(self, hash: str) -> None:
        await self._head.move(
            lambda current: transitions.add_turn(self._store, current, cast(NodeHash, hash))
        )

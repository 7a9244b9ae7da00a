"""Threads that an agent has run for it: the call stack (seed 003).

A call makes a thread whose `parentState` is where its caller stands, runs it inside the
caller's own task, and answers with how it ended. So a child is cancelled with its parent, ends
with the daemon like it, and takes no place among the threads that run at once. A child that
is suspended suspends its caller (`Waiting`); when the caller is asked again, an equal call finds
the child that was made for it, ended or not, and a second one is never made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from casfs import threads
from casfs.agents import CHILD, Call, Called, Waiting
from casfs.errors import Failed
from casfs.store import Store
from casfs.threads import RUNNING, SUSPENDED, Thread
from engine.blocking import blocking
from engine.content import text
from engine.runtime.thread_head import ThreadHead
from engine.threads import agent_binding, call_stack, lifecycle, transitions
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.threads.record import Budget
from engine.workflow import registry as workflows

ThreadRunner = Callable[[Thread], Awaitable[Thread]]


class ThreadCalls:
    """The calls of one try at a step. `run` carries a thread on until it rests."""

    def __init__(
        self,
        store: Store,
        env: Mapping[str, str],
        hold: ThreadHead,
        run: ThreadRunner,
        workspace: str | None,
    ) -> None:
        self._store = store
        self._env = env
        self._hold = hold
        self._run = run
        self._workspace = workspace
        self._taken: dict[str, object] = {}

    async def __call__(self, call: Call) -> Called:
        """Raises Waiting, Failed, and what `origin.create` raises for such a request."""
        request = await blocking(lambda: self._request(call))
        made: list[Thread] = []

        def calling(parent: Thread) -> Thread:
            store = agent_binding.redacting_store(self._store, request.agents, self._env)
            moved, child = lifecycle.call(store, parent, request, self._taken)
            made.append(child)
            return moved

        await self._hold.move(calling)
        child = made[0]
        self._taken[child.id] = None
        if child.status == RUNNING:
            child = await self._run(child)
        return await blocking(lambda: self._outcome(child))

    def _request(self, call: Call) -> ThreadRequest:
        start = threads.start(self._store, self._hold.thread).payload
        tokens = Budget.of(start["budget"]).tokens
        return ThreadRequest(
            workflows.find(self._store, call.workflow),
            call.input,
            bindings(call.agents),
            self._workspace if call.workspace is None else call.workspace,
            call.max_rounds,
            Budget(tokens),
        )

    def _outcome(self, child: Thread) -> Called:
        end = threads.end(self._store, child)
        if child.status == SUSPENDED:
            reason = f"thread {child.id}, which it called, is suspended: {child.record['reason']}"
            raise Waiting(CHILD, reason)
        if end is None:
            raise Failed(f"thread {child.id}, which it called, is {child.status} and does not run")
        last = end.payload["lastStep"]
        step = self._store.node(last, "thread-step").payload if last else {}
        workspace = (
            step["workspace"] if step else threads.start(self._store, child).payload["workspace"]
        )
        return Called(
            thread=child.id,
            end=end.hash,
            return_code=end.payload["returnCode"],
            summary=end.payload["summary"],
            output=text(self._store, step["content"]) if step else "",
            meta=step.get("meta", {}),
            workspace=workspace,
            tokens=child.record["spent"]["tokens"],
        )


def bindings(agents: Mapping[str, Mapping[str, Any]]) -> dict[str, Binding]:
    """Agents as a person or a config names them: {name, config, version}."""
    return {
        role: Binding(one["name"], one.get("config", {}), one.get("version", ""))
        for role, one in agents.items()
    }


def child_ends(store: Store, thread: Thread) -> list[str]:
    """The thread-ends of those that the step in flight called, in the order of the calls."""
    calls = thread.record["intent"]["calls"]
    found = [threads.end(store, threads.get(store, id)) for id in calls]
    return [end.hash for end in found if end is not None]


def cancel_children(store: Store, thread: Thread) -> list[Thread]:
    """End those that the step in flight called and did not wait for; returns them."""
    left = call_stack.open_children(store, thread)
    for id in thread.record["intent"]["calls"]:
        child = threads.get(store, id)
        if child.status in (RUNNING, SUSPENDED):
            transitions.cancel(store, child)
    return left


def caller_hint(store: Store, thread: Thread) -> str | None:
    """How an agent reads the context of the thread that called this one."""
    state, caller = threads.start(store, thread).payload["parentState"], thread.record.get("parent")
    if state is None:
        return None
    node = store.node(state)
    if node.type == "thread-step":
        where = f"after step {node.payload['index']} ({node.payload['role']})"
    else:
        where = "before its first step"
    named = f"thread {caller}" if caller else "another thread"
    context = f"`casfs thread context {caller}` prints what it knows; " if caller else ""
    return (
        f"This thread was called by {named}, {where}. To read what led to the task: {context}"
        f"`casfs node get {state}` is the node where it stood. In that, `content` is what "
        "was said, `meta` the facts, `previous` the step before, `start` leads to the first task."
    )

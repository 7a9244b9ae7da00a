"""Child threads that an agent calls: the call stack (seed 003).

A call creates a thread whose `parentState` is its caller's newest node, runs it inside the
caller's own task, and returns its end. So a child is cancelled with its caller, ends with the
daemon like it, and does not count against the limit of running threads. A suspended child
suspends its caller (`Waiting`); when the caller's agent is asked again, an equal call finds the
child that was created for it, ended or not, and no second one is created.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress

from casfs.agents import CHILD, Call, Called, Waiting
from casfs.checkpoints import revisions
from casfs.errors import CasfsError, Failed
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.state import says
from casfs.threads.threads import RUNNING, SUSPENDED, Thread
from casfs.trees.recorded_state import RecordedState
from engine.blocking import blocking
from engine.content import text
from engine.runtime.thread_head import ThreadHead
from engine.runtime.workspace import Workspaces, thread_workspace
from engine.threads import agent_binding, call_stack, lifecycle, transitions
from engine.threads.lifecycle import ThreadRequest
from engine.threads.record import Budget
from engine.workflow import registry as workflows

ThreadRunner = Callable[[Thread], Awaitable[Thread]]


class ThreadCalls:
    """The calls of one attempt. `run` runs a thread until it ends or is suspended; `workspace`:
    what the step starts from."""

    def __init__(
        self,
        store: Store,
        env: Mapping[str, str],
        head: ThreadHead,
        run: ThreadRunner,
        workspace: RecordedState | None,
    ) -> None:
        self._store = store
        self._env = env
        self._head = head
        self._run = run
        self._workspace = workspace
        self._used: dict[str, object] = {}

    async def __call__(self, call: Call) -> Called:
        """Raises Waiting, Failed, and what `lifecycle.create` raises for such a request."""
        request = await blocking(lambda: self._request(call))
        created: list[Thread] = []

        def create(parent: Thread) -> Thread:
            store = agent_binding.redacting_store(self._store, request.agents, self._env)
            moved, child = lifecycle.call(store, parent, request=request, used=self._used)
            created.append(child)
            return moved

        await self._head.move(create)
        child = created[0]
        self._used[child.id] = None
        if child.status == RUNNING:
            child = await self._run(child)
        return await blocking(lambda: self._result(child))

    def _request(self, call: Call) -> ThreadRequest:
        start = threads.start(self._store, self._head.thread).payload
        state = self._workspace
        if call.workspace is not None:
            state = RecordedState.of_fields(call.workspace, call.recorded)
        return ThreadRequest(
            workflows.find_trusted(self._store, call.workflow),
            call.input,
            agents=agent_binding.of_call(self._store, call.workflow, call.agents),
            workspace=state,
            max_steps=call.max_steps,
            budget=Budget(Budget.of(start["budget"]).tokens),
        )

    def _result(self, child: Thread) -> Called:
        end = threads.end(self._store, child)
        if child.status == SUSPENDED:
            # the innermost cause stays first: a record truncates the end
            raise Waiting(
                CHILD, f"{child.record['reason']} (in thread {child.id}, which it called)"
            )
        if end is None:
            raise Failed(f"thread {child.id}, which it called, {says(child)} and does not run")
        last = end.payload["lastStep"]
        step = self._store.node(last, "thread-step").payload if last else None
        state = revisions.state_if_any(self._store, last or child.record["start"])
        return Called(
            thread=child.id,
            end=end.hash,
            return_code=end.payload["returnCode"],
            summary=end.payload["summary"],
            output=text(self._store, step["content"]) if step else "",
            meta=step["meta"] if step else {},
            workspace=None if state is None else state.tree,
            recorded={} if state is None else state.fields,
            tokens=child.record["spent"]["tokens"],
        )


def child_ends(store: Store, thread: Thread) -> list[str]:
    """Returns the thread-ends of the pending step's children, in the order of the calls."""
    calls = thread.intent["calls"]
    ends = [threads.end(store, threads.get(store, id)) for id in calls]
    return [end.hash for end in ends if end is not None]


def cancel_children(store: Store, thread: Thread, workspaces: Workspaces) -> None:
    """Cancels the pending step's children that have not ended, and removes their workspaces.
    Children that cannot be read are left."""
    intent = thread.pending
    if intent is None or not intent["calls"]:
        return
    with suppress(CasfsError):
        left = call_stack.open_children(store, thread)
        for id in intent["calls"]:
            child = threads.get(store, id)
            if child.status in (RUNNING, SUSPENDED):
                transitions.cancel(store, child, caller=thread)
        for child in left:
            thread_workspace(store, child, workspaces).remove()

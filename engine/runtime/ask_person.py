"""Asks a person while the agent's process waits for the answer.

The thread is suspended meanwhile, as after any question: a daemon that is killed loses the process
alone, and `resume` then begins the attempt anew. An answer that comes in time is given to the
process that asked, and the attempt goes on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from casfs.agents import Waiting
from casfs.errors import CasfsError
from casfs.system.clock import now_ms
from casfs.threads.threads import SUSPENDED
from casfs.trees.recorded_state import RecordedState
from engine.runtime.loaded_thread import LoadedThread
from engine.runtime.open_question import OpenQuestion
from engine.threads import suspension
from engine.threads.suspension import Suspension

Record = Callable[[], Awaitable[RecordedState]]


async def ask_person(loaded: LoadedThread, why: Waiting, record: Record | None) -> str | None:
    """Suspends the thread and returns a person's answer, with which it runs again; None where the
    agent went on without one. `record`: stores the directory, None where it has none. Raises `why`
    where no answer comes in time, or the process is not to wait."""
    head = loaded.head
    seconds = loaded.services.keep_waiting_s
    # A caller runs while its child does; and what is suspended in a shared store goes on wherever
    # it is resumed.
    if not seconds or head.is_shared or head.thread.record.get("parent"):
        raise why
    state = None
    if why.keeps_workspace and record is not None:
        try:
            state = await record()
        except CasfsError:  # it is recorded again when the attempt has ended, and says why then
            raise why from None
    spent = head.thread.record["spent"]
    asked_ms = now_ms()
    suspended = Suspension(str(why), why.cause, question=why.question, state=state)
    await head.move(lambda current: suspension.suspend(loaded.store, current, suspended))
    loaded.log(SUSPENDED, thread=head.thread.id, cause=why.cause, reason=str(why))
    question = OpenQuestion(why.question)
    head.set_question(question)
    try:
        answer = await question.answer(seconds)
        if answer is None and not question.is_withdrawn:
            raise why
        wait = suspension.Wait(asked_ms, spent)
        await head.move(partial(suspension.go_on, loaded.store, wait=wait, answer=answer))
        question.settle(is_accepted=True)
    finally:
        question.settle(is_accepted=False)
        head.set_question(None)
    return answer

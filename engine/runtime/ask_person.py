"""Asks a person while the agent's process waits for the answer.

The thread is suspended meanwhile, as after any question: a daemon that is killed loses the process
alone, and `resume` then begins the attempt anew. An answer that comes in time is given to the
process that asked, and the attempt goes on.
"""

from __future__ import annotations

from functools import partial

from casfs.agents import Waiting
from casfs.threads.threads import SUSPENDED
from engine.blocking import blocking
from engine.runtime.loaded_thread import LoadedThread
from engine.runtime.open_question import OpenQuestion
from engine.threads import suspension
from engine.threads.suspension import Suspension


async def ask_person(loaded: LoadedThread, why: Waiting, *, has_directory: bool) -> str:
    """Suspends the thread and returns a person's answer, with which it runs again. Raises `why`
    where none comes in time, or the process is not to wait."""
    head = loaded.head
    seconds = loaded.services.keep_waiting_s
    # A caller runs while its child does; and what is suspended in a shared store goes on wherever
    # it is resumed.
    if not seconds or head.is_shared or head.thread.record.get("parent"):
        raise why
    state = None
    if why.keeps_workspace and has_directory:
        state = await blocking(loaded.workspace.record_turn)
    suspended = Suspension(str(why), why.cause, question=why.question, state=state)
    await head.move(lambda current: suspension.suspend(loaded.store, current, suspended))
    loaded.log(SUSPENDED, thread=head.thread.id, cause=why.cause, reason=str(why))
    question = OpenQuestion()
    head.set_question(question)
    try:
        answer = await question.answer(seconds)
        if answer is None:
            raise why
        await head.move(partial(suspension.go_on, loaded.store, answer=answer))
        question.settle(is_accepted=True)
    finally:
        question.settle(is_accepted=False)
        head.set_question(None)
    return answer

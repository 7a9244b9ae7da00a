"""What a thread is doing, as people and programs are told, and when it was created.

    running     a step is in flight; of a session, its agent works on a prompt
    queued      it waits for a free place, or for a daemon, to go on
    suspended   it waits for a person, or for a child
    open        a session whose agent waits for its next prompt
    closed      a session whose agent has ended; it may go on some day
    succeeded   a rule ended it (return code 0)
    failed      no rule matched (1)
    stopped     it ended at its step limit (2)
    cancelled   it was cancelled (130)
    broken      its record is damaged

The record itself has fewer words (`casfs.threads.threads`): it says what may be done with a thread.
"""

from __future__ import annotations

from casfs.threads.threads import ENDED, RUNNING, SESSION, Thread, ThreadId

QUEUED = "queued"
SUCCEEDED = "succeeded"
FAILED = "failed"
STOPPED = "stopped"
OPEN = "open"
CLOSED = "closed"
STATES = (
    "running", QUEUED, "suspended", OPEN, CLOSED, SUCCEEDED, FAILED, STOPPED, "cancelled", "broken",
)  # fmt: skip
ENDINGS = {0: SUCCEEDED, 1: FAILED, 2: STOPPED}
BASE32 = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
TIME_CHARS = 10  # of an id


def state(thread: Thread) -> str:
    if thread.fields.get("cause") == SESSION:
        return _session_state(thread)
    if thread.status == RUNNING:
        intent = thread.fields.get("intent", {})
        return QUEUED if intent is None or intent.get("resumed") else RUNNING
    if thread.status == ENDED:
        return ENDINGS.get(thread.fields.get("returnCode") or 0, FAILED)
    return thread.status


def _session_state(thread: Thread) -> str:
    # No daemon runs a session, so its record never says `running`. One from another store, one of a
    # transcript, and one that was cut within a step have no agent here.
    session = thread.fields.get("session") or {}
    if "origin" in thread.fields or not session.get("pid"):
        return CLOSED
    if thread.fields.get("intent"):
        return RUNNING
    return CLOSED if session.get("ended") or session.get("pidStart") is None else OPEN


def says(thread: Thread) -> str:
    """Returns the state as the verb of a sentence, such as `has failed` or `is suspended`."""
    word = state(thread)
    return f"has {word}" if word in (SUCCEEDED, FAILED) else f"is {word}"


def created_ms(id: ThreadId) -> int:
    """Returns when a thread was created, in ms since 1970 UTC: its id says so."""
    if not set(id) <= set(BASE32):  # of a broken head
        return 0
    ms = 0
    for character in id[:TIME_CHARS]:
        ms = ms * 32 + BASE32.index(character)
    return ms

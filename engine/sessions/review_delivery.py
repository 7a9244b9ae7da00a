"""Brings the comments of a review to the agent of a session, each message once.

An agent that works hears by its hooks: after a call, at the end of its answer, with its person's
next prompt. One that is idle is given the message by a way of its own (`engine.sessions.inboxes`).
An offer is noted before it is made, and only the agent's transcript says whether it was heard
(`engine.sessions.heard`). A message is offered again where an earlier offer is known to be lost:
its process is gone, or the transcript has come further without it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import trio

from casfs.attach import spool
from casfs.digest import ThreadId
from casfs.errors import CasfsError, Refused
from casfs.review import comments, message
from casfs.review.comments import HEARD, HELD, HOOK, SENT, Review, Round
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.system.files import replacing
from casfs.system.log import Log
from casfs.system.processes import start_time
from casfs.threads import sessions, threads
from casfs.threads.state import CLOSED, state
from casfs.threads.summary import content_text
from casfs.threads.threads import Thread
from engine.blocking import blocking
from engine.sessions import heard, inboxes, review_requests
from engine.sessions.heard import Trace
from engine.sessions.session_thread import session_key
from engine.threads import lifecycle

Answer = dict[str, Any]
AFTER_CALL = "PostToolUse"
AT_PROMPT = "UserPromptSubmit"
AT_END = "Stop"
NAMES = (AFTER_CALL, AT_PROMPT, AT_END)
HEARING = tuple(inboxes.WAYS)  # agents whose hooks and transcripts are known to carry a message
BYPASSES = "bypassPermissions"
POLL_S = 0.5  # while a message waits for a session whose agent lives
# After an offer, in which the agent writes it into its transcript: then it is taken for lost.
OFFER_MS = 3000
IDLE_MS = 60_000  # after one by a hook, to an agent that is idle: hooks of others may run still
RETRY_S = 10.0
HELD_MS = 360_000  # claude drops what it holds after five minutes


@dataclass(frozen=True)
class Offer:
    """A chance to give an agent's process `pid` a message. `is_turn_over`: what it was given in its
    turn stands in its transcript by now."""

    way: str
    pid: int
    is_turn_over: bool

    def may_follow(self, sent: Round, seen: Trace) -> bool:
        """Returns whether a message that was not heard is offered so: at first, or where an earlier
        offer is known to be lost."""
        if not sent.way:
            return True
        # codex keeps its queue on disk: what is in there is not lost with the process.
        if sent.way == inboxes.QUEUE:
            return False
        if self.pid != sent.pid:
            return True
        age_ms = now_ms() - sent.offered_at
        if seen is not Trace.NONE:
            return seen is Trace.HELD and age_ms > HELD_MS
        if self.way == HOOK:
            return self.is_turn_over and age_ms > OFFER_MS
        # An inbox holds what it was given until its agent, which may be stopped, reads it.
        return sent.way == HOOK and age_ms > IDLE_MS


class ReviewDelivery:
    def __init__(self, store: Store, log: Log) -> None:
        self._store = store
        self._log = log
        self._wake = trio.Event()
        self._asks: dict[str, bool] = {}  # by the id of a session: its person for permissions
        self._refused: dict[ThreadId, int] = {}  # the process that has refused a message
        self.operations: dict[str, Callable[..., Awaitable[Answer]]] = {
            "review_send": self._send,
            "review_change": self._change,
        }

    async def run(self) -> None:
        """Offers what waits to the sessions that are idle."""
        while True:
            self._wake = trio.Event()
            wait_s = RETRY_S
            try:
                wait_s = POLL_S if await blocking(self.offer_to_idle) else math.inf
            except Exception as error:  # what one review holds must not end the daemon
                self._log("reviews not delivered", error=str(error) or repr(error))
            with trio.move_on_after(wait_s):
                await self._wake.wait()

    def wake(self) -> None:
        """Has it look at once at what waits."""
        self._wake.set()

    async def _send(self, id: str) -> Answer:
        thread = await blocking(partial(threads.get, self._store, ThreadId(id)))
        if not await blocking(partial(self._can_hear, thread)):
            raise Refused(
                f"only sessions of {' and '.join(HEARING)} here can be told, and agents that speak"
                " ACP while they work; copy the comments from `casfs review list`"
            )
        review = await blocking(partial(message.send, self._store, thread))
        self._wake.set()
        return {"round": len(review.rounds)}

    def _can_hear(self, thread: Thread) -> bool:
        if "origin" in thread.fields:
            return False
        if sessions.is_session(thread):
            return thread.fields["workflow"] in HEARING
        # The agent's step takes it (`engine.runtime.review_messages`).
        role = thread.pending["role"] if thread.pending else None
        bound = threads.agents(self._store, thread).get(role or "")
        if bound is None or thread.status == threads.ENDED:
            return False
        return bool(self._store.node(bound, "agent").payload["package"] == "acp")

    async def _change(self, id: str, action: str, **fields: Any) -> Answer:
        request = partial(review_requests.change, self._store, ThreadId(id))
        await blocking(partial(request, action, fields))
        return {}

    async def output_of_hook(self, read: Callable[[], spool.Event | None]) -> bytes | None:
        """Returns what the hook of an event prints, so that its agent hears a message. `read`:
        returns the event; it is called where a message waits alone."""
        try:
            output = await blocking(partial(self._output, read))
        except Exception as error:  # its hook is answered all the same
            self._log("review not told", error=str(error) or repr(error))
            return None
        if output is not None:
            self._wake.set()
        return output

    def _output(self, read: Callable[[], spool.Event | None]) -> bytes | None:
        event = read() if any(comments.unheard(self._store)) else None
        # What a subagent hears its parent does not.
        if event is None or event.agent not in HEARING or "agent_id" in event.payload:
            return None
        name = event.payload.get("hook_event_name")
        if name not in NAMES:
            return None
        thread = self._thread(event)
        if thread is None:
            return None
        # The record may have the process before this one still.
        offer = Offer(HOOK, event.pid, is_turn_over=name != AFTER_CALL)
        number = self._decide(thread, offer, prompt=str(event.payload.get("prompt", "")))
        if number is None:
            return None
        text = self._text(thread, number, offer)
        if name == AT_END:
            return json.dumps({"decision": "block", "reason": text}).encode()
        context = {"hookEventName": name, "additionalContext": text}
        return json.dumps({"hookSpecificOutput": context}).encode()

    def _thread(self, event: spool.Event) -> Thread | None:
        key = session_key(event.agent, str(event.payload.get("session_id")))
        head = head_kinds.get(self._store.heads, lifecycle.key_name(key))
        if head is None:
            return None
        id = ThreadId(head.record["thread"])
        is_reviewed = self._store.heads.get(comments.head_name(id)) is not None
        return threads.get(self._store, id) if is_reviewed else None

    def note_mode(self, event: spool.Event) -> None:
        """Notes whether a session asks its person for permissions; called for each event."""
        mode = event.payload.get("permission_mode")
        if mode is not None:
            self._asks[str(event.payload.get("session_id"))] = mode != BYPASSES

    def offer_to_idle(self) -> bool:
        """Returns whether an agent that lives was offered a message and has not heard it."""
        is_awaited = False
        for id in list(comments.unheard(self._store)):
            try:
                is_awaited |= self._offer_to(threads.get(self._store, id))
            except CasfsError as error:
                self._log("review not delivered", thread=id, error=str(error))
        return is_awaited

    def _offer_to(self, thread: Thread) -> bool:
        """Offers a session what waits for it, if it is idle; returns whether that may be heard
        any moment."""
        if not sessions.is_session(thread):
            return False
        about = sessions.about(self._store, thread)
        session = thread.record["session"]
        pid = session["pid"]
        lives = session.get("pidStart") is not None and start_time(pid) == session["pidStart"]
        if not lives or state(thread) == CLOSED:
            self._decide(thread, None, prompt="")  # it may have heard it at its end
            return False
        way = inboxes.WAYS.get(about["agent"])
        # It would hold the message and ask its person, or its mode is not known since a restart.
        may_hold = way == inboxes.INBOX and not self._asks.get(about["id"])
        is_refused = self._refused.get(thread.id) == pid
        is_idle = thread.pending is None and not may_hold and not is_refused
        offer = Offer(way, pid, is_turn_over=True) if way and is_idle else None
        number = self._decide(thread, offer, prompt="")
        if number is not None and offer is not None:
            text = self._text(thread, number, offer)
            if not inboxes.give(about["agent"], about, pid, text):
                # Its hooks tell it, and they wake this again.
                self._refused[thread.id] = pid
                self._take_back(thread, number)
        review = comments.load(self._store, thread.id)
        return any(review.rounds[each - 1].way for each in review.waiting)

    def _text(self, thread: Thread, number: int, offer: Offer) -> str:
        """Returns the message of a round as it is offered."""
        sent = comments.load(self._store, thread.id).rounds[number - 1]
        text = content_text(self._store, sent.message)
        # Arguments of programs can be read by everybody on this machine, so `queue` gets the path.
        if len(text) <= message.MAX_CHARS and offer.way != inboxes.QUEUE:
            return text
        path = self._store.root / comments.FOLDER / f"{thread.id}-{number}.md"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with replacing(path) as file:
            file.write(text.encode())
        return message.pointer(thread.id, number, str(path))

    def _decide(self, thread: Thread, offer: Offer | None, prompt: str) -> int | None:
        """Notes what was heard; returns the round to offer, whose offer is noted, too. `prompt`:
        the agent has it, and the transcript perhaps not yet."""
        offered: list[int] = []

        def make(review: Review, batch: Batch) -> Review:
            offered.clear()
            for number in review.waiting:
                old = review.rounds[number - 1]
                mark = message.mark(thread.id, number)
                seen = self._trace(thread, old, mark)
                if seen is Trace.NONE and mark in prompt:
                    seen = Trace.QUEUED
                if seen is Trace.HEARD:
                    review = review.with_round(number, replace(old, state=HEARD, heard_at=now_ms()))
                elif offer and not offered and offer.may_follow(old, seen):
                    offered.append(number)
                    changed = replace(old, way=offer.way, offered_at=now_ms(), pid=offer.pid)
                    review = review.with_round(number, replace(changed, state=SENT))
                elif seen is Trace.HELD:
                    review = review.with_round(number, replace(old, state=HELD))
            return review

        comments.change(self._store, thread.id, make)
        return offered[0] if offered else None

    def _trace(self, thread: Thread, sent: Round, mark: str) -> Trace:
        transcript = sessions.about(self._store, thread).get("transcript")
        return heard.trace(transcript, sent.offset, mark)

    def _take_back(self, thread: Thread, number: int) -> None:
        """Notes that an offer was not taken."""

        def make(review: Review, batch: Batch) -> Review:
            untaken = replace(review.rounds[number - 1], way="", offered_at=0)
            return review.with_round(number, untaken)

        comments.change(self._store, thread.id, make)

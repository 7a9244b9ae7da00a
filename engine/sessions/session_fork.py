"""A session that goes on from a point of another one: its thread is a fork of the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from casfs.backend.protocols import Head
from casfs.review import comments
from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.threads import sessions, threads
from casfs.threads.threads import SESSION, SUSPENDED, Thread
from engine import content
from engine.sessions.session_thread import session_key
from engine.threads import lifecycle, record


def fork(store: Store, thread: Thread, point: Point, id: str, transcript: Path | None) -> Thread:
    """Stores the thread of the session `id`, which begins with what `thread` holds before a point:
    its steps, and the calls of a step that is cut. Comments that were not sent are of that one from
    now on. Raises NotFound, Conflict."""
    done = point.step - 1
    start = thread.record["start"]
    newest = threads.step_at(store, thread, done).hash if done else start
    agent = sessions.about(store, thread)["agent"]
    session: dict[str, Any] = {"pid": 0, "pidStart": None, "event": None, "open": {}}
    session["id"] = id
    if transcript is not None:
        # The other session has recorded what the copy begins with.
        session |= {"transcript": str(transcript), "transcriptBytes": transcript.stat().st_size}
    key = session_key(agent, id)
    key_name = lifecycle.key_name(key)
    forked = lifecycle.new_thread(
        start,
        agent,
        newest,
        key=key,
        status=SUSPENDED,
        cause=SESSION,
        reason=thread.record.get("reason"),
        session=session,
        fork={"thread": thread.id, "step": done},
        intent=None if point.call is None else _cut_step(store, thread, point),
        secretMarks=thread.record.get("secretMarks", 0),
        **threads.project_fields(thread.fields),
    )
    with store.batch() as batch:
        batch.swap(forked.name, None, forked.head)
        batch.swap(key_name, store.heads.get(key_name), Head(start, {"thread": forked.id}))
    comments.move_drafts(store, thread.id, forked.id)
    return forked


def _cut_step(store: Store, thread: Thread, point: Point) -> dict[str, Any]:
    """Returns a step that is cut before a call as a pending one."""
    assert point.call is not None
    pending = thread.pending
    if pending is not None and pending["index"] == point.step:
        turns = threads.turns(store, pending)
        prompt = {"prompt": pending["prompt"], "promptId": pending.get("promptId")}
        since = pending["since"]
    else:
        step = threads.step_at(store, thread, point.step).payload
        turns = list(store.node(step["detail"], "react-session").payload["turns"])
        prompt = {"prompt": step["prompt"]["turn"], "promptId": step["prompt"].get("id")}
        since = step["startedAt"]
    fresh = record.new_intent(thread.record["workflow"], point.step, 1)
    intent: dict[str, Any] = {**fresh, "run": None, "since": since}
    intent |= {name: value for name, value in prompt.items() if value is not None}
    kept = turns[: point.call - 1]
    if len(kept) > record.MAX_TURNS:
        earlier = content.put(store, "earlier turns", kept)
        return intent | {"turns": [], "earlier": earlier, "turnCount": len(kept)}
    return intent | {"turns": kept, "turnCount": len(kept)}

"""The conversation of a session, cut at a point under a new session id, by its agent's own form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from casfs.errors import NotFound
from casfs.sessions import session_steps
from casfs.sessions.session_steps import CallRecord, Point, StepRecord
from casfs.store.store import Store
from casfs.threads import sessions
from casfs.threads.threads import Thread
from casfs.transcripts import claude, codex, gemini, opencode
from casfs.transcripts.json_lines import CutConversation

FILES, CONVERSATION, BOTH = WHAT = ("files", "conversation", "both")  # what is rewound
Cut = Callable[[Path, StepRecord, CallRecord | None], CutConversation]
CUTS: Mapping[str, Cut] = {
    "claude": claude.cut,
    "codex": codex.cut,
    "gemini": gemini.cut,
    "qwen": gemini.cut_qwen,
}


def cut(store: Store, thread: Thread, steps: list[StepRecord], point: Point) -> CutConversation:
    """Cuts the conversation of a session to before a point; the session itself stays as it is.
    Raises NotFound, Failed."""
    about = sessions.about(store, thread)
    step = session_steps.find_step(steps, point.step)
    call = None
    if point.call is not None:
        call = session_steps.calls_from(steps, point)[-1]
    # It keeps its sessions in a database.
    if about["agent"] == "opencode":
        return opencode.cut(about["id"], step, call)
    if about.get("transcript") is None:
        raise NotFound(f"{about['agent']} has not said where its transcript is")
    return CUTS[about["agent"]](Path(about["transcript"]), step, call)

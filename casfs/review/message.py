"""What an agent is told of a review: one message a round, with the lines that each comment means.

Its first words are a mark that no other message has, by which it is found in a transcript.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

from casfs.digest import TreeHash
from casfs.errors import CasfsError, Refused
from casfs.review import comments, subject
from casfs.review.anchors import place
from casfs.review.comments import TAIL, Comment, Review, Round
from casfs.store.store import Store
from casfs.store.write_batch import Batch
from casfs.system.clock import now_ms
from casfs.system.paths import printable
from casfs.threads import sessions
from casfs.threads.threads import Thread
from casfs.trees import tree
from casfs.trees.diff import unified_diff

MARK = "[casfs review "
CONTEXT = 3  # lines before and after those of a comment
MAX_LINES = 30  # of a comment that are quoted
MAX_LINE_CHARS = 300
MAX_CHARS = 8000  # of a message; a longer one is a file, of which the agent is told the path


def mark(thread: str, round: int) -> str:
    return f"{MARK}{thread[-TAIL:]} round {round}]"


def send(store: Store, thread: Thread) -> Review:
    """Makes a round of all drafts, which the daemon brings to the agent. Raises Refused where there
    are none."""
    offset = _transcript_bytes(store, thread)
    newest = subject.newest_tree(store, thread)

    def make(review: Review, batch: Batch) -> Review:
        if not review.drafts:
            raise Refused("nothing to send: comment on a line first")
        number = len(review.rounds) + 1
        sent = [
            replace(comment, round=number) if comment.round is None else comment
            for comment in review.comments
        ]
        closed = replace(review, comments=tuple(sent))
        text = compose(store, closed, number, newest)
        hash = batch.put_node("content", {"text": text, "artifacts": []}).hash
        return replace(closed, rounds=(*closed.rounds, Round(hash, now_ms(), offset=offset)))

    return comments.change(store, thread.id, make)


def _transcript_bytes(store: Store, thread: Thread) -> int:
    if sessions.is_session(thread):
        transcript = sessions.about(store, thread).get("transcript")
        with suppress(OSError, ValueError):
            return os.stat(transcript).st_size if transcript else 0
    return 0


def compose(store: Store, review: Review, round: int, newest: TreeHash) -> str:
    """Returns the message of the comments of a round. `newest`: the work as it is now, by which
    lines are named."""
    of_round = [comment for comment in review.comments if comment.round == round]
    parts = [
        f"{mark(review.thread, round)} A review of your changes, by the person you work for."
        " Deal with each comment, then say so by its number:"
        f' `casfs review done {review.label(of_round[0].number)} -m "what you did"`.'
    ]
    for comment in of_round:
        parts.append(_part(store, review.label(comment.number), comment, newest))
    return "\n\n".join(parts)


def pointer(thread: str, round: int, path: str) -> str:
    """Returns the message that leads to a file which has the whole one."""
    return f"{mark(thread, round)} A review of your changes waits for you: read {path}"


def _part(store: Store, label: str, comment: Comment, newest: TreeHash) -> str:
    note = ", before the changes" if comment.is_old else ""
    if not comment.is_old:
        position = place(store, comment, newest)
        if position is None:
            note = ", which have changed since; they were" if comment.line else ", changed since"
        else:
            comment = replace(comment, tree=newest, path=position.path, line=position.line)
    lines = [f"{label}: {printable(comment.path)}{_lines_named(comment)}{note}"]
    lines += quoted(store, comment)
    if comment.text.strip():
        lines.append(comment.text.strip())
    if comment.suggestion is not None:
        lines += ["Suggested in place of these lines:", "```", comment.suggestion, "```"]
    return "\n".join(lines)


def _lines_named(comment: Comment) -> str:
    if comment.line == 0:
        return ""
    last = comment.line + comment.count - 1
    return f", line {comment.line}" if comment.count == 1 else f", lines {comment.line} to {last}"


def quoted(store: Store, comment: Comment) -> list[str]:
    """Returns the lines of a comment as they were commented on, with those around them; its own are
    marked. None of a whole file, nor where they are not kept."""
    if comment.line == 0:
        return []
    try:
        entry = tree.find(store, comment.tree, comment.path)
        lines = unified_diff.text_lines(store, entry)
    except CasfsError:
        return []
    if isinstance(lines, str):
        return []
    own = range(comment.line, comment.line + comment.count)
    shown = range(max(own.start - CONTEXT, 1), min(own.stop + CONTEXT, len(lines) + 1))
    width = len(str(shown.stop))
    marked = []
    for number in shown[:MAX_LINES]:
        text = lines[number - 1].decode("utf-8", "backslashreplace").rstrip("\r\n")
        sign = ">" if number in own else " "
        marked.append(f"{sign} {number:{width}} | {text[:MAX_LINE_CHARS]}")
    return marked

"""`casfs review`: comments on what an agent has changed, in the browser and in the terminal."""

from __future__ import annotations

import os
import re
import tempfile
import time
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click

from casfs.checkpoints import revisions
from casfs.cli.background import start_daemon
from casfs.cli.common import open_store
from casfs.cli.json_values import moment
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_line, echo_result, json_option, warn
from casfs.cli.table import Cell, echo_table
from casfs.cli.worktree import common
from casfs.errors import CasfsError, Conflict, Failed, Usage
from casfs.review import anchors, comments, patch, subject
from casfs.review.comments import HEARD, HELD, Comment, Review
from casfs.sessions import find_session
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.paths import printable
from casfs.threads import lookup, sessions, threads
from casfs.threads.threads import Thread
from casfs.worktrees import worktree

DEFAULT = "open"
WAIT_S = 3.0  # until `send` says what became of it
WHERE = re.compile(r"(?P<path>.+?)(?::(?P<line>\d{1,9})(?:-(?P<last>\d{1,9}))?)?", re.DOTALL)
LABEL = re.compile(r"(?P<tail>.+)\.(?P<number>[0-9]{1,9})")


class ReviewGroup(LazyGroup):
    """`casfs review WHAT` is `casfs review open WHAT`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands:
            args = [DEFAULT, *args]
        return super().resolve_command(ctx, args)


def session_argument(command: Any) -> Any:
    metavar = "[SESSION|THREAD|WORKTREE|DIR]"
    return click.argument("session", required=False, metavar=metavar)(command)


def since_option(command: Any) -> Any:
    help = "Only what changed after prompt N."
    return click.option("--since", type=click.IntRange(0), default=0, metavar="N", help=help)(
        command
    )


@click.group(cls=ReviewGroup, invoke_without_command=True)
@click.pass_context
def review(ctx: click.Context) -> None:
    """Review what an agent has changed: comment on lines, and the agent hears it.

    Without a command it opens the page of the session that was active last here; SESSION, THREAD
    or a WORKTREE or DIR that an agent works in says another. A comment stays with its lines when
    the agent goes on.

    \b
    casfs review
    casfs review add src/app.py:12 "This never ends" && casfs review send
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(open_)


@review.command(DEFAULT)
@click.argument("session", required=False, metavar="[SESSION|THREAD|WORKTREE|DIR|REV..REV]")
def open_(session: str | None = None) -> None:
    """Open the page of a review in the browser; serves it until it is interrupted. Of REV..REV it
    shows what differs; no agent is there to hear a comment.

    \b
    casfs review open
    casfs review open demo@1..demo@2
    """
    from casfs.cli.web import serve_page

    old, is_range, new = (session or "").partition("..")
    with open_store() as store:
        if is_range and old and new and not Path(session or "").is_dir():
            for text in (old, new):
                revisions.resolve_tree(store, text)  # raises NotFound for an unknown revision
            page = f"/compare?{urlencode({'a': old, 'b': new, 'view': 'unified'})}"
        else:
            page = f"/threads/{reviewed_thread(store, session).id}/review"
    serve_page(page)


@review.command()
@session_argument
@since_option
def edit(session: str | None, since: int) -> None:
    """Write comments into the diff in $VISUAL or $EDITOR.

    \b
    casfs review edit
    casfs review edit --since 2
    """
    with open_store() as store:
        thread = reviewed_thread(store, session)
        reviewed = subject.of_thread(store, thread, since)
        text = patch.compose(store, comments.load(store, thread.id), reviewed)
        # In the store, each edit its own: it stays if it cannot be read, or the editor dies.
        folder = store.root / comments.FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        fd, name = tempfile.mkstemp(".diff", f"{thread.id}-", folder)
        with open(fd, "wb") as stream:
            stream.write(text.encode())
        try:
            click.edit(filename=name)
            written = patch.parse(store, reviewed, Path(name).read_text("utf-8", "replace"))
            comments.change(store, thread.id, lambda old, _: reduce(comments.add, written, old))
        except (CasfsError, OSError, click.ClickException) as error:
            raise Failed(f"{error}; what you wrote is in {name}") from None
        Path(name).unlink()
    count = len(written)
    echo_line(f"{count} {'draft' if count == 1 else 'drafts'}; `casfs review send` sends all")


@review.command()
@click.argument("file", metavar="FILE[:LINE[-LINE]]")
@click.argument("text")
@click.option(
    "--of",
    "session",
    metavar="SESSION|THREAD|WORKTREE|DIR",
    help="Default: the one active last.",
)
@click.option("--suggest", metavar="TEXT", help="What is to stand in place of the lines.")
@click.option("--old", "is_old", is_flag=True, help="The lines are those before the changes.")
@json_option
def add(file: str, text: str, session: str | None, suggest: str | None, is_old: bool) -> None:
    """Comment on lines of a FILE, as they were recorded last. It is a draft until it is sent.

    \b
    casfs review add src/app.py:12 "This never ends"
    casfs review add src/app.py:12-14 "Shorter:" --suggest "return total"
    """
    match = WHERE.fullmatch(file)
    if match is None:
        raise Usage("which file? Give FILE, FILE:LINE or FILE:LINE-LINE")
    line = int(match["line"] or 0)
    with open_store() as store:
        thread = reviewed_thread(store, session)
        reviewed = subject.of_thread(store, thread)
        draft = Comment(
            0,
            reviewed.old if is_old else reviewed.new,
            _path_in_tree(store, thread, match["path"]),
            line,
            count=int(match["last"] or line) - line + 1 if line else 0,
            text=text,
            is_old=is_old,
            suggestion=suggest,
        )
        anchors.check_lines(store, draft)
        after = comments.change(store, thread.id, lambda old, _: comments.add(old, draft))
    label = after.label(after.comments[-1].number)
    echo_result({"comment": label}, f"{label} is a draft; `casfs review send` sends it")


def _path_in_tree(store: Store, thread: Thread, path: str) -> bytes:
    """Returns a path of the tree that is reviewed; one of a file here is relative to this
    directory."""
    absolute = Path(os.path.abspath(path))
    if sessions.is_session(thread):
        directory = find_session.directory_of(store, thread, Path.cwd())
        if absolute.is_relative_to(directory):
            return os.fsencode(absolute.relative_to(directory))
    return os.fsencode(os.path.normpath(path))


@review.command("list")
@session_argument
@json_option
def list_(session: str | None) -> None:
    """List the comments of a review, and what became of them.

    \b
    casfs review list
    """
    with open_store() as store:
        thread = reviewed_thread(store, session)
        current = comments.load(store, thread.id)
        reviewed = subject.of_thread(store, thread)
        values = [_value(store, current, reviewed, each) for each in current.comments]
        _say_drafts_elsewhere(store, thread)
    rows: list[tuple[Cell, ...]] = [
        (
            value["comment"],
            value["state"] + (", outdated" if value["outdated"] else ""),
            f"{value['path']}:{value['line']}" if value["line"] else value["path"],
            value["text"],
        )
        for value in values
    ]
    echo_table(values, "COMMENT STATE WHERE TEXT", rows, whole="COMMENT")


def _value(
    store: Store, current: Review, reviewed: subject.Subject, comment: Comment
) -> dict[str, Any]:
    position = anchors.place(store, comment, reviewed.tree_of(comment))
    return {
        "comment": current.label(comment.number),
        "state": current.state(comment),
        "outdated": position is None,
        "path": printable(comment.path if position is None else position.path),
        "line": comment.line if position is None else position.line,
        "count": comment.count,
        "text": comment.text,
        "suggestion": comment.suggestion,
        "round": comment.round,
        "handledAt": None if comment.handled_at is None else moment(comment.handled_at),
        "answer": comment.answer,
    }


@review.command()
@session_argument
@json_option
def send(session: str | None) -> None:
    """Send all drafts to the agent as one message. Starts the daemon where none runs.

    An agent that works hears it after its next call. An idle one hears it at once where it can be
    woken, else with its next prompt.

    \b
    casfs review send
    """
    with open_store() as store:
        thread = reviewed_thread(store, session)
        _say_drafts_elsewhere(store, thread)
        start_daemon(store.root)
        number = daemon_socket.request(store.root, "review_send", id=thread.id)["round"]
        end = time.monotonic() + WAIT_S
        while (sent := comments.load(store, thread.id).rounds[number - 1]).state != HEARD:
            if time.monotonic() > end:
                break
            time.sleep(0.1)
    words = {HEARD: "heard", HELD: "the agent asks its person first, in its own window"}
    state = words.get(sent.state, "the agent hears it at its next call or prompt")
    echo_result({"round": number, "state": sent.state}, f"round {number}: {state}")


@review.command()
@click.argument("comment", metavar="COMMENT")
@json_option
def rm(comment: str) -> None:
    """Remove a COMMENT that was not sent.

    \b
    casfs review rm 7QK3M2XA.3
    """
    with open_store() as store:
        thread, number = _commented(store, comment)
        comments.change(store, thread.id, lambda old, _: comments.remove(old, number))
    echo_result({"comment": comment}, f"{comment}: removed")


@review.command()
@click.argument("comment", metavar="COMMENT")
@click.option("-m", "--message", default="", metavar="TEXT", help="What was done.")
@json_option
def done(comment: str, message: str) -> None:
    """Say that a COMMENT was dealt with: the word of the agent, or yours.

    \b
    casfs review done 7QK3M2XA.3 -m "It ends at the first blank line now"
    """
    with open_store() as store:
        thread, number = _commented(store, comment)
        comments.change(store, thread.id, lambda old, _: comments.handle(old, number, message))
    echo_result({"comment": comment}, f"{comment}: done")


def _say_drafts_elsewhere(store: Store, thread: Thread) -> None:
    """Names the other threads of a project whose comments wait to be sent."""
    for review in comments.with_drafts(store):
        with suppress(CasfsError):  # its thread is gone
            other = threads.get(store, review.thread)
            project = thread.fields.get(threads.PROJECT)
            is_near = project is not None and other.fields.get(threads.PROJECT) == project
            if other.id != thread.id and is_near:
                tail = other.id[-comments.TAIL :]
                count = len(review.drafts)
                drafts = "1 draft waits" if count == 1 else f"{count} drafts wait"
                warn(f"{drafts} in {tail}; `casfs review list {tail}`")


def _commented(store: Store, label: str) -> tuple[Thread, int]:
    """Returns the thread of a comment, and its number there. Raises Usage, NotFound."""
    match = LABEL.fullmatch(label)
    if match is None:
        raise Usage(f"{label!r} names no comment; `casfs review list` names them")
    return lookup.find(store, match["tail"]), int(match["number"])


def reviewed_thread(store: Store, session: str | None) -> Thread:
    """Returns the thread that a person means. Raises NotFound, Conflict, Usage."""
    if session is None or Path(session).is_dir():
        return find_session.latest_in(store, Path(session or ".").absolute())
    if ".." in session:
        raise Usage("two states have no agent to hear it; `casfs review A..B` shows what differs")
    listed = worktree.listing(store, common.current_project(store))
    if path := next((each.path for each in listed if each.name == session), None):
        return find_session.latest_in(store, path)
    try:
        return find_session.named(store, session)
    except Conflict:  # casfs has run it
        return lookup.find(store, session)

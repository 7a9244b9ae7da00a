"""A review: what a thread has changed, by file, with the comments of a person at their lines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes, urlencode

from starlette.responses import RedirectResponse, Response

from casfs.checkpoints.revisions import resolve_tree
from casfs.digest import hash_bytes
from casfs.errors import Invalid, NotFound
from casfs.review import anchors, comments, message, outcomes, subject
from casfs.review.comments import Comment, Review
from casfs.review.subject import Subject
from casfs.sessions import session_steps
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.store.nodes.directory import Entry, File, Symlink
from casfs.store.store import Store
from casfs.threads import lookup, sessions, threads
from casfs.threads.threads import Thread
from casfs.trees.tree import Change
from casfs.web import compare
from casfs.web.actions import ask
from casfs.web.compare import REMOVED, Diff, FileChange, Line
from casfs.web.site import Call, is_number
from casfs.web.thread_table import row_of
from casfs.worktrees import worktree

MAX_FILES = 2000
# Of all files that the page itself has; the lines of others are fetched when they are unfolded.
MAX_LINES = 1000
MAX_FILE_LINES = 5000
GENERATED = (b"package-lock.json", b"yarn.lock", b"poetry.lock", b"uv.lock", b"Cargo.lock")
GENERATED_ENDS = (b".min.js", b".min.css", b".map", b".lock", b"_pb2.py", b".snap")


@dataclass(frozen=True)
class Remark:
    """A comment as it is shown. `line`: on the side that it is of, None where it does not stand
    there; `call`: which has changed its lines since it was sent; `quoted`: its lines as they were
    commented on, where they do not stand there."""

    comment: Comment
    label: str
    state: str
    line: int | None
    call: CallRecord | None = None
    quoted: Sequence[str] = ()

    @property
    def is_outdated(self) -> bool:
        """What was before the changes stays as it was: a view may begin behind it."""
        return self.line is None and not self.comment.is_old

    @property
    def lines(self) -> str:
        """Its lines as they are named behind a path."""
        count = self.comment.count
        last = f"-{self.line + count - 1}" if self.line and count > 1 else ""
        return f":{self.line}{last}" if self.line else ""


@dataclass
class ReviewedFile:
    """`number`: on the page; `mark`: of its content, by which it is known as viewed; `diff`: None
    where it is fetched on demand; `remarks`: by the side and number of the line below which they
    stand, 0 for those at the top of the file."""

    number: int
    change: FileChange
    mark: str
    is_viewed: bool
    is_generated: bool
    diff: Diff | None = None
    remarks: Mapping[tuple[bool, int], list[Remark]] = field(default_factory=dict)

    @property
    def path(self) -> bytes:
        return self.change.change.path

    @property
    def source(self) -> bytes:
        """Its path before the changes."""
        return self.change.change.source or self.path

    @property
    def remark_count(self) -> int:
        return sum(map(len, self.remarks.values()))

    def below(self, line: Line) -> list[Remark]:
        """The remarks that stand below a line of the diff."""
        at_old = self.remarks.get((True, line.old or 0), []) if line.old else []
        at_new = self.remarks.get((False, line.new or 0), []) if line.new else []
        return [*at_old, *at_new]

    @property
    def at_top(self) -> list[Remark]:
        """Those of the file as a whole, outdated ones, and those on lines that are not shown."""
        lines = [line for hunk in self.diff.hunks for line in hunk] if self.diff else []
        shown = {(True, line.old) for line in lines} | {(False, line.new) for line in lines}
        hidden = [line for line in self.remarks if line[1] == 0 or line not in shown]
        return [remark for line in hidden for remark in self.remarks[line]]


def _apply_command(store: Store, thread: Thread) -> str | None:
    """Returns the command that brings what is reviewed to where a person works; None where the
    agent worked there."""
    if not sessions.is_session(thread):
        return f"casfs thread apply {thread.id[-8:]} DIRECTORY"
    listed = worktree.at(store, Path(sessions.about(store, thread)["directory"]))
    return None if listed is None else f"casfs worktree apply {listed.name}"


def show(call: Call) -> Response:
    """The page; `?fragment=file&path=`: the lines of one file."""
    thread = lookup.find(call.store, call.path["id"])
    since = call.index("since")
    review = comments.load(call.store, thread.id)
    if call.query.get("fragment") == "file":
        # Of the states that the page shows: its lines are numbered by these.
        old, new = (resolve_tree(call.store, call.query.get(name, "")) for name in ("old", "new"))
        reviewed = Subject(thread, since, old=old, new=new)
        path = unquote_to_bytes(call.query.get("path", ""))
        file = _one_file(call.store, review, reviewed, path)
        return call.page("review.html", file=file, id=thread.id, subject=reviewed)
    reviewed = subject.of_thread(call.store, thread, since)
    row = row_of(thread.name, thread.head)
    status: dict[str, Any] = {
        "id": thread.id,
        "row": row,
        "title": call.site.threads.title(row),
        "subject": reviewed,
        # The state that the page shows; the agent may have gone on since.
        "shown": call.query.get("new", reviewed.new),
        "review": review,
        "live": f"{thread.name} {comments.head_name(thread.id)}",
    }
    # It is fetched whenever the thread moves: it needs no diff.
    if call.query.get("fragment") == "status":
        remarks = _remarks(call.store, review, reviewed, steps=[])
        return call.page("review.html", every=chain.from_iterable(remarks.values()), **status)
    is_session = sessions.is_session(thread)
    steps = session_steps.load(call.store, thread) if is_session and review.rounds else []
    length = threads.length(call.store, thread)
    is_here = is_session and "origin" not in thread.fields
    can_rewind = is_here and (since < length or thread.pending is not None)
    remarks = _remarks(call.store, review, reviewed, steps)
    files, is_cut = _files(call.store, review, reviewed, remarks)
    shown = {file.path for file in files} | {file.source for file in files}
    return call.page(
        "review.html",
        steps=length,
        rewinds_to=since + 1 if can_rewind else None,
        apply_command=_apply_command(call.store, thread),
        files=files,
        is_cut=is_cut,
        every=[remark for of_file in remarks.values() for remark in of_file],
        elsewhere=[r for path, each in remarks.items() if path not in shown for r in each],
        **status,
    )


def send(call: Call) -> Response:
    """Has the daemon change the review; goes back to where the form was."""
    id = lookup.find(call.store, call.path["id"]).id
    action = call.form.get("action", "")
    fields: dict[str, object] = {}
    if action == "send":
        ask(call, "review_send", id=id)
    else:
        names = ("file", "text", "viewed")
        fields = {name: call.form[name] for name in names if name in call.form}
        if "tree" in call.form:
            fields["side"], _, fields["tree"] = call.form["tree"].partition(" ")
        if call.form.get("suggestion"):
            fields["suggestion"] = call.form["suggestion"]
        for name in ("number", "line", "count"):
            if (text := call.form.get(name)) is not None:
                if not is_number(text):
                    raise Invalid(f"{name} must be a number")
                fields[name] = int(text)
        ask(call, "review_change", id=id, action=action, **fields)
    since = {"since": call.form["since"]} if is_number(call.form.get("since", "")) else {}
    anchor = quote(call.form.get("anchor", ""))
    return RedirectResponse(f"/threads/{quote(id)}/review?{urlencode(since)}#{anchor}", 303)


def _remarks(
    store: Store, review: Review, reviewed: Subject, steps: list[StepRecord]
) -> dict[bytes, list[Remark]]:
    """Returns what is shown of each comment, by the path of its file in the state that it is of.
    `steps`: in which the call is looked for that changed its lines."""
    by_path: dict[bytes, list[Remark]] = defaultdict(list)
    for comment in review.comments:
        position = anchors.place(store, comment, reviewed.tree_of(comment))
        changed = outcomes.changed_by(store, review, comment, steps) if position is None else None
        remark = Remark(
            comment,
            review.label(comment.number),
            review.state(comment),
            line=None if position is None else position.line,
            call=changed,
            quoted=message.quoted(store, comment) if position is None else (),
        )
        by_path[comment.path if position is None else position.path].append(remark)
    return by_path


def _files(
    store: Store, review: Review, reviewed: Subject, remarks: Mapping[bytes, list[Remark]]
) -> tuple[list[ReviewedFile], bool]:
    changes, is_cut = compare.changes(store, reviewed.old, new=reviewed.new)
    files = []
    left = MAX_LINES
    for number, (change, kind) in enumerate(changes[:MAX_FILES], 1):
        file = _file(review, number, FileChange(change, kind, None, None))
        is_folded = kind == REMOVED or file.is_generated or file.is_viewed
        if left > 0 and not is_folded:
            diff = compare.diff(store, change.old, change.new, left)
            left -= sum(map(len, diff.hunks))
            # One that would be cut is fetched whole.
            file.diff = None if diff.left else diff
        file.remarks = _by_line(_of_file(remarks, change))
        files.append(file)
    return files, is_cut or len(changes) > MAX_FILES


def _one_file(store: Store, review: Review, reviewed: Subject, path: bytes) -> ReviewedFile:
    remarks = _remarks(store, review, reviewed, steps=[])
    changes, _ = compare.changes(store, reviewed.old, new=reviewed.new)
    for number, (change, kind) in enumerate(changes[:MAX_FILES], 1):
        if change.path == path:
            file = _file(review, number, FileChange(change, kind, None, None))
            file.diff = compare.diff(store, change.old, change.new, MAX_FILE_LINES)
            file.remarks = _by_line(_of_file(remarks, change))
            return file
    raise NotFound("the file has not changed any more; load the page again")


def _file(review: Review, number: int, change: FileChange) -> ReviewedFile:
    path = change.change.path
    name = path.rpartition(b"/")[2]
    mark = _content_mark(change.change.new)
    return ReviewedFile(
        number,
        change,
        mark=mark,
        is_viewed=review.viewed.get(path) == mark,
        is_generated=name in GENERATED or name.endswith(GENERATED_ENDS),
    )


def _of_file(remarks: Mapping[bytes, list[Remark]], change: Change) -> list[Remark]:
    source = change.source or change.path
    before = [remark for remark in remarks.get(source, ()) if remark.comment.is_old]
    after = [remark for remark in remarks.get(change.path, ()) if not remark.comment.is_old]
    return before + after


def _content_mark(entry: Entry | None) -> str:
    """Returns what a file is marked as viewed with: another one when its content changes."""
    if isinstance(entry, Symlink):
        return hash_bytes(entry.target)
    return entry.digest.hash if isinstance(entry, File) else ""


def _by_line(remarks: Sequence[Remark]) -> dict[tuple[bool, int], list[Remark]]:
    by_line: dict[tuple[bool, int], list[Remark]] = defaultdict(list)
    for remark in remarks:
        last = 0
        if remark.line:
            last = remark.line + max(remark.comment.count, 1) - 1
        by_line[remark.comment.is_old, last].append(remark)
    return by_line

"""`casfs rewind`: takes back what an attached agent did."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from casfs.attach import spool
from casfs.cli.common import WithPaths, open_store, options_as
from casfs.cli.diff_output import change_json
from casfs.cli.json_values import moment
from casfs.cli.output import echo, echo_json, json_option, say_incomplete, wants_json, warn
from casfs.cli.progress import progress
from casfs.cli.restore import print_aside, print_failed, way_back
from casfs.cli.rewind_picker import pick, pick_what
from casfs.cli.table import Cell, Moment, echo_table
from casfs.cli.terminal import is_asked
from casfs.cli.undone import print_undone, repositories_json
from casfs.errors import CasfsError, NotFound, Usage
from casfs.rewind import conversations, rewind_files
from casfs.rewind.conversations import CONVERSATION, FILES, WHAT
from casfs.rewind.rewind_files import Choice, FilePlan
from casfs.rewind.undo_calls import MARKED, UndoOptions
from casfs.sessions import caller, find_session, points, session_steps
from casfs.sessions.session_steps import Point, StepRecord
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.paths import printable
from casfs.threads import sessions, threads
from casfs.threads.threads import Thread
from casfs.trees.git.index import pointed_to


@dataclass(frozen=True)
class Rewinding:
    """What is asked for: of which session, and `what` of it. `choice`: None for the last call whose
    changes are still there."""

    store: Store
    thread: Thread
    directory: Path
    steps: list[StepRecord]
    choice: Choice | None
    options: UndoOptions
    what: str
    dry_run: bool
    yes: bool

    def plan(self) -> FilePlan:
        if self.choice is None:
            return rewind_files.plan_last(self.store, self.directory, self.steps, self.options)
        return rewind_files.plan(self.store, self.directory, self.steps, self.choice)


class Flags(NamedTuple):
    last: bool
    to: str | None
    only: str | None
    what: str | None
    exact: bool
    ambiguous: bool
    markers: bool
    listing: bool
    dry_run: bool
    yes: bool


@click.command(cls=WithPaths)
@click.argument("session", required=False)
@click.option("--last", is_flag=True, help="The last call whose changes are still there.")
@click.option("--to", metavar="N[.M]", help="To before prompt N, or its call M.")
@click.option("--only", metavar="N[.M]", help="Prompt N or its call M alone, not what came after.")
@click.option("--what", type=click.Choice(WHAT), help="Files is the default.")
@click.option("--exact", is_flag=True, help="The files as they were, your own changes included.")
@click.option("--ambiguous", is_flag=True, help="Also what may be of the agent, or of you.")
@click.option("--markers", is_flag=True, help="Where you changed the same lines, write both.")
@click.option("--list", "listing", is_flag=True, help="List the prompts and calls, newest first.")
@click.option("--dry-run", is_flag=True, help="Show what would be changed; change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask on a terminal.")
@json_option
@options_as(Flags)
def rewind(session: str | None, paths: tuple[str, ...], options: Flags) -> int:
    """Take back what an attached agent did in its directory, and keep what you changed yourself.

    SESSION is a thread's id, or the agent's own: by default the one that was active last in the
    working directory. Without --last, --to, --only or --list you choose from its prompts and calls.
    What you and the agent changed in the same lines stays as it is and is named (exit 1), and so do
    changes that are not known to be the agent's. On a terminal you are asked first. `casfs undo`
    takes a rewind back. A conversation is copied up to there: the agent goes on from the copy by
    the command that is printed.

    \b
    casfs rewind --last
    casfs rewind --list
    casfs rewind --to 3.2 --dry-run
    casfs rewind --to 3 -- src/main.py
    casfs rewind --only 3.2 --markers
    casfs rewind --to 3 --what both
    """
    _check(options, paths)
    with open_store() as store:
        thread = _latest(store) if session is None else find_session.named(store, session)
        thread = _settled(store, thread)
        steps = session_steps.load(store, thread)
        if options.listing:
            _list(store, thread, steps)
            return 0
        if not options.dry_run:
            store.check_writable()  # before it is said what is taken back
        directory = find_session.directory_of(store, thread, Path.cwd())
        undo_options = UndoOptions(
            tuple(_in_directory(directory, path) for path in paths),
            takes_ambiguous=options.ambiguous,
            marks_conflicts=options.markers,
        )
        choice = None
        what = options.what or FILES
        if not options.last:
            text = options.to or options.only
            point = _picked(store, thread, steps) if text is None else Point.parse(text)
            is_only = options.only is not None
            choice = Choice(point, options.exact, is_only, undo_options)
            if options.what is None and text is None:
                what = pick_what(WHAT)
        rewinding = Rewinding(
            store=store,
            thread=thread,
            directory=directory,
            steps=steps,
            choice=choice,
            options=undo_options,
            what=what,
            dry_run=options.dry_run,
            yes=options.yes,
        )
        return _rewind(rewinding)


def _check(options: Flags, paths: tuple[str, ...]) -> None:
    ways = [options.last, options.listing, options.to is not None, options.only is not None]
    if sum(ways) > 1:
        raise Usage("give one of --last, --to N[.M], --only N[.M] and --list")
    if options.exact and (options.last or options.only is not None):
        raise Usage("--last and --only keep your own changes; give --to N[.M] --exact")
    if options.exact and (options.ambiguous or options.markers):
        raise Usage("--exact gives the files as they were: without --ambiguous and --markers")
    is_partial = paths or options.only is not None
    if is_partial and options.what not in (None, FILES):
        raise Usage("paths and --only are for files; a conversation is cut at a point: --to N[.M]")


def _in_directory(directory: Path, path: str) -> bytes:
    """Returns a path of the session's directory, given as git does from where the person is."""
    above = Path.cwd() if Path.cwd().is_relative_to(directory) else directory
    inside = os.path.relpath(os.path.join(above, path), directory)
    if inside == os.curdir or inside.split(os.sep)[0] == os.pardir:
        raise Usage(f"{printable(os.fsencode(path))} is not a path in {directory}")
    return os.fsencode(inside)


def _latest(store: Store) -> Thread:
    try:
        return find_session.latest_in(store, Path.cwd())
    except NotFound as error:
        # The first look at a large directory takes a while, and what the agent reports waits.
        if waiting := len(spool.names(store.root)):
            reports = "1 report" if waiting == 1 else f"{waiting} reports"
            raise NotFound(f"{error}; {reports} of agents wait to be recorded: try again") from None
        raise


def _settled(store: Store, thread: Thread) -> Thread:
    """Has the daemon find out which open calls are over: of a killed agent no hook tells."""
    if thread.pending is None or not thread.record["session"]["open"]:
        return thread
    # Without a daemon they stay open, and are named.
    with suppress(CasfsError):
        daemon_socket.request(store.root, "session_settle", id=thread.id)
    return threads.get(store, thread.id)


def _picked(store: Store, thread: Thread, steps: list[StepRecord]) -> Point:
    if is_asked() and not wants_json():
        return pick(points.rows(store, sessions.about(store, thread)["directory"], steps))
    raise Usage("give --last, --to N[.M] or --list; a terminal lets you choose")


def _rewind(rewinding: Rewinding) -> int:
    choice = rewinding.choice
    plan = None
    # A conversation alone needs no look at the files, unless they say which call was the last.
    if rewinding.what != CONVERSATION or choice is None:
        plan = rewinding.plan()
        choice = plan.choice
    files = None if rewinding.what == CONVERSATION else plan
    point = choice.point
    value = _value(rewinding, choice, files)
    if files is not None:
        _warn_of_external_repository(rewinding.directory)
        if not wants_json():
            _print_plan(files, rewinding.directory)
    if not rewinding.dry_run and not _is_agreed(rewinding, files):
        echo("nothing was changed")
        return 1
    conversation = None
    # Before the files are written: where it cannot be cut, nothing is done.
    if rewinding.what != FILES and not rewinding.dry_run:
        conversation = _cut_conversation(rewinding, point)
        value["conversation"] = conversation
    if files is not None and files.undone.changed and not rewinding.dry_run:
        value["failed"] = _rewind_files(rewinding, files)
    if wants_json():
        echo_json(value)
    elif conversation is not None:
        is_open = rewinding.thread.pending is not None
        quit_first = "quit the session, then run" if is_open else "go on from there with"
        echo(f"{quit_first}: {conversation['command']}")
    return int(bool(value["failed"]) or (files is not None and not files.is_whole))


def _warn_of_external_repository(directory: Path) -> None:
    """Says where what git has recorded is not in the directory that is taken back."""
    git = directory / ".git"
    with suppress(OSError):
        if git.is_file():
            where = printable(os.fsencode(pointed_to(git)))
            warn(f"files alone: commits, branches and the index are in {where}, and stay")


def _is_agreed(rewinding: Rewinding, files: FilePlan | None) -> bool:
    """Asks a person at a terminal who has seen the plan."""
    if rewinding.yes or files is None or not files.undone.changed:
        return True
    if wants_json() or not is_asked():
        return True
    return click.confirm("Take this back?", default=True, err=True)


def _rewind_files(rewinding: Rewinding, plan: FilePlan) -> dict[str, str]:
    """Does what a plan says; returns what could not be written, with the reason."""
    actor = caller.actor(rewinding.store, os.environ)
    with progress("taking back", "files", len(plan.undone.changed)) as update:
        done = rewind_files.do(rewinding.store, rewinding.directory, plan, actor, update)
    if not wants_json():
        print_aside(done.outcome.aside)
        print_failed(done.failed)
        echo(way_back(os.fspath(rewinding.directory)))
    return {printable(path): reason for path, reason in done.failed.items()}


def _cut_conversation(rewinding: Rewinding, point: Point) -> dict[str, str]:
    """Makes a session that goes on from the point, and its thread."""
    from engine.sessions import session_fork

    conversation = conversations.cut(rewinding.store, rewinding.thread, rewinding.steps, point)
    copy = conversation.transcript
    fork = session_fork.fork(rewinding.store, rewinding.thread, point, conversation.id, copy)
    return {"session": fork.id, "id": conversation.id, "command": conversation.command}


def _print_plan(plan: FilePlan, directory: Path) -> None:
    """Names what stays first: it is what a person has to know before anything is written."""
    for path, reason in sorted(plan.undone.conflicts.items()):
        say_incomplete(f"{printable(path)} stays as it is: {reason}")
    for path in plan.undone.marked:
        say_incomplete(f"{printable(path)}: {MARKED}")
    for path, reason in sorted(plan.undone.kept.items()):
        warn(f"{printable(path)} stays as it is, not known to be the agent's: {reason}")
    for call in plan.late:
        warn(f"{call.step}.{call.number} {call.tool}: what it changed at once may stay, as the"
             " directory was looked at late")  # fmt: skip
    for call in plan.running:
        stays = "not known to be over, so what it has changed stays"
        say_incomplete(f"{call.step}.{call.number} {call.tool}: {stays}; see --exact")
    for call in plan.lost:
        say_incomplete(
            f"{call.step}.{call.number} {call.tool}: what it changed stays: {call.fault}"
        )
    if plan.lost:
        warn("--exact goes back to all that was there at a prompt")
    if not plan.undone.changed:
        echo(f"{directory}: nothing to change for {plan.point}")
        return
    kept = "your own changes too" if plan.choice.is_exact else "your own changes kept"
    extent = "without" if plan.choice.is_only else "back to before"
    echo(f"{directory}, {extent} {plan.point}, {kept}:")
    print_undone(plan.store, plan.undone)


def _list(store: Store, thread: Thread, steps: list[StepRecord]) -> None:
    rows = list(points.rows(store, sessions.about(store, thread)["directory"], steps))
    values = [
        {
            "point": str(row.point),
            "at": moment(row.reported_ms),
            "tool": row.tool,
            "text": row.text,
            "changed": row.changed,
            "repositories": row.repositories,
            "marks": row.marks,
        }
        for row in rows
    ]
    cells: list[tuple[Cell, ...]] = [
        (str(row.point), Moment(row.reported_ms), row.tool, row.text, row.outcome) for row in rows
    ]
    echo_table(values, "POINT DATE TOOL TEXT CHANGED", cells, whole="POINT")


def _value(rewinding: Rewinding, choice: Choice, plan: FilePlan | None) -> dict[str, Any]:
    changes: list[dict[str, Any]] = []
    conflicts: dict[bytes, str] = {}
    kept: dict[bytes, str] = {}
    marked: list[bytes] = []
    late: list[str] = []
    lost: list[str] = []
    running: list[str] = []
    repositories: dict[str, list[str]] = {}
    if plan is not None:
        changes = [change_json(plan.store, change) for change in plan.undone.changed_files]
        repositories = repositories_json(plan.undone)
        conflicts = plan.undone.conflicts
        kept = plan.undone.kept
        marked = plan.undone.marked
        late = [f"{call.step}.{call.number}" for call in plan.late]
        lost = [f"{call.step}.{call.number}" for call in plan.lost]
        running = [f"{call.step}.{call.number}" for call in plan.running]
    return {
        "session": rewinding.thread.id,
        "directory": os.fspath(rewinding.directory),
        "point": str(choice.point),
        "only": choice.is_only,
        "what": rewinding.what,
        "exact": choice.is_exact,
        "dryRun": rewinding.dry_run,
        "changes": changes,
        "repositories": repositories,
        "conflicts": {printable(path): reason for path, reason in conflicts.items()},
        "kept": {printable(path): reason for path, reason in kept.items()},
        "marked": [printable(path) for path in marked],
        "failed": {},
        "conversation": None,
        "late": late,
        "lost": lost,
        "running": running,
    }

"""The board: what needs a person, what runs, what waits, what has ended today."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from starlette.responses import Response

from casfs.errors import CasfsError
from casfs.store.store import Store
from casfs.threads import live_output, threads
from casfs.threads.permission import PermissionRequest
from casfs.threads.state import QUEUED, STATES
from casfs.threads.summary import content_text
from casfs.threads.threads import BROKEN, RUNNING, ThreadId
from casfs.web.site import Call
from casfs.web.thread_table import ENDED, NEEDS, Row, ThreadTable

PAGE = 25  # rows of a section
TAIL_BYTES = 4096  # of a program's output, for its last line
MAX_MESSAGE_CHARS = 160
FENCE = "```"
# Of others, and of running ones; pinned ones are first.
NEWEST = attrgetter("pinned", "updated_ms", "id"), attrgetter("pinned", "since_ms", "id")
TITLES = {NEEDS: "Needs you", RUNNING: "Running", QUEUED: "Queued", ENDED: "Ended today"}


@dataclass(frozen=True)
class Filter:
    """What is listed; empty texts choose everything but what is archived, which `archived` chooses
    alone. With one, `ended` is not of today alone."""

    state: str = ""
    workflow: str = ""
    project: str = ""
    text: str = ""
    archived: str = ""

    @property
    def any(self) -> bool:
        return self != Filter()


@dataclass(frozen=True)
class Line:
    """A row that is shown. `task`: where that is not its title; `said`: the last line of its agent;
    `question`: to a person, of which a `permission` is one; `called`: number of the threads that it
    called, such as subagents."""

    row: Row
    title: str
    task: str
    said: str
    question: str | None
    permission: PermissionRequest | None
    called: int


@dataclass(frozen=True)
class Section:
    """A window of a list: `lines` from index `first` on, of `total`."""

    name: str
    title: str
    lines: list[Line]
    first: int
    total: int
    size: int = PAGE


@dataclass(frozen=True)
class Board:
    """`tokens`, `wall_ms`: of what is listed."""

    sections: list[Section]
    filter: Filter
    workflows: list[str]
    projects: list[str]
    tokens: int
    wall_ms: int


def show(call: Call) -> Response:
    query = call.query
    chosen = Filter(
        *(query.get(name, "").strip() for name in ("state", "workflow", "project", "q", "archived"))
    )
    firsts = {name: call.index(name) for name in TITLES}
    current_time = datetime.now().astimezone()
    model = board(
        call.store, call.site.threads, chosen=chosen, firsts=firsts, current_time=current_time
    )
    return call.page("board.html", board=model, states=STATES)


def board(
    store: Store, table: ThreadTable, chosen: Filter, firsts: dict[str, int], current_time: datetime
) -> Board:
    """Returns the board; `firsts`: index of the first row of each section's window."""
    rows = table.rows()
    midnight = current_time.replace(hour=0, minute=0, second=0, microsecond=0)
    since = 0 if chosen.any else int(midnight.timestamp() * 1000)
    rows_by_section: dict[str, list[Row]] = {name: [] for name in TITLES}
    called = Counter(row.parent for row in rows)
    ids = {row.id for row in rows}
    for row in rows:
        # What a thread has called stands on its page, and its card counts it.
        if row.section == ENDED and row.parent in ids and not chosen.any:
            continue
        if row.archived != bool(chosen.archived):
            continue
        if row.updated_ms < since and row.section == ENDED and not row.pinned:
            continue
        if not chosen.any or _fits(row, chosen, table):
            rows_by_section[row.section].append(row)
    sections = []
    for name, title in TITLES.items():
        listed = sorted(rows_by_section[name], key=NEWEST[name == RUNNING], reverse=True)
        first = min(firsts.get(name, 0), max(0, len(listed) - 1) // PAGE * PAGE)
        lines = [_line(store, table, row, called[row.id]) for row in listed[first : first + PAGE]]
        title = "Ended" if name == ENDED and chosen.any else title
        sections.append(Section(name, title, lines=lines, first=first, total=len(listed)))
    every = [row for listed in rows_by_section.values() for row in listed]
    return Board(
        sections,
        chosen,
        workflows=sorted({row.workflow for row in rows}),
        projects=sorted({str(row.project.directory) for row in rows if row.project}),
        tokens=sum(row.tokens for row in every),
        wall_ms=sum(row.wall_ms for row in every),
    )


def _fits(row: Row, chosen: Filter, table: ThreadTable) -> bool:
    if chosen.state and row.state != chosen.state:
        return False
    if chosen.workflow and row.workflow != chosen.workflow:
        return False
    if chosen.project and (row.project is None or str(row.project.directory) != chosen.project):
        return False
    text = chosen.text.casefold()
    if not text:
        return True
    project = "" if row.project is None else row.project.name
    known = (row.id, row.name or "", row.workflow, project, row.role or "", row.reason or "")
    return any(text in field.casefold() for field in known) or text in table.task(row).casefold()


def _line(store: Store, table: ThreadTable, row: Row, called: int) -> Line:
    said = "" if row.state == BROKEN else last_message(store, row)
    task = table.task(row) if row.name else ""
    question = _question(store, row)
    permission = PermissionRequest.of_question(store, row.question) if question else None
    return Line(
        row,
        table.title(row),
        task=task,
        said=said,
        question=question,
        permission=permission,
        called=called,
    )


def _question(store: Store, row: Row) -> str | None:
    if row.question is None or row.section != NEEDS:
        return None
    try:
        return content_text(store, row.question)
    except CasfsError as error:
        return str(error)


def last_message(store: Store, row: Row) -> str:
    """Returns the last line that a thread's agent said: of the program that runs, else of the last
    step."""
    tail = live_output.tail(store.root, row.run, TAIL_BYTES) if row.state == RUNNING else None
    text = "" if tail is None else tail[0].decode("utf-8", "replace")
    if not text.strip():
        text = _last_output(store, row.id)
    last = next((line for line in reversed(_prose(text)) if line.strip()), "").strip()
    return last if len(last) <= MAX_MESSAGE_CHARS else last[: MAX_MESSAGE_CHARS - 1] + "…"


def _prose(text: str) -> list[str]:
    """Returns the lines of a text without the fenced blocks that end it, its meta among them; all
    where nothing else is left."""
    lines = kept = text.rstrip().splitlines()
    while kept and kept[-1].strip() == FENCE:
        opening = [n for n, line in enumerate(kept[:-1]) if line.strip().startswith(FENCE)]
        kept = "\n".join(kept[: opening[-1] if opening else -1]).rstrip().splitlines()
    return kept or lines


def _last_output(store: Store, id: ThreadId) -> str:
    try:
        thread = threads.get(store, id)
        step = next(threads.backwards(store, thread), None)
        return "" if step is None else content_text(store, step.payload["content"])
    except CasfsError:
        return ""

"""The board: which threads it lists where, its windows, its filter, and what it says of each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from casfs.backend.protocols import Head, HeadName, Swap
from casfs.store.store import Store
from casfs.threads.state import STATES
from casfs.web import board as boards
from casfs.web.board import PAGE, Board, Filter, Section, board
from casfs.web.rendering import Rendering
from casfs.web.thread_table import ThreadTable
from tests.support.thread_example import STARTED, Example, make_thread
from tests.support.web import Web, visible

NOW = datetime.fromtimestamp(STARTED / 1000, UTC)
INTENT = {"role": "planner", "index": 2, "attempt": 2, "since": STARTED - 5000}
EVERYTHING = Filter()
TITLE = "Fix the parser."  # of the example
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>'\"&lt;"


def make(store: Store, number: int = 0, **record: Any) -> Example:
    return make_thread(store, f"01JD{number:022}", **record)


def shown(store: Store, chosen: Filter = EVERYTHING, **firsts: int) -> Board:
    return board(store, ThreadTable(store), chosen, firsts, NOW)


def section(store: Store, name: str, chosen: Filter = EVERYTHING, **firsts: int) -> Section:
    (found,) = [one for one in shown(store, chosen, **firsts).sections if one.name == name]
    return found


@pytest.mark.parametrize(
    ("place", "record"),
    [
        ("needs", {"status": "suspended", "cause": "failure", "reason": "it broke"}),
        ("needs", {"status": "suspended", "cause": "human"}),
        ("queued", {"status": "suspended", "cause": "child"}),
        ("queued", {"status": "suspended", "cause": "caller"}),
        ("running", {"status": "running", "intent": INTENT}),
        ("queued", {"status": "running", "intent": None}),
        ("queued", {"status": "running", "intent": {**INTENT, "resumed": True}}),
        ("ended", {"status": "ended", "returnCode": 0}),
        ("ended", {"status": "cancelled", "returnCode": 130}),
    ],
)
def test_a_thread_is_in_one_section(store: Store, place: str, record: dict[str, Any]) -> None:
    make(store, **record)
    assert {one.name: one.total for one in shown(store).sections if one.total} == {place: 1}


def test_what_ended_before_today_is_found_by_the_filter(store: Store) -> None:
    midnight = int(NOW.replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000)
    make(store, 1, status="ended", returnCode=0, updatedAt=midnight)
    make(store, 2, status="ended", returnCode=1, updatedAt=midnight - 1)
    assert [line.row.state for line in section(store, "ended").lines] == ["succeeded"]
    failed = section(store, "ended", Filter(state="failed"))
    assert [line.row.state for line in failed.lines] == ["failed"]
    assert (section(store, "ended").title, failed.title) == ("Ended today", "Ended")


def test_the_filter_finds_by_workflow_and_text(store: Store) -> None:
    make(store, 1, name="alpha", intent=INTENT)
    make(store, 2, workflow="other", reason="Ärger", intent=INTENT)

    def found(**chosen: str) -> list[str]:
        return [line.row.id[-1] for line in section(store, "running", Filter(**chosen)).lines]

    assert sorted(found()) == ["1", "2"]
    assert found(workflow="other") == ["2"]
    assert found(text="ALPHA") == ["1"]
    assert found(text="ärger") == ["2"]
    assert sorted(found(text="fix the PARSER")) == ["1", "2"], "the task"
    assert found(text="fix the PARSER", workflow="demo") == ["1"]
    assert found(text="nothing") == found(workflow="no") == []
    assert shown(store, Filter(text="nothing")).workflows == ["demo", "other"]


def test_windows_go_by_index_and_are_bounded(store: Store) -> None:
    for number in range(PAGE + 2):
        make(store, number, intent={**INTENT, "since": number + 1})
    first, second = section(store, "running"), section(store, "running", running=PAGE)
    assert (len(first.lines), first.total) == (PAGE, PAGE + 2)
    ids = [int(line.row.id[4:]) for line in first.lines + second.lines]
    assert ids == list(range(PAGE + 1, -1, -1)), "the newest first"
    beyond = section(store, "running", running=10**9)
    assert beyond.first == PAGE, "the last window"


def test_it_says_the_task_the_last_line_and_what_was_spent(disk_store: Store) -> None:
    spent = {"tokens": 1500, "wallMs": 61_000}
    thread = make(disk_store, intent={**INTENT, "run": "0" * 32}, spent=spent)
    thread.step("planner", "first\nI have a plan.\n\n```py\nx = 1\n```\n```json\n{}\n```\n")
    table = ThreadTable(disk_store)

    def line() -> boards.Line:
        (found,) = board(disk_store, table, Filter(), {}, NOW).sections[1].lines
        return found

    assert (line().title, line().said) == ("Fix the parser.", "I have a plan.")
    row = line().row
    assert (row.role, row.attempt, row.since_ms) == ("planner", 2, STARTED - 5000)
    live = disk_store.root / "live" / ("0" * 32)
    live.parent.mkdir()
    live.write_bytes(b"x" * 100_000 + b"\nnow this\n" + b"\xff\n")
    assert line().said == "\ufffd"
    live.write_bytes(b"")
    assert line().said == "I have a plan."
    found = board(disk_store, table, Filter(), {}, NOW)
    assert (found.tokens, found.wall_ms) == (1500, 61_000)


def test_the_table_follows_the_journal(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ThreadTable(store)
    thread = make(store)
    assert [row.state for row in table.rows()] == ["running"]
    monkeypatch.setattr(type(store.heads), "list", None)  # from here on only moved heads are read
    thread.move(thread.start, status="ended", returnCode=1)
    assert [row.state for row in table.rows()] == ["failed"]
    other = make(store, 1)
    assert len(table.rows()) == 2
    with store.batch() as batch:
        batch.swap(other.name, other.head, None)  # type: ignore[arg-type]
    assert [row.id for row in table.rows()] == [thread.id]


def test_a_damaged_thread_is_listed(store: Store) -> None:
    thread = make(store)
    damaged = Head(thread.head.hash, {**thread.head.record, "intent": {"role": 1}})
    store.backend.publish([], [Swap(HeadName(thread.name), thread.head, damaged)])
    (line,) = section(store, "needs").lines
    assert (line.row.id, line.row.state) == (thread.id, "broken")
    assert "damaged" in str(line.row.reason)
    page = Rendering().render("board.html", "board", {"board": shown(store), "states": STATES})
    assert "broken" in page


def test_it_is_served_with_fragments(web: Web, disk_store: Store) -> None:
    make(disk_store, status="suspended", cause="human", reason=HOSTILE, name=HOSTILE)
    page = web.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "Needs you 1" in visible(page.text)
    assert "<script>alert" not in page.text
    assert "onerror=alert(2)&gt;" in page.text
    part = web.get("/?fragment=board&q=" + "%3Cscript%3E").text
    assert part.lstrip().startswith('<div id="board" data-live="threads/" data-fragment=')
    assert "Needs you 1" in visible(part)
    assert "<script>" not in part
    assert web.get("/?fragment=nothing", 404).status == 404
    for bad in ("x", "-1", "1e9", "9" * 30, "%00"):
        assert "ended must be a number" in web.get(f"/?ended={bad}", 400).text


def test_a_head_moved_while_it_is_shown(web: Web, disk_store: Store) -> None:
    thread = make(disk_store, intent=INTENT)
    assert "Running 1" in visible(web.get("/").text)
    thread.move(thread.start, status="ended", returnCode=0)
    assert "Running 0" in visible(web.get("/").text)


def test_a_card_names_its_project_and_the_filter_chooses_one(disk_store: Store, web: Web) -> None:
    make(disk_store, 1, status="suspended", cause="failure", project="/src/app", worktree="/try")
    make(disk_store, 2, status="suspended", cause="failure", project=f"/src/{HOSTILE}")
    page = web.get("/").text
    assert "app (try)" in visible(page)
    assert HOSTILE not in page
    assert shown(disk_store).projects == sorted(["/src/app", f"/src/{HOSTILE}"])
    (line,) = section(disk_store, "needs", Filter(project="/src/app")).lines
    assert line.row.id == f"01JD{1:022}"


def test_pinned_threads_are_first_and_archived_ones_are_asked_for(
    disk_store: Store, web: Web
) -> None:
    failed = {"status": "suspended", "cause": "failure"}
    make(disk_store, 1, **failed, pinned=True, name="kept")
    make(disk_store, 2, **failed)
    make(disk_store, 3, **failed, archived=True)
    lines = section(disk_store, "needs").lines
    assert [(line.row.id[-1], line.title) for line in lines] == [("1", "kept"), ("2", TITLE)]
    assert [line.task for line in lines] == [TITLE, ""], "what is a title is not said twice"
    (line,) = section(disk_store, "needs", Filter(archived="yes")).lines
    assert line.row.id[-1] == "3"
    html = web.get("/?archived=yes").text
    assert f"01JD{3:022}" in html
    assert "&amp;archived=yes" in html, "the page that follows shows the same"


@pytest.mark.parametrize("state", ["running", "open", "closed"])
def test_a_session_is_offered_nothing_that_is_refused(
    disk_store: Store, web: Web, state: str
) -> None:
    """Nothing about it is a fault, and no daemon runs it."""
    session: dict[str, Any] = {"pid": 2, "pidStart": 1, "open": {}}
    session["ended"] = state == "closed"
    record = {"status": "suspended", "cause": "session", "reason": "a session of claude"}
    pending = INTENT if state == "running" else None
    thread = make(disk_store, **record, session=session, intent=pending)
    html = web.get(f"/?state={state}").text
    assert f'<span class="badge {state}">{state}</span>' in html
    for page in (html, web.get(f"/?fragment=board&state={state}").text):
        assert f"/threads/{thread.id}/" not in page, "no form"
        assert 'class="reason"' not in page


@pytest.mark.parametrize(
    ("cause", "is_fault"),
    [("failure", True), ("unknown", True), ("human", False), ("child", False)],
)
def test_only_a_fault_is_red(disk_store: Store, web: Web, cause: str, is_fault: bool) -> None:
    make(disk_store, status="suspended", cause=cause, reason="so it is")
    html = web.get("/").text
    assert ('<p class="reason">so it is</p>' in html) == is_fault
    assert "so it is" in html

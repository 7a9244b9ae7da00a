"""What a page shows by itself while it is open: no test here reloads one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from engine.workflow import registry as workflows
from tests.support.browser import PHONE, WIDE, Browser
from tests.support.engine import (
    ONE,
    STATUS,
    alive,
    daemon,
    rule,
    says,
    start_thread,
    until,
    workflow,
)
from tests.support.thread_example import make_thread
from tests.support.web import Web, serving

TWO = workflow(
    [rule("__start__", "plan"), rule("plan", "code"), rule("code", "__end__")],
    "two",
    plan=None,
    code=None,
)


@pytest.fixture
def page(web: Web, chromium: Browser) -> Browser:
    """The board of the empty store."""
    chromium.size(WIDE)
    chromium.open(web.url)
    chromium.run("window.kept = true")
    chromium.faults()
    return chromium


def shows(page: Browser, text: str, selector: str = "main") -> None:
    """The page comes to show a text, and has not been loaded again."""
    page.until(lambda: text in page.text(selector), repr(text))
    assert page.run("return window.kept") is True


def gated(gate: Path, role: str) -> dict[str, Any]:
    """An agent that waits for a file of its role's name."""
    return says({}, f"until [ -e {gate}/{role} ]; do sleep 0.02; done; echo said by {role}")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    (tmp_path / "gate").mkdir()
    return tmp_path / "gate"


def two(root: Path, gate: Path) -> str:
    """Starts a thread of two steps, `plan` and `code`, which wait for their files."""
    return start_thread(root, "two", {role: gated(gate, role) for role in ("plan", "code")})


def test_steps_appear_as_they_are_recorded(
    page: Browser, web: Web, disk_store: Store, gate: Path
) -> None:
    root = disk_store.root
    shows(page, "No daemon runs", "body")
    workflows.add(disk_store, TWO)
    with daemon(root):
        page.until(lambda: "No daemon runs" not in page.text(), "the daemon")
        id = two(root, gate)
        shows(page, f"{id[-8:]} two plan", "#running")
        page.open(f"{web.origin}/threads/{id}")
        page.run("window.kept = true")
        shows(page, "plan running", "#pending")
        (gate / "plan").touch()
        shows(page, "said by plan", "#step-1")
        shows(page, "code running", "#pending")
        (gate / "code").touch()
        shows(page, "said by code", "#step-2")
        shows(page, "succeeded", "h1")
    assert page.faults() == []


def test_a_question_is_answered_by_the_keyboard(page: Browser, disk_store: Store) -> None:
    root = disk_store.root
    workflows.add(disk_store, workflow(ONE["moderator"], a=STATUS))
    with daemon(root):
        human = {"a": {"name": "human", "config": {"question": "Shall it be?"}}}
        id = daemon_socket.request(root, "start", workflow="sample", input="Go.", agents=human)[
            "id"
        ]
        shows(page, "Shall it be?", "#needs")
        page.size(PHONE)
        page.tab_to(f"a[href='/threads/{id}/answer']")
        page.press("Enter")
        page.until(lambda: page.count("[type=radio]") == 2, "the form of the role")
        page.tab_to("[type=radio]")
        page.press(" ")
        page.tab_to("main form button")
        page.press("Enter")
        until(lambda: threads.get(disk_store, id).status == threads.ENDED, "the end")
        page.until(lambda: "succeeded" in page.text("h1"), "the end on the page")
    assert page.faults() == []


def test_a_killed_daemon(page: Browser, disk_store: Store, gate: Path) -> None:
    root = disk_store.root
    workflows.add(disk_store, TWO)
    with daemon(root) as pid:
        id = two(root, gate)
        shows(page, id[-8:], "#running")
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "the end of the daemon")
        shows(page, "No daemon runs", "body")
    with daemon(root):
        page.until(lambda: "No daemon runs" not in page.text(), "the daemon")
        for role in ("plan", "code"):
            (gate / role).touch()
        shows(page, id[-8:], "#ended")


def test_a_killed_server(page: Browser, web: Web, disk_store: Store, gate: Path) -> None:
    root = disk_store.root
    workflows.add(disk_store, TWO)
    with daemon(root):
        id = two(root, gate)
        shows(page, id[-8:], "#running")
        web.kill()
        shows(page, "The server does not answer", "body")
        for role in ("plan", "code"):
            (gate / role).touch()
        until(lambda: threads.get(disk_store, id).status == threads.ENDED, "the end")
        with serving(root) as again:
            assert again.url == web.url
            page.until(lambda: "does not answer" not in page.text(), "the server")
            shows(page, id[-8:], "#ended")
            shows(page, two(root, gate)[-8:], "#ended")


def test_ten_tabs(web: Web, chromium: Browser, disk_store: Store) -> None:
    """All are live, though a browser has six connections to a server at most, and stay so when the
    one that reads the events is closed."""
    root, driver = disk_store.root, chromium.driver
    workflows.add(disk_store, ONE)
    chromium.open(web.url)
    chromium.open("about:blank")
    first = driver.current_window_handle

    def tabs() -> Iterator[None]:
        for tab in driver.window_handles:
            if tab != first:
                driver.switch_to.window(tab)
                yield
        driver.switch_to.window(first)

    try:
        for _ in range(10):
            driver.switch_to.new_window("tab")
            chromium.open(web.origin)
            chromium.run("window.kept = true")
        with daemon(root):
            for count in (10, 9):
                id = start_thread(root, "sample", {"a": says({})})
                assert len([shows(chromium, id[-8:]) for _ in tabs()]) == count
                driver.switch_to.window(driver.window_handles[1])
                driver.close()
    finally:
        for _ in tabs():
            driver.close()


def test_what_a_step_said_is_unfolded_and_stays(page: Browser, web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store)
    thread.step("planner", "first\n\nIt *goes on*.")
    page.open(f"{web.origin}/threads/{thread.id}")
    page.run("window.kept = true")
    assert "It goes on" not in page.text()
    page.tab_to("#output-1 summary")
    page.press("Enter")
    shows(page, "It goes on", "#output-1")
    thread.step("planner", "second")
    shows(page, "second", "#output-2")
    assert "It goes on" in page.text("#output-1"), "it was not fetched again"
    assert page.run("return document.activeElement.closest('details').id") == "output-1"
    assert page.faults() == []

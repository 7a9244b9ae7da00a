"""A person comments on lines in a real browser: by the mouse, with Shift, and by the keyboard."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium.webdriver import ActionChains, Keys

from casfs.review import comments
from casfs.review.comments import Comment, Review
from casfs.store.store import Store
from tests.support import programs
from tests.support.attached_agent import AttachedAgent
from tests.support.browser import PHONE, WIDE, Browser, browser
from tests.support.engine import alive, daemon, until
from tests.support.following import OwnSessionDirectory
from tests.support.web import Web, visible


@pytest.fixture
def agent(disk_store: Store, tmp_path: Path) -> Iterator[AttachedAgent]:
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("".join(f"line {number}\n" for number in range(1, 9)))
    followed = OwnSessionDirectory(disk_store, project, None)
    agent = AttachedAgent(disk_store, project, followed)
    agent.prompt("Change it")
    agent.run("sed -i '4s/.*/four/' a; rm -f b; echo locked > uv.lock")
    with daemon(disk_store.root):
        yield agent
    followed.close()


@pytest.fixture
def page(web: Web, chromium: Browser, agent: AttachedAgent) -> Browser:
    chromium.size(WIDE)
    chromium.open(web.url)
    chromium.open(f"{web.origin}/threads/{agent.thread.id}/review")
    chromium.faults()
    return chromium


def number(page: Browser, line: int, side: str = "new") -> str:
    return f'#file-1 a.comment-on[data-side="{side}"][data-line="{line}"]'


def drafts(agent: AttachedAgent) -> list[Comment]:
    return comments.load(agent.store, agent.thread.id).drafts


def add(page: Browser, agent: AttachedAgent, text: str) -> Comment:
    """Types a comment into the form that has the focus, and adds it by the keyboard."""
    before = len(drafts(agent))
    page.type(text)
    ActionChains(page.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(
        Keys.CONTROL
    ).perform()
    page.until(lambda: len(drafts(agent)) > before, "a draft")
    page.until(lambda: text in page.text("#file-1"), "the comment at its line")
    return drafts(agent)[-1]


def test_by_the_mouse(page: Browser, agent: AttachedAgent) -> None:
    page.find(number(page, 4)).click()
    draft = add(page, agent, "Why four?")
    assert (draft.path, draft.line, draft.count, draft.is_old) == (b"a", 4, 1, False)
    page.find(number(page, 4, "old")).click()
    assert add(page, agent, "It was line 4.").is_old
    page.find(number(page, 2)).click()
    last = page.find(number(page, 5))
    ActionChains(page.driver).key_down(Keys.SHIFT).click(last).key_up(Keys.SHIFT).perform()
    draft = add(page, agent, "All of these.")
    assert (draft.line, draft.count) == (2, 4)
    assert page.faults() == []


def test_what_is_typed_outlasts_another_form(page: Browser, agent: AttachedAgent) -> None:
    page.find(number(page, 2)).click()
    last = page.find(number(page, 4))
    ActionChains(page.driver).key_down(Keys.SHIFT).click(last).key_up(Keys.SHIFT).perform()
    page.type("Half of what I")
    page.find("#file-2 > summary").click()
    page.find("#file-2 form button").click()
    page.until(lambda: "viewed" in page.text("#file-2"), "the page, loaded anew")
    assert page.text("#new-title") == "Comment on lines 2 to 4"
    assert page.run("return document.getElementById('new-text').value") == "Half of what I"
    assert page.count("#file-1 tr.chosen") == 3
    page.find("#new-text").click()
    page.type(" mean")
    page.find("#new-comment button").click()
    page.until(lambda: drafts(agent), "a draft")
    (draft,) = drafts(agent)
    assert (draft.text, draft.line, draft.count) == ("Half of what I mean", 2, 3)
    page.until(lambda: page.text("#new-title") == "Comment", "an empty form")


def test_it_is_cancelled(page: Browser) -> None:
    page.find(number(page, 4)).click()
    page.type("No")
    ActionChains(page.driver).send_keys(Keys.ESCAPE).perform()
    assert page.text("#new-title") == "Comment on line 4", "what is typed goes by the button alone"
    page.find("#new-cancel").click()
    assert page.text("#new-title") == "Comment"
    assert page.count("tr.chosen") == 0
    assert page.run("return document.getElementById('new-text').value") == ""
    assert page.find("#new-line").is_displayed()


def test_a_suggestion_begins_with_the_lines(page: Browser, agent: AttachedAgent) -> None:
    page.find(number(page, 4)).click()
    assert not page.find("#new-line").is_displayed(), "the line is chosen"
    page.find("#new-suggestion > summary").click()
    value = "return document.getElementById('new-lines').value"
    page.until(lambda: page.run(value) == "four", "the line")
    page.find("#new-lines").click()
    page.type("teen")
    page.find("#new-text").click()
    assert add(page, agent, "More").suggestion == "fourteen"


def test_lines_that_nobody_changed_are_no_suggestion(page: Browser, agent: AttachedAgent) -> None:
    page.find(number(page, 4)).click()
    page.find("#new-suggestion > summary").click()
    page.find(number(page, 5)).click()
    value = "return document.getElementById('new-lines').value"
    page.until(lambda: page.run(value) == "line 5", "the line that is chosen now")
    page.find("#new-text").click()
    assert add(page, agent, "Only a word").suggestion is None


def test_a_comment_that_is_refused_is_not_lost(page: Browser, agent: AttachedAgent) -> None:
    page.find(number(page, 4)).click()
    page.run("document.getElementById('new-text').value = 'x'.repeat(27000)")
    page.find("#new-comment button").click()
    page.until(lambda: "20000 characters at most" in page.text(), "the refusal")
    page.driver.back()
    page.until(lambda: page.count("#new-text"), "the page")
    page.open(page.driver.current_url)
    length = "return document.getElementById('new-text').value.length"
    page.until(lambda: page.run(length) == 27000, "what was typed")
    assert drafts(agent) == []


def test_the_agent_has_gone_on(page: Browser, agent: AttachedAgent) -> None:
    page.find(number(page, 4)).click()
    add(page, agent, "Why four?")
    agent.run("sed -i '4s/.*/fourteen/' a")
    page.until(lambda: "has changed files since" in page.text("#status"), "a notice")
    page.find("#status .notice a").click()
    page.until(lambda: "fourteen" in page.text("#file-1"), "the lines as they are")
    assert "outdated" in page.text("#file-1 .states")
    assert "> 4 | four" in page.text("#file-1 .remark")


def test_by_the_keyboard_on_a_phone(page: Browser, agent: AttachedAgent) -> None:
    page.size(PHONE)
    page.tab_to(number(page, 4))
    page.press("Enter")
    assert add(page, agent, "Why four?").line == 4
    assert page.overflow() == 0


def test_a_file_that_is_unfolded(page: Browser, agent: AttachedAgent) -> None:
    page.find("#file-2 > summary").click()
    page.until(lambda: "locked" in page.text("#file-2"), "the lines of the file")
    page.find('#file-2 a.comment-on[data-line="1"]').click()
    page.type("Not this.")
    page.find("#new-comment button").click()
    page.until(lambda: drafts(agent), "a draft")
    assert drafts(agent)[0].path == b"uv.lock"


def test_what_became_of_it_is_shown_live(page: Browser, agent: AttachedAgent) -> None:
    page.find(number(page, 4)).click()
    add(page, agent, "Why four?")
    page.find("#status form button").click()
    page.until(lambda: "Round 1" in page.text("#status"), "the round")
    page.run("window.kept = true")
    review = comments.load(agent.store, agent.thread.id)

    def handled(old: Review, _: object) -> Review:
        return comments.handle(old, review.comments[0].number, "Mended.")

    comments.change(agent.store, agent.thread.id, handled)
    page.until(lambda: "handled" in page.text("#status"), "the state")
    page.until(lambda: "handled" in page.text("#file-1 .states"), "the state at the line")
    assert page.run("return window.kept") is True


@pytest.mark.parametrize("delay_ms", [0, 2, 5, 10, 20, 40])
def test_a_browser_that_is_killed_while_it_sends(
    web: Web, agent: AttachedAgent, tmp_path: Path, delay_ms: int
) -> None:
    """The comment is a draft still, or it was sent once; the page says which."""
    programs.require("chromium", "chromedriver", "npm")
    with killed_browser(tmp_path / "profile") as page:
        page.open(web.url)
        page.open(f"{web.origin}/threads/{agent.thread.id}/review")
        page.find(number(page, 4)).click()
        add(page, agent, "Why four?")
        page.run("setTimeout(() => document.querySelector('#status form button').click())")
        time.sleep(delay_ms / 1000)
    shown = visible(web.get(f"/threads/{agent.thread.id}/review").text)
    review = comments.load(agent.store, agent.thread.id)
    assert len(review.comments) == 1
    assert len(review.rounds) == ("Round 1" in shown) == (not review.drafts)


@contextmanager
def killed_browser(profile: Path) -> Iterator[Browser]:
    """A browser whose processes are killed at the end of the block."""
    with browser(profile) as page:
        yield page
        pid = int(os.readlink(profile / "SingletonLock").rpartition("-")[2])  # HOST-PID
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid), "its end")

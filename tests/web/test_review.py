"""The review of a session in the browser: its diff, comments at their lines, the forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.review import comments, subject
from casfs.review.comments import SENT
from casfs.store.store import Store
from tests.support.attached_agent import AttachedAgent
from tests.support.engine import daemon
from tests.support.following import OwnSessionDirectory
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible

HOSTILE = '</textarea><script>alert(1)</script>"\x1b[31m\u202e'


@pytest.fixture
def agent(disk_store: Store, tmp_path: Path) -> Iterator[AttachedAgent]:
    """One that has changed a file, deleted one and written a lock file."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("".join(f"line {number}\n" for number in range(1, 40)))
    (project / "gone").write_text("gone\n")
    followed = OwnSessionDirectory(disk_store, project, None)
    agent = AttachedAgent(disk_store, project, followed)
    agent.prompt("Change it")
    agent.run("sed -i '20s/.*/twenty/' a; rm gone; echo locked > uv.lock")
    agent.stop()
    yield agent
    followed.close()


@pytest.fixture
def page(agent: AttachedAgent, disk_store: Store) -> Iterator[str]:
    """The path of the page, of a store whose daemon runs."""
    with daemon(disk_store.root):
        yield f"/threads/{agent.thread.id}/review"


def add(web: Web, page: str, agent: AttachedAgent, **more: str) -> None:
    tree = subject.newest_tree(agent.store, agent.thread)
    form = {"action": "add", "file": "a", "line": "20", "count": "1", "tree": f"new {tree}"}
    web.post(page, 303, **{**form, "text": "Why?", **more})


def test_what_is_shown(web: Web, agent: AttachedAgent, page: str) -> None:
    text = web.get(page).text
    shown = visible(text)
    assert "line 20" in shown
    assert "twenty" in shown
    assert "line 5" not in shown  # folded context
    # Deleted and generated files are folded, and there.
    assert "gone" in shown
    assert "locked" not in shown
    part = re.findall(r'data-part="([^"]*uv.lock[^"]*)"', text)[0]
    assert "locked" in visible(web.get(part.replace("&amp;", "&")).text)


def test_a_comment_stays_with_its_line(web: Web, agent: AttachedAgent, page: str) -> None:
    add(web, page, agent)
    agent.prompt("More")
    agent.run("sed -i '1i new\\nnew' a")
    agent.stop()
    (file,) = re.findall(r'id="file-1".*?</details>', web.get(page).text, re.DOTALL)
    assert re.search(r"line 20.*twenty.*Why\?", visible(file), re.DOTALL)
    agent.prompt("Again")
    agent.run("sed -i s/twenty/XX/ a")
    agent.stop()
    assert "outdated" in visible(web.get(page).text)


def test_a_draft_is_edited_and_deleted(web: Web, agent: AttachedAgent, page: str) -> None:
    add(web, page, agent, suggestion="20\n")
    assert "Send 1 comment to claude" in visible(web.get(page).text)
    web.post(page, action="edit", number="1", text="What for?", suggestion="XX\n")
    (draft,) = comments.load(agent.store, agent.thread.id).comments
    assert (draft.text, draft.suggestion) == ("What for?", "XX\n")
    web.post(page, action="remove", number="1")
    assert comments.load(agent.store, agent.thread.id).comments == ()


def test_sent_comments_stay(web: Web, agent: AttachedAgent, page: str) -> None:
    add(web, page, agent)
    web.post(page, action="send")
    review = comments.load(agent.store, agent.thread.id)
    assert review.state(review.comments[0]) == SENT
    assert "was sent in round 1" in web.post(page, 409, action="remove", number="1").text
    assert "nothing to send" in web.post(page, 409, action="send").text
    web.post(page, action="done", number="1", text="It is twenty now.")
    shown = visible(web.get(page).text)
    assert "handled" in shown
    assert "It is twenty now." in shown


def test_viewed_until_it_changes(web: Web, agent: AttachedAgent, page: str) -> None:
    form = re.findall(r'name="viewed" value="([^"]*)"', web.get(page).text)
    web.post(page, action="view", file="a", viewed=form[0])
    assert "twenty" not in visible(web.get(page).text)
    agent.prompt("More")
    agent.run("echo more >> a")
    agent.stop()
    assert "twenty" in visible(web.get(page).text)


def test_since_a_prompt(web: Web, agent: AttachedAgent, page: str) -> None:
    agent.prompt("More")
    agent.run("echo more >> a")
    agent.stop()
    shown = visible(web.get(f"{page}?since=1").text)
    assert "more" in shown
    assert "twenty" not in shown
    assert "has 2 steps, not 9" in web.get(f"{page}?since=9", 404).text


@pytest.mark.parametrize(
    ("wrong", "status", "says"),
    [
        ({"line": "400"}, 400, "a has 39 lines, not 400"),
        ({"file": "nosuch"}, 404, "nosuch is not in the tree"),
        ({"text": " "}, 400, "a comment needs a text"),
        ({"tree": "new abc"}, 404, "neither a hash nor a checkpoint"),
        ({"action": "fly"}, 400, "no action"),
        ({"line": "x"}, 400, "line must be a number"),
        ({"text": "x" * 30_000}, 400, "20000 characters at most"),
    ],
)
def test_bad_forms(
    web: Web, agent: AttachedAgent, page: str, wrong: dict[str, str], status: int, says: str
) -> None:
    tree = subject.newest_tree(agent.store, agent.thread)
    form = {"action": "add", "file": "a", "line": "1", "tree": f"new {tree}", "text": "Why?"}
    assert says in visible(web.post(page, status, **{**form, **wrong}).text)
    assert comments.load(agent.store, agent.thread.id).comments == ()


def test_hostile_texts_are_text(web: Web, agent: AttachedAgent, page: str) -> None:
    agent.prompt(HOSTILE)
    agent.run("printf '%s' '</td><script>alert(2)</script>' > '<b>name'")
    agent.stop(HOSTILE)
    add(web, page, agent, text=HOSTILE, suggestion=HOSTILE)
    text = web.get(page).text
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "<b>name" not in text


def test_without_a_daemon_the_page_is_read(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}/review"
    assert "twenty" in visible(web.get(path).text)
    assert web.post(path, 503, action="send").status == 503


def test_how_it_is_applied(web: Web, disk_store: Store, agent: AttachedAgent) -> None:
    """What an agent did in the project itself is there already."""
    assert "Apply it with" not in web.get(f"/threads/{agent.thread.id}/review").text
    thread = make_thread(disk_store)
    page = visible(web.get(f"/threads/{thread.id}/review").text)
    assert f"Apply it with casfs thread apply {thread.id[-8:]} DIRECTORY" in page

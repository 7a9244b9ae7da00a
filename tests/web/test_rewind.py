"""The picker of a session in the web interface: what it shows, and what the daemon does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from casfs.sessions.session_steps import Point
from casfs.store.store import Store
from casfs.threads import sessions
from engine.sessions import session_fork
from tests.support import planted
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.engine import daemon
from tests.support.following import OwnSessionDirectory
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible


@pytest.fixture
def agent(disk_store: Store, tmp_path: Path) -> Iterator[AttachedAgent]:
    """One that has run two commands, after which a person has changed a file."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("".join(f"{number}\n" for number in range(9)))
    (project / ".env").write_text("TOKEN=hunter2hunter2\n")
    followed = OwnSessionDirectory(disk_store, project, None)
    agent = AttachedAgent(disk_store, project, followed, tmp_path / "copies")
    agent.prompt("Change it")
    agent.run("sed -i s/1/one/ a; rm .env")
    agent.run("echo new > b")
    agent.stop()
    (project / "a").write_text((project / "a").read_text().replace("8", "eight"))
    yield agent
    followed.close()


def hidden(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None
    return found[1]


def test_the_points_of_a_session(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}"
    page = web.get(path).text
    assert f'href="{path}/rewind"' in page
    assert f"{path}/resume" not in page
    assert "claude --resume" in visible(page)
    shown = visible(web.get(f"{path}/rewind").text)
    assert shown.index("1.2") < shown.index("1.1") < shown.index("Change it")
    assert ".env" in shown


def test_a_rewind_keeps_what_a_person_did(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}/rewind"
    page = web.get(f"{path}?to=1.1").text
    assert "Your own changes are kept" in visible(page)
    with daemon(agent.store.root):
        sent = web.post(path, point="1.1", what="files", seen=hidden(page, "seen"))
        assert sent.headers["location"] == f"{path}?done=1"
    assert "casfs undo" in visible(web.get(f"{path}?done=1").text)
    names = contents(agent.directory)
    assert names.keys() == {"a", ".env"}
    assert names["a"][1] == b"0\n1\n2\n3\n4\n5\n6\n7\neight\n"


def test_the_lines_that_change_are_shown(web: Web, agent: AttachedAgent) -> None:
    """None of a private file, also where it was work before or after."""
    page = web.get(f"/threads/{agent.thread.id}/rewind?to=1.2").text
    assert "new" in visible(page).partition("D b")[2]
    token = planted.token().decode()
    (agent.directory / "conf").write_text("name = a\n")
    agent.prompt("Configure it")
    agent.run(f"echo token = {token} >> conf")
    agent.stop()
    for url in ("to=2", "to=2&exact=1", "to=1"):
        page = web.get(f"/threads/{agent.thread.id}/rewind?{url}").text
        assert "conf" in page
        assert token not in page
        assert "hunter2" not in page


def test_exactly_as_it_was(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}/rewind"
    page = web.get(f"{path}?to=1&exact=1").text
    with daemon(agent.store.root):
        web.post(path, point="1", what="files", exact="1", seen=hidden(page, "seen"))
    assert contents(agent.directory) == contents(agent.copy_of("1"))


def test_what_has_changed_since_it_was_shown(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}/rewind"
    seen = hidden(web.get(f"{path}?to=1").text, "seen")
    (agent.directory / "later").write_text("mine")
    before = contents(agent.directory)
    with daemon(agent.store.root):
        refused = web.post(path, 409, point="1", what="files", seen=seen)
        assert "look again" in visible(refused.text)
        for form in ({"what": "all"}, {"point": "9"}, {"point": "x"}):
            whole = {"point": "1", "what": "files", "seen": seen, **form}
            web.post(path, 404 if "point" in form else 400, **whole)
    assert contents(agent.directory) == before


def test_the_conversation_goes_on_as_another_session(
    web: Web, agent: AttachedAgent, tmp_path: Path
) -> None:
    agent.run("echo more >> b")
    path = f"/threads/{agent.thread.id}/rewind"
    with daemon(agent.store.root):
        refused = web.post(path, 404, point="1", what="conversation", seen="")
        assert "transcript" in visible(refused.text)
    assert len(list(sessions.newest_first(agent.store))) == 1


def test_a_thread_that_casfs_has_run(web: Web, disk_store: Store) -> None:
    thread = make_thread(disk_store)
    assert "restore a step" in visible(web.get(f"/threads/{thread.id}/rewind", 409).text)
    assert web.get("/threads/NONE/rewind", 404).status == 404


@pytest.mark.parametrize("point", ["1.1", "1.2"])
def test_the_page_of_a_session_that_was_cut(web: Web, agent: AttachedAgent, point: str) -> None:
    forked = session_fork.fork(agent.store, agent.thread, Point.parse(point), "two", None)
    page = visible(web.get(f"/threads/{forked.id}").text)
    assert f"forked from {agent.thread.id[-8:]} after step 0" in " ".join(page.split())


def test_one_file_goes_back_from_its_review(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}"
    (link,) = re.findall(r'href="([^"]*/rewind[^"]*path=b)"', web.get(f"{path}/review").text)
    page = web.get(unescape(link)).text
    assert "b back to before 1" in " ".join(visible(page).split())
    points = re.findall(r'href="([^"]*/rewind[?]to=[^"]*)"', page)
    assert points
    assert all(unescape(point).endswith("&path=b") for point in points), "of the file alone"
    with daemon(agent.store.root):
        form = {"point": "1", "file": hidden(page, "file"), "seen": hidden(page, "seen")}
        web.post(f"{path}/rewind", 400, what="both", **form)
        web.post(f"{path}/rewind", what="files", **form)
    names = contents(agent.directory)
    assert names.keys() == {"a"}, "the one that it had deleted stays so"
    assert "one\n" in names["a"][1].decode()

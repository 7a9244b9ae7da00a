"""The page of a session: a conversation with what each call was, and what each prompt changed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from casfs.backend.protocols import Head, HeadName
from casfs.maintenance import gc
from casfs.maintenance.gc import Limits
from casfs.review import comments
from casfs.review.comments import HEARD, HOOK, SENT, Round
from casfs.sessions import points, session_steps
from casfs.sessions.session_steps import CallRecord, StepRecord
from casfs.store.store import Store
from casfs.system.clock import now_ms
from casfs.threads import sessions
from casfs.web import session, session_calls
from casfs.web.session import MAX_CALLS
from casfs.web.session_calls import CallView
from casfs.web.thread_table import ThreadTable
from tests.engine.sessions.test_subagents import Session as SessionWithSubagents
from tests.engine.sessions.test_transcripts import append, prompt, says
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory
from tests.support.maintenance import age
from tests.support.web import Web, visible

GIT = "git -c user.name=a -c user.email=b"
LINES = "".join(f"line {number}\n" for number in range(1, 40))


def nothing() -> None: ...


@pytest.fixture
def agent(disk_store: Store, tmp_path: Path) -> Iterator[AttachedAgent]:
    """One that has read, edited, tested and committed for a prompt, and works on another."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a.py").write_text(LINES)
    (project / ".env").write_text("TOKEN=hunter2hunter2\n")
    (project / ".gitignore").write_text(".env\n")
    made = f"git init -q -b main && git add . && {GIT} commit -qm first"
    subprocess.run(made, shell=True, cwd=project, check=True)
    followed = OwnSessionDirectory(disk_store, project, None)
    agent = AttachedAgent(disk_store, project, followed)
    agent.prompt("Mend line 20.\nWith a test.")
    agent.call(nothing, "Read", "a.py")
    agent.write("a.py", LINES.replace("line 20\n", "twenty\n"))
    agent.call(nothing, fault="Exit code 2\n1 failed", command="make test")
    agent.run(f"git add a.py; {GIT} commit -qm 'Mend line 20'")
    agent.stop("It is **mended**.")
    (project / "mine").write_text("of the person\n")
    agent.prompt("And clean up")
    agent.run("rm .gitignore; echo more > b.py")
    yield agent
    followed.close()


def article(page: str, index: int) -> str:
    """What the page has of a prompt."""
    (part,) = re.findall(rf'<article class="exchange" id="prompt-{index}".*?</article>', page, re.S)
    return str(part)


def part(web: Web, html: str, text: str) -> str:
    """Fetches what a folded part is to show."""
    urls = [unescape(url) for url in re.findall(r'data-part="([^"]*)"', html)]
    return web.get(next(url for url in urls if text in url)).text


def test_a_conversation(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}"
    page = web.get(path).text
    first = article(page, 1)
    shown = visible(first)
    for text in ("Mend line 20. With a test.", "mended", "1 file changed"):
        assert text in shown
    assert "<strong>mended</strong>" in first
    assert f'href="{path}/rewind?to=1"' in first
    assert f'href="{path}/review?since=0"' in first
    assert "claude --resume one" in visible(page)
    # Only what the agent may do is offered.
    for action in ("fork", "cancel", "compact", "resume"):
        assert f'action="{path}/{action}"' not in page


def test_each_call_is_shown_as_what_it_is(web: Web, agent: AttachedAgent) -> None:
    first = article(web.get(f"/threads/{agent.thread.id}").text, 1)
    shown = visible(first)
    # An edit is its diff, which stands open, with the lines around it.
    edit = shown[shown.index("Write a.py") : shown.index("$ make test")]
    assert re.search(r"line 19.*line 20.*twenty.*line 21", edit, re.DOTALL)
    assert "line 5" not in edit
    # A command is a terminal, with its exit code.
    assert re.search(r"\$ make test\s+exit 2", shown)
    assert "1 failed" not in shown
    terminal = visible(part(web, first, "call=3"))
    assert "$ make test" in terminal
    assert "1 failed" in terminal
    # A read is a link to the file as it was then.
    (hash,) = re.findall(r'href="/nodes/([0-9a-f]{64})\?name=a.py"', first)
    read = visible(web.get(f"/nodes/{hash}?name=a.py").text)
    assert "line 20" in read
    assert "twenty" not in read


def test_what_a_prompt_has_changed(web: Web, agent: AttachedAgent) -> None:
    page = web.get(f"/threads/{agent.thread.id}").text
    first, second = article(page, 1), article(page, 2)
    assert "+1 −1" in visible(first)
    diff = visible(part(web, first, "fragment=changes"))
    assert "+twenty" in diff
    assert "hunter2" not in diff
    head = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=agent.directory)
    assert f".git: {head.decode().strip()} commit: Mend line 20" in visible(first)
    assert ".env" in visible(first)
    # What a person did between two prompts is of neither.
    assert "b.py" in visible(second)
    assert ".gitignore" in visible(second)
    assert "mine" not in visible(page)


def test_the_page_follows_the_agent(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}"
    page = web.get(path).text
    (url,) = re.findall(r'id="newest" data-live="threads/[^"]*" data-fragment="([^"]*)"', page)
    agent.begin("make slow")
    newest = web.get(unescape(url)).text
    assert "$ make slow" in visible(newest)
    assert "Mend line 20" not in visible(newest)
    agent.end("make slow")
    agent.stop("Cleaned.")
    agent.prompt("Now this")
    newest = web.get(unescape(url)).text
    assert "Cleaned." in visible(newest)
    assert "Now this" in visible(newest)
    about = web.get(f"{path}?fragment=about").text
    assert "3 prompts" in visible(about)
    assert 'id="prompt-' not in about


def test_one_prompt_and_one_call(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}/steps"
    shown = visible(web.get(f"{path}/1").text)
    assert "twenty" in shown
    assert "And clean up" not in shown
    assert "$ make test" in visible(web.get(f"{path}/1?call=3").text)
    assert "no call 9; it has 4" in visible(web.get(f"{path}/1?call=9", 404).text)
    assert "no prompt 3; it has 2" in visible(web.get(f"{path}/3", 404).text)
    web.get(f"{path}/0", 404)
    assert "b.py" in visible(web.get(f"{path}/2").text)  # the pending one


def test_what_never_changes_is_kept_by_the_browser(web: Web, agent: AttachedAgent) -> None:
    page = web.get(f"/threads/{agent.thread.id}").text
    for html, kept in ((article(page, 1), True), (article(page, 2), False)):
        url = unescape(re.findall(r'data-part="([^"]*call=[^"]*)"', html)[-1])
        assert ("immutable" in web.get(url).headers["cache-control"]) == kept


def test_a_window_of_prompts(web: Web, agent: AttachedAgent) -> None:
    path = f"/threads/{agent.thread.id}"
    page = web.get(f"{path}?count=1").text
    assert 'id="prompt-1"' not in page
    assert f'href="{path}?from=1&amp;count=1" rel="prev"' in page
    first = web.get(f"{path}?from=1&count=1").text
    assert 'id="prompt-2"' not in first
    assert 'id="newest"' not in first, "what is new is not in this window"


def test_only_so_many_calls_are_read(agent: AttachedAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.stop()
    agent.prompt("A lot")
    for number in range(MAX_CALLS + 5):
        agent.call(nothing, "Read", f"f{number}")
    agent.stop()
    read: list[int] = []
    of_step = session_calls.of_step

    def counting(
        store: Store, step: StepRecord, about: Mapping[str, str], is_unfolded: bool
    ) -> Iterator[CallView]:
        for call in of_step(store, step, about, is_unfolded):
            read.append(call.number)
            yield call

    monkeypatch.setattr(session_calls, "of_step", counting)
    model = session.page(agent.store, ThreadTable(agent.store), agent.thread, None, 20)
    assert read == list(range(6, MAX_CALLS + 6)), "the newest ones"
    assert [one.shown_count for one in model.exchanges] == [0, 0, MAX_CALLS]
    assert model.exchanges[-1].call_count == MAX_CALLS + 5
    assert [one.acts is None for one in model.exchanges] == [True, True, False]


def test_a_call_that_was_interrupted(web: Web, agent: AttachedAgent) -> None:
    agent.begin("rm -r src")
    agent.stop()
    agent.prompt("Go on")
    assert "interrupted" in visible(article(web.get(f"/threads/{agent.thread.id}").text, 2))


def test_trees_that_are_gone(web: Web, agent: AttachedAgent) -> None:
    """A session is read all the same, by what its steps hold."""
    for text in ("one\n", "two\n", "three\n"):
        agent.write("b.py", text)
    agent.stop("Cleaned.")
    age(agent.store)
    assert gc.collect(agent.store, limits=Limits(max_turn_trees=1)).turn_trees
    second = article(web.get(f"/threads/{agent.thread.id}").text, 2)
    for text in ("Cleaned", "2 files changed", "not kept", "Write b.py"):
        assert text in visible(second)


def test_a_session_from_elsewhere(web: Web, agent: AttachedAgent) -> None:
    thread = agent.thread
    there = Head(thread.hash, {**thread.record, "origin": "remote"})
    with agent.store.batch() as batch:
        batch.swap(HeadName(thread.name), thread.head, there)
    page = web.get(f"/threads/{thread.id}").text
    assert "mended" in visible(page)
    assert "/rewind" not in page
    assert "Go on with" not in visible(page)


def test_a_subagent(web: Web, disk_store: Store, tmp_path: Path) -> None:
    of_claude = SessionWithSubagents(disk_store, tmp_path)
    append(of_claude.transcript, prompt("look into it"))
    of_claude.report(of_claude.events.prompt("look into it"))
    of_claude.subagent("b1", prompt("Search all of it"), says("Nothing there."))
    append(of_claude.transcript, says("It is empty."))
    of_claude.report(of_claude.events.stop("It is empty."))
    (child,) = of_claude.children()
    first = article(web.get(f"/threads/{of_claude.thread.id}").text, 1)
    assert f'href="/threads/{child.id}"' in first
    page = web.get(f"/threads/{child.id}").text
    assert "Search all of it" in visible(page)
    assert "Nothing there." in visible(page)
    assert "called by" in visible(page)
    assert "rewind" not in page


def test_a_read_is_of_the_version_that_it_saw(web: Web, agent: AttachedAgent) -> None:
    """Also where only a part of the calls is shown."""
    agent.write("a.py", "three\n")
    agent.call(nothing, "Read", "a.py")
    html = web.get(f"/threads/{agent.thread.id}/steps/2").text
    (seen,) = re.findall(r'href="/nodes/([0-9a-f]{64})\?name=a.py"', html)
    assert agent.store.get(seen) == b"three\n"
    alone = session_steps.pending_step(agent.store, agent.thread, slice(2, 3))
    assert alone is not None
    about = sessions.about(agent.store, agent.thread)
    (view,) = session_calls.of_step(agent.store, alone, about)
    assert view.read is not None
    assert view.read.hash == seen
    assert agent.steps()[1].calls[2].turn == view.turn


def test_a_call_is_known_by_its_turn(web: Web, agent: AttachedAgent) -> None:
    """Its number changes while others run."""
    for id in ("first", "second"):
        agent.begin(id)
    before = article(web.get(f"/threads/{agent.thread.id}").text, 2)
    agent.end("second")
    after = article(web.get(f"/threads/{agent.thread.id}").text, 2)
    ids = [re.findall(r'id="call-([0-9a-f]{16})"', html) for html in (before, after)]
    assert ids[0][1] in ids[1], "the one that runs still"
    assert ids[0][2] not in ids[1], "the one that has ended is another one"


@pytest.mark.parametrize("text", ["[" * 200_000, "no JSON", "[1]", '{"a": 1}', "null"])
def test_arguments_and_lists_in_another_form(text: str) -> None:
    call = CallRecord(1, 1, "x", "Bash", text, "completed", 0, before=None, after=None)
    assert isinstance(points.arguments(call), dict)
    assert session_steps._reasons(text) == {}


def test_a_review_that_was_heard_at_work(web: Web, agent: AttachedAgent) -> None:
    """One that an idle agent heard is a prompt of its own."""
    store, thread = agent.store, agent.thread
    text = {"text": "[casfs review] Why <b>twenty</b>?", "artifacts": []}
    message = store.put_node("content", text).hash
    sent = Round(message, now_ms(), HEARD, HOOK, offered_at=now_ms())
    rounds = (sent, replace(sent, way="inbox"), replace(sent, state=SENT))
    comments.change(store, thread.id, lambda old, _: replace(old, rounds=rounds))
    page = web.get(f"/threads/{thread.id}").text
    assert "Round 1 of the review" in article(page, 2)
    assert "Why &lt;b&gt;twenty" in article(page, 2)
    assert "of the review" not in article(page, 1)
    assert page.count("of the review") == 1

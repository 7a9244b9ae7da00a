"""Comments of a review reach real agents, each once: while they work and while they rest."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from casfs.digest import TreeHash
from casfs.review import comments, message
from casfs.review.comments import HEARD, SENT, Comment, Review
from casfs.sessions import session_steps
from casfs.sessions.session_steps import CallRecord
from casfs.system import daemon_socket, processes
from casfs.threads import sessions
from casfs.threads.state import CLOSED, state
from casfs.threads.threads import RUNNING
from tests.support import programs, terminal_agent
from tests.support.agent_model import Model, script
from tests.support.attached_program import Attached
from tests.support.browser import browser
from tests.support.engine import until
from tests.support.terminal_agent import TerminalAgent
from tests.support.web import serving

pytestmark = pytest.mark.agents
HEARING = ["claude-code", "codex-cli"]


def reviewed(attached: Attached, text: str = "Say goodbye instead.") -> str:
    """Comments on the first line of a.txt and sends it; returns the mark of the message."""
    thread = attached.thread()
    state = ended_calls(attached)[0].after
    assert state is not None
    draft = Comment(0, TreeHash(state.tree), b"a.txt", 1, count=1, text=text)
    comments.change(attached.store, thread.id, lambda review, _: comments.add(review, draft))
    answer = daemon_socket.request(attached.store.root, "review_send", id=thread.id)
    return message.mark(thread.id, answer["round"])


def ended_calls(attached: Attached) -> list[CallRecord]:
    """Those of the first prompt whose directory was recorded after them."""
    (step, *_) = session_steps.load(attached.store, attached.thread())
    return [call for call in step.calls if call.after is not None]


def review_of(attached: Attached) -> Review:
    return comments.load(attached.store, attached.thread().id)


def heard_in(model: Model, mark: str) -> list[int]:
    """The requests in which the mark stands for the first time, counted from 0."""
    counts = [request.text.count(mark) for request in model.requests]
    return [
        number
        for number, count in enumerate(counts)
        if count > (counts[number - 1] if number else 0)
    ]


@pytest.mark.parametrize("attached", HEARING, indirect=True)
@pytest.mark.parametrize("rest", [[("run", "echo hi"), ("say", "Done.")], [("say", "Done.")]])
def test_an_agent_that_works_hears_at_once(
    attached: Attached, tmp_path: Path, rest: list[tuple[str, ...]]
) -> None:
    go = tmp_path / "go"
    actions = [("write", "a.txt", "hello"), ("hold", str(go)), *rest]
    asking = threading.Thread(target=attached.ask, args=("Write it.", *actions))
    asking.start()
    try:
        until(Path(f"{go}.asked").exists, "a request that is held")
        until(lambda: ended_calls(attached), "the end of a call")
        mark = reviewed(attached)
    finally:
        go.touch()
        asking.join()
    # The first request that comes after: of the result of the next call, or after the answer.
    assert heard_in(attached.model, mark) == [2]
    until(lambda: review_of(attached).rounds[0].state == HEARD, "the transcript says so")


@pytest.mark.parametrize("attached", HEARING, indirect=True)
def test_a_comment_in_the_browser_is_in_the_next_request(
    attached: Attached, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    actions = [("write", "a.txt", "hello"), ("hold", str(go)), ("run", "echo hi"), ("say", "Done.")]
    programs.require("chromium", "chromedriver", "npm")
    asking = threading.Thread(target=attached.ask, args=("Write it.", *actions))
    with serving(attached.store.root) as web, browser(tmp_path / "profile") as page:
        asking.start()
        try:
            until(Path(f"{go}.asked").exists, "a request that is held")
            until(lambda: ended_calls(attached), "the end of a call")
            thread = attached.thread().id
            page.open(web.url)
            page.open(f"{web.origin}/threads/{thread}/review")
            page.find('#file-1 a.comment-on[data-side="new"][data-line="1"]').click()
            page.type("Say goodbye instead.")
            page.find("#new-comment button").click()
            page.until(lambda: review_of(attached).drafts, "a draft")
            page.until(lambda: page.count("#status form button"), "the button that sends")
            page.find("#status form button").click()
            page.until(lambda: "Round 1" in page.text("#status"), "the round")
        finally:
            go.touch()
            asking.join()
        assert heard_in(attached.model, message.mark(thread, 1)) == [2]
        assert "Say goodbye instead." in attached.model.requests[2].text
        page.until(lambda: "heard" in page.text("#status"), "what the transcript says")


@pytest.mark.parametrize("attached", ["claude-code"], indirect=True)
def test_an_agent_that_is_pid_1(attached: Attached, tmp_path: Path) -> None:
    """In a container: it hears, and when it is killed its session is closed."""
    go, never = tmp_path / "go", tmp_path / "never"
    actions = [("write", "a.txt", "hello"), ("hold", str(go)), ("run", "echo hi")]
    text = f"Write it.\n{script(*actions, ('hold', str(never)), ('say', 'Done.'))}"
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    argv += [*attached.program.argv(None), text]
    with subprocess.Popen(
        argv, cwd=attached.project, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        until(Path(f"{go}.asked").exists, "a request that is held")
        until(lambda: ended_calls(attached), "the end of a call")
        pid = attached.thread().record["session"]["pid"]
        assert processes.parent(pid) == process.pid
        mark = reviewed(attached)
        go.touch()
        until(Path(f"{never}.asked").exists, "the next request")
        assert heard_in(attached.model, mark) == [2]
        assert state(attached.thread()) == RUNNING
        process.kill()
    until(lambda: state(attached.thread()) == CLOSED, "the end of its session")


@pytest.mark.parametrize(
    ("attached", "permissions"),
    # The queue of codex holds nothing back, whatever it may do.
    [("claude-code", "asks"), ("claude-code", "bypassed"), ("codex-cli", "asks")],
    indirect=["attached"],
)
def test_an_idle_agent_is_woken(attached: Attached, tmp_path: Path, permissions: str) -> None:
    """Claude at once, codex within seconds; one whose permissions are bypassed at its next prompt.
    Each hears it once."""
    is_claude = attached.program.agent == "claude"
    home = Path.home()
    if is_claude:
        terminal_agent.accept_all_of_claude(home, attached.project)
    else:
        terminal_agent.trust_project_of_codex(home, attached.project)
    argv = [attached.program.agent]
    if permissions == "bypassed":
        argv += ["--dangerously-skip-permissions"]
    # Not typed: nothing says when an agent that starts takes what is typed.
    prompt = f"Do it. {script(('write', 'a.txt', 'hello'), ('say', 'Done.'))}"
    with terminal_agent.started([*argv, prompt], attached.project, os.environ) as agent:
        wait_for_turn(agent, attached, requests=2)
        count = len(attached.model.requests)
        mark = reviewed(attached)
        sent_s = time.monotonic()
        if permissions == "bypassed":
            time.sleep(2)
            assert review_of(attached).rounds[0].state == SENT
            agent.type(f"Go on {script(('say', 'Done.'))}")
        until(lambda: any(mark in request.text for request in attached.model.requests), "it hears")
        waited_s = time.monotonic() - sent_s
        print(f"{attached.program.agent}: heard after {waited_s:.2f} s")
        until(lambda: review_of(attached).rounds[0].state == HEARD, "the transcript says so")
        time.sleep(3)
    assert heard_in(attached.model, mark) == [count]


def wait_for_turn(agent: TerminalAgent, attached: Attached, requests: int) -> None:
    """Waits until the first turn of an agent is over, of so many requests."""
    if attached.program.agent == "claude":
        terminal_agent.until_idle_claude(agent, Path.home())
    until(lambda: list(sessions.newest_first(attached.store)), "a session")
    until(lambda: len(attached.model.requests) >= requests, "the last answer")
    until(lambda: attached.thread().pending is None, "the end of the turn")

"""Messages of a review reach an agent once, by its hooks or its inbox; its transcript decides."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.attach import spool
from casfs.digest import ThreadId
from casfs.review import comments, message, subject
from casfs.review.comments import HEARD, HELD, SENT, Comment, Round
from casfs.store.store import Store
from casfs.system.clock import now_ms
from engine.sessions import review_delivery
from engine.sessions.review_delivery import HELD_MS, IDLE_MS, OFFER_MS, ReviewDelivery
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory
from tests.support.sessions import ClaudeEvents


@dataclass
class Reviewed:
    """A session of claude that is reviewed, with its transcript and the delivery of a daemon."""

    agent: AttachedAgent
    delivery: ReviewDelivery
    transcript: Path
    events: ClaudeEvents
    logged: list[Any] = field(default_factory=list)

    @property
    def round(self) -> Round:
        return comments.load(self.agent.store, self.agent.thread.id).rounds[-1]

    @property
    def mark(self) -> str:
        review = comments.load(self.agent.store, self.agent.thread.id)
        return message.mark(review.thread, len(review.rounds))

    def send(self, text: str = "Why?") -> None:
        tree = subject.newest_tree(self.agent.store, self.agent.thread)
        draft = Comment(0, tree, b"a", 1, count=1, text=text)
        id = self.agent.thread.id
        comments.change(self.agent.store, id, lambda old, _: comments.add(old, draft))
        message.send(self.agent.store, self.agent.thread)

    def hook(self, payload: dict[str, Any], pid: int | None = None) -> dict[str, Any] | None:
        """What the hook of an event prints."""
        event = spool.Event("claude", now_ms(), pid or self.events.pid, payload)
        self.delivery.note_mode(event)
        output = trio.run(self.delivery.output_of_hook, lambda: event)
        return None if output is None else json.loads(output)

    def after_call(self, pid: int | None = None, **more: Any) -> str | None:
        output = self.hook({**self.events.result("1"), **more}, pid)
        return None if output is None else output["hookSpecificOutput"]["additionalContext"]

    def at_end(self) -> str | None:
        output = self.hook(self.events.stop())
        assert output is None or output["decision"] == "block"
        return None if output is None else output["reason"]

    def writes(self, **line: Any) -> None:
        """Has the agent write a line into its transcript."""
        with self.transcript.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def writes_context(self) -> None:
        text = f"{self.mark} …"
        attachment = {"type": "hook_additional_context", "content": [text]}
        self.writes(type="attachment", attachment=attachment)

    def later(self, ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(review_delivery, "now_ms", lambda: now_ms() + ms)


@pytest.fixture
def reviewed(disk_store: Store, tmp_path: Path) -> Iterator[Reviewed]:
    """One that works on its first prompt."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "a").write_text("1\n2\n")
    folder = tmp_path / ".claude/projects/x"
    folder.mkdir(parents=True)
    followed = OwnSessionDirectory(disk_store, project, None)
    agent = AttachedAgent(disk_store, project, followed)
    agent.answered("0", "before", folder)
    agent.prompt("Go")
    logged: list[Any] = []
    delivery = ReviewDelivery(disk_store, lambda event, **fields: logged.append((event, fields)))
    events = ClaudeEvents(project, session="one")
    yield Reviewed(agent, delivery, folder / "transcript.jsonl", events, logged)
    followed.close()


def test_after_a_call(reviewed: Reviewed) -> None:
    assert reviewed.after_call() is None
    reviewed.send()
    text = reviewed.after_call()
    assert text is not None
    assert text.startswith(reviewed.mark)
    assert reviewed.after_call() is None
    assert reviewed.round.state == SENT
    reviewed.writes_context()
    reviewed.delivery.offer_to_idle()
    assert reviewed.round.state == HEARD
    assert reviewed.at_end() is None


def test_at_the_end_of_an_answer_and_with_a_prompt(reviewed: Reviewed) -> None:
    reviewed.send()
    assert reviewed.mark in (reviewed.at_end() or "")
    reviewed.writes(type="user", message={"role": "user", "content": f"Stop: {reviewed.mark}"})
    reviewed.delivery.offer_to_idle()
    assert reviewed.round.state == HEARD
    reviewed.send("More")
    output = reviewed.hook(reviewed.events.prompt("Go on"))
    assert output is not None
    assert reviewed.mark in output["hookSpecificOutput"]["additionalContext"]


def test_an_offer_that_was_lost_is_made_again(
    reviewed: Reviewed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed.send()
    assert reviewed.after_call()
    assert reviewed.at_end() is None  # it may not be written yet
    reviewed.later(OFFER_MS + 1000, monkeypatch)
    assert reviewed.after_call() is None  # nor while the turn lasts
    assert reviewed.mark in (reviewed.at_end() or "")


def test_another_process_hears_what_was_lost_with_the_first(reviewed: Reviewed) -> None:
    reviewed.send()
    assert reviewed.after_call()
    assert reviewed.after_call(pid=1)
    reviewed.writes_context()
    assert reviewed.after_call(pid=2) is None


@pytest.mark.parametrize(
    "line",
    [
        {"type": "attachment", "attachment": {"type": "hook_success", "stdout": "MARK"}},
        {"type": "user", "message": {"content": [{"tool_use_id": "1", "content": "MARK"}]}},
        {"type": "queue-operation", "operation": "enqueue", "content": "MARK"},
        {"type": "system", "content": "a notice: MARK"},
        {"type": "MARK"},
        {"message": "MARK"},
    ],
)
def test_what_is_not_heard(reviewed: Reviewed, line: dict[str, Any]) -> None:
    reviewed.send()
    reviewed.writes(**json.loads(json.dumps(line).replace("MARK", reviewed.mark)))
    reviewed.delivery.offer_to_idle()
    assert reviewed.round.state == SENT


def test_subagents_and_other_hooks_are_not_told(reviewed: Reviewed) -> None:
    reviewed.send()
    assert reviewed.after_call(agent_id="sub") is None
    assert reviewed.hook(reviewed.events.call("1")) is None
    assert reviewed.hook(reviewed.events.payload("SessionStart", source="resume")) is None
    assert reviewed.round.way == ""


def test_a_prompt_that_is_the_message(reviewed: Reviewed) -> None:
    reviewed.send()
    assert reviewed.hook(reviewed.events.prompt(f"{reviewed.mark} said elsewhere"), None)
    reviewed.send("More")
    comments.change(
        reviewed.agent.store,
        reviewed.agent.thread.id,
        lambda old, _: old.with_round(2, replace(old.rounds[1], way="inbox", pid=os.getpid())),
    )
    assert reviewed.hook(reviewed.events.prompt(reviewed.mark)) is None


def test_one_that_is_too_long_is_a_file(reviewed: Reviewed) -> None:
    reviewed.send("x" * 9000)
    text = reviewed.after_call() or ""
    assert len(text) < 500
    path = Path(text.rpartition("read ")[2])
    assert "x" * 9000 in path.read_text()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert not path.is_relative_to(reviewed.agent.directory)


# -- sessions that rest ----------------------------------------------------------------


@pytest.fixture
def inbox(reviewed: Reviewed, tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a claude that is idle, and asks its person for permissions."""
    reviewed.agent.stop()
    reviewed.hook({**reviewed.events.stop(), "permission_mode": "default"})
    path = tmp_path / "inbox.sock"
    sessions = reviewed.transcript.parents[2] / "sessions"
    sessions.mkdir()
    registered = {"sessionId": "transcript", "messagingSocketPath": str(path)}
    (sessions / f"{os.getpid()}.json").write_text(json.dumps(registered))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(10)
        yield listener


def received(inbox: socket.socket) -> str:
    connection, _ = inbox.accept()
    with connection, connection.makefile() as file:
        content = json.loads(file.readline())["message"]["content"]
        return str(content)


def test_one_that_rests_is_woken_once(
    reviewed: Reviewed, inbox: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed.send()
    assert reviewed.delivery.offer_to_idle()
    assert received(inbox).startswith(reviewed.mark)
    reviewed.writes(type="queue-operation", operation="enqueue", content=reviewed.mark)
    reviewed.later(IDLE_MS + 1000, monkeypatch)
    reviewed.delivery.offer_to_idle()
    inbox.settimeout(0.1)
    with pytest.raises(TimeoutError):
        inbox.accept()
    assert reviewed.after_call() is None
    reviewed.writes(type="user", message={"content": f"A message: {reviewed.mark}"})
    assert not reviewed.delivery.offer_to_idle()
    assert reviewed.round.state == HEARD


def test_one_that_is_stopped_is_given_it_once(
    reviewed: Reviewed, inbox: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed.send()
    assert reviewed.delivery.offer_to_idle()
    reviewed.later(IDLE_MS + 1000, monkeypatch)
    assert reviewed.delivery.offer_to_idle()
    assert received(inbox)
    inbox.settimeout(0.1)
    with pytest.raises(TimeoutError):
        inbox.accept()


def test_a_mode_that_is_not_known_since_a_restart(
    reviewed: Reviewed, inbox: socket.socket, disk_store: Store
) -> None:
    reviewed.send()
    assert not ReviewDelivery(disk_store, lambda event, **fields: None).offer_to_idle()
    assert reviewed.round.way == ""


def test_one_that_does_not_answer_hears_by_its_next_prompt(
    reviewed: Reviewed, inbox: socket.socket
) -> None:
    inbox.close()
    reviewed.send()
    assert not reviewed.delivery.offer_to_idle()
    assert reviewed.round.way == ""
    # It is not tried again and again.
    head = reviewed.agent.store.heads.get(comments.head_name(reviewed.agent.thread.id))
    assert not reviewed.delivery.offer_to_idle()
    assert reviewed.agent.store.heads.get(comments.head_name(reviewed.agent.thread.id)) == head
    assert reviewed.hook(reviewed.events.prompt("Go on"))


def test_where_permissions_are_bypassed_it_waits(reviewed: Reviewed, inbox: socket.socket) -> None:
    reviewed.send()
    comments_before = reviewed.round
    assert reviewed.hook({**reviewed.events.stop(), "permission_mode": "bypassPermissions"})
    assert comments_before.way == ""
    reviewed.writes(type="user", message={"content": reviewed.mark})
    reviewed.send("More")
    reviewed.delivery.offer_to_idle()
    assert reviewed.round.way == ""


def test_what_claude_holds_is_said(
    reviewed: Reviewed, inbox: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviewed.send()
    reviewed.delivery.offer_to_idle()
    held = f"Held peer message — preview: «{reviewed.mark}» — not delivered"
    reviewed.writes(type="system", subtype="informational", content=held)
    reviewed.delivery.offer_to_idle()
    assert reviewed.round.state == HELD
    assert reviewed.hook(reviewed.events.prompt("Go on")) is None
    reviewed.later(HELD_MS + 1000, monkeypatch)
    assert reviewed.hook(reviewed.events.prompt("Go on"))


def test_a_session_that_is_gone_is_left_alone(
    reviewed: Reviewed, inbox: socket.socket, disk_store: Store
) -> None:
    reviewed.agent.quit()
    reviewed.send()
    assert not reviewed.delivery.offer_to_idle()
    assert reviewed.round.way == ""


def test_an_event_that_cannot_be_read_ends_nothing(reviewed: Reviewed) -> None:
    reviewed.send()

    def read() -> spool.Event:
        raise ValueError("no JSON")

    assert trio.run(reviewed.delivery.output_of_hook, read) is None
    assert reviewed.logged == [("review not told", {"error": "no JSON"})]


def test_what_was_heard_at_the_end_is_known(reviewed: Reviewed) -> None:
    reviewed.send()
    assert reviewed.at_end()
    reviewed.writes(type="user", message={"content": reviewed.mark})
    reviewed.agent.stop()
    reviewed.agent.quit()
    assert not reviewed.delivery.offer_to_idle()
    assert reviewed.round.state == HEARD


def test_a_damaged_review_does_not_stop_others(reviewed: Reviewed, disk_store: Store) -> None:
    reviewed.send()
    head = disk_store.heads.get(comments.head_name(reviewed.agent.thread.id))
    assert head is not None
    other = comments.head_name(ThreadId("01JD0000000000000000000000"))
    with disk_store.batch() as batch:
        batch.swap(other, None, head)
    reviewed.delivery.offer_to_idle()
    assert [event for event, _ in reviewed.logged] == ["review not delivered"]
    assert reviewed.after_call()

"""Subagents: threads that the step of their parent has called, from transcripts of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casfs.errors import Corrupt, NotFound
from casfs.history import blame
from casfs.history.versions import find
from casfs.maintenance import fsck
from casfs.sessions import session_steps
from casfs.store.store import Store
from casfs.system import zstd
from casfs.threads import prompts, sessions, threads
from casfs.threads.state import state
from casfs.threads.threads import Thread
from casfs.transcripts import codex, transcript_files
from casfs.trees.recorded_state import RecordedState
from engine import content
from engine.sessions import session_import
from engine.sessions.boundary import Boundary
from engine.sessions.recorder import SessionRecorder
from engine.threads import lifecycle
from tests.engine.sessions.test_transcripts import append, asks, prompt, raw, result, says
from tests.support import planted
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory
from tests.support.helpers import put_tree
from tests.support.sessions import ClaudeEvents, name

SECRET = planted.token().decode()
NAMELESS = {"type": "tool_use", "id": "q", "name": ""}  # fits no node


class Session:
    """A session of claude with a transcript, and those of its subagents."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.transcript = folder / "one.jsonl"
        self.folder = folder / "one" / "subagents"
        self.folder.mkdir(parents=True)
        self.events = ClaudeEvents(folder, session="one")
        self.recorder = SessionRecorder(store, {})

    def report(self, payload: dict[str, Any], files: dict[str, bytes] | None = None) -> None:
        event = self.events.event({**payload, "transcript_path": str(self.transcript)})
        state = None if files is None else RecordedState(put_tree(self.store, files))
        self.recorder.record(event, Boundary(state), name())

    def subagent(self, id: str, *values: dict[str, Any], call: str | None = None) -> bytes:
        path = self.folder / f"agent-{id}.jsonl"
        if call is not None:
            path.with_suffix(".meta.json").write_text(json.dumps({"toolUseId": call}))
        return append(path, *({**value, "isSidechain": True} for value in values))

    @property
    def thread(self) -> Thread:
        (thread,) = sessions.newest_first(self.store)
        return thread

    def steps(self) -> list[dict[str, Any]]:
        return [dict(node.payload) for node in threads.last_steps(self.store, self.thread, None)]

    def children(self) -> list[Thread]:
        children = threads.with_field(self.store, "parent", [self.thread.id])
        return [*children][::-1]

    def texts(self, step: dict[str, Any]) -> list[str]:
        """What was said in the turns of a step."""
        hashes = self.store.node(step["detail"], "react-session").payload["turns"]
        turns = [self.store.node(hash, "react-turn").payload for hash in hashes]
        return [content.text(self.store, turn["output"]) for turn in turns]


@pytest.fixture
def session(store: Store, tmp_path: Path) -> Session:
    return Session(store, tmp_path)


def delegate(session: Session) -> bytes:
    """A prompt for which a subagent runs two calls, of which hooks have reported one."""
    events = session.events
    session.report(events.prompt("one"), {"a": b"1\n"})
    session.report(events.call("t1", "Task", prompt="go"), {"a": b"1\n"})
    session.report(events.call("s1", command="echo 2 >> a"), {"a": b"1\n"})
    session.report(events.result("s1", response="out"), {"a": b"1\n2\n"})
    lines = session.subagent("x", prompt(f"Go, with {SECRET}"), asks("s1", "I run it."), call="t1")
    lines += session.subagent(
        "x", result("s1"), asks("s2", "Once more."), result("s2"), says("Did.")
    )
    session.report(events.result("t1", "Task", response="Did."), {"a": b"1\n2\n"})
    append(session.transcript, prompt("one"), asks("t1", "I ask."), result("t1"), says("Done."))
    session.report(events.stop(), {"a": b"1\n2\n"})
    return lines


def test_it_is_a_thread_that_the_step_has_called(session: Session) -> None:
    lines = delegate(session)
    store = session.store
    (step,) = session.steps()
    (child,) = session.children()
    assert step["childThreads"] == [child.hash]
    assert session.thread.record["children"] == [child.id]
    assert state(child) == "succeeded"
    assert child.id not in [thread.id for thread in sessions.newest_first(store)]
    (only,) = threads.last_steps(store, child, None)
    assert session.texts(dict(only.payload)) == ["I run it.", "Once more.", "Did."]
    assert session.texts(step) == ["I run it.", "I ask.", "Done."]
    assert content.text(store, only.payload["content"]) == "Did."
    assert prompts.of_step(store, child, only).text == "Go, with ‹secret:gitlab-token:1›"
    assert raw(store, dict(only.payload)) == lines
    assert fsck.check(store).faults == []


def test_a_line_is_of_the_call_of_the_step(session: Session) -> None:
    delegate(session)
    position, path = find(session.store, f"{session.thread.id}@1:a")
    lines = blame.blame(position, path)
    assert [line.version.call for line in lines][1] == (1, "Bash")


def test_one_that_goes_on_is_another_thread(session: Session) -> None:
    delegate(session)
    events = session.events
    session.report(events.prompt("two"))
    append(session.transcript, prompt("two"), says("Well."))
    session.subagent("x", says("And more."))
    session.subagent("y", prompt("Another"), says("Mine."))
    session.report(events.stop())
    assert len(session.children()) == 3
    assert len(session.steps()[1]["childThreads"]) == 2
    session.report(events.prompt("three"))
    session.report(events.stop())
    assert len(session.children()) == 3


@pytest.mark.parametrize("damage", [b"\xff\n", b"[" * 5000 + b"\n", b'{"type":"user"}\n', b"x"])
def test_a_damaged_transcript(session: Session, damage: bytes) -> None:
    (session.folder / "agent-z.jsonl").write_bytes(damage)
    (session.folder / "agent-link.jsonl").symlink_to("/dev/zero")
    (session.folder / "agent-z.meta.json").write_bytes(damage)
    delegate(session)
    assert len(session.steps()) == 1
    assert len(session.children()) <= 2


def test_an_import_has_them(store: Store, tmp_path: Path) -> None:
    session = Session(store, tmp_path)
    append(session.transcript, prompt("one"), asks("t1"), result("t1"), says("First."))
    append(session.transcript, prompt("two"), asks("t2"), result("t2"), says("Second."))
    session.subagent("x", prompt("Go"), asks("s1"), result("s1"), says("Did."), call="t1")
    session.subagent("y", prompt("Come"), says("Did, too."), call="t2")
    session.subagent("z", prompt("Unknown"), says("Well."))
    assert session_import.import_session(store, {}, "claude", session.transcript) is not None
    assert [len(step["childThreads"]) for step in session.steps()] == [1, 2]
    assert fsck.check(store).faults == []


def compressed(rollout: Path) -> Path:
    """Does what codex does with one that was not written to for a week."""
    path = rollout.with_name(rollout.name + ".zst")
    with path.open("wb") as target, zstd.compressed(target) as out:
        out.write(rollout.read_bytes())
    rollout.unlink()
    return path


@pytest.mark.parametrize("folder", ["sessions/2026/11/27", "archived_sessions"])
def test_compressed_and_archived_rollouts_of_codex(
    store: Store, tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    id = "019f5e1a-0000-7000-8000-000000000001"
    path = tmp_path / folder / f"rollout-2026-11-27T10-00-01-{id}.jsonl"
    asked = [
        {"type": "message", "role": "user", "content": [{"text": text}]} for text in ("Ask", "More")
    ]
    append(
        path,
        {"type": "session_meta", "payload": {"id": id, "cwd": "/project"}},
        *({"type": "response_item", "payload": message} for message in asked),
    )
    path = compressed(path)
    assert transcript_files.find("codex", tmp_path) == [path]
    thread = session_import.import_session(store, {}, "codex", path)
    assert thread is not None
    steps = session_steps.load(store, thread)
    assert [step.prompt for step in steps] == ["Ask", "More"]
    cut = codex.cut(path.with_name(path.name.removesuffix(".zst")), steps[1], None)
    assert cut.transcript is not None
    assert not cut.transcript.name.endswith(".zst")
    other = path.with_name(path.name.replace(id, "another"))
    other.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(Corrupt, match="truncated"):
        session_import.import_session(store, {}, "codex", other)


def test_a_session_in_which_nothing_was_asked(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    append(path, {"type": "summary", "cwd": "/project"})
    assert session_import.import_session(store, {}, "claude", path) is None
    rollout = tmp_path / "rollout-1.jsonl"
    append(rollout, {"type": "session_meta", "payload": {"cwd": "/project"}})
    with pytest.raises(NotFound, match="does not say"):
        session_import.import_session(store, {}, "codex", rollout)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_the_rollout_of_a_subagent_of_codex(
    store: Store, tmp_path: Path, is_compressed: bool
) -> None:
    day = tmp_path / ".codex/sessions/2026/11/27"
    day.mkdir(parents=True)
    ids = ["019f5e1a-0000-7000-8000-00000000000" + digit for digit in "123"]

    def rollout(number: int, text: str, task: str = "", **meta: Any) -> Path:
        path = day / f"rollout-2026-11-27T10-00-0{number}-{ids[number]}.jsonl"
        begun = {"id": ids[number], "cwd": "/project", **meta}
        said = [("user", text), ("assistant", f"{text} done.")]
        items: list[dict[str, Any]] = [
            {"type": "message", "role": role, "content": [{"text": words}]} for role, words in said
        ]
        if task:  # behind a copy of what its parent has said
            items.append({"type": "agent_message", "content": [{"text": task}]})
            words = [{"text": f"{task} done."}]
            items.append({"type": "message", "role": "assistant", "content": words})
        append(
            path,
            {"type": "session_meta", "payload": begun},
            *({"type": "response_item", "payload": item} for item in items),
        )
        return path

    parent = rollout(0, "Ask")
    rollout(1, "Ask", "Sub", parent_thread_id=ids[0], thread_source="subagent")
    rollout(2, "Unrelated")
    if is_compressed:
        for path in sorted(day.iterdir()):
            compressed(path)
        parent = parent.with_name(parent.name + ".zst")
    found = transcript_files.find("codex", tmp_path / ".codex")
    assert [path.name.partition(".")[0][-1] for path in found] == ["1", "3"]
    thread = session_import.import_session(store, {}, "codex", parent)
    assert thread is not None
    (child,) = threads.with_field(store, "parent", [thread.id])
    (step,) = threads.last_steps(store, child, None)
    assert content.text(store, step.payload["content"]) == "Sub done."
    assert content.text(store, step.payload["prompt"]["text"]) == "Sub"


@pytest.mark.parametrize(
    "line",
    [
        {"type": "user", "message": {"content": "cut \ud83d"}},
        {**says("Done."), "timestamp": "1901-01-01T00:00:00Z"},
        {"type": "assistant", "message": {"model": ["x"], "content": [{"type": "tool_use"}] * 2}},
        {"type": "assistant", "message": {"content": [{"type": "text", "text": {"a": 1}}]}},
        {
            "type": "assistant",
            "message": {"content": [{"type": "tool_use", "id": "q", "name": ""}]},
        },
    ],
)
def test_a_line_of_another_form(session: Session, line: dict[str, Any]) -> None:
    """The parent is recorded whatever its subagent's transcript has."""
    session.subagent("z", line)
    (session.folder / "agent-\udcff.jsonl").write_bytes(b"{}\n")
    session.report(session.events.prompt("one"))
    session.report(session.events.stop())
    session.report(session.events.prompt("two"))
    session.report(session.events.stop())
    assert len(session.steps()) == 2
    assert fsck.check(session.store).faults == []


def test_one_whose_thread_was_removed_does_not_come_back(session: Session) -> None:
    delegate(session)
    (child,) = session.children()
    lifecycle.remove(session.store, child)
    session.report(session.events.prompt("two"))
    session.report(session.events.stop())
    assert session.children() == []


def test_the_paths_of_a_session_are_as_they_are(disk_store: Store, tmp_path: Path) -> None:
    """Where a secret is a word of them, too: by them a session is found again."""
    project = tmp_path / "hunter2hunter2"
    project.mkdir()
    (project / ".env").write_text("DB_PASSWORD=hunter2hunter2\n")
    followed = OwnSessionDirectory(disk_store, project, None)
    try:
        agent = AttachedAgent(disk_store, project, followed)
        agent.prompt("say hunter2hunter2")
        agent.stop()
        assert sessions.about(disk_store, agent.thread)["directory"] == str(project)
        (step,) = agent.steps()
        assert "hunter2" not in step.prompt
    finally:
        followed.close()

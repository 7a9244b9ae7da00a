"""The daemon and the spool: what hooks report is recorded once, whatever is killed."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from casfs.attach import attachments, spool
from casfs.errors import CasfsError
from casfs.sessions import session_steps
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.system.clock import now_ms
from casfs.threads import sessions, threads
from casfs.trees import tree
from engine import content
from tests.support.engine import alive, daemon, kill, until
from tests.support.sessions import ClaudeEvents, report


@pytest.fixture
def root(disk_store: Store) -> Path:
    spool.prepare(disk_store.root, os.environ)
    # No daemon but those of the tests.
    (disk_store.root / "hooks/start-daemon").write_text("#!/bin/sh\n")
    return disk_store.root


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def recorded(store: Store) -> dict[str, list[tuple[str, list[str]]]]:
    """By session: each finished step's prompt, and the results of its calls."""
    found = {}
    for thread in sessions.newest_first(store):
        steps = []
        for node in threads.last_steps(store, thread, None):
            step = node.payload
            turns = store.node(step["detail"], "react-session").payload["turns"]
            calls = [store.node(turn, "react-turn").payload["toolCalls"][0] for turn in turns]
            results = [store.node(call, "react-tool-call").payload["result"] for call in calls]
            texts = [content.text(store, result) for result in results]
            steps.append((content.text(store, step["prompt"]["text"]), texts))
        found[sessions.about(store, thread)["id"]] = steps
    return found


def script(events: ClaudeEvents, prompts: int, calls: int) -> list[dict[str, Any]]:
    """What a session reports."""
    payloads = [events.payload("SessionStart", source="startup")]
    for number in range(prompts):
        payloads.append(events.prompt(f"prompt {number}"))
        for call in range(calls):
            id = f"c{number}-{call}"
            payloads.append(events.call(id, command="x"))
            payloads.append(events.result(id, response=id))
        payloads.append(events.stop())
    return payloads


def expected(prompts: int, calls: int) -> list[tuple[str, list[str]]]:
    return [(f"prompt {n}", [f"c{n}-{c}" for c in range(calls)]) for n in range(prompts)]


def is_empty(root: Path) -> bool:
    return spool.names(root) == []


def test_what_was_spooled_without_a_daemon(root: Path, disk_store: Store, project: Path) -> None:
    for payload in script(ClaudeEvents(project), 2, 2):
        report(root, payload)
    assert len(spool.names(root)) == 13
    with daemon(root):
        until(lambda: is_empty(root), "an empty spool")
    assert list(recorded(disk_store).values()) == [expected(2, 2)]


def test_a_daemon_that_is_killed_again_and_again(
    root: Path, disk_store: Store, project: Path
) -> None:
    payloads = script(ClaudeEvents(project), 6, 3)
    over = threading.Event()

    def play() -> None:
        for number, payload in enumerate(payloads):
            (project / "file").write_text(str(number))
            report(root, payload)
        over.set()

    agent = threading.Thread(target=play)
    agent.start()
    for _ in range(5):
        with daemon(root) as pid:
            over.wait(0.35)
            kill(pid)
    agent.join()
    with daemon(root):
        until(lambda: is_empty(root), "an empty spool")
    assert list(recorded(disk_store).values()) == [expected(6, 3)]


def test_sessions_side_by_side(root: Path, disk_store: Store, project: Path) -> None:
    def play(session: str) -> None:
        for payload in script(ClaudeEvents(project, session=session), 3, 2):
            report(root, payload)

    with daemon(root):
        agents = [threading.Thread(target=play, args=[f"s{number}"]) for number in range(4)]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join()
        until(lambda: is_empty(root), "an empty spool")
    assert recorded(disk_store) == {f"s{number}": expected(3, 2) for number in range(4)}


def test_what_cannot_be_read_is_set_aside(root: Path, disk_store: Store, project: Path) -> None:
    events = ClaudeEvents(project)
    with daemon(root):
        report(root, {"hook_event_name": "UserPromptSubmit"})
        report(root, events.prompt("one"))
        report(root, events.stop())
        until(lambda: is_empty(root), "an empty spool")
    assert len(recorded(disk_store)) == 1
    assert spool.set_aside_count(root) == 1
    log = [json.loads(line) for line in (root / "log/daemon.jsonl").read_text().splitlines()]
    (fault,) = [line["error"] for line in log if line["event"] == "session event set aside"]
    assert fault.startswith("claude reported 'UserPromptSubmit' in an unknown form")


def test_paused_directories(root: Path, disk_store: Store, project: Path) -> None:
    attachments.set_paused(root, str(project), is_paused=True)
    events = ClaudeEvents(project)
    with daemon(root):
        report(root, events.prompt("secret"))
        report(root, events.stop())
        until(lambda: is_empty(root), "an empty spool")
        attachments.set_paused(root, str(project), is_paused=False)
        report(root, events.prompt("open"))
        report(root, events.stop())
        until(lambda: is_empty(root), "an empty spool")
    assert list(recorded(disk_store).values()) == [[("open", [])]]


def test_directories_that_are_not_recorded(
    root: Path, disk_store: Store, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "large").write_bytes(bytes(3000))
    monkeypatch.setenv("CASFS_ATTACH_MAX_SIZE", "2000")
    faults = []
    with daemon(root):
        for directory in (project, Path.home(), project / "gone"):
            events = ClaudeEvents(directory, session=directory.name)
            report(root, events.prompt("one"))
            report(root, events.stop())
        until(lambda: is_empty(root), "an empty spool")
    for thread in sessions.newest_first(disk_store):
        faults.append(thread.record["session"]["fault"])
        assert threads.last_steps(disk_store, thread, 1)[0].payload["workspace"] is None
    gone, home, large = faults
    assert "holds more than" in large
    assert "raise attach.max_size" in large
    assert "home directory" in home
    assert "no directory" in gone or "No such" in gone


def test_a_tree_is_of_before_the_tool_runs(root: Path, disk_store: Store, project: Path) -> None:
    """The hook of a call returns once the directory was looked at."""
    events = ClaudeEvents(project)
    with daemon(root):
        report(root, events.prompt("one"))
        for number in range(10):
            report(root, events.call(f"c{number}", command="x"))
            (project / f"f{number}").write_text("x")
            report(root, events.result(f"c{number}"))
        report(root, events.stop())
        until(lambda: is_empty(root), "an empty spool")
    (thread,) = sessions.newest_first(disk_store)
    (step,) = threads.last_steps(disk_store, thread, None)
    turns = disk_store.node(step.payload["detail"], "react-session").payload["turns"]
    for number, hash in enumerate(turns):
        turn = disk_store.node(hash, "react-turn").payload
        if "isLate" in turn:  # on a busy machine
            continue
        names = {name: set(tree.load(disk_store, turn[name])) for name in ("before", "workspace")}
        assert names["workspace"] - names["before"] == {b"f%d" % number}


def test_a_fault_of_ours_ends_neither_the_daemon_nor_the_session(
    root: Path, disk_store: Store, project: Path
) -> None:
    """A record of the session that no version writes: each of its events is set aside."""
    events = ClaudeEvents(project)
    other = ClaudeEvents(project, session="other")
    with daemon(root) as pid:
        report(root, events.prompt("one"))
        until(lambda: is_empty(root), "an empty spool")
        (thread,) = sessions.newest_first(disk_store)
        intent = {name: value for name, value in thread.intent.items() if name != "prompt"}
        broken = {**thread.record, "intent": intent}
        with disk_store.batch() as batch:
            batch.move(thread.name, thread.head, thread.hash, broken)
        report(root, events.stop())
        report(root, other.prompt("two"))
        report(root, other.stop())
        until(lambda: is_empty(root), "an empty spool")
        assert alive(pid)
    assert spool.set_aside_count(root) == 1
    assert recorded(disk_store)["other"] == [("two", [])]


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_person_asks_whether_an_interrupted_call_is_over(
    root: Path, disk_store: Store, project: Path, tmp_path: Path, is_killed: bool
) -> None:
    """Its agent was killed, or its transcript has the result of the call; no hook says so."""
    transcript = tmp_path / "transcript.jsonl"
    transcript.touch()
    agent = subprocess.Popen(["sleep", "60"])
    events = ClaudeEvents(project, pid=agent.pid)

    def told(payload: dict[str, Any]) -> None:
        data = json.dumps({**payload, "transcript_path": str(transcript)}).encode()
        name = f"{spool.current_boot()}-{time.monotonic_ns():020d}-1"
        header = f"casfs 1 claude {now_ms()} {agent.pid}\n".encode()
        (root / "spool" / name).write_bytes(header + data)
        until(lambda: is_empty(root), "an empty spool")

    try:
        with daemon(root):
            told(events.prompt("one"))
            told(events.call("c1", command="rm -rf ."))
            (project / "made").write_text("x")
            (thread,) = sessions.newest_first(disk_store)
            daemon_socket.request(root, "session_settle", id=thread.id)
            (call,) = session_steps.load(disk_store, threads.get(disk_store, thread.id))[0].calls
            assert call.is_running
            if is_killed:
                agent.kill()
                agent.wait()
            else:
                part = {"type": "tool_result", "tool_use_id": "c1", "content": "interrupted"}
                line = {"type": "user", "message": {"content": [part]}}
                transcript.write_text(json.dumps(line) + "\n")
            daemon_socket.request(root, "session_settle", id=thread.id)
            (call,) = session_steps.load(disk_store, threads.get(disk_store, thread.id))[0].calls
            assert call.is_interrupted
            assert call.after is not None
            assert tree.find(disk_store, call.after.full, b"made") is not None
    finally:
        agent.kill()
        agent.wait()


def reports_of_any_kind(project: Path) -> dict[str, bytes]:
    """What no agent of today says, as it lies in the spool."""
    header = f"casfs 1 claude {now_ms()} {os.getpid()}\n".encode()
    events = ClaudeEvents(project, session="odd")
    result = json.dumps(events.result("c1")).encode()
    deep = (
        b'{"session_id": "odd", "hook_event_name": "Stop", "cwd": ' + b"[" * 900 + b"]" * 900 + b"}"
    )
    return {
        "a duration without an end": header + result.replace(b": 7", b": 1e400"),
        "a duration that is no number": header + result.replace(b": 7", b': {"s": 7}'),
        "a deep value": header + deep,
        "a directory that no path names": header
        + json.dumps({**events.prompt("x"), "cwd": "/a\0b"}).encode(),
        "a process that no kernel has": b"casfs 1 claude 1 " + b"9" * 40 + b"\n" + result,
        "a time that no clock has": b"casfs 1 claude " + b"9" * 40 + b" 1\n" + result,
        "a number that no node holds": header
        + json.dumps(events.call("c2", command=2**70, other=1e22)).encode(),
        "an id of another kind": header + json.dumps({**events.stop(), "session_id": [1]}).encode(),
        "no value": header + b"NaN",
    }


def test_no_report_ends_a_daemon(root: Path, disk_store: Store, project: Path) -> None:
    folder = root / "spool"
    for number, data in enumerate(reports_of_any_kind(project).values()):
        (folder / f"00000000-{number:020d}-1").write_bytes(data)
    with daemon(root) as pid:
        until(lambda: is_empty(root), "an empty spool")
        events = ClaudeEvents(project)
        report(root, events.prompt("one"))
        report(root, events.stop())
        until(lambda: is_empty(root), "an empty spool")
        assert alive(pid)
    assert recorded(disk_store)[events.session] == [("one", [])]


def test_a_duration_without_an_end_loses_no_result(
    root: Path, disk_store: Store, project: Path
) -> None:
    events = ClaudeEvents(project)
    endless = {**events.result("c1"), "duration_ms": float("inf")}
    with daemon(root):
        for payload in (events.prompt("one"), events.call("c1"), endless, events.stop()):
            report(root, payload)
        until(lambda: is_empty(root), "an empty spool")
    assert recorded(disk_store)[events.session] == [("one", ["ok"])]


def test_only_calls_are_answered_before_they_are_recorded(
    root: Path, disk_store: Store, project: Path
) -> None:
    events = ClaudeEvents(project)

    def answered(payload: dict[str, Any]) -> bool:
        header = f"casfs 1 claude {now_ms()} {os.getpid()}\n"
        data = header.encode() + json.dumps(payload).encode()
        try:
            daemon_socket.request(root, "session_event", timeout=1, hex=data.hex())
        except CasfsError:
            return False
        return True

    with daemon(root):
        report(root, events.prompt("one"))
        report(root, events.call("c1", command="x"))
        until(lambda: is_empty(root), "an empty spool")
        (project / "file").write_text("1")
        with closing(sqlite3.connect(root / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # nothing can be stored until it ends
            assert answered(events.result("c1"))
            assert not answered(events.stop())
        until(lambda: recorded(disk_store)[events.session] != [], "the step")
    assert recorded(disk_store)[events.session] == [("one", ["ok"])]

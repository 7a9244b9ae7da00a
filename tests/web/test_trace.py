"""The trace of a step, of each type of detail, and of a failed attempt."""

from __future__ import annotations

from typing import Any

import pytest

from casfs.store.store import Store
from casfs.threads import attempt_details
from casfs.web.rendering import Rendering
from casfs.web.trace import WINDOW, trace
from tests.support.fuse import read
from tests.support.thread_example import make_thread
from tests.support.web import Web, visible


def content(store: Store, text: str, *artifacts: str) -> str:
    return store.put_node("content", {"text": text, "artifacts": list(artifacts)}).hash


def react_turn(store: Store, said: str, *calls: tuple[str, str, str]) -> str:
    made = [
        store.put_node(
            "react-tool-call",
            {
                "name": name,
                "arguments": content(store, given),
                "result": content(store, result),
                "durationMs": 5,
            },
        ).hash
        for name, given, result in calls
    ]
    payload = {
        "input": content(store, "asked"),
        "output": content(store, said),
        "toolCalls": made,
        "tokens": {"input": 1000, "output": 7},
        "latencyMs": 1500,
    }
    return store.put_node("react-turn", payload).hash


def react_session(store: Store, turns: list[str]) -> str:
    agent = store.put_node("agent", {"package": "react", "version": "", "config": {}}).hash
    payload = {"agent": agent, "role": "a", "turns": turns, "totalTokens": 9, "durationMs": 2000}
    return store.put_node("react-session", payload).hash


def test_a_session_of_the_reactor(web: Web, disk_store: Store) -> None:
    turns = [
        react_turn(disk_store, "I <look>.", ("read\x1b_file", '{"path": "<b>"}', "x" * 20_000)),
        react_turn(disk_store, "Done."),
    ]
    session = react_session(disk_store, turns)
    found = trace(disk_store, session)
    assert (found.type, found.total) == ("react-session", 2)
    assert found.facts == {"Tokens": "9", "Duration": "2.0 s"}
    first, second = found.turns
    assert (first.tokens, first.latency_ms) == ((1000, 7), 1500)
    assert [(name, text.text) for name, text in second.said] == [
        ("input", "asked"),
        ("output", "Done."),
    ]
    (call,) = first.calls
    assert (call.name, call.arguments.text, call.duration_ms) == (
        "read\x1b_file",
        '{"path": "<b>"}',
        5,
    )
    assert call.result is not None
    assert call.result.cut

    thread = make_thread(disk_store)
    thread.step("planner", "Done.", detail=session)
    html = web.get(f"/threads/{thread.id}/steps/1/trace").text
    assert "1 · model call 1,000 in, 7 out · 1.5 s · read\\x1b_file" in visible(html)
    assert f'href="/blobs/{call.result.hash}"' in html
    assert "x" * 20_000 not in html
    assert "<look>" not in html


def test_windows_of_a_long_session(web: Web, disk_store: Store) -> None:
    turns = [react_turn(disk_store, f"turn {number}") for number in range(1, WINDOW + 4)]
    session = react_session(disk_store, turns)
    assert [one.number for one in trace(disk_store, session, WINDOW).turns] == [21, 22, 23]
    thread = make_thread(disk_store)
    thread.step("planner", "Done.", detail=session)
    path = f"/threads/{thread.id}/steps/1/trace"
    html = web.get(path).text
    assert f'href="?from={WINDOW}" rel="next"' in html
    assert "turn 23" in web.get(f"{path}?from={WINDOW}").text
    part = web.get(f"{path}?fragment=trace&v={Rendering().version}")
    assert part.headers["etag"] == f'"{session}"'


def test_sessions_of_other_programs(store: Store) -> None:
    turn = {
        "index": 0,
        "role": "assistant",
        "content": "Hi.",
        "toolCalls": [{"name": "ls", "args": "{}"}],
        "reasoning": "why",
    }
    about = {"sessionId": "s1", "model": None, "durationMs": 100}
    turns = [store.put_node("hermes-turn", turn).hash]
    hermes = store.put_node("hermes-detail", {**about, "turnCount": 1, "turns": turns}).hash
    found = trace(store, hermes)
    assert found.facts == {"Session": "s1", "Duration": "0.1 s"}
    (one,) = found.turns
    assert (one.title, [(name, text.text) for name, text in one.said]) == (
        "assistant",
        [("reasoning", "why"), ("content", "Hi.")],
    )
    assert [(call.name, call.arguments.text) for call in one.calls] == [("ls", "{}")]


@pytest.mark.parametrize("is_old", [False, True])
def test_a_session_of_cursor(is_old: bool, disk_store: Store) -> None:
    """An old one has its turns inline."""
    store = disk_store
    spoken = {"kind": "text", "name": None, "text": content(store, "I say"), "result": None}
    used = {"kind": "tool", "name": "edit", "text": content(store, '{"f": 1}')}
    turns: list[Any] = [spoken, {**used, "result": content(store, "ok")}]
    if is_old:
        document = store.registry.document(store.registry.head("cursor-detail").hash)
        members = {**document["properties"], "turns": {"type": "array"}}
        with store.batch() as batch:
            batch.put_schema({**document, "properties": members}, builtin=True)
    else:
        numbered = [{"index": place, **one} for place, one in enumerate(turns)]
        turns = [store.put_node("cursor-turn", one).hash for one in numbered]
    about = {"sessionId": "s1", "model": None, "durationMs": 100, "stream": store.put(b"{}").hash}
    cursor = store.put_node("cursor-detail", {**about, "turns": turns}).hash
    said, tool = trace(store, cursor).turns
    assert said.said[0][1].text == "I say"
    assert tool.calls[0].result is not None
    assert (tool.calls[0].name, tool.calls[0].result.text) == ("edit", "ok")
    assert attempt_details.turns(store, cursor) == ([] if is_old else turns)
    if not is_old:
        thread = make_thread(store)
        thread.step("planner", "Done.", detail=cursor)
        where = f"threads/{thread.id}/steps/000001-planner/detail/turns/0001"
        assert read(store, f"{where}/name") == b"edit"
        assert read(store, f"{where}/result/text") == b"ok"


def test_what_a_tool_call_ran_and_which_files_it_used(web: Web, disk_store: Store) -> None:
    store = disk_store
    hostile = "<script>alert(1)</script>\x1b[2J"
    old, new, got = (store.put(data).hash for data in (b"old", b"new", b"got"))
    terminal = {
        "id": "t1",
        "argv": ["echo", hostile],
        "cwd": f"a{hostile}",
        "request": content(store, "{}"),
        "output": store.put(b"x" * 20_000 + f"end {hostile}".encode()).hash,
        "printedBytes": 9,
        "durationMs": 1200,
        "exitCode": 3,
        "isKilled": False,
    }
    call = {
        "name": hostile,
        "arguments": content(store, "{}"),
        "result": content(store, hostile),
        "durationMs": 5,
        "kind": "execute",
        "status": "failed",
        "terminals": [terminal, {**terminal, "isKilled": True}],
        "files": [{"path": f"b{hostile}", "access": "read", "content": got}],
        "diffs": [{"path": "c.txt", "old": old, "new": new}],
    }
    made = store.put_node("react-tool-call", call).hash
    turn = store.node(react_turn(store, "I run.")).payload
    session = react_session(
        store, [store.put_node("react-turn", {**turn, "toolCalls": [made]}).hash]
    )
    thread = make_thread(store)
    thread.step("planner", "Done.", detail=session)
    html = web.get(f"/threads/{thread.id}/steps/1/trace").text
    text = visible(html)
    for part in (
        "execute · failed",
        "echo",
        "exit code 3 · 1.2 s",
        "exit code 3, ended by the agent",
    ):
        assert part in text, part
    for hash in (old, new, got, terminal["output"]):
        assert f'href="/blobs/{hash}"' in html
    assert "end &lt;script&gt;" in html
    assert html.count("<script") == 1
    assert "\x1b" not in html


def test_a_command_has_its_streams_from_the_end(store: Store) -> None:
    payload = {
        "argv": ["sh", "-c", "echo 'a b'"],
        "exitCode": 3,
        "stdout": store.put(b"x" * 20_000 + b"end\xff").hash,
        "stderr": store.put(b"boom\n").hash,
        "durationMs": 100,
    }
    found = trace(store, store.put_node("command-detail", payload).hash)
    assert found.facts["Command"] == "sh -c 'echo '\"'\"'a b'\"'\"''"
    assert found.facts["Exit code"] == "3"
    (_, out), (_, err) = found.texts
    assert (out.cut, out.text[-4:], err.text) == (True, "end\ufffd", "boom\n")


def test_a_failed_attempt_with_its_turns(web: Web, disk_store: Store) -> None:
    turns = [react_turn(disk_store, f"turn {number}") for number in range(4)]
    earlier = content(disk_store, "", *turns[:2])
    failed = content(disk_store, "attempt 1 of planner failed: it broke", earlier, *turns[2:])
    found = trace(disk_store, failed)
    outputs = [dict(one.said)["output"].text for one in found.turns]
    assert outputs == ["turn 0", "turn 1", "turn 2", "turn 3"]
    thread = make_thread(disk_store)
    thread.step("planner", "Done.", attempts=[failed])
    path = f"/threads/{thread.id}/steps/1/trace"
    assert "it broke" in web.get(f"{path}?attempt=1").text
    for query in ("?attempt=2", "?attempt=9999"):
        web.get(path + query, 404)
    web.get(f"/threads/{thread.id}/steps/2/trace", 404)
    web.get(f"/threads/{thread.id}/steps/x/trace", 404)


def test_any_other_detail_is_shown_as_it_is(store: Store) -> None:
    blob = trace(store, store.put(b"<bytes>\xff").hash)
    assert (blob.type, blob.texts[0][1].text) == ("blob", "<bytes>\ufffd")
    asked = {"question": content(store, "Q?"), "answer": content(store, "A.")}
    human = trace(store, store.put_node("human-detail", asked).hash)
    assert [(name, text.text) for name, text in human.texts] == [
        ("question", "Q?"),
        ("answer", "A."),
    ]
    agent = store.put_node("agent", {"package": "p", "version": "", "config": {}}).hash
    assert '"package": "p"' in trace(store, agent).texts[0][1].text

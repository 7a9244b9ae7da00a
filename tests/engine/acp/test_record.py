"""What an agent had us do, and what it says of it, stands in the record whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casfs.agents import json_rpc
from casfs.store.store import Store
from casfs.threads.threads import ENDED, SUSPENDED
from engine.acp.texts import ChunkedText
from tests.support.acp import DONE, Script, session, start, text
from tests.support.engine import carry_on, steps

CHUNK = "agent_message_chunk"


async def recorded(
    store: Store, script: Script, **config: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    ended = await carry_on(store, start(store, script.config(**config)))
    assert ended.status == ENDED, ended.record["reason"]
    (step,) = steps(store, ended)
    return session(store, step["detail"])


def calls_of(store: Store, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    hashes = [hash for turn in turns for hash in turn["toolCalls"]]
    return [store.node(hash, "react-tool-call").payload for hash in hashes]


async def test_terminals_and_files_are_tool_calls(disk_store: Store, tmp_path: Path) -> None:
    then = [{"method": f"terminal/{one}"} for one in ("wait_for_exit", "release")]
    params = {"command": "sh", "args": ["-c", "pwd; exit 3"]}
    run = {"method": "terminal/create", "params": params, "then": then}
    write = {"method": "fs/write_text_file", "params": {"path": "b.txt", "content": "two\n"}}
    read = {"method": "fs/read_text_file", "params": {"path": "b.txt"}}
    refused = {"method": "fs/read_text_file", "params": {"path": "/etc/passwd"}}
    requests = [{"request": one} for one in (run, write, read, refused)]
    _, turns = await recorded(disk_store, Script(tmp_path, [*requests, DONE]), allowShell=True)
    ran, wrote, got, denied = calls_of(disk_store, turns)
    (terminal,) = ran["terminals"]
    assert (terminal["argv"], terminal["cwd"]) == (["sh", "-c", "pwd; exit 3"], ".")
    assert (terminal["exitCode"], terminal["isKilled"]) == (3, False)
    assert disk_store.get(terminal["output"]).endswith(b"\n")
    for call, access in ((wrote, "write"), (got, "read")):
        (file,) = call["files"]
        assert (file["path"], file["access"]) == ("b.txt", access)
        assert disk_store.get(file["content"]) == b"two\n"
    assert (denied["status"], "files" in denied) == ("failed", False)


async def test_what_it_had_us_do_is_recorded_without_its_secret(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hunter2-abcdefghijklmnopqrstuvwxyz-0123456789"
    monkeypatch.setenv("MY_KEY", secret)
    then = [{"method": f"terminal/{one}"} for one in ("wait_for_exit", "release")]
    params = {"command": "sh", "args": ["-c", f"echo says {secret}"]}
    run = {"method": "terminal/create", "params": params, "then": then}
    content = {"path": "b.txt", "content": f"key {secret}\n"}
    write = {"method": "fs/write_text_file", "params": content}
    read = {"method": "fs/read_text_file", "params": {"path": "b.txt"}}
    remove = {"method": "terminal/create", "params": {"command": "rm", "args": ["b.txt"]},
              "then": then}  # fmt: skip
    requests = [{"request": one} for one in (run, write, read, remove)]
    script = Script(tmp_path, [*requests, DONE])
    _, turns = await recorded(disk_store, script, allowShell=True, secrets=["MY_KEY"])
    ran, wrote, _, _ = calls_of(disk_store, turns)
    (terminal,) = ran["terminals"]
    assert disk_store.get(terminal["output"]).startswith(b"says ")
    assert disk_store.get(wrote["files"][0]["content"]).startswith(b"key ")
    for _, hash, _ in disk_store.blobs.iterate():
        assert secret.encode() not in disk_store.get(hash)


def test_a_message_begins_after_a_gap() -> None:
    texts = ChunkedText()
    chunks = [("a", None), ("b", "1"), ("c", None), ("d", "2"), ("e", "2"), ("f", "1")]
    assert [texts.add(*one) for one in chunks] == [False, False, False, True, False, True]


async def test_halves_of_a_character_are_joined(disk_store: Store, tmp_path: Path) -> None:
    script = Script(tmp_path, [{"say": "a \ud83d"}, {"say": "\ude00 b "}, DONE])
    detail, turns = await recorded(disk_store, script)
    assert text(disk_store, turns[-1]["output"]) == "a \U0001f600 b " + DONE["say"]
    assert "loneSurrogates" not in detail


async def test_what_updates_replace_or_add_is_kept(disk_store: Store, tmp_path: Path) -> None:
    plan = [{"content": name, "priority": "high", "status": "pending"} for name in ("one", "two")]
    block = {"type": "text", "text": "Hm. ", "annotations": {"priority": 1}}
    call = {"sessionUpdate": "tool_call", "toolCallId": "1", "title": "first", "_meta": {"x": 1}}
    later = {"sessionUpdate": "tool_call_update", "toolCallId": "1", "title": "last",
             "_meta": {"x": 2}, "status": "completed"}  # fmt: skip
    updates: list[dict[str, Any]] = [
        *({"sessionUpdate": "plan", "entries": [one]} for one in plan),
        {"sessionUpdate": CHUNK, "content": block, "ofTomorrow": 7},
        call,
        later,
    ]
    script = Script(tmp_path, [*({"update": one} for one in updates), DONE])
    _, turns = await recorded(disk_store, script)
    kept = text(disk_store, turns[0]["updates"])
    assert turns[0]["plan"] == [plan[1]]
    assert all(name in kept for name in ('"one"', "annotations", "ofTomorrow"))
    (recorded_call,) = calls_of(disk_store, turns)
    more = json.loads(text(disk_store, recorded_call["more"]))
    assert more["earlier"] == [{"title": "first"}, {"_meta": {"x": 1}}]


async def test_another_session_is_kept_apart(disk_store: Store, tmp_path: Path) -> None:
    params = {"sessionId": "other", "update": {"sessionUpdate": CHUNK,
              "content": {"type": "text", "text": "not mine"}}}  # fmt: skip
    line = json.dumps({"jsonrpc": "2.0", "method": "session/update", "params": params})
    _, turns = await recorded(disk_store, Script(tmp_path, [{"raw": line}, DONE]))
    assert text(disk_store, turns[-1]["output"]) == DONE["say"]
    assert json.loads(text(disk_store, turns[-1]["otherSessions"])) == [params]


async def test_a_message_that_is_too_long_ends_the_conversation(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_rpc, "MAX_LINE_BYTES", 300_000)
    params = {"path": "b.txt", "content": "x" * 1_000_000}
    long = {"request": {"method": "fs/write_text_file", "params": params}}
    for message in (long, {"say": "x" * 1_000_000}):
        script = Script(tmp_path, [message, DONE])
        failed = await carry_on(disk_store, start(disk_store, script.config()))
        assert failed.status == SUSPENDED
        assert "it sent a line of more than 0 MiB" in failed.record["reason"]

"""Hostile arguments and content, a broken store, calls at once, cancelled and slow calls."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.mcp import reading, server
from casfs.mcp.reading import Reading
from casfs.store.store import Store
from casfs.system import interruption
from tests.support.damage import flipped, rewrite
from tests.support.helpers import put_tree, set_head
from tests.support.mcp import connected, spoken
from tests.support.thread_example import make_thread
from tests.support.thread_example import put_tree as put_example

HOSTILE = "\x1b]0;title\x07\u202eevil\r\x9b\x00 end"


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("search", {}, "text: Field required"),
    ("search", {"text": 5}, "text: Input should be a valid string"),
    ("search", {"text": "x", "limit": 10**9}, "limit: Input should be less than"),
    ("search", {"text": "x", "limit": -1}, "limit: Input should be greater than"),
    ("search", {"text": "x", "limit": 10**30}, "limit: "),
    ("search", {"text": "x", "offset": 2.5}, "offset: Input should be a valid integer"),
    ("search", {"text": "x" * 5000}, "text: String should have at most 4096"),
    ("search", {"text": "a\0b"}, "text: String should match"),
    ("search", {"text": "x", "thread": "no such"}, "no thread 'no such'"),
    ("search", {"text": "x", "b\x1bd": 1}, "b\\x1bd: no such argument; there are text"),
    ("list_threads", {"status": "dreaming"}, "status: Input should be"),
    ("read_thread", {"thread": "../../etc"}, "no thread"),
    ("read_file", {"file": "/etc/passwd"}, "is not a valid hash"),
    ("read_file", {"file": "{tree}:../../etc/passwd"}, "must not contain .."),
    ("read_file", {"file": "{tree}:link"}, "is not a file: a symlink to hello.txt"),
    ("read_file", {"file": "{tree}:hello.txt/x"}, "is not a directory"),
    ("list_tree", {"tree": "file:///etc"}, "neither a hash nor a checkpoint"),
    ("diff", {"old": "{tree}", "new": "{tree}", "path": ".."}, "must not contain .."),
    ("diff", {"old": "{tree}", "new": "{tree}", "path": []}, "path: Input should be"),
    ("cas_get", {"hash": "zz"}, "is not a valid hash"),
    ("cas_get", {"hash": "0" * 64}, "no blob"),
    ("cas_get", {"hash": "0" * 64, "limit": 1}, "limit: Input should be greater"),
    ("cas_put", {"text": "x", "artifacts": ["../x"]}, "artifacts"),
]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_wrong_arguments_are_named(disk_store: Store, mode: str) -> None:
    tree = put_example(disk_store).hash
    async with connected(Reading(disk_store), mode) as agent:
        for tool, given, said in WRONG:
            filled = json.loads(json.dumps(given).replace("{tree}", tree))
            assert said in await agent.fault(tool, **filled)
        assert await agent.call("list_threads") == {"threads": []}, "the server goes on"


async def test_controls_in_stored_text_are_escaped(disk_store: Store) -> None:
    thread = make_thread(disk_store)
    thread.step("planner", HOSTILE)
    name = b"na\x1bme\xff"
    tree = put_tree(disk_store, {name: HOSTILE.replace("\0", "").encode()})
    async with connected(Reading(disk_store)) as agent:
        for tool, given in (
            ("read_step", {"thread": thread.id}),
            ("read_thread", {"thread": thread.id}),
            ("read_prompt", {"thread": thread.id}),
            ("search", {"text": "evil"}),
            ("list_tree", {"tree": tree}),
            ("diff", {"old": put_tree(disk_store, {}), "new": tree}),
            (
                "cas_get",
                {"hash": disk_store.put_node("content", {"text": HOSTILE, "artifacts": []}).hash},
            ),
        ):
            found = await agent.client.call_tool(tool, given)
            assert not found.is_error, found.content
            for block in found.content:
                assert not {"\x1b", "\x07", "\u202e", "\x9b", "\0"} & set(block.text)
                if block.text.startswith("{"):
                    json.loads(block.text)
        step = await agent.call("read_step", thread=thread.id)
        assert step["text"] == HOSTILE, "whole in the structured result"
        said = await agent.fault("read_file", file=f"{tree}:a\x1bb")
        assert "\x1b" not in said


async def test_results_are_bounded(disk_store: Store) -> None:
    thread = make_thread(disk_store, name="n" * 200)
    thread.step("planner", "ä" * 500_000, meta={"big": "x" * 500_000})
    wide = put_tree(disk_store, {b"f%05d" % n: b"" for n in range(3000)})
    async with connected(Reading(disk_store)) as agent:
        client = agent.client
        for tool, given in (
            ("read_step", {"thread": thread.id}),
            ("context", {"thread": thread.id}),
            ("list_tree", {"tree": wide, "limit": 200}),
            ("list_tree", {"tree": wide, "recursive": True, "limit": 200}),
            ("cas_get", {"hash": wide}),
        ):
            found = await client.call_tool(tool, given)
            assert sum(len(one.text.encode()) for one in found.content) < 2 * reading.SIZE
            assert "nextOffset" in found.structured_content
        step = await agent.call("read_step", thread=thread.id)
        assert step["meta"].startswith("large: cas_get ")
        parts, offset = [], 0
        while offset is not None:
            found = await agent.call("read_step", thread=thread.id, offset=offset, limit=1 << 20)
            parts.append(found["text"])
            offset = found.get("nextOffset")
        assert "".join(parts) == "ä" * 500_000
        past = await agent.call("read_step", thread=thread.id, offset=1 << 40)
        assert past["text"] == ""


async def test_a_damaged_thread_and_a_damaged_file(disk_store: Store) -> None:
    sound = make_thread(disk_store)
    sound.step("planner", "Said.")
    set_head(disk_store, "threads/01JD0000000000000000000009", sound.start, status="nonsense")
    tree = put_tree(disk_store, {b"a": b"x" * 100_000, b"b": b"fine"})
    (large,) = (one for one in (disk_store.root / "objects").rglob("*") if one.is_file())
    rewrite(large, flipped)
    async with connected(Reading(disk_store)) as agent:
        rows = (await agent.call("list_threads"))["threads"]
        assert [one["status"] for one in rows] == ["broken", "running"]
        assert "is broken" in await agent.fault("read_thread", thread="01JD0000000000000000000009")
        assert "hash" in await agent.fault("read_file", file=f"{tree}:a")
        assert (await agent.call("read_file", file=f"{tree}:b"))["text"] == "fine"


async def test_a_bug_in_a_tool_ends_no_server(
    disk_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Reading, **given: Any) -> dict[str, Any]:
        raise ZeroDivisionError("a secret detail")

    monkeypatch.setattr(Reading, "search", _like(Reading.search, fails))
    async with connected(Reading(disk_store)) as agent:
        said = await agent.fault("search", text="x")
        assert "secret detail" not in said
        assert await agent.call("list_threads") == {"threads": []}


def _like(method: Any, function: Any) -> Any:
    import functools

    return functools.wraps(method)(function)


async def test_a_slow_call_delays_no_other_and_ends_when_it_is_cancelled(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, ended = threading.Event(), threading.Event()

    def slow(self: Reading, **given: Any) -> dict[str, Any]:
        began.set()
        try:
            while True:
                interruption.check()
                ended.wait(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(Reading, "search", _like(Reading.search, slow))
    async with connected(Reading(disk_store), "legacy") as agent:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent.client.call_tool, "search", {"text": "x"})
            await trio.to_thread.run_sync(began.wait)
            assert await agent.call("list_threads") == {"threads": []}
            assert not ended.is_set()
            nursery.cancel_scope.cancel()
        await trio.to_thread.run_sync(ended.wait)
        assert await agent.call("list_threads") == {"threads": []}


async def test_a_call_that_takes_too_long_is_given_up(
    disk_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "READ_LIMIT_S", 0.05)
    ended = threading.Event()

    def slow(self: Reading, **given: Any) -> dict[str, Any]:
        try:
            while True:
                interruption.check()
                ended.wait(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(Reading, "search", _like(Reading.search, slow))
    async with connected(Reading(disk_store)) as agent:
        assert "took longer than 0.05 s and was given up" in await agent.fault("search", text="x")
        await trio.to_thread.run_sync(ended.wait)


async def test_two_agents_at_once(disk_store: Store, tmp_path: Path) -> None:
    root = disk_store.root
    found: list[str] = []
    async with (
        spoken(root, errors=tmp_path / "one") as one,
        spoken(root, errors=tmp_path / "other") as other,
    ):

        async def put(agent: Any, name: str) -> None:
            for number in range(20):
                hash = (await agent.call("cas_put", text=f"{name} {number} words"))["hash"]
                hits = (await agent.call("search", text=f"{name} {number} words"))["hits"]
                found.extend(hit["hash"] for hit in hits if hit["hash"] == hash)

        async with trio.open_nursery() as nursery:
            for agent, name in ((one, "a"), (one, "b"), (other, "c")):
                nursery.start_soon(put, agent, name)
    assert len(found) == 60
    assert (tmp_path / "one").read_text() == (tmp_path / "other").read_text() == ""

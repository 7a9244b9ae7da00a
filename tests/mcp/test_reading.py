"""The tools that read, by the SDK's own client: what an agent sees of a store."""

from __future__ import annotations

import json
from typing import Any

import pytest

from casfs.checkpoints.create import create_of_state
from casfs.mcp.reading import TOOLS, Reading
from casfs.mcp.writing import Writing
from casfs.store.store import Store
from casfs.trees.diff import unified_diff
from casfs.trees.recorded_state import RecordedState
from tests.support.helpers import put_tree
from tests.support.mcp import connected
from tests.support.thread_example import TASK, make_thread

pytestmark = pytest.mark.parametrize("mode", ["auto", "legacy"])


async def test_without_allow_write_there_are_only_tools_that_read(
    disk_store: Store, mode: str
) -> None:
    async with connected(Reading(disk_store), mode) as agent:
        listed = {one.name: one for one in (await agent.client.list_tools()).tools}
        assert set(listed) == set(TOOLS)
        hints = {name: one.annotations for name, one in listed.items()}
        assert {name for name, one in hints.items() if not one.read_only_hint} == {"cas_put"}
        assert "unknown tool" in (await agent.fault("restore", tree="x", directory=".")).lower()
    async with connected(Writing(disk_store), mode) as agent:
        found = {one.name: one.annotations for one in (await agent.client.list_tools()).tools}
        assert {name for name, one in found.items() if one.destructive_hint} == {"restore"}
        assert len(found) == len(TOOLS) + 6


async def test_threads_steps_and_prompts(disk_store: Store, mode: str) -> None:
    thread = make_thread(disk_store)
    artifact = disk_store.put(b"log").hash
    for number in range(1, 4):
        thread.step("planner", f"Step {number} says so.\nMore.", artifacts=[artifact])
    async with connected(Reading(disk_store), mode) as agent:
        (row,) = (await agent.call("list_threads", status="running"))["threads"]
        assert (row["id"], row["task"], row["workflow"]) == (thread.id, "Fix the parser.", "demo")
        assert row["createdAt"].endswith("Z")
        assert (await agent.call("list_threads", status="failed"))["threads"] == []
        assert (await agent.call("list_threads", workflow="other"))["threads"] == []

        found = await agent.call("read_thread", thread="@last", limit=2)
        assert (found["stepCount"], found["nextOffset"]) == (3, 2)
        assert [one["step"] for one in found["steps"]] == [3, 2]
        rest = await agent.call("read_thread", thread="@last", offset=2)
        assert [one["said"] for one in rest["steps"]] == ["Step 1 says so."]
        assert "nextOffset" not in rest

        step = await agent.call("read_step", thread=thread.id)
        assert (step["step"], step["text"]) == (3, "Step 3 says so.\nMore.")
        assert (step["meta"]["status"], step["artifacts"]) == ("planned", [artifact])
        assert step["hash"] == thread.steps[2]
        assert (await agent.call("read_step", thread=thread.id, step=1))["step"] == 1
        assert "has no step 9" in await agent.fault("read_step", thread=thread.id, step=9)

        prompt = await agent.call("read_prompt", thread=thread.id, step=2)
        assert prompt["text"].startswith("Plan.")
        assert "Step 1 says so." in prompt["text"]
        context = await agent.call("context", thread=thread.id)
        assert context["text"].startswith(f"# Task\n\n{TASK.strip()}")
        assert "## Step 3: planner" in context["text"]


async def test_the_prompt_of_a_pending_step(disk_store: Store, mode: str) -> None:
    thread = make_thread(disk_store)
    intent = {"role": "planner", "index": 1, "attempt": 1, "since": 1, "turns": [], "turnCount": 0}
    thread.move(thread.head.hash, intent=intent)
    async with connected(Reading(disk_store), mode) as agent:
        prompt = await agent.call("read_prompt", thread=thread.id)
        assert (prompt["step"], TASK.strip() in prompt["text"]) == (None, True)
        assert (await agent.call("read_thread", thread=thread.id))["intent"]["index"] == 1
        assert "has no step 1" in await agent.fault("read_step", thread=thread.id)


async def test_a_step_of_a_called_thread_reads_its_callers_context(
    disk_store: Store, mode: str
) -> None:
    caller = make_thread(disk_store)
    caller.step("planner", "What I know already.")
    stood = caller.steps[-1]
    caller.step("planner", "Later.")
    child = make_thread(disk_store, "01JD0000000000000000000001", parent=caller.id)
    start = {**disk_store.node(child.start).payload, "parentState": stood}
    hash = disk_store.put_node("thread-start", start).hash
    child.move(hash, start=hash)
    tools = Reading(disk_store, child.id)
    async with connected(tools, mode) as agent:
        found = await agent.call("context")
        assert (found["thread"], found["caller"]) == (child.id, caller.id)
        assert "What I know already." in found["text"]
        assert "Later." not in found["text"], "it stood before that step"
        assert "Later." in (await agent.call("context", thread=caller.id))["text"]
        assert (await agent.call("read_thread"))["id"] == child.id, "its own"
    async with connected(Reading(disk_store), mode) as agent:
        assert "thread: name one" in await agent.fault("context")


async def test_trees_files_and_diffs(disk_store: Store, mode: str) -> None:
    old = put_tree(disk_store, {b"src": {b"a.py": b"one\n"}, b"bin": b"\0\1\2", b"gone": b"x"})
    new = put_tree(disk_store, {b"src": {b"a.py": "ä\n".encode() * 10}, b"bin": b"\0\1\2"})
    for root in (old, new):
        create_of_state(disk_store, "work", RecordedState(root), "a message")
    async with connected(Reading(disk_store), mode) as agent:
        found = await agent.call("list_checkpoints", name="work", limit=1)
        assert found["nextOffset"] == 1
        (row,) = found["checkpoints"]
        assert (row["revision"][:5], row["message"]) == ("work@", "a message")

        listed = (await agent.call("list_tree", tree="work", recursive=True))["entries"]
        assert {one["path"]: one["kind"] for one in listed} == {
            "bin": "file", "src": "directory", "src/a.py": "file",
        }  # fmt: skip
        assert (await agent.call("list_tree", tree="work:src"))["entries"][0]["name"] == "a.py"

        first = await agent.call("read_file", file="work:src/a.py", limit=16)
        assert (first["text"], first["sizeBytes"], first["nextOffset"]) == ("ä\n" * 5, 30, 15)
        rest = await agent.call("read_file", file="work:src/a.py", offset=first["nextOffset"])
        assert first["text"] + rest["text"] == "ä\n" * 10
        [line] = (await agent.call("blame", file="work:src/a.py", limit=1))["lines"]
        assert line["version"]["revision"].startswith("work@")
        [change] = (await agent.call("log", path="work:src/a.py", limit=1))["changes"]
        assert change["letter"] in "AM"
        binary = await agent.call("read_file", file="work:bin")
        assert (binary["isBinary"], binary["sizeBytes"]) == (True, 3)
        assert "text" not in binary
        assert "a directory" in await agent.fault("read_file", file="work:src")

        patch = unified_diff.patch(disk_store, old, new).decode()
        assert (await agent.call("diff", old="work~1", new="work"))["text"] == patch
        only = await agent.call("diff", old="work~1", new="work", path="gone")
        assert "-x" in only["text"]
        assert "a.py" not in only["text"]


async def test_content_is_put_and_got(disk_store: Store, mode: str) -> None:
    async with connected(Reading(disk_store), mode) as agent:
        hash = (await agent.call("cas_put", text='{"a": 1}'))["hash"]
        again = (await agent.call("cas_put", text="x", artifacts=[hash]))["hash"]
        assert (await agent.call("cas_get", hash=hash[:12])) == {
            "hash": hash, "type": "content", "payload": {"text": '{"a": 1}', "artifacts": []},
        }  # fmt: skip
        assert disk_store.node(again).payload["artifacts"] == [hash]
        blob = disk_store.put(b"plain\n").hash
        assert (await agent.call("cas_get", hash=blob))["text"] == "plain\n"
        large = (await agent.call("cas_put", text="z" * 100_000))["hash"]
        part = await agent.call("cas_get", hash=large)
        rest = await agent.call("cas_get", hash=large, offset=part["nextOffset"])
        assert json.loads(part["text"] + rest["text"])["text"] == "z" * 100_000
        dangling = await agent.fault("cas_put", text="x", artifacts=["0" * 64])
        assert "0" * 64 in dangling


async def test_search(disk_store: Store, mode: str) -> None:
    thread = make_thread(disk_store)
    thread.step("planner", "The parser drops the last line.")
    disk_store.put_node("content", {"text": "another parser", "artifacts": []})
    async with connected(Reading(disk_store), mode) as agent:
        hits = (await agent.call("search", text="parser", type="content"))["hits"]
        assert {(one["thread"], one["step"]) for one in hits} >= {(thread.id, 1), (None, None)}
        (hit,) = (await agent.call("search", text="parser drops", thread=thread.id))["hits"]
        assert hit["snippet"] == "The parser drops the last line."
        first = await agent.call("search", text="parser", limit=1)
        assert (len(first["hits"]), first["nextOffset"]) == (1, 1)


async def test_resources(disk_store: Store, mode: str) -> None:
    thread = make_thread(disk_store)
    thread.step("planner", "Said.")
    root = put_tree(disk_store, {b"src": {b"a b.py": b"one\n"}, b"bin": b"\0\1"})
    create_of_state(disk_store, "work", RecordedState(root))

    async with connected(Reading(disk_store), mode) as agent:
        client = agent.client

        async def read(uri: str) -> Any:
            (found,) = (await client.read_resource(uri)).contents
            return found

        uris = [str(one.uri) for one in (await client.list_resources()).resources]
        assert uris[0] == f"casfs://thread/{thread.id}"
        assert uris[1].startswith("casfs://tree/work@")
        assert json.loads((await read(uris[0])).text)["stepCount"] == 1
        assert json.loads((await read(f"{uris[0]}/step/1")).text)["text"] == "Said."
        assert json.loads((await read(uris[1])).text)["entries"][0]["name"] == "bin"
        assert (await read(f"{uris[1]}src/a%20b.py")).text == "one\n"
        assert (await read("casfs://tree/work/bin")).blob == "AAE="
        node = await read(f"casfs://node/{thread.steps[0]}")
        assert json.loads(node.text)["type"] == "thread-step"
        for wrong in (f"{uris[0]}/step/x", "casfs://tree/work/../x", "casfs://thread/NO", "x://y"):
            with pytest.raises(Exception, match=r"no thread|Unknown|invalid literal"):
                await read(wrong)

        found = (await client.list_resource_templates()).resource_templates
        assert len({one.uri_template for one in found}) == 4

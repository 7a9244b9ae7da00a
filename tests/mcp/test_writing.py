"""The tools that act: directories within bounds, threads through a real daemon."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from casfs.agents.secrets import Secrets
from casfs.directories import operations
from casfs.mcp.writing import Writing
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.state import state
from casfs.threads.summary import content_text
from casfs.threads.threads import ThreadId
from casfs.trees import tree
from engine.workflow import registry as workflows
from tests.support.engine import STATUS, daemon, loop, shell, until
from tests.support.helpers import put_tree
from tests.support.mcp import connected
from tests.support.thread_example import make_thread

SAYS = 'printf \'```json\\n{"status": "done"}\\n```\\n\''


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory that may be written, with another beside it."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/kept").write_text("theirs")
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


async def test_a_directory_is_recorded_and_restored(disk_store: Store, place: Path) -> None:
    (place / "project").mkdir()
    (place / "project/a.txt").write_text("one")
    secrets = Secrets({"KEY": "s3cret-value"})
    tools = Writing(disk_store, directories=[place], secrets=secrets)
    async with connected(tools) as agent:
        made = await agent.call(
            "create_checkpoint", name="work", directory="project", message="with s3cret-value"
        )
        (row,) = (await agent.call("list_checkpoints"))["checkpoints"]
        assert (row["revision"], row["message"]) == (made["revision"], "with $KEY")
        again = await agent.call("restore", tree="work", directory=str(place / "again"))
        assert (again["files"], (place / "again/a.txt").read_text()) == (1, "one")

        (place / "project/a.txt").write_text("mine")
        said = await agent.fault("restore", tree="work", directory="project")
        assert "local changes would be overwritten: a.txt" in said
        assert (place / "project/a.txt").read_text() == "mine"
        done = await agent.call("restore", tree="work", directory="project", force=True)
        assert (place / "project/a.txt").read_text() == "one"
        (operation,) = operations.log_of(disk_store, place / "project").operations
        assert (done["operation"], operation.actor) == (1, "an MCP client")
        entry = tree.find(disk_store, operation.before.tree, b"a.txt")
        assert isinstance(entry, File)
        assert disk_store.get(entry.digest.hash) == b"mine"


@pytest.mark.parametrize(
    "path", ["..", "../outside", "link", "link/deeper", "a/../../outside", "/", "/etc"]
)
async def test_nothing_outside_is_written(disk_store: Store, place: Path, path: str) -> None:
    (place / "link").symlink_to(place.parent / "outside")
    tree = put_tree(disk_store, {b"kept": b"ours", b"new": b"x"})
    before = sorted(os.listdir(place.parent / "outside"))
    async with connected(Writing(disk_store, directories=[place])) as agent:
        for tool, given in (("restore", {"tree": tree}), ("create_checkpoint", {"name": "x"})):
            said = await agent.fault(tool, directory=path, **given)
            assert f"directory: {path} is outside of {place}" in said
    assert sorted(os.listdir(place.parent / "outside")) == before
    assert (place.parent / "outside/kept").read_text() == "theirs"


async def test_a_link_in_the_target_leads_no_write_out(disk_store: Store, place: Path) -> None:
    """What is below the directory is opened without following links."""
    tree = put_tree(disk_store, {b"sub": {b"kept": b"ours"}})
    async with connected(Writing(disk_store, directories=[place])) as agent:
        await agent.call("restore", tree=tree, directory="target")
        (place / "target/sub/kept").unlink()
        (place / "target/sub").rmdir()
        (place / "target/sub").symlink_to(place.parent / "outside")
        await agent.call("restore", tree=tree, directory="target", force=True)
    assert (place.parent / "outside/kept").read_text() == "theirs"
    assert (place / "target/sub/kept").read_text() == "ours"


async def test_a_directory_above_the_store_does_not_open_it(
    disk_store: Store, tmp_path: Path
) -> None:
    tree = put_tree(disk_store, {b"a": b"x"})
    inside = disk_store.root / "workspaces/w"  # type: ignore[operator]
    async with connected(Writing(disk_store, directories=[tmp_path])) as agent:
        for path in ("store", "store/new", "store/objects"):
            assert "is outside of" in await agent.fault("restore", tree=tree, directory=path)
    inside.mkdir()
    async with connected(Writing(disk_store, directories=[inside])) as agent:
        await agent.call("restore", tree=tree, directory=".")  # a step's workspace lies there
        assert (inside / "a").read_text() == "x"


async def test_a_thread_is_started_answered_and_forked(disk_store: Store, place: Path) -> None:
    root = disk_store.root
    workflows.add(disk_store, loop(2, STATUS))
    tree = put_tree(disk_store, {b"a.txt": b"one"})

    def is_state(id: str, wanted: str) -> bool:
        return until(lambda: state(threads.get(disk_store, ThreadId(id))) == wanted)  # type: ignore[no-any-return]

    async with connected(Writing(disk_store, directories=[place])) as agent:
        asked = {"workflow": "sample", "task": '{"json": "as text"}', "tree": tree}
        assert "start one with `casfs daemon`" in await agent.fault("start_thread", **asked)
        with daemon(root):
            human = {"a": "human:Is it good?"}
            id = (await agent.call("start_thread", **asked, agents=human))["thread"]
            assert is_state(id, "suspended")
            shown = await agent.call("read_thread", thread=id)
            assert (shown["cause"], "Is it good?" in shown["reason"]) == ("human", True)
            assert shown["question"].startswith("You are the a.")
            start = threads.start(disk_store, threads.get(disk_store, ThreadId(id))).payload
            assert content_text(disk_store, start["input"]) == asked["task"]
            assert start["workspace"] == tree

            await agent.call("answer", thread=id, answer='{"status": "done"}')
            until(lambda: threads.length(disk_store, threads.get(disk_store, ThreadId(id))) == 1)
            assert is_state(id, "suspended")

            says = f"command:{json.dumps(shell(SAYS))}"
            fork = await agent.call("fork_thread", thread=id, after=1, agents={"a": says})
            assert is_state(fork["thread"], "succeeded")
            assert (await agent.call("read_thread", thread=fork["thread"]))["stepCount"] == 2

            await agent.call("resume_thread", thread=id, hint='{"no": "hurry"}', agents={"a": says})
            assert is_state(id, "succeeded")
            assert '{"no": "hurry"}' in (await agent.call("read_prompt", thread=id))["text"]
            over = await agent.fault("resume_thread", thread=id)
            assert id in over
            assert "not suspended" in await agent.fault("answer", thread=id, answer="x")

            called = {"name": "human", "config": {"question": "Is it good?"}}
            calls = f"workflow:{json.dumps({'workflow': 'sample', 'agents': {'a': called}})}"
            caller = (await agent.call("start_thread", **asked, agents={"a": calls}))["thread"]
            assert is_state(caller, "suspended")
            await agent.call("answer", thread=caller, answer='{"status": "done"}')
            assert "agents.a: config is" in await agent.fault(
                "fork_thread", thread=id, after=1, agents={"a": "command:{"}
            )
            assert "no workflow" in await agent.fault("start_thread", workflow="no", task="x")
            wrong = await agent.fault("start_thread", **asked, agents={"a\x1b\n": 5})
            assert wrong.startswith("agents.a\\x1b\\n: Input should be")


async def test_what_an_agent_may_not_name(disk_store: Store) -> None:
    """No tool makes a node or a head that is a thread's, or a workflow."""
    thread = make_thread(disk_store)
    heads = sorted(name for name, _ in disk_store.heads.list())
    async with connected(Writing(disk_store, directories=[])) as agent:
        assert "no such argument" in await agent.fault("cas_put", text="x", type="thread-start")
        hash = (await agent.call("cas_put", text="{}", artifacts=[thread.start]))["hash"]
        assert disk_store.node(hash).type == "content"
    assert sorted(name for name, _ in disk_store.heads.list()) == heads

"""The action cache in the mount's model: `actions/<key>/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from casfs.actions import cache
from casfs.backend.derived import last_use
from casfs.digest import NodeHash
from casfs.errors import Corrupt
from casfs.fuse.inodes import inode_number
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import MILLISECOND, Directory, Link
from casfs.store import local_trees
from casfs.store.local_trees import LocalTree
from casfs.store.store import Store
from casfs.threads.threads import Thread, steps
from tests.support.actions import PROJECT, Bench
from tests.support.engine import ONE, begin, carry_on, says
from tests.support.fuse import at, damage, missing, names, read, resolve, target, walk
from tests.support.helpers import put_tree, set_head, write_tree

FILES = ["key", "result", "outputs", "used-by"]
CACHEABLE = {**ONE, "roles": {"a": {**ONE["roles"]["a"], "cacheable": True}}}


@pytest.fixture
def bench(store: Store, tmp_path: Path) -> Bench:
    return Bench(store, write_tree(tmp_path / "project", PROJECT))


def key_of_run(bench: Bench, script: str = "echo made >out; echo said") -> str:
    """Runs a command with one output through the cache and returns the key of its action."""
    done = bench.sh(script, outputs=["out"])
    assert done.exit_code == 0
    assert done.action is not None
    return done.action


def users(store: Store, key: str, top: Directory | None = None) -> list[str]:
    directory = at(store, f"actions/{key}/used-by", top)
    assert isinstance(directory, Directory)
    directory.prepare()
    listed = [name.decode() for name, _ in directory.entries()]
    for name, link in directory.entries():
        same = directory.lookup(name)
        assert same is not None
        assert (same.key, same.attr()) == (link.key, link.attr())
    return sorted(listed)


def replace_result(store: Store, key: str, **changes: Any) -> str:
    """Gives an action another result, as a run does that finds its result damaged."""
    name = cache.head_name(NodeHash(key))
    head = store.heads.get(name)
    assert head is not None
    payload = {**store.node(head.hash).payload, **changes}
    result = store.put_node(cache.TYPE, payload).hash
    set_head(store, name, result, **head.record)
    return result


# -- commands -----------------------------------------------------------------------------


def test_a_cached_command(bench: Bench) -> None:
    store = bench.store
    assert names(store, "actions") == []
    key = key_of_run(bench)
    assert names(store, "actions") == [key]
    assert names(store, f"actions/{key}") == FILES
    assert resolve(store, f"actions/{key}/key").digest == key
    (entry,) = cache.list_entries(store)
    assert resolve(store, f"actions/{key}/result").digest == entry.result
    result = target(store, f"actions/{key}/result").removeprefix("../../")
    assert json.loads(read(store, f"{result}/exitCode.json")) == 0
    assert read(store, f"{result}/stdout") == b"said\n"
    outputs = target(store, f"actions/{key}/outputs").removeprefix("../../")
    assert read(store, f"{outputs}/out") == b"made\n"
    assert users(store, key) == []
    assert at(store, f"actions/{key}").attr().mtime_ns == entry.created_at * MILLISECOND


def test_the_outputs_are_the_work(bench: Bench) -> None:
    """Private files of a step are shown only by a mount that shows whole directories."""
    store = bench.store
    key = key_of_run(bench)
    work = put_tree(store, {"out": b"made\n"})
    whole = put_tree(store, {"out": b"made\n", ".env": b"private\n"})
    result = replace_result(store, key, outputs=work)
    with store.batch() as batch:
        local_trees.put(batch, result, LocalTree(whole))
    for with_local, tree in ((False, work), (True, whole)):
        top = root(StoreReader(store, with_local=with_local), Stats())
        link = at(store, f"actions/{key}/outputs", top)
        assert isinstance(link, Link)
        assert link.target.decode().partition("@")[0] == f"../../trees/{tree}"


def test_what_is_no_cached_action(bench: Bench) -> None:
    key = key_of_run(bench)
    set_head(bench.store, f"actions/{'1' * 64}", key)  # a record that is damaged
    for name in ("0" * 64, "1" * 64, key[:12], key.upper(), "none"):
        assert missing(bench.store, f"actions/{name}")
    assert names(bench.store, "actions") == [key]


def test_a_listing_and_a_lookup_agree(bench: Bench) -> None:
    keys = {key_of_run(bench, f"echo {word} >out") for word in ("one", "two")}
    top = at(bench.store, "actions")
    assert isinstance(top, Directory)
    found = walk(top)
    assert {path for path, _ in found} == {
        f"/{key}{inner}" for key in keys for inner in ("", *(f"/{name}" for name in FILES))
    }
    assert len({inode_number(vnode.key) for _, vnode in found}) == len(found)


def test_another_result_is_another_directory(bench: Bench) -> None:
    store = bench.store
    key = key_of_run(bench)
    reader = StoreReader(store)
    top = root(reader, Stats())
    actions = at(store, "actions", top)
    assert isinstance(actions, Directory)
    assert actions.live
    assert not actions.binds(key.encode()), "the kernel must ask again"
    before = at(store, f"actions/{key}", top)
    changed_ns = actions.attr().mtime_ns
    other = put_tree(store, {"out": b"other\n"})
    result = replace_result(store, key, outputs=other)
    after = at(store, f"actions/{key}", top)
    assert after.key != before.key
    assert actions.attr().mtime_ns != changed_ns
    assert target(store, f"actions/{key}/result") == f"../../nodes/{result}"
    shown = target(store, f"actions/{key}/outputs")
    assert shown.partition("@")[0] == f"../../trees/{other}"


def test_an_evicted_result_is_gone(bench: Bench) -> None:
    store = bench.store
    key = key_of_run(bench)
    top = root(StoreReader(store), Stats())
    actions = at(store, "actions", top)
    assert isinstance(actions, Directory)
    changed_ns = actions.attr().mtime_ns
    name = cache.head_name(NodeHash(key))
    with store.batch() as batch:
        batch.swap(name, store.heads.get(name), None)
    assert actions.lookup(key.encode()) is None
    assert list(actions.entries()) == []
    assert actions.attr().mtime_ns != changed_ns


def test_to_look_is_no_use(bench: Bench) -> None:
    """A `find` through the mount must not decide what gc evicts."""
    key = key_of_run(bench)
    name = cache.head_name(NodeHash(key))
    before = last_use(bench.store.heads, name)
    reader = StoreReader(bench.store)
    at(bench.store, f"actions/{key}/outputs", root(reader, Stats()))
    reader.note_uses()
    assert reader.uses == set()
    assert last_use(bench.store.heads, name) == before


def test_a_result_that_is_damaged(bench: Bench) -> None:
    key = key_of_run(bench)
    result = target(bench.store, f"actions/{key}/result").rpartition("/")[2]
    damage(bench.store, result, None)
    assert names(bench.store, "actions") == [key]
    assert names(bench.store, f"actions/{key}") == FILES
    assert resolve(bench.store, f"actions/{key}/key").digest == key
    for name in ("outputs", "used-by"):
        with pytest.raises(Corrupt):
            at(bench.store, f"actions/{key}/{name}")


# -- steps --------------------------------------------------------------------------------


async def run_thread(store: Store, definition: dict[str, Any], said: str) -> Thread:
    agents = {"a": says({}, f"echo {said}; echo {said} >>log")}
    return await carry_on(store, begin(store, definition, agents, put_tree(store, {"log": b""})))


def step_of(store: Store, thread: Thread) -> str:
    (step,) = steps(store, thread)
    return step.hash


async def test_the_steps_that_have_a_result(disk_store: Store) -> None:
    maker = step_of(disk_store, await run_thread(disk_store, CACHEABLE, "one"))
    (key,) = names(disk_store, "actions")
    top = root(StoreReader(disk_store), Stats())
    assert users(disk_store, key, top) == [maker]
    first_hit = step_of(disk_store, await run_thread(disk_store, CACHEABLE, "one"))
    second_hit = step_of(disk_store, await run_thread(disk_store, CACHEABLE, "one"))
    assert users(disk_store, key, top) == sorted([maker, first_hit, second_hit])
    other = step_of(disk_store, await run_thread(disk_store, CACHEABLE, "two"))
    assert users(disk_store, key, top) == sorted([maker, first_hit, second_hit])
    assert missing(disk_store, f"actions/{key}/used-by/{other}")
    link = f"actions/{key}/used-by/{first_hit}"
    assert resolve(disk_store, link).digest == first_hit
    outputs = target(disk_store, f"actions/{key}/outputs").removeprefix("../../")
    assert read(disk_store, f"{outputs}/log") == b"one\n"


async def test_an_equal_detail_is_no_use(disk_store: Store) -> None:
    """Two commands that end alike, after as many ms, have one detail."""
    maker = step_of(disk_store, await run_thread(disk_store, CACHEABLE, "one"))
    payload = disk_store.node(NodeHash(maker)).payload
    (key,) = names(disk_store, "actions")
    chance = {**payload, "completedAt": payload["completedAt"] + 1}
    hit_of_another = {**payload, "cached": {"action": "0" * 64, "savedMs": 1}}
    for step in (chance, hit_of_another):
        disk_store.put_node("thread-step", step)
    content = {"text": "", "artifacts": [payload["detail"]]}
    disk_store.put_node("content", content)
    assert users(disk_store, key) == [maker]

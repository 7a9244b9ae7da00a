"""The action cache in a real mount: what is cached, replaced and evicted while it is mounted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from casfs.actions import cache
from casfs.digest import NodeHash
from casfs.store.store import Store
from casfs.threads.threads import steps
from tests.support.actions import PROJECT, Bench
from tests.support.engine import ONE, begin, carry_on, says
from tests.support.helpers import put_tree, set_head, write_tree
from tests.support.programs import needs_device
from tests.support.served import Mount

pytestmark = needs_device
COUNT = 10


@pytest.fixture
def bench(mount: Mount, tmp_path: Path) -> Bench:
    return Bench(mount.store, write_tree(tmp_path / "project", PROJECT))


def key_of_run(bench: Bench, word: str) -> str:
    """Runs a command with one output through the cache and returns the key of its action."""
    done = bench.sh(f"echo {word} >out; echo said {word}", outputs=["out"])
    assert done.action is not None
    assert not done.hit
    return done.action


def set_result(store: Store, key: str, result: str | None) -> None:
    name = cache.head_name(NodeHash(key))
    head = store.heads.get(name)
    assert head is not None
    if result is not None:
        set_head(store, name, result, **head.record)
        return
    with store.batch() as batch:
        batch.swap(name, head, None)


def test_results_are_listed_as_they_are_cached(mount: Mount, bench: Bench) -> None:
    shown = mount.path / "actions"
    assert os.listdir(shown) == []
    keys: list[str] = []
    for number in range(COUNT):
        keys.append(key_of_run(bench, f"word-{number}"))
        for _ in range(2):
            assert sorted(os.listdir(shown)) == sorted(keys)
    for number, key in enumerate(keys):
        action = shown / key
        assert sorted(os.listdir(action)) == ["key", "outputs", "result", "used-by"]
        assert (action / "outputs/out").read_text() == f"word-{number}\n"
        assert (action / "result/stdout").read_text() == f"said word-{number}\n"
        assert (action / "result/exitCode.json").read_text() == "0\n"
        assert f"word-{number}" in (action / "key/argv.json").read_text()
        assert (action / "key").resolve() == (mount.path / "nodes" / key).resolve()
        assert os.listdir(action / "used-by") == []


def test_another_result_is_shown_at_once(mount: Mount, bench: Bench) -> None:
    key = key_of_run(bench, "first")
    action = mount.path / "actions" / key
    store = mount.store
    payload = {**store.node(cache.list_entries(store)[0].result).payload}
    del payload["times"]
    for number in range(COUNT):
        for _ in range(2):  # so that the kernel has all of it
            subprocess.run(["ls", "-lR", action], check=True, capture_output=True)
        data = f"{number}\n".encode()
        changes = {"outputs": put_tree(store, {"out": data}), "durationMs": number}
        result = store.put_node(cache.TYPE, {**payload, **changes}).hash
        set_result(store, key, result)
        assert os.readlink(action / "result") == f"../../nodes/{result}"
        assert (action / "outputs/out").read_bytes() == data
        assert (action / "result/durationMs.json").read_text() == f"{number}\n"


def test_an_evicted_result_is_gone_at_once(mount: Mount, bench: Bench) -> None:
    keys = [key_of_run(bench, word) for word in ("stays", "goes")]
    shown = mount.path / "actions"
    for _ in range(2):
        subprocess.run(["ls", "-lR", shown], check=True, capture_output=True)
    set_result(mount.store, keys[1], None)
    assert os.listdir(shown) == [keys[0]]
    assert not os.path.lexists(shown / keys[1])
    assert (shown / keys[0] / "outputs/out").read_text() == "stays\n"
    assert key_of_run(bench, "goes") == keys[1]
    assert (shown / keys[1] / "outputs/out").read_text() == "goes\n"


async def test_a_hit_is_in_the_next_listing(mount: Mount) -> None:
    store = mount.store
    cacheable = {**ONE["roles"]["a"], "cacheable": True}
    users: list[str] = []
    for _ in range(3):
        made = begin(store, {**ONE, "roles": {"a": cacheable}}, {"a": says({})})
        (step,) = steps(store, await carry_on(store, made))
        users.append(step.hash)
        (key,) = os.listdir(mount.path / "actions")
        used_by = mount.path / "actions" / key / "used-by"
        for _ in range(2):
            assert sorted(os.listdir(used_by)) == sorted(users)
        assert (used_by / step.hash).resolve() == (mount.path / "nodes" / step.hash).resolve()
        assert (used_by / step.hash / "role").read_text() == "a"
    assert not (used_by / key).exists()

"""A fork: a new thread from a step of an old one, sharing every node up to there."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_helpers import (
    STATUS,
    Cli,
    begin,
    carry_on,
    daemon,
    loop,
    rule,
    says,
    start_thread,
    steps,
    until,
    workflow,
)
from helpers import blobs, put_tree, read_tree

from casfs import threads
from casfs.errors import NotFound
from casfs.store import Store
from casfs.threads import ENDED, RUNNING, Thread
from casfs.trees.restore import restore
from engine import catalog, control, journal


async def ended(store: Store, length: int = 4) -> Thread:
    """A thread of so many steps, each of which adds a line to the file `log`."""
    agents = {"a": says({"status": "done"}, 'echo "$CASFS_STEP" >>log')}
    made = begin(store, loop(length, STATUS), agents, put_tree(store, {"log": b"start\n"}))
    return await carry_on(store, made)


def held(store: Store, step: dict[str, object], where: Path) -> dict[bytes, object]:
    restore(store, str(step["workspace"]), where)
    return read_tree(where)


@pytest.mark.parametrize("at", [0, 1, 3, 4, None])
async def test_it_goes_on_from_that_step(disk_store: Store, at: int | None, tmp_path: Path) -> None:
    old = await ended(disk_store)
    place = 4 if at is None else at
    before = blobs(disk_store)
    made = journal.fork(disk_store, old, at)
    assert blobs(disk_store) == before, "no node is copied"
    assert made.id != old.id
    assert made == threads.get(disk_store, made.id)
    assert made.record["fork"] == {"thread": old.id, "step": place}
    assert (made.status, made.record["start"]) == (RUNNING, old.record["start"])
    assert (made.record["parent"], made.record["children"]) == (None, [])
    kept = [ref.hash for ref in threads.steps(disk_store, old)][:place]
    assert [ref.hash for ref in threads.steps(disk_store, made)] == kept
    end = await carry_on(disk_store, made)
    assert (end.status, end.record["returnCode"]) == (ENDED, 0)
    hashes = [ref.hash for ref in threads.steps(disk_store, end)]
    assert len(hashes) == 4
    assert hashes[:place] == kept
    last = steps(disk_store, end)[-1]
    assert held(disk_store, last, tmp_path / "out") == {b"log": b"start\n1\n2\n3\n4\n"}
    assert threads.get(disk_store, old.id) == old


async def test_a_fork_can_go_another_way(disk_store: Store, tmp_path: Path) -> None:
    """The agent does something else the second time."""
    side = tmp_path / "side"
    rules = [rule("__start__", "a"), rule("a", "b"), rule("b", "__end__")]
    agents = {"a": says({}, "echo a >>log"), "b": says({}, f"cat {side} >>log")}
    side.write_text("first\n")
    root = put_tree(disk_store, {})
    old = await carry_on(
        disk_store, begin(disk_store, workflow(rules, a=None, b=None), agents, root)
    )
    side.write_text("second\n")
    new = await carry_on(disk_store, journal.fork(disk_store, old, 1))
    logs = [
        held(disk_store, steps(disk_store, one)[-1], tmp_path / one.id)[b"log"]
        for one in (old, new)
    ]
    assert logs == [b"a\nfirst\n", b"a\nsecond\n"]
    again = journal.fork(disk_store, new)
    assert again.record["fork"] == {"thread": new.id, "step": 2}


@pytest.mark.parametrize("at", [-1, 5, 1000])
async def test_there_must_be_such_a_step(disk_store: Store, at: int) -> None:
    old = await ended(disk_store)
    with pytest.raises(NotFound, match=f"no step {at}; it has 4"):
        journal.fork(disk_store, old, at)
    assert len(threads.listing(disk_store)) == 1


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    with Store.init(tmp_path / "store"):
        pass
    return Cli(tmp_path / "store", monkeypatch, capsysbinary)


def test_the_command_line(cli: Cli, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with Store.open(cli.root) as store:
        catalog.add(store, loop(3))
    agent = says({}, f"[ $CASFS_STEP != 3 ] || [ -e {go} ] || exit 1")
    with daemon(cli.root):
        id = start_thread(cli.root, "sample", {"a": agent})
        until(lambda: control.request(cli.root, "wait", id=id)["status"] == "suspended")
        go.touch()
        made = cli("thread", "fork", id[:20], "--at", "1", "--wait").text.split()
        new = cli("thread", "show", made[0], "--json").json
        assert (new["status"], len(new["steps"])) == ("ended", 3)
        assert cli("thread", "show", id, "--json").json["status"] == "suspended"
        said = cli("thread", "fork", id, "--json").json
        assert (said["thread"], said["step"]) == (id, 2)
        assert "no step 9" in cli("thread", "fork", id, "--at", "9", code=3).err
        assert "--at" in cli("thread", "fork", id, "--at", "-1", code=2).err

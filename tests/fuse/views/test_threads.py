"""Threads in the mount, as plain vnodes."""

from __future__ import annotations

from casfs.backend.protocols import Head
from casfs.fuse.views.files import BrokenFile
from casfs.fuse.views.root import root
from casfs.fuse.views.stats import Stats
from casfs.fuse.views.store_reader import StoreReader
from casfs.fuse.views.vnode import Directory
from casfs.store.store import Store
from casfs.threads import threads
from tests.support.fuse import (
    at,
    content,
    damage,
    load,
    missing,
    names,
    read,
    resolve,
    walk,
)
from tests.support.helpers import set_head
from tests.support.thread_example import RULES, STARTED, TASK, Example, make_thread

MS = 1_000_000


def test_a_running_thread(store: Store, thread: Example) -> None:
    where = f"threads/{thread.id}"
    assert names(store, "threads") == [thread.id]
    assert sorted(names(store, where)) == [
        "input.md", "moderator.json", "status", "steps", "thread.json", "workflow",
    ]  # fmt: skip
    assert read(store, f"{where}/status") == b"running\n"
    assert read(store, f"{where}/input.md") == TASK.encode()
    assert load(store, f"{where}/moderator.json") == RULES
    assert resolve(store, f"{where}/workflow").digest == thread.workflow
    about = load(store, f"{where}/thread.json")
    assert (about["id"], about["status"], about["head"]) == (thread.id, "running", thread.start)
    assert (about["workflow"], about["maxRounds"]) == (thread.workflow, 9)
    assert about["record"] == dict(thread.head.record)
    assert at(store, where).attr().mtime_ns // MS == STARTED
    assert names(store, f"{where}/steps") == []
    assert missing(store, f"{where}/end.json")
    assert missing(store, "threads/01JD0000000000000000000009")


def test_a_step(store: Store, thread: Example) -> None:
    diff = store.put(b"--- a\n+++ b\n").hash
    report = store.put(b"artifact").hash
    step = thread.step("plan/ner", "# Plan\nphase one", artifacts=[report], changes=diff)
    where = f"threads/{thread.id}/steps/000001-plan%2Fner"
    assert names(store, f"threads/{thread.id}/steps") == ["000001-plan%2Fner"]
    assert sorted(names(store, where)) == [
        "artifacts", "changes.diff", "detail", "meta.json", "output.md", "step.json", "workspace",
    ]  # fmt: skip
    assert read(store, f"{where}/output.md") == b"# Plan\nphase one"
    assert load(store, f"{where}/step.json") == store.node(step).payload
    assert load(store, f"{where}/meta.json") == {"status": "planned", "phases": []}
    assert read(store, f"{where}/changes.diff") == b"--- a\n+++ b\n"
    assert read(store, f"{where}/artifacts/0000") == b"artifact"
    assert read(store, f"{where}/detail/text") == b"# Plan\nphase one"
    assert resolve(store, f"{where}/workspace").digest == thread.tree
    for path, vnode in walk(at(store, where)):  # type: ignore[arg-type]
        assert not vnode.live, path
        assert vnode.attr().mtime_ns == (STARTED + 1000) * MS, path


def test_a_step_that_changed_nothing_has_no_diff(store: Store, thread: Example) -> None:
    thread.step("planner", "text")
    assert missing(store, f"threads/{thread.id}/steps/000001-planner/changes.diff")


def test_a_thread_that_moves_is_seen_by_objects_that_exist(store: Store, thread: Example) -> None:
    top = root(StoreReader(store), Stats())
    directory = at(store, f"threads/{thread.id}", top)
    steps = at(store, f"threads/{thread.id}/steps", top)
    status = at(store, f"threads/{thread.id}/status", top)
    assert isinstance(steps, Directory)
    for count in (1, 2, 3):
        thread.step("planner", f"text {count}")
        assert len(list(steps.entries())) == count
        assert steps.lookup(b"%06d-planner" % count) is not None
    for name in (b"000004-planner", b"000001-coder", b"1-planner", b"x", b"000000-planner"):
        assert steps.lookup(name) is None
    thread.end()
    directory.refresh()
    steps.refresh()
    assert directory.attr().mtime_ns == steps.attr().mtime_ns
    assert steps.attr().mtime_ns // MS == STARTED + 4000
    assert content(status) == b"succeeded\n"
    assert load(store, f"threads/{thread.id}/end.json")["returnCode"] == 0
    assert len(list(steps.entries())) == 3


def test_parents_and_children(store: Store) -> None:
    child_id = "01JD0000000000000000000001"
    parent = make_thread(store, children=[child_id])
    with store.batch() as batch:
        record = {**parent.head.record, "parent": parent.id, "children": []}
        batch.swap(f"threads/{child_id}", None, Head(parent.start, record))
    assert names(store, f"threads/{parent.id}/children") == [child_id]
    child = resolve(store, f"threads/{parent.id}/children/{child_id}")
    assert child.key == at(store, f"threads/{child_id}").key
    assert resolve(store, f"threads/{child_id}/parent").key == at(store, f"threads/{parent.id}").key
    assert missing(store, f"threads/{child_id}/children")


def test_more_children_than_a_record_names(store: Store) -> None:
    ids = [f"01JD00000000000000000000{n:02}" for n in range(10, 30)]
    parent = make_thread(store, children=ids[-threads.MAX_CHILDREN :])
    with store.batch() as batch:
        for id in ids:
            record = {**parent.head.record, "parent": parent.id, "children": []}
            batch.swap(f"threads/{id}", None, Head(parent.start, record))
    assert names(store, f"threads/{parent.id}/children") == ids
    first = resolve(store, f"threads/{parent.id}/children/{ids[0]}")
    assert first.key == at(store, f"threads/{ids[0]}").key


def test_whatever_shows_a_thread_has_another_mtime_after_each_move(
    store: Store, thread: Example
) -> None:
    thread.move(
        thread.start,
        children=["01JD0000000000000000000001"],
        intent={"role": "planner", "index": 1},
    )
    top = root(StoreReader(store), Stats())
    where = f"threads/{thread.id}"
    live = ["threads", "threads.json", "history"]
    live += [where, *(f"{where}/{name}" for name in (
        "status", "thread.json", "steps", "children", "running", "running/role"))]  # fmt: skip
    times: dict[str, list[int]] = {path: [] for path in live}
    for _ in range(3):
        for path in live:
            vnode = at(store, path, top)
            assert vnode.live, path
            times[path] += [vnode.attr().mtime_ns, at(store, path, top).attr().mtime_ns]
        new = Head(thread.head.hash, {**thread.head.record, "reason": str(len(times["threads"]))})
        with store.batch() as batch:  # in the same millisecond, as far as the record says
            batch.swap(thread.name, thread.head, new)
        thread.head = new
    for path, seen in times.items():
        assert seen[0] == seen[1] < seen[2] == seen[3] < seen[4] == seen[5], path


def test_a_broken_thread_breaks_only_itself(store: Store, thread: Example) -> None:
    set_head(store, "threads/01JD0000000000000000000002", thread.start)
    assert len(names(store, "threads")) == 2
    vnode = at(store, "threads/01JD0000000000000000000002")
    assert isinstance(vnode, Directory)
    found = dict(vnode.entries())
    assert isinstance(found[b"input.md"], BrokenFile)
    status = found[b"status"]
    assert content(status) == b"broken\n"
    assert read(store, f"threads/{thread.id}/status") == b"running\n"


def test_a_damaged_output_is_one_broken_file(store: Store, thread: Example) -> None:
    step = thread.step("planner", "text", detail=thread.agent)
    damage(store, store.node(step).payload["content"], b"not json")
    where = at(store, f"threads/{thread.id}/steps/000001-planner")
    assert isinstance(where, Directory)
    found = dict(where.entries())
    assert isinstance(found[b"output.md"], BrokenFile)
    assert [n for n, v in found.items() if isinstance(v, BrokenFile)] == [b"output.md"]
    assert content(found[b"step.json"]) != b""

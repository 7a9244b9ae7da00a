"""What is pushed arrives elsewhere, whole, and only once: in a directory and on two S3 servers."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from casfs.backend.protocols import Head
from casfs.errors import Invalid, NotFound, Refused
from casfs.remotes import log
from casfs.remotes.remote import Settings
from casfs.store import graph
from tests.support.helpers import Link, Program, blobs
from tests.support.remotes import Site
from tests.support.thread_example import make_thread

Sites = Callable[[Settings], Site]
CHILD, GRANDCHILD = "01JD0000000000000000000001", "01JD0000000000000000000002"
NOISE = random.Random(1).randbytes(3 << 20)  # does not compress; larger than a frame
TREE = {
    "empty": b"",
    "small": b"few bytes",
    "same": {"small": b"few bytes", "run": Program(b"#!/bin/sh\n"), "link": Link(b"../small")},
    "medium": {str(n): bytes([n]) * 5000 for n in range(50)},
    "large": NOISE,
    b"\xff": b"a name that is not UTF-8",
}


def test_a_checkpoint_arrives(anywhere: Settings, sites: Sites) -> None:
    here, there = sites(anywhere), sites(anywhere)
    name = here.checkpoint("app", TREE)
    pushed = here.push("app")
    assert (pushed.refs, pushed.packs) == ([name], 2)
    pulled = there.pull()
    assert pulled.refs == [name]
    assert there.contents(name) == here.contents(name)
    assert there.heads() == here.heads()
    assert pulled.bytes == sum(len(one) for one in {*flat(TREE)})


def flat(tree: object) -> list[bytes]:
    if isinstance(tree, dict):
        return [one for inner in tree.values() for one in flat(inner)]
    return [] if isinstance(tree, Link) else [bytes(tree)]  # type: ignore[call-overload]


def test_a_second_push_or_pull_moves_nothing(anywhere: Settings, sites: Sites) -> None:
    here, there = sites(anywhere), sites(anywhere)
    here.checkpoint("app", TREE)
    here.push("app")
    there.pull()
    again = here.push("app")
    assert (again.refs, again.unchanged, again.packs, again.sent) == ([], 1, 0, 0)
    again = there.pull()
    assert (again.refs, again.unchanged, again.nodes, again.blobs) == ([], 1, 0, 0)


def test_only_what_is_new_travels(anywhere: Settings, sites: Sites) -> None:
    here, there = sites(anywhere), sites(anywhere)
    here.checkpoint("app", TREE)
    here.push("app")
    there.pull()
    second = here.checkpoint("app", {"small": b"changed"})
    pushed = here.push("app")
    assert (pushed.refs, pushed.blobs) == ([second], 1)
    assert pushed.sent < 10_000
    pulled = there.pull("app")
    assert (pulled.refs, pulled.blobs, pulled.bytes) == ([second], 1, len(b"changed"))
    assert there.contents(second) == here.contents(second)


def test_a_dry_run_changes_nothing(directory: Settings, sites: Sites) -> None:
    here = sites(directory)
    here.checkpoint("app", TREE)
    wanted = here.push("app", dry_run=True)
    assert (wanted.blobs, wanted.packs) == (len({*flat(TREE)}), 0)
    assert here.refs() == {}
    done = here.push("app")
    assert (done.nodes, done.blobs, done.bytes) == (wanted.nodes, wanted.blobs, wanted.bytes)


def test_names_choose_what_is_pushed_and_pulled(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    first, other = here.checkpoint("app", {"a": b"1"}), here.checkpoint("web", {"b": b"2" * 2000})
    second = here.checkpoint("app", {"a": b"3"})
    here.push("app@" + first.rpartition("/")[2])
    assert set(here.refs()) == {first}
    here.push("app", "web")
    assert set(here.refs()) == {first, second, other}
    assert set(there.pull("web").refs) == {other}
    assert set(there.heads("checkpoints/")) == {other}
    assert there.pull("app@" + second.rpartition("/")[2][:20]).refs == [second]
    assert there.pull("app").refs == [first]
    for wrong in ("other", "app@2020", "workflows/none"):
        with pytest.raises(NotFound, match=wrong):
            there.pull(wrong)
    with pytest.raises(NotFound):
        here.push("other")
    with pytest.raises(Invalid, match="has no name"):
        here.push(here.store.put(b"plain").hash)


def test_a_pull_of_one_name_leaves_the_rest(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    here.checkpoint("large", {"large": NOISE})
    here.checkpoint("app", {"a": b"1" * 2000})
    here.push("large", "app")
    before = blobs(there.store)
    there.pull("app")
    assert here.store.put(NOISE).hash not in blobs(there.store)
    assert len(blobs(there.store) - before) <= 4  # file, directory, checkpoint


def test_a_thread_takes_those_that_it_called_along(anywhere: Settings, sites: Sites) -> None:
    here, there = sites(anywhere), sites(anywhere)
    parent = make_thread(here.store, status="suspended", children=[CHILD])
    for id, above in ((CHILD, parent.id), (GRANDCHILD, CHILD)):
        child = make_thread(here.store, id, parent=above, name=f"child-{id[-1]}")
        child.step("planner", f"Step of {id}.")
        child.end()
    parent.step("planner", "One.", artifacts=[here.store.put(NOISE).hash])
    here.push(parent.id.lower())
    assert set(here.refs()) == {parent.name, f"threads/{CHILD}", f"threads/{GRANDCHILD}"}
    there.pull(parent.id)
    assert there.contents(parent.name) == here.contents(parent.name)
    assert there.heads("threads/") == here.heads("threads/")
    other = sites(anywhere)
    other.pull("child-2")
    assert set(other.heads("threads/")) == {f"threads/{GRANDCHILD}"}


def test_a_running_thread_arrives_suspended(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    intent = {
        "role": "planner", "index": 1, "attempt": 1, "since": 1, "run": "a" * 32, "pid": 4711,
        "pidStart": 12345, "turns": [], "turnCount": 0, "calls": [CHILD],
    }  # fmt: skip
    parent = make_thread(here.store, intent=intent, children=[CHILD])
    make_thread(here.store, CHILD, parent=parent.id)
    here.push(parent.id)
    there.pull()
    assert here.store.heads.get(parent.name) == parent.head  # goes on running here
    record = there.store.heads.get(parent.name).record  # type: ignore[arg-type,union-attr]
    assert (record["status"], record["cause"]) == ("suspended", "unknown")
    assert "another store" in record["reason"]
    assert (record["intent"]["pid"], record["intent"]["run"]) == (None, None)
    assert record["intent"]["calls"] == [CHILD]
    child = there.store.heads.get(f"threads/{CHILD}").record  # type: ignore[arg-type,union-attr]
    assert (child["status"], child["cause"], child["parent"]) == ("suspended", "caller", parent.id)
    assert b"4711" not in b"".join(path.read_bytes() for path in logs(here))


def logs(one: Site) -> list:  # type: ignore[type-arg]
    from pathlib import Path
    from urllib.parse import urlsplit

    return [*Path(urlsplit(one.settings.url).path).glob("log/*")]


def test_workflows_and_types_of_ones_own(directory: Settings, sites: Sites) -> None:
    here, there = sites(directory), sites(directory)
    with here.store.batch() as batch:
        batch.put_schema({"$id": "note", "type": "object", "properties": {"text": {}}})
    thread = make_thread(here.store, status="suspended")
    thread.step("planner", "One.", detail=here.store.put_node("note", {"text": "x"}).hash)
    here.push("workflows/demo", thread.id)
    there.pull()
    assert there.contents(thread.name) == here.contents(thread.name)
    pulled = Head(thread.workflow, {"origin": "origin", "trusted": False})
    assert there.store.heads.get("workflows/demo") == pulled  # type: ignore[arg-type]
    assert there.store.registry.current("note") == here.store.registry.current("note")


def test_plain_bytes_there_are_a_node_here(directory: Settings, sites: Sites) -> None:
    """A blob that some store pushed as bytes does not stop the walk at a node."""
    here, other, there = (sites(directory) for _ in range(3))
    node = here.store.put_node("content", {"text": "x", "artifacts": [here.store.put(NOISE).hash]})
    other.checkpoint("app", {"node.json": here.store.get(node.hash)})
    other.push("app")
    thread = make_thread(here.store, status="suspended")
    thread.step("planner", "One.", detail=node.hash)
    here.push(thread.id)
    there.pull(thread.id)
    assert set(graph.walk(there.store, [node.hash])) >= {here.store.put(NOISE).hash}
    there.pull()
    assert there.contents(thread.name) == here.contents(thread.name)


def test_many_entries_are_read_from_a_snapshot(directory: Settings, sites: Sites) -> None:
    here, late = sites(directory), sites(directory)
    names = []
    with here.remote() as remote:
        for number in range(log.SNAPSHOT_INTERVAL + 10):
            if number % 10 == 0:
                names.append(here.checkpoint("app", {"n": b"%d" % number}))
                here.push("app")
            else:
                remote.catch_up()
                remote.append(lambda entry: None)
    with late.remote() as remote:
        read = []
        remote.entry = lambda number, entry=remote.entry: read.append(number) or entry(number)  # type: ignore[method-assign]
        remote.catch_up()
        assert min(one for one in read[2:]) >= log.SNAPSHOT_INTERVAL
    assert sorted(late.pull().refs) == sorted(names)
    assert here.refs() == late.refs()


def test_a_deleted_cache_is_made_again(directory: Settings, sites: Sites) -> None:
    here = sites(directory)
    here.checkpoint("app", TREE)
    here.push("app")
    before = here.refs()
    (here.root / "remotes/origin/state.db").unlink()
    assert here.push("app").unchanged == 1
    assert here.refs() == before


def test_another_remote_at_the_same_place(directory: Settings, sites: Sites) -> None:
    import shutil
    from pathlib import Path
    from urllib.parse import urlsplit

    from casfs.remotes.remote import create

    here = sites(directory)
    here.checkpoint("app", TREE)
    first = here.push("app")
    shutil.rmtree(urlsplit(directory.url).path)
    with pytest.raises(NotFound, match="no remote at"):
        here.push("app")
    create(directory.storage())
    with pytest.raises(Refused, match="--accept-rollback"):
        here.push("app")
    with here.remote() as remote:
        remote.catch_up(accept_rollback=True)
    assert here.push("app").blobs == first.blobs
    assert len(list(Path(urlsplit(directory.url).path).glob("packs/*"))) == 2


def test_purged_and_missing_content_is_named(directory: Settings, sites: Sites) -> None:
    from casfs.errors import CorruptBlob

    here = sites(directory)
    name = here.checkpoint("app", {"a": b"x" * 2000})
    root = here.store.node(here.heads()[name]).payload["root"]
    hash = here.store.node(root).payload["files"][0]["digest"]["hash"]
    (here.root / "objects" / hash[:2] / hash[2:]).chmod(0o644)
    (here.root / "objects" / hash[:2] / hash[2:]).write_bytes(b"y" * 2000)
    with pytest.raises(CorruptBlob, match=hash):
        here.push("app")
    assert here.refs() == {}

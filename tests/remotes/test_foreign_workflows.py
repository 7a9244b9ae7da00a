"""A pull never changes what a local name runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from casfs.agents.notation import AgentSpec
from casfs.errors import Corrupt, Refused
from casfs.maintenance import archive, names
from casfs.remotes.remote import Settings
from casfs.store import removals
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import ThreadId
from engine.threads import trust
from engine.workflow import registry as workflows
from engine.workflow import shipped
from tests.remotes.test_hostile import planted
from tests.support.engine import loop
from tests.support.remotes import Site
from tests.support.thread_example import Example, make_thread

Sites = Callable[[Settings], Site]
HEAD = workflows.head_name("sample")


def command(text: str) -> AgentSpec:
    return AgentSpec(name="command", version="1", config={"argv": ["sh", "-c", text]})


def add(store: Store, steps: int, text: str = "true", name: str = "sample") -> str:
    definition: dict[str, Any] = {**loop(steps), "name": name}
    agents = {role: command(text) for role in definition["roles"]}
    return workflows.add(store, definition, agents)[0]


@pytest.fixture
def pair(directory: Settings, sites: Sites) -> tuple[Site, Site]:
    return sites(directory), sites(directory)


def test_a_name_of_this_store_stays(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    hash = add(mine.store, 1)
    other = add(theirs.store, 2, "touch /tmp/PWNED")
    theirs.push("workflows/sample")
    for texts in ([], ["sample"]):
        mine.pull(*texts)
        assert workflows.find_trusted(mine.store, "sample") == hash
        assert workflows.find(mine.store, "origin.sample") == other
    with pytest.raises(Refused, match="PWNED"):
        workflows.find_trusted(mine.store, "origin.sample")


def test_what_the_remote_says_of_the_value_before_does_not_count(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    hash = add(mine.store, 1)
    add(theirs.store, 2, "touch /tmp/PWNED")
    theirs.push("workflows/sample")
    planted(theirs, refs={HEAD: {**theirs.refs()[HEAD], "previous": hash}})
    mine.pull("sample")
    assert workflows.find_trusted(mine.store, "sample") == hash


def test_a_shipped_name_stays_and_the_rest_arrives(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    shipped.install(mine.store)
    hello = workflows.find(mine.store, "hello")
    add(theirs.store, 2, "touch /tmp/PWNED", "hello")
    add(theirs.store, 1)
    theirs.push("workflows/hello", "workflows/sample")
    done = mine.pull()
    assert done.refs == ["workflows/origin.hello", HEAD]
    assert workflows.find_trusted(mine.store, "hello") == hello


def test_a_flag_replaces_and_undo_brings_back(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    hash = add(mine.store, 1)
    before = mine.store.heads.get(HEAD)
    theirs_hash = add(theirs.store, 2)
    theirs.push("workflows/sample")
    assert mine.pull("sample", replace=True).replaced == {HEAD: hash}
    assert workflows.find(mine.store, "sample") == theirs_hash
    removals.undo(mine.store)
    assert mine.store.heads.get(HEAD) == before


def test_undo_does_not_take_what_was_added_since(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    add(mine.store, 1)
    add(theirs.store, 2)
    theirs.push("workflows/sample")
    mine.pull("sample", replace=True)
    add(mine.store, 3)
    with pytest.raises(Refused, match="new value"):
        removals.undo(mine.store)


def test_a_pulled_one_runs_after_it_was_trusted(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    hash = add(theirs.store, 1, "evil\x1b[2J")
    theirs.push("workflows/sample")
    mine.pull()
    with pytest.raises(Refused, match=r"from origin.*evil") as refused:
        workflows.find_trusted(mine.store, "sample")
    assert "\x1b" not in str(refused.value)
    workflows.trust(mine.store, "sample")
    assert workflows.find_trusted(mine.store, "sample") == hash


def test_one_pulled_from_there_before_moves_and_is_not_trusted_again(
    pair: tuple[Site, Site],
) -> None:
    theirs, mine = pair
    add(theirs.store, 1)
    theirs.push("workflows/sample")
    mine.pull()
    workflows.trust(mine.store, "sample")
    add(theirs.store, 1, "touch /tmp/PWNED")  # the same definition with another agent
    theirs.push("workflows/sample")
    assert list(mine.pull().replaced) == [HEAD]
    with pytest.raises(Refused, match="PWNED"):
        workflows.find_trusted(mine.store, "sample")


def test_a_remote_cannot_call_its_own_trusted_or_shipped(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    add(theirs.store, 1)
    theirs.push("workflows/sample")
    ref = theirs.refs()[HEAD]
    record = {**ref["record"], "trusted": True, "builtin": True, "origin": "me"}
    planted(theirs, refs={HEAD: {**ref, "record": record}})
    mine.pull()
    head = mine.store.heads.get(HEAD)
    assert head is not None
    assert head.record == {**ref["record"], "origin": "origin", "trusted": False}


def test_the_name_of_a_ref_is_that_of_its_node(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    add(theirs.store, 1)
    theirs.push("workflows/sample")
    planted(theirs, refs={workflows.head_name("other"): theirs.refs()[HEAD]})
    with pytest.raises(Corrupt, match="not that of its node"):
        mine.pull("workflows/other")


def test_an_imported_one_is_not_trusted(pair: tuple[Site, Site], tmp_path: Path) -> None:
    theirs, mine = pair
    add(theirs.store, 1, "touch /tmp/PWNED")
    with (tmp_path / "a.tar").open("wb") as out:
        hashes, heads = names.roots(theirs.store, ["workflows/sample"])
        archive.export(theirs.store, hashes, heads, out)
    archive.load(mine.store, tmp_path / "a.tar")
    with pytest.raises(Refused, match="PWNED"):
        workflows.find_trusted(mine.store, "sample")


def test_a_thread_does_not_get_other_agents(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    thread = make_thread(mine.store, status="suspended")
    mine.push(thread.id)
    theirs.pull()
    head = theirs.store.heads.get(thread.name)  # type: ignore[arg-type]
    assert head is not None
    copy = Example(
        theirs.store, thread.id, head, thread.start, thread.workflow, thread.agent, thread.tree, []
    )
    copy.step("planner", "One, elsewhere.")
    theirs.push(thread.id)
    with theirs.store.batch() as batch:
        evil = workflows.put_agent(batch, command("touch /tmp/PWNED"))
        agents = batch.put_node("thread-agents", {"agents": {"planner": evil}}).hash
    copy.move(copy.steps[-1], status="suspended", agents=agents)
    theirs.push(thread.id)
    assert [*mine.pull().stayed] == [thread.name]
    assert mine.heads("threads/") == {thread.name: thread.start}
    mine.pull(asks=lambda found: True)
    with pytest.raises(Refused, match="PWNED"):
        trust.check(mine.store, [threads.get(mine.store, ThreadId(thread.id))])

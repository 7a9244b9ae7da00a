"""A thread that a pull or an import brings runs nothing before a person has seen its agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from casfs.errors import Refused
from casfs.maintenance import archive, names
from casfs.remotes.remote import Settings
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import Thread
from engine.threads import forking, suspension, trust
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest, create
from engine.threads.suspension import Suspension
from engine.workflow import registry as workflows
from tests.support.engine import loop
from tests.support.remotes import Site

Sites = Callable[[Settings], Site]


def suspended(store: Store, text: str) -> Thread:
    flow = workflows.add(store, loop(1))[0]
    roles = workflows.load(store, flow).roles
    agent = Binding("command", {"argv": ["sh", "-c", text]})
    made = create(store, ThreadRequest(flow, "task", dict.fromkeys(roles, agent)))
    return suspension.suspend(store, made, Suspension("wait"))


@pytest.fixture
def pair(directory: Settings, sites: Sites) -> tuple[Site, Site]:
    return sites(directory), sites(directory)


def refused(store: Store, thread: Thread) -> None:
    found = threads.get(store, thread.id)
    for run in (suspension.resume, forking.fork):
        with pytest.raises(Refused, match=r"touch /tmp/PWNED.*casfs thread trust"):
            run(store, found)
    assert threads.get(store, thread.id) == found
    assert len(threads.list_threads(store)) == 1


def test_a_pulled_thread_runs_after_it_was_trusted(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    thread = suspended(theirs.store, "touch /tmp/PWNED")
    theirs.push(thread.id)
    mine.pull()
    refused(mine.store, thread)
    assert "touch /tmp/PWNED" in trust.all_runs(mine.store, threads.get(mine.store, thread.id))[0]
    trust.trust(mine.store, threads.get(mine.store, thread.id))
    forking.fork(mine.store, threads.get(mine.store, thread.id))
    suspension.resume(mine.store, threads.get(mine.store, thread.id))


def test_an_imported_thread_asks_too(pair: tuple[Site, Site], tmp_path: Path) -> None:
    theirs, mine = pair
    thread = suspended(theirs.store, "touch /tmp/PWNED")
    with (tmp_path / "a.tar").open("wb") as out:
        archive.export(theirs.store, *names.roots(theirs.store, [f"threads/{thread.id}"]), out)
    archive.load(mine.store, tmp_path / "a.tar")
    refused(mine.store, thread)
    archive.load(mine.store, tmp_path / "a.tar")  # equal, but for the mark


def test_own_threads_never_ask_and_the_mark_stays_here(pair: tuple[Site, Site]) -> None:
    theirs, mine = pair
    thread = suspended(theirs.store, "true")
    theirs.push(thread.id)
    mine.pull()
    mine.push(thread.id)
    assert "origin" not in theirs.refs()[thread.name]["record"]
    theirs.pull()
    forked = forking.fork(theirs.store, threads.get(theirs.store, thread.id))
    assert "origin" not in forked[0].record
    suspension.resume(theirs.store, threads.get(theirs.store, thread.id))

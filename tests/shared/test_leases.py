"""Daemons of several machines share the threads of a store: one runs each, and when that one is
killed, stopped or cut off, another goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.postgres.leases import TTL_S
from casfs.store.nodes import directory
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import CANCELLED, ENDED, RUNNING, SUSPENDED, Thread
from casfs.workspaces import desk
from engine.runtime.leasing import MARGIN_S
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.engine import ONE, alive, loop, shell, steps, until
from tests.support.engine import begin as begin_thread
from tests.support.machines import Machine, machines
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server

RUN = """printf '%s\\n' "$(basename "${CASFS_STORE%/store}") $$" >>"$1/$CASFS_THREAD"; sleep "$2"
printf '%s\\n' '```json' '{}' '```'"""


class Team:
    """Machines of one store, which is opened in the process of the test."""

    def __init__(self, team: list[Machine], store: Store, folder: Path) -> None:
        self.machines, self.store, self.folder = team, store, folder

    def begin(self, count: int, steps: int, seconds: float) -> list[Thread]:
        """New threads, for any daemon."""
        agents = {"a": shell(RUN, str(self.folder), str(seconds))}
        return [begin_thread(self.store, loop(steps), agents) for _ in range(count)]

    def now(self, thread: Thread) -> Thread:
        return threads.get(self.store, thread.id)

    def runs(self, thread: Thread) -> list[tuple[str, int]]:
        """(machine, pid) of each run of the thread's agent so far."""
        path = self.folder / thread.id
        lines = path.read_text().splitlines() if path.exists() else []
        return [(name, int(pid)) for name, pid in (line.split() for line in lines)]

    def statuses(self, found: Collection[Thread]) -> Counter[str]:
        return Counter(self.now(one).status for one in found)

    def owners(self) -> dict[str, str]:
        """The machine of each leased thread, by the thread's id."""
        query = """SELECT l.thread, m.root FROM casfs.leases l
            JOIN casfs.machines m ON m.daemon = l.owner JOIN casfs.heads h ON h.name = l.thread
            WHERE l.expires > now() AND h.running"""
        rows = self.query(query)
        return {name.removeprefix("threads/"): Path(root).parent.name for name, root in rows}

    def query(self, text: str) -> Any:
        return self.store.backend.pool.run(text)  # type: ignore[attr-defined]

    def all_end(self, found: Collection[Thread], count: int) -> None:
        """Waits until all have ended, with each step once."""
        until(lambda: self.statuses(found)[RUNNING] == 0, "the end of the threads")
        assert self.statuses(found) == {ENDED: len(found)}
        for one in found:
            assert [step["index"] for step in steps(self.store, self.now(one))] == [
                *range(1, count + 1)
            ]

    def events(self, machine: Machine, *kinds: str) -> list[dict[str, Any]]:
        lines = (machine.root / "log/daemon.jsonl").read_text().splitlines()
        return [one for one in map(json.loads, lines) if not kinds or one["event"] in kinds]


@contextmanager
def made(
    postgres: PostgresServer, s3: S3Server, folder: Path, limits: Collection[int]
) -> Iterator[Team]:
    with machines(postgres, s3, len(limits)) as team:
        for machine, limit in zip(team, limits, strict=True):
            machine.environment["CASFS_RUNS_LIMIT"] = str(limit)
        with Store.open(team[0].root) as store:
            store.backend.pool.url = postgres.url(team[0].database)  # type: ignore[attr-defined]
            try:
                yield Team(team, store, folder)
            finally:
                for machine in team:
                    machine.stop_daemon()
                    desk.unmount_all(machine.root)


@pytest.fixture
def team(postgres: PostgresServer, s3: S3Server, tmp_path: Path) -> Iterator[Team]:
    """Two machines whose daemons run."""
    with made(postgres, s3, tmp_path, (10, 10)) as found:
        for machine in found.machines:
            machine.start_daemon()
        yield found


def test_two_daemons_share_the_threads(
    postgres: PostgresServer, s3: S3Server, tmp_path: Path
) -> None:
    with made(postgres, s3, tmp_path, (4, 6)) as team:
        found = team.begin(20, 2, 2)
        for machine in team.machines:
            machine.start_daemon()
        most: Counter[str] = Counter()
        first: list[str] = []
        while team.statuses(found)[RUNNING]:
            owners = team.owners()
            most |= Counter(owners.values())
            first = first or (sorted(owners) if len(owners) == 10 else [])
        assert 0 < most["a"] <= 4
        assert 0 < most["b"] <= 6
        assert first in ([], sorted(one.id for one in found[:10]))  # the oldest
        team.all_end(found, 2)
        assert all(len(team.runs(one)) == 2 for one in found)
        assert team.query("SELECT thread FROM casfs.leases") == []


def test_a_killed_daemon(team: Team) -> None:
    """Its threads go on elsewhere within the TTL and a second; on its own machine at once."""
    a, _ = team.machines
    found = team.begin(16, 8, 1)
    until(lambda: len(team.owners()) == 16, "all to run")
    until(lambda: {"a", "b"} == {*team.owners().values()})
    owned = [one for one in found if team.owners()[one.id] == "a"]
    a.kill_daemon()
    killed = time.monotonic()
    until(lambda: all(team.now(one).record["lease"] > 1 for one in owned), "the threads of a")
    assert time.monotonic() - killed < TTL_S + 4  # 1 s where the machine is not busy
    a.start_daemon()
    team.all_end(found, 8)


def test_a_restarted_daemon_goes_on_at_once(
    postgres: PostgresServer, s3: S3Server, tmp_path: Path
) -> None:
    with made(postgres, s3, tmp_path, (10,)) as team:
        (a,) = team.machines
        a.start_daemon()
        found = team.begin(4, 2, 3)
        until(lambda: all(team.runs(one) for one in found), "all to run")
        a.kill_daemon()
        left = "SELECT count(*) FROM casfs.leases WHERE token = 1 AND expires > now()"
        assert team.query(left) == [(4,)]
        a.start_daemon()
        assert team.query(left) == [(0,)]
        until(lambda: all(len(team.runs(one)) == 2 for one in found), "all to run again")
        team.all_end(found, 2)


def test_a_daemon_that_ends_in_order_releases_all(team: Team) -> None:
    a, _ = team.machines
    found = team.begin(16, 2, 2)
    until(lambda: all(team.runs(one) for one in found), "all to run")
    a.stop_daemon()
    assert {*team.owners().values()} == {"b"}
    a.start_daemon()
    team.all_end(found, 2)


def test_a_stopped_daemon_writes_nothing(team: Team) -> None:
    """It wakes when its leases are another's."""
    found = team.begin(8, 2, 12)
    until(lambda: all(team.runs(one) for one in found), "all to run")
    owners = team.owners()
    a, name = team.machines[0], "a"
    if name not in owners.values():  # the other one was faster
        a, name = team.machines[1], "b"
    owned = [one for one in found if owners[one.id] == name]
    assert a.pid is not None
    os.kill(a.pid, signal.SIGSTOP)
    time.sleep(TTL_S + 5)
    taken = {one.id: team.now(one) for one in owned}
    assert {one.record["lease"] for one in taken.values()} == {2}
    os.kill(a.pid, signal.SIGCONT)
    until(lambda: len(team.events(a, "lease")) == len(owned), "a to notice")
    team.all_end(found, 2)
    assert [one for one in owned if team.now(one).record["lease"] != 2] == []


@pytest.mark.parametrize("seconds", [2, 20])
def test_the_database_is_away(team: Team, seconds: float) -> None:
    """Within the TTL nothing happens; after it agents are stopped before another could run."""
    found = team.begin(8, 3, 5)
    until(lambda: all(team.runs(one) for one in found), "all to run")
    for machine in team.machines:
        machine.cut("database")
    cut = time.monotonic()
    if seconds > TTL_S:
        time.sleep(cut + TTL_S - time.monotonic())
        for one in found:
            assert not alive(team.runs(one)[-1][1])
    time.sleep(cut + seconds - time.monotonic())
    for machine in team.machines:
        machine.heal()
    team.all_end(found, 3)
    if seconds < TTL_S - MARGIN_S - TTL_S / 3:
        assert [one for one in found if len(team.runs(one)) != 3] == []


def test_cancel_and_suspend_from_elsewhere(team: Team, tmp_path: Path) -> None:
    a, b = team.machines
    b.stop_daemon()
    one, two = team.begin(2, 1, 60)
    until(lambda: team.runs(one) and team.runs(two), "both to run")
    b.start_daemon()
    refused = b.casfs("thread", "compact", one.id, "--text", "Short.", code=4)
    assert "runs on another machine; suspend it first" in refused
    b.casfs("thread", "cancel", one.id)
    b.casfs("thread", "suspend", two.id)
    assert [team.now(each).status for each in (one, two)] == [CANCELLED, SUSPENDED]
    for each in (one, two):
        until(lambda each=each: not alive(team.runs(each)[0][1]), "the end of the agent")
    a.stop_daemon()
    b.casfs("thread", "resume", two.id)
    until(lambda: len(team.runs(two)) == 2, "it runs again")
    assert [name for name, _ in team.runs(two)] == ["a", "b"]
    b.casfs("thread", "cancel", two.id)
    until(lambda: not alive(team.runs(two)[1][1]), "the end of the agent")


def test_start_on_a_full_machine(postgres: PostgresServer, s3: S3Server, tmp_path: Path) -> None:
    with made(postgres, s3, tmp_path, (1, 2)) as team:
        a, b = team.machines
        a.start_daemon()
        (long,) = team.begin(1, 1, 8)
        until(lambda: team.runs(long), "it runs")
        b.start_daemon()
        config = json.dumps(shell(RUN, str(tmp_path), "0"))
        workflows.add(team.store, {**ONE, "name": "one"})
        a.casfs(
            "thread", "start", "one", "--input", "x", "--agent", f"a=command:{config}", "--wait"
        )
        (new,) = [one for one in threads.list_threads(team.store) if one.id != long.id]
        assert [name for name, _ in team.runs(new)] == ["b"]
        assert "1" in b.casfs("thread", "log", new.id)
        team.all_end([long, new], 1)


def test_a_child_goes_on_with_its_caller(team: Team) -> None:
    """Its caller's daemon is killed: both are taken over, and the child is not called again."""
    a, b = team.machines
    inner = {**loop(4), "name": "inner"}
    workflows.add(team.store, inner)
    outer, _ = workflows.add(team.store, {**ONE, "name": "outer"})
    bound = {"a": {"name": "command", "config": shell(RUN, str(team.folder), "1")}}
    call = Binding("workflow", {"workflow": "inner", "agents": bound})
    caller = lifecycle.create(team.store, ThreadRequest(outer, "x", {"a": call}))
    until(lambda: team.now(caller).record["children"], "the call")
    (child,) = (threads.get(team.store, id) for id in team.now(caller).record["children"])
    until(lambda: len(team.runs(child)) == 2, "the child to run")
    name, _ = team.runs(child)[0]
    owner, other = (a, b) if name == "a" else (b, a)
    owner.kill_daemon()
    until(lambda: team.now(caller).status != RUNNING, "the end of the caller")
    assert team.now(caller).status == team.now(child).status == ENDED
    assert team.now(caller).record["children"] == [child.id]
    assert [step["index"] for step in steps(team.store, team.now(child))] == [1, 2, 3, 4]
    assert team.runs(child)[-1][0] == other.name


def test_object_storage_is_away(team: Team) -> None:
    """Threads that need none go on; a step with a large file waits, and its agent runs once."""
    script = f"head -c 3000000 /dev/urandom >large; {RUN}"
    (small,) = team.begin(1, 3, 0.2)
    agents = {"a": shell(script, str(team.folder), "0")}
    with team.store.batch() as batch:
        root = batch.put_directory(directory.encode([])).hash
    for machine in team.machines:
        machine.cut("objects")
    large = begin_thread(team.store, loop(1), agents, root)
    team.all_end([small], 3)
    until(lambda: team.runs(large), "the agent")
    time.sleep(12)
    assert team.now(large).status == RUNNING
    for machine in team.machines:
        machine.heal()
    team.all_end([large], 1)
    assert len(team.runs(large)) == 1

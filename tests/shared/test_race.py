"""Forks of a shared store run on all machines, and a race on any of them has the same winner."""

from __future__ import annotations

import json

from casfs.store.store import Store
from casfs.workspaces import desk
from engine.workflow import registry as workflows
from tests.support.engine import loop, says
from tests.support.machines import machines
from tests.support.postgres_server import PostgresServer
from tests.support.s3_servers import S3Server

FORKS = 20


def test_a_race_on_two_machines(postgres: PostgresServer, s3: S3Server) -> None:
    with machines(postgres, s3, 2) as team:
        first, second = team
        try:
            for machine in team:
                machine.start_daemon()
            with Store.open(first.root) as store:
                store.backend.pool.url = postgres.url(first.database)  # type: ignore[attr-defined]
                workflows.add(store, loop(2))
            agents = [
                f"a=command:{json.dumps(says({}, f'echo {text} >text'))}" for text in ("one", "two")
            ]
            given = [word for one in agents for word in ("--agent", one)]
            start = ("thread", "start", "sample", "--input", "x", *given[:2], "--wait")
            id = first.casfs(*start).split()[0]
            fork = ("thread", "fork", id, "--at", "1", "--count", str(FORKS), *given)
            ids = second.casfs(*fork).split()
            assert len({*ids}) == FORKS
            race = ("thread", "race", *ids, "--until", "grep -q two text", "--promote", "best")
            winners = {one.casfs(*race, "--cancel-rest").splitlines()[0] for one in team}
            assert len(winners) == 1
            assert winners.pop().split()[0] in ids[1::2]
            assert [len(one.json("checkpoint", "list", "best")) for one in team] == [1, 1]
            states = {one["status"] for one in first.json("thread", "compare", *ids)}
            assert states <= {"succeeded", "cancelled"}
        finally:
            for machine in team:
                machine.stop_daemon()
                desk.unmount_all(machine.root)

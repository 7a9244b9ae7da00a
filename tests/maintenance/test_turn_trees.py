"""gc deletes the oldest trees of tool calls beyond a limit; what needs none of them works on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from casfs import config
from casfs.attach import attachments
from casfs.checkpoints import revisions
from casfs.cli.daemon_process import maintenance
from casfs.errors import NotFound
from casfs.maintenance import fsck, gc
from casfs.maintenance.gc import Limits
from casfs.rewind import rewind_files
from casfs.rewind.rewind_files import Choice, FilePlan
from casfs.sessions import session_steps
from casfs.sessions.session_steps import CallRecord, Point
from casfs.store import graph, removals
from casfs.store.store import Store
from casfs.system.clock import now_ms
from casfs.threads import threads
from casfs.threads.threads import StepNode
from tests.support.attached_agent import AttachedAgent, contents
from tests.support.engine import Cli
from tests.support.following import OwnSessionDirectory
from tests.support.fuse import names, read, target
from tests.support.helpers import blobs
from tests.support.maintenance import age, reopened

FILE_BYTES = 1 << 16
DAY_MS = 24 * 3_600_000
LIMIT = Limits(max_turn_trees=3 * FILE_BYTES)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "kept").write_text("kept\n")
    (folder / ".env").write_text("TOKEN=hunter2hunter2\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def agent(cli: Cli, project: Path, tmp_path: Path) -> Iterator[AttachedAgent]:
    """One that has written `big` anew in each of four calls of two prompts, and goes on."""
    with Store.open(cli.root) as store:
        followed = OwnSessionDirectory(store, project, None)
        agent = AttachedAgent(store, project, followed, tmp_path / "copies")
        noise = random.Random(1)
        for _ in range(2):
            agent.prompt("Write it")
            for _ in range(4):
                data = noise.randbytes(FILE_BYTES)
                agent.call(partial((project / "big").write_bytes, data))
            (project / "mine").write_bytes(noise.randbytes(10))
            agent.stop()
        agent.prompt("And one more")
        agent.run("echo x > small")
        yield agent
        followed.close()


def collect(agent: AttachedAgent, limits: Limits = LIMIT) -> gc.Result:
    age(agent.store)
    return gc.collect(agent.store, limits=limits)


def calls(agent: AttachedAgent) -> list[CallRecord]:
    return [call for step in agent.steps() for call in step.calls]


def lost(agent: AttachedAgent) -> list[bool]:
    return [call.fault is not None for call in calls(agent)]


def plan(agent: AttachedAgent, point: str, *, is_exact: bool = False) -> FilePlan:
    steps = agent.steps()
    return rewind_files.plan(
        agent.store, agent.directory, steps, Choice(Point.parse(point), is_exact=is_exact)
    )


def test_without_a_limit_all_are_kept(agent: AttachedAgent) -> None:
    assert collect(agent, gc.NO_LIMITS).freed.blobs == 0
    assert not any(lost(agent))


def test_the_oldest_go_first(agent: AttachedAgent) -> None:
    age(agent.store)
    foreseen = gc.collect(agent.store, limits=LIMIT, dry_run=True)
    assert not any(lost(agent))
    result = gc.collect(agent.store, limits=LIMIT)
    assert (foreseen.turn_trees, foreseen.freed) == (result.turn_trees, result.freed)
    assert result.turn_trees > 0
    # Its last files are those of the step, and of no call alone.
    assert lost(agent) == [True, True, True, True, False, False, False, False, False]
    assert fsck.check(agent.store).faults == []
    again = gc.collect(agent.store, limits=LIMIT)
    assert (again.turn_trees, again.freed.blobs) == (0, 0)


def test_a_young_one_is_kept(agent: AttachedAgent) -> None:
    assert gc.collect(agent.store, limits=Limits(max_turn_trees=1)).turn_trees == 0
    assert not any(lost(agent))


def test_the_daemon_collects_once_the_store_has_grown(
    agent: AttachedAgent, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("checkpoint", "create", "work", agent.directory)
    with monkeypatch.context() as patch:
        patch.setattr(removals, "now_ms", lambda: now_ms() - 2 * DAY_MS)
        removed = cli(
            "checkpoint", "rm", "work@" + cli("checkpoint", "list", "--json").json[0]["id"]
        )
    values = config.values(agent.store.root, {"CASFS_ATTACH_MAX_TURN_TREES": str(3 * FILE_BYTES)})
    maintain = maintenance(values)
    age(agent.store)
    maintain(agent.store)
    assert not any(lost(agent)), "nothing is attached to this store"
    (agent.store.root / attachments.FILE).write_text("{}")
    maintain(agent.store)
    assert lost(agent).count(True) == 4
    assert cli("undo", "--store").word == removed.word, "the user did not request a gc"
    agent.call(lambda: (agent.directory / "big").write_bytes(bytes(FILE_BYTES // 8)))
    age(agent.store)
    kept = blobs(agent.store)
    maintain(agent.store)
    assert blobs(agent.store) == kept


def test_the_prompts_can_be_returned_to(agent: AttachedAgent, project: Path) -> None:
    collect(agent)
    with pytest.raises(NotFound, match="not kept any more"):
        session_steps.state_at(agent.steps(), Point(1, 2))
    for point in ("3", "2.3", "2", "1"):
        planned = plan(agent, point, is_exact=True)
        rewind_files.do(agent.store, project, planned)
        assert contents(project) == contents(agent.copy_of(point))


def test_what_an_old_call_has_changed_stays_and_is_named(
    agent: AttachedAgent, project: Path, cli: Cli
) -> None:
    collect(agent)
    before = contents(project)
    answer = cli("rewind", "--to", "1", code=1)
    assert "1.2 Bash: what it changed stays" in answer.err
    after = contents(project)
    assert after.keys() == before.keys() - {"small"}
    assert after[".env"] == before[".env"]
    assert cli("rewind", "--to", "1", "--json", code=1).json["lost"] == ["1.4", "1.3", "1.2", "1.1"]


def test_a_tree_that_another_node_has_is_kept_with_its_private_files(
    agent: AttachedAgent, project: Path
) -> None:
    """The work of a call may be there still, without the private files beside it."""
    agent.run("echo TOKEN=another2another > .env")
    agent.run("echo TOKEN=a_third_one_3 > .env")
    agent.stop()
    agent.prompt("go on")
    agent.run("echo > last")
    agent.stop()
    collect(agent, Limits(max_turn_trees=1))
    for call in calls(agent):
        # A state that is not known is named: a rewind would pass over what the call has changed.
        assert call.fault is not None or (call.before is not None and call.after is not None)
        if call.before is not None:
            assert ".env" in contents(agent.copy_of(f"{call.step}.{call.number}"))
            assert call.before.local is not None


def test_blame_has_the_step_in_place_of_its_calls(
    agent: AttachedAgent, project: Path, cli: Cli
) -> None:
    agent.run("echo by a call > lines")
    agent.stop()
    agent.prompt("More")
    agent.run("echo by another >> lines")
    agent.run("head -c 300000 /dev/urandom > noise; echo third >> lines")
    agent.run("rm noise")
    agent.stop()
    collect(agent, Limits(max_turn_trees=1))
    rows = cli("blame", "lines", "--json").json
    found = [(row["text"], row["version"]["revision"].rpartition("@")[2]) for row in rows]
    assert found[0][1].split(".")[0] == "3"
    assert {revision.split(".")[0] for _, revision in found[1:]} == {"4"}
    assert all(row["version"]["role"] == "claude" for row in rows)


def test_the_mount_and_revisions(agent: AttachedAgent) -> None:
    thread = agent.thread
    turns = [revisions.turns(agent.store, step.payload["detail"]) for step in steps(agent)]
    directory = f"nodes/{turns[0][0]}"
    assert target(agent.store, f"{directory}/workspace")
    assert "changes.diff" in names(agent.store, directory)
    collect(agent)
    with reopened(agent.store) as store:
        root = store.node(turns[0][0], "react-turn").payload["workspace"]
        assert read(store, f"{directory}/workspace") == root.encode()
        assert "changes.diff" not in names(store, directory)
        assert target(store, f"nodes/{turns[1][3]}/workspace")
        with pytest.raises(NotFound, match="turn 1 is not kept any more"):
            revisions.resolve(store, f"{thread.id}@1.1")
        assert revisions.resolve(store, f"{thread.id}@1").state is not None
        walked = set(graph.walk(store, [turns[0][0]]))
        assert walked <= store.blobs.info(walked).keys()


def test_it_travels_without_them(agent: AttachedAgent, cli: Cli, tmp_path: Path) -> None:
    agent.stop()
    collect(agent)
    cli("remote", "add", "origin", (tmp_path / "remote").as_uri())
    cli("push", "origin", agent.thread.id, "--yes")
    elsewhere = Cli(tmp_path / "elsewhere", cli._monkeypatch, cli._capture)
    elsewhere("clone", (tmp_path / "remote").as_uri(), tmp_path / "elsewhere")
    with Store.open(tmp_path / "elsewhere") as store:
        assert fsck.check(store).faults == []
        last = threads.last_steps(store, agent.thread, None)[-1]
        turns = [revisions.turns(agent.store, step.payload["detail"]) for step in steps(agent)]
        assert not revisions.have_trees(store, turns[0])
        assert revisions.have_trees(store, turns[1][2:])
        assert last.payload["index"] == 3
    exported = tmp_path / "thread.casfs"
    cli("export", "--yes", agent.thread.id, "--with-local", "-o", exported)


def steps(agent: AttachedAgent) -> list[StepNode]:
    return list(threads.last_steps(agent.store, agent.thread, None))

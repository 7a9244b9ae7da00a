"""The daemon, with real processes: what it refuses, what it survives, what it leaves."""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
import stat
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from casfs.backend.protocols import Head, Swap
from casfs.errors import Conflict, Invalid, NoDaemon, NotFound
from casfs.store.store import Store
from casfs.system import daemon_socket
from casfs.threads import threads
from casfs.threads.threads import BROKEN, ENDED, RUNNING, SUSPENDED
from engine.runtime.daemon import Daemon, DaemonSettings
from engine.threads.record import UNKNOWN
from engine.workflow import registry as workflows
from tests.support.engine import (
    ONE,
    Cli,
    alive,
    begin,
    daemon,
    kill,
    loop,
    pids,
    rule,
    says,
    spawn,
    start_thread,
    steps,
    until,
    workflow,
)
from tests.support.new_store import init_store

IDLE: dict[str, Any] = {"limit": 8, "running": [], "called": [], "queued": []}
EMPTY: dict[str, Any] = {"files": [], "directories": [], "symlinks": []}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with the workflow ONE."""
    path = tmp_path / "store"
    with init_store(path) as store:
        workflows.add(store, ONE)
    return path


def ask(root: Path, op: str, **arguments: Any) -> Any:
    return daemon_socket.request(root, op, **arguments)


def status(root: Path, id: str) -> str:
    with Store.open(root) as store:
        return threads.get(store, id).status


def record(root: Path, id: str) -> Any:
    with Store.open(root) as store:
        return threads.get(store, id).record


def add(root: Path, definition: dict[str, Any]) -> str:
    with Store.open(root) as store:
        workflows.add(store, definition)
    return str(definition["name"])


def events(root: Path) -> list[Any]:
    return [json.loads(line) for line in (root / "log/daemon.jsonl").read_text().splitlines()]


# -- being there --------------------------------------------------------------------------


def test_it_is_reached_by_its_owner_alone(root: Path, runtime_dir: Path) -> None:
    with daemon(root) as pid:
        found = daemon_socket.find(root)
        assert found is not None
        path = Path(found["socket"])
        assert (found["pid"], path.parent) == (pid, runtime_dir / "casfs")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        answer = ask(root, "status")
        assert answer.pop("containment")["method"] in ("cgroup", "parent")
        assert answer == {"pid": pid, **IDLE}
    assert daemon_socket.find(root) is None
    assert not path.exists()


def test_it_keeps_nothing_of_its_caller(root: Path) -> None:
    with daemon(root) as pid:
        assert os.getsid(pid) == pid
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        open_files = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)]
        assert open_files == ["/dev/null", *[str(root / "log/daemon.err")] * 2]
        pipes = [entry for entry in os.scandir(f"/proc/{pid}/fd") if "pipe" in os.readlink(entry)]
        assert pipes == []


def test_a_second_one_is_refused(root: Path) -> None:
    with daemon(root) as pid:
        second = spawn("--store", root, "daemon")
        assert (second.returncode, second.stdout) == (4, "")
        assert second.stderr == f"casfs: a daemon of the store at {root} is running already\n"
        assert ask(root, "status")["pid"] == pid


def test_looking_for_a_daemon_does_not_keep_one_from_starting(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks takes the lock for a moment: here until we wait for the first time."""
    looker = os.open(root / "daemon.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(looker, fcntl.LOCK_SH)
    monkeypatch.setattr(time, "sleep", lambda seconds: os.close(looker))
    os.close(daemon_socket.lock(root))


def test_a_folder_that_others_may_read_is_refused(root: Path, runtime_dir: Path) -> None:
    (runtime_dir / "casfs").mkdir(mode=0o755)
    answer = spawn("--store", root, "daemon")
    assert answer.returncode == 4
    assert "must be a directory of yours with mode 0700" in answer.stderr
    assert daemon_socket.find(root) is None


def test_a_runtime_directory_with_a_long_path_will_not_do(root: Path) -> None:
    env = {"XDG_RUNTIME_DIR": "/run/" + "x" * 90}
    assert daemon_socket.socket_path(root, env) == daemon_socket.socket_path(root, {})
    assert len(os.fsencode(daemon_socket.socket_path(root, {}))) < 108


def test_stop(root: Path) -> None:
    with daemon(root) as pid:
        answer = spawn("--store", root, "daemon", "stop")
        assert (answer.returncode, answer.stdout) == (0, f"{pid} stopped\n")
        assert not alive(pid)
    again = spawn("--store", root, "daemon", "stop")
    assert again.returncode == 5
    assert "no daemon runs" in again.stderr
    assert (events(root)[0]["event"], events(root)[-1]["event"]) == ("ready", "ending")


def test_without_a_daemon_a_thread_cannot_start(root: Path) -> None:
    with pytest.raises(NoDaemon, match="start one with `casfs daemon`"):
        start_thread(root, "sample", {"a": says({})})


def test_a_daemon_that_was_killed_is_not_found_and_a_new_one_starts(root: Path) -> None:
    with daemon(root) as pid:
        kill(pid)
        assert (root / "daemon.json").exists()
        with pytest.raises(NoDaemon):
            ask(root, "status")
        with daemon(root) as second:
            assert ask(root, "status")["pid"] == second


@pytest.mark.parametrize(
    "line",
    [
        b"hello\n",
        b"[]\n",
        b"{}\n",
        b'{"op": "dance"}\n',
        b'{"op": ["start"]}\n',
        b'{"op": "status", "more": 1}\n',
        b'{"op": "wait"}\n',
        b'{"op": "cancel", "id": 5}\n',
        b'{"op": "cancel", "id": "\\ud800"}\n',
        b'{"op": "wait", "id": "\\ud800"}\n',
        b'{"op": "start", "workflow": "\\ud800", "input": "x", "agents": {}}\n',
        b'{"op": "start", "workflow": "sample", "input": 5, "agents": {"a": {"name": "x"}}}\n',
        b"\xff\n",
        b"no end of line",
    ],
)
def test_a_bad_request_harms_nobody(line: bytes, root: Path) -> None:
    with daemon(root) as pid:
        found = daemon_socket.find(root)
        assert found is not None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(found["socket"])
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").read()
        assert answer == b"" if not line.endswith(b"\n") else b'"error"' in answer
        assert ask(root, "status").items() >= {"pid": pid, **IDLE}.items()


# -- threads ------------------------------------------------------------------------------


def test_start_and_wait(root: Path) -> None:
    with daemon(root):
        id = start_thread(root, "sample", {"a": says({})})
        assert ask(root, "wait", id=id) == {"id": id, "status": ENDED}
        assert ask(root, "wait", id=id) == {"id": id, "status": ENDED}
        with pytest.raises(NotFound):
            ask(root, "wait", id="01K00000000000000000000000")


def test_what_cannot_start_is_refused_with_the_reason(root: Path) -> None:
    with daemon(root):
        with pytest.raises(Invalid, match="no agent for a"):
            start_thread(root, "sample", {})
        with pytest.raises(NotFound, match="no workflow 'other'"):
            start_thread(root, "other", {})
    with Store.open(root) as store:
        assert threads.list_threads(store) == []


def test_suspend_resume_and_cancel(root: Path, tmp_path: Path) -> None:
    luck = tmp_path / "luck"
    with daemon(root):
        first, second = (
            start_thread(root, "sample", {"a": says({}, f"[ -e {luck} ] || exit 1")})
            for _ in range(2)
        )
        for id in (first, second):
            assert ask(root, "wait", id=id)["status"] == SUSPENDED
        assert ask(root, "cancel", id=second) == {"id": second}
        assert status(root, second) == "cancelled"
        for op in ("cancel", "resume"):
            with pytest.raises(Conflict, match="cancelled"):
                ask(root, op, id=second)
        luck.touch()
        ask(root, "resume", id=first)
        assert ask(root, "wait", id=first)["status"] == ENDED
        with pytest.raises(Conflict, match="has succeeded, not suspended"):
            ask(root, "resume", id=first)


def test_a_thread_that_suspends_again_and_again(root: Path) -> None:
    with daemon(root):
        id = start_thread(root, "sample", {"a": says({}, "exit 1")})
        for _ in range(20):
            until(lambda: status(root, id) == SUSPENDED, "the suspension")
            ask(root, "resume", id=id)
        assert ask(root, "wait", id=id)["status"] == SUSPENDED
        assert len(record(root, id)["attempts"]) == 12
        assert record(root, id)["intent"]["attempt"] == 21


async def test_a_thread_resumed_before_its_last_task_is_gone(
    root: Path, tmp_path: Path, runtime_dir: Path
) -> None:
    """The head says `suspended` a moment before the task that wrote it ends."""
    path, go = runtime_dir / "s", tmp_path / "go"
    resumed: list[Any] = []

    def log(event: str, **fields: Any) -> None:  # called by the task that suspends
        if event == SUSPENDED and not resumed:
            resumed.append(talk(path, op="resume", id=fields["thread"]))

    with Store.open(root) as store:
        first = f"[ -e {tmp_path}/second ] || {{ : >{tmp_path}/second; exit 1; }}"
        agent = says({}, f"{first}; while [ ! -e {go} ]; do sleep 0.01; done")
        thread = begin(store, ONE, {"a": agent})
        async with trio.open_nursery() as nursery:
            serving = Daemon(store, DaemonSettings(dict(os.environ), 8, log))
            nursery.start_soon(serving.serve, path, lambda: None)
            while not resumed:
                await trio.sleep(0.01)
            for _ in range(20):
                answer = await trio.to_thread.run_sync(lambda: talk(path, op="status"))
                assert answer["ok"]["running"] == [thread.id]
            go.touch()
            ended = await trio.to_thread.run_sync(lambda: talk(path, op="wait", id=thread.id))
            nursery.cancel_scope.cancel()
    assert resumed == [{"ok": {"id": thread.id}}]
    assert ended["ok"]["status"] == ENDED


def talk(path: Path, **request: Any) -> Any:
    """One request and its answer, as JSON."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        return json.loads(connection.makefile("rb").readline())


def test_cancelling_ends_the_agent_and_removes_the_workspace(root: Path, tmp_path: Path) -> None:
    side = tmp_path / "side"
    with Store.open(root) as store:
        tree = store.put_node("directory", EMPTY).hash
    with daemon(root):
        agent = says({}, f"sleep 600 & echo $! >>{side}; echo $$ >>{side}; wait")
        id = start_thread(root, "sample", {"a": agent}, workspace=tree)
        until(lambda: len(pids(side)) == 2, "the agent")
        assert ask(root, "status")["running"] == [id]
        ask(root, "cancel", id=id)
        assert ask(root, "status")["running"] == []
        until(lambda: not any(map(alive, pids(side))), "the end of the agent")
    assert status(root, id) == "cancelled"
    assert os.listdir(root / "workspaces") == []


@pytest.mark.parametrize("op", ["cancel", "suspend"])
def test_what_a_program_wrote_before_it_was_stopped_is_kept(
    root: Path, tmp_path: Path, op: str
) -> None:
    side = tmp_path / "side"
    with daemon(root):
        agent = says({}, f"echo half the work; echo $$ >>{side}; sleep 600")
        id = start_thread(root, "sample", {"a": agent})
        until(lambda: pids(side), "the agent")
        ask(root, op, id=id)
    with Store.open(root) as store:
        record = threads.get(store, threads.ThreadId(id)).record
        held = record["attempts"]
        if op == "suspend":
            assert held == [], "a pause is no failed attempt"
            held = store.node(record["intent"]["paused"], "content").payload["artifacts"]
        (detail,) = (store.node(hash, "command-detail").payload for hash in held)
        assert store.get(detail["stdout"]) == b"half the work\n"


def test_threads_run_beside_each_other_up_to_the_limit(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CASFS_RUNS_LIMIT", "2")
    side, go = tmp_path / "side", tmp_path / "go"
    agent = says({}, f"echo $$ >>{side}; while [ ! -e {go} ]; do sleep 0.01; done")
    with daemon(root):
        ids = [start_thread(root, "sample", {"a": agent}) for _ in range(3)]
        until(lambda: len(pids(side)) == 2, "two agents")
        now = ask(root, "status")
        assert (now["running"], now["queued"], now["limit"]) == (sorted(ids[:2]), ids[2:], 2)
        ask(root, "cancel", id=ids[2])  # it is queued, and never runs
        go.touch()
        assert {ask(root, "wait", id=id)["status"] for id in ids[:2]} == {ENDED}
    assert len(pids(side)) == 2


def test_stopping_ends_agents_and_the_next_daemon_goes_on(root: Path, tmp_path: Path) -> None:
    side, go = tmp_path / "side", tmp_path / "go"
    agent = says({}, f"echo $$ >>{side}; while [ ! -e {go} ]; do sleep 0.01; done")
    with daemon(root):
        id = start_thread(root, "sample", {"a": agent})
        until(lambda: pids(side), "the agent")
    assert not alive(pids(side)[0])
    assert status(root, id) == RUNNING
    go.touch()
    with daemon(root):
        assert ask(root, "wait", id=id)["status"] == ENDED
    assert len(pids(side)) == 2


def test_a_damaged_thread_is_broken_and_hurts_no_other(root: Path) -> None:
    with Store.open(root) as store:
        bad = begin(store, ONE, {"a": says({})})
        good = begin(store, ONE, {"a": says({})})
        broken = {key: value for key, value in bad.record.items() if key != "start"}
        store.backend.publish([], [Swap(bad.name, bad.head, Head(bad.hash, broken))])
    with daemon(root):
        assert ask(root, "wait", id=good.id)["status"] == ENDED
        assert ask(root, "wait", id=bad.id)["status"] == BROKEN
    with Store.open(root) as store:
        assert threads.get(store, bad.id).head.record == broken


def test_a_waiting_client_that_goes_away_stops_nothing(root: Path, tmp_path: Path) -> None:
    side, go = tmp_path / "side", tmp_path / "go"
    agent = says({}, f"echo $$ >>{side}; while [ ! -e {go} ]; do sleep 0.01; done")
    with daemon(root):
        id = start_thread(root, "sample", {"a": agent})
        found = daemon_socket.find(root)
        assert found is not None
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(found["socket"])
            connection.sendall(b'{"op": "wait", "id": "%s"}\n' % id.encode())
            until(lambda: pids(side), "the agent")
        go.touch()
        assert ask(root, "wait", id=id)["status"] == ENDED


def test_the_command_line_waits_and_tells_how_it_ended(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: Any
) -> None:
    cli = Cli(root, monkeypatch, capfdbinary)
    luck = tmp_path / "luck"
    rules = [rule("__start__", "a"), rule("a", "__end__", "$steps[-1].meta.good")]
    add(root, workflow(rules, "picky", a=None))

    def agent(config: dict[str, Any]) -> tuple[str, str]:
        return "--agent", f"a=command:{json.dumps(config)}"

    begun = ("thread", "start", "sample", "--input", "Do it.", "--wait")
    with daemon(root) as pid:
        assert cli("status", "--json").json["daemon"]["pid"] == pid
        answer = cli(*begun, *agent(says({})))
        assert status(root, answer.word) == ENDED
        suspended = cli(*begun, *agent(says({}, f"[ -e {luck} ] || exit 1")), code=7)
        assert f"thread {suspended.word} is suspended: a: sh exited with 1" in suspended.err
        assert "casfs thread resume" in suspended.err
        again = cli("thread", "resume", suspended.word, "--wait", code=7).err
        assert f"casfs: thread {suspended.word} is suspended: " in again
        luck.touch()
        prefix = suspended.word[:-1].lower()
        ended = cli("thread", "resume", suspended.word, "--wait", "--json").json
        assert (ended["id"], ended["status"]) == (suspended.word, "succeeded")
        assert cli("thread", "show", prefix, "--json").json["id"] == suspended.word
        sad = cli("thread", "start", "picky", "--input", "x", *agent(says({})), "--wait", code=1)
        assert "has failed: no rule matches after a" in sad.err
        shown = cli("thread", "start", "sample", "--input", "x", *agent(says({})), "--json").json
        assert ask(root, "wait", id=shown["id"])["status"] == ENDED
        assert cli("thread", "cancel", shown["id"], code=4).err.endswith("has succeeded already\n")
        assert cli("thread", "cancel", "01J", code=3)
        lost = ("--workspace", str(tmp_path / "no"))
        assert f"no directory {tmp_path / 'no'}" in cli(*begun, *agent(says({})), *lost, code=3).err
        assert "no agent for a" in cli(*begun, code=4).err
        cli("thread", "log", shown["id"], "--follow")
        assert cli("daemon", "stop", "--json").json == {"pid": pid}
    cli("daemon", "stop", code=5)


# -- kill -9 ------------------------------------------------------------------------------


def chain(root: Path, id: str) -> list[int]:
    """The indices of a thread's steps. `threads.steps` raises where the chain is broken."""
    with Store.open(root) as store:
        found = threads.get(store, id)
        threads.steps(store, found)
        return [step["index"] for step in steps(store, found)]


def test_killed_while_an_agent_works(root: Path, tmp_path: Path) -> None:
    side, go, log = tmp_path / "side", tmp_path / "go", tmp_path / "log"
    add(root, loop(3))
    work = f"echo $CASFS_STEP >>{log}; echo $$ >>{side}; [ $CASFS_STEP != 2 ] ||"
    agent = says({}, f"{work} while [ ! -e {go} ]; do sleep 0.01; done")
    with daemon(root) as first:
        id = start_thread(root, "sample", {"a": agent})
        until(lambda: len(pids(side)) == 2, "the agent of step 2")
        orphan = pids(side)[1]
        until(lambda: record(root, id)["intent"]["pid"] == orphan, "its process in the intent")
        kill(first)
        assert alive(orphan)
        intent = record(root, id)["intent"]
        assert (intent["role"], intent["index"], intent["attempt"]) == ("a", 2, 1)
        assert chain(root, id) == [1]
        with daemon(root):
            until(lambda: len(pids(side)) == 3, "the agent that is run again")
            assert not alive(orphan)
            intent = record(root, id)["intent"]
            assert (intent["index"], intent["attempt"]) == (2, 2)
            assert chain(root, id) == [1]
            go.touch()
            assert ask(root, "wait", id=id)["status"] == ENDED
    assert chain(root, id) == [1, 2, 3]
    assert log.read_text().split() == ["1", "2", "2", "3"]
    assert os.listdir(root / "workspaces") == []


def test_killed_again_and_again(root: Path, tmp_path: Path) -> None:
    """At any instant: what is recorded stays, what was in flight is run once more."""
    log, kills, length = tmp_path / "log", 5, 12
    instants = random.Random(7)
    add(root, loop(length))
    with Store.open(root) as store:
        tree = store.put_node("directory", EMPTY).hash
    agent = says({}, f"echo $CASFS_STEP >>{log}; echo $CASFS_STEP >>seen")
    with daemon(root) as pid:
        id = start_thread(root, "sample", {"a": agent}, workspace=tree)
        time.sleep(instants.uniform(0, 0.2))
        kill(pid)
    seen = chain(root, id)
    for _ in range(kills - 1):
        with daemon(root) as pid:
            time.sleep(instants.uniform(0, 0.3))
            kill(pid)
        now = chain(root, id)
        assert now[: len(seen)] == seen
        seen = now
    with daemon(root):
        if ask(root, "wait", id=id)["status"] == SUSPENDED:  # three kills in one step
            assert record(root, id)["cause"] == UNKNOWN
            ask(root, "resume", id=id)
        assert ask(root, "wait", id=id)["status"] == ENDED
    expected = list(range(1, length + 1))
    assert chain(root, id) == expected
    runs = [int(line) for line in log.read_text().split()]
    assert sorted(set(runs)) == expected
    assert len(runs) <= length + kills
    assert runs == sorted(runs)
    with Store.open(root) as store:
        last = steps(store, threads.get(store, id))[-1]
        (seen_file,) = store.node(last["workspace"]).payload["files"]
        lines = store.get(seen_file["digest"]["hash"]).split()
        assert lines == [str(index).encode() for index in expected]

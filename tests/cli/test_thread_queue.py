"""Queued threads: what `status`, `thread list` and `thread show` say of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from casfs.cli.thread.queue import NO_DAEMON
from casfs.store.store import Store
from casfs.system import daemon_socket
from engine.workflow import registry as workflows
from tests.support.engine import ONE, Cli, daemon, pids, says, start_thread, until


@pytest.fixture
def agent(tmp_path: Path) -> dict[str, object]:
    """It writes its pid to `side` and runs until there is a file `go`."""
    side, go = tmp_path / "side", tmp_path / "go"
    return says({}, f"echo $$ >>{side}; while [ ! -e {go} ]; do sleep 0.01; done")


def listed(cli: Cli, *options: str) -> list[tuple[str, str, int | None]]:
    found = cli("thread", "list", *options, "--json").json
    return [(one["id"], one["status"], one["queuePlace"]) for one in found]


def test_their_place_is_shown(
    cli: Cli,
    opened: Store,
    agent: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workflows.add(opened, ONE)
    monkeypatch.setenv("CASFS_RUNS_LIMIT", "1")
    with daemon(cli.root) as pid:
        first, second, third = (start_thread(cli.root, "sample", {"a": agent}) for _ in range(3))
        until(lambda: pids(tmp_path / "side"), "the agent")
        state = cli("status", "--json").json["daemon"]
        assert (state["limit"], state["running"], state["called"]) == (1, [first], [])
        assert state["queued"] == [second, third]
        assert f"        running 1 of 1, queued 2\n        {first}\n" in cli("status").text
        assert "running 1 of 1, queued 2\n" in cli("daemon", "status").text
        rows = [(third, "queued", 2), (second, "queued", 1), (first, "running", None)]
        assert listed(cli) == rows
        assert listed(cli, "--status", "queued") == rows[:2]
        cells = [line.split("\t")[-1] for line in cli("thread", "list").text.splitlines()]
        assert cells == ["2 of 2", "1 of 2", ""]
        assert cli("thread", "show", third).text.startswith(
            f"{third}  sample  queued, place 2 of 2\n"
        )
        assert cli("thread", "show", third, "--json").json["queuePlace"] == 2
        cli("thread", "cancel", second)
        assert listed(cli)[0] == (third, "queued", 1)
        monkeypatch.setattr(daemon_socket, "STATUS_TIMEOUT_S", 0.1)
        os.kill(pid, signal.SIGSTOP)
        try:
            assert listed(cli)[0] == (third, "queued", None)
            assert "        does not say what it runs\n" in cli("status").text
        finally:
            os.kill(pid, signal.SIGCONT)
    assert listed(cli) == [
        (third, "queued", None),
        (second, "cancelled", None),
        (first, "interrupted", None),
    ]
    assert "daemon  none\n" in cli("status").text


def test_one_whose_step_was_interrupted_is_queued(
    cli: Cli,
    opened: Store,
    agent: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its record says `running`, as its step had begun in the last daemon. Between the two it is
    interrupted."""
    workflows.add(opened, ONE)
    with daemon(cli.root):
        first, second = (start_thread(cli.root, "sample", {"a": agent}) for _ in range(2))
        until(lambda: len(pids(tmp_path / "side")) == 2, "both agents")
    assert listed(cli) == [(second, "interrupted", None), (first, "interrupted", None)]
    assert cli("thread", "list", "--status", "running").text == ""
    for verb in (["list", "--status", "interrupted"], ["show", first]):
        answer = cli("thread", *verb)
        assert ("interrupted" in answer.text, "running" in answer.text) == (True, False)
        assert answer.err == f"casfs: warning: {NO_DAEMON}\n"
    monkeypatch.setenv("CASFS_RUNS_LIMIT", "1")
    with daemon(cli.root):
        (running,) = daemon_socket.request(cli.root, "status")["running"]
        assert {one[:2]: one[2] for one in listed(cli)} == {
            (running, "running"): None,
            (first if running == second else second, "queued"): 1,
        }


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("0", "runs.limit must be 1 or more, is 0"),
        ("-1", "runs.limit must be 1 or more, is -1"),
        ("many", "'many' is not a whole number"),
    ],
)
def test_a_limit_out_of_bounds_is_refused(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, limit: str, reason: str
) -> None:
    """Before a daemon starts, or the old one ends."""
    with daemon(cli.root) as pid:
        monkeypatch.setenv("CASFS_RUNS_LIMIT", limit)
        expected = f"casfs: CASFS_RUNS_LIMIT: {reason}\n"
        assert cli.refused("daemon", "restart", code=4) == expected
        assert daemon_socket.request(cli.root, "status")["pid"] == pid
    assert cli.refused("daemon", code=4) == expected

"""A thread that is watched: `log --follow`, `--wait`, and what a failed attempt leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import trio

from casfs.store.store import Store
from casfs.threads import threads
from engine.workflow import registry as workflows
from tests.support.engine import (
    DEADLINE,
    Cli,
    begin,
    carry_on,
    daemon,
    loop,
    says,
    start_thread,
    until,
)

COMMAND = [sys.executable, "-m", "casfs"]


def gated(go: Path) -> dict[str, object]:
    """Prints a line, waits for `go`, prints another."""
    waits = f"printf 'one\\033[2J\\n'; until [ -e {go} ]; do sleep 0.02; done; echo two"
    return says({}, f"if [ $CASFS_STEP = 1 ]; then {waits}; fi")


@contextmanager
def started_with_wait(
    cli: Cli, opened: Store, go: Path
) -> Iterator[tuple[subprocess.Popen[str], IO[str], IO[str]]]:
    """`thread start --wait` of a gated thread: the process, its stdout and its stderr."""
    workflows.add(opened, loop(2))
    agent = f"a=command:{json.dumps(gated(go))}"
    argv = [*COMMAND, "--store", str(cli.root), "thread", "start", "sample"]
    argv += ["--input", "x", "--agent", agent, "--wait"]
    pipe = subprocess.PIPE
    with (
        daemon(cli.root),
        subprocess.Popen(argv, stdout=pipe, stderr=pipe, text=True) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        yield process, process.stdout, process.stderr


def test_follow_prints_output_as_it_comes(cli: Cli, opened: Store, tmp_path: Path) -> None:
    workflows.add(opened, loop(2))
    go = tmp_path / "go"
    with daemon(cli.root):
        id = start_thread(cli.root, "sample", {"a": gated(go)})
        argv = [*COMMAND, "--store", str(cli.root), "thread", "log", id, "--follow"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(2)]
            assert lines == ["... 000001 a started\n", "one\\x1b[2J\n"]
            go.touch()
            rest = process.stdout.read()
            assert process.wait(DEADLINE) == 0
    assert rest.startswith("two\n```json\n{}\n```\n\n--- 000001 a finished, ")
    assert rest.count("two\n") == 1
    assert "--- 000002 a" in rest


def test_wait_reports_steps_on_stderr(cli: Cli, opened: Store, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with started_with_wait(cli, opened, go) as (process, stdout, stderr):
        assert stderr.readline() == "casfs: step 1 a: started\n"
        assert stderr.readline() == "one\\x1b[2J\n"
        go.touch()
        rest = stderr.read()
        assert process.wait(DEADLINE) == 0
        assert len(stdout.read().split()) == 1
    assert "two\n" in rest
    assert "casfs: step 1 a: finished, " in rest
    assert "casfs: step 2 a: finished, " in rest


def test_ctrl_c_says_that_the_thread_goes_on(cli: Cli, opened: Store, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with started_with_wait(cli, opened, go) as (process, stdout, stderr):
        id = stdout.readline().split()[0]
        stderr.readline()
        process.send_signal(signal.SIGINT)
        said = stderr.read()
        assert process.wait(DEADLINE) == 130
        assert f"casfs: thread {id} goes on; `casfs thread log {id} --follow` follows it" in said
        assert threads.get(opened, threads.ThreadId(id)).status == "running"
        go.touch()
        until(lambda: threads.get(opened, threads.ThreadId(id)).status == "ended")


def test_a_failed_attempt_is_shown_logged_and_found(cli: Cli, opened: Store) -> None:
    agent = says({}, "[ $CASFS_STEP = 1 ] || { echo half; echo bo''om went it >&2; exit 3; }")
    made = trio.run(carry_on, opened, begin(opened, loop(2), {"a": agent}))
    shown = cli("thread", "show", made.id).text
    assert "     2 a              failed\n" in shown
    assert "       failed attempt 1: sh exited with 3: boom went it\n" in shown
    (attempt,) = cli("thread", "show", made.id, "--json").json["attempts"]
    assert (attempt["exitCode"], attempt["stderr"]) == (3, "boom went it\n")
    log = cli("thread", "log", made.id).text
    assert log.endswith(
        "--- 000002 a failed attempt 1\n"
        "sh exited with 3: boom went it\nstdout:\nhalf\nstderr:\nboom went it\n\n"
    )
    assert cli("thread", "log", made.id, "--follow").text == log
    (hit,) = [one for one in cli("search", "boom", "--json").json if one["thread"]]
    assert (hit["path"], hit["thread"]) == (f"threads/{made.id}/attempts/0000/", made.id)
    assert "boom went it" in hit["snippet"]
    assert len(cli("search", "boom", "--thread", made.id[-6:]).text.splitlines()) == 1
    lines = [json.loads(line) for line in cli("thread", "log", made.id, "--json").text.splitlines()]
    assert (lines[1]["failedAttempt"], lines[1]["role"]) == (1, "a")
    with daemon(cli.root):
        said = cli("thread", "resume", made.id, "--wait", code=7).err
        assert f"see `casfs thread log {made.id}`; `casfs thread resume {made.id}` tries" in said
    assert "     2 a              failed (attempt 2)\n" in cli("thread", "show", made.id).text


def test_the_list_tells_endings_apart(cli: Cli, opened: Store) -> None:
    """The newest first, and only those that are asked for."""
    done = trio.run(carry_on, opened, begin(opened, loop(1), {"a": says({})}))
    fails = trio.run(carry_on, opened, begin(opened, loop(1), {"a": says({}, "exit 1")}))
    flow = {**loop(1), "name": "other"}
    flow["moderator"] = [*flow["moderator"][:1], {"from": "a", "to": "__end__", "when": "false"}]
    stuck = trio.run(carry_on, opened, begin(opened, flow, {"a": says({})}))
    waits = begin(opened, loop(1), {"a": says({})})
    found = cli("thread", "list", "--json").json
    assert [(one["id"], one["status"]) for one in found] == [
        (waits.id, "queued"),
        (stuck.id, "failed"),
        (fails.id, "suspended"),
        (done.id, "succeeded"),
    ]
    assert {one["task"] for one in found} == {"Do it."}
    assert [one["role"] for one in found] == [None, None, "a", None]

    def ids(*options: str) -> list[str]:
        return [one["id"] for one in cli("thread", "list", *options, "--json").json]

    assert ids("--status", "failed", "--status", "suspended") == [stuck.id, fails.id]
    assert ids("--workflow", "other") == [stuck.id]
    assert ids("--limit", "1") == [waits.id]
    cells = cli("thread", "list").text.splitlines()[2].split("\t")
    assert (cells[0], cells[1], cells[2], cells[4]) == (fails.id, "suspended", "a", "Do it.")
    cli("thread", "show", fails.id[-6:])

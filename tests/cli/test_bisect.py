"""`casfs bisect` and `casfs thread bisect`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.system import mounts
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import strategies, strategy_choice
from engine.threads import lifecycle
from engine.threads.agent_binding import Binding
from engine.threads.lifecycle import ThreadRequest
from engine.workflow import registry as workflows
from tests.support.cli import run_thread
from tests.support.engine import ONE, Cli, alive, begin, pids, rule, says, until, workflow
from tests.support.helpers import put_tree, write_tree
from tests.support.model_server import served, text, tool_calls
from tests.support.thread_example import Example, make_thread

CHILD = "01JD0000000000000000000001"
LIMIT = 6  # the content of `n` from which on CMD fails


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The file that gets a line of each run of CMD: the content of `n`."""
    return tmp_path / "runs"


@pytest.fixture
def check(runs: Path) -> tuple[str, ...]:
    return (
        "--",
        "sh",
        "-c",
        f'cat n >>{runs}; echo junk >n; : >new; test "$(tail -1 {runs})" -lt {LIMIT}',
    )


def tree(number: int, **more: Any) -> dict[str, Any]:
    return {"n": b"%d\n" % number, **more}


def record(thread: Example, store: Store, *numbers: int, **more: Any) -> None:
    thread.store = store
    for number in numbers:
        thread.tree = put_tree(store, tree(number))
        thread.step("planner", f"said \x1b[31m{number}", **more)


def make(
    store: Store, *numbers: int, id: str = "01JD0000000000000000000000", **record_: Any
) -> Example:
    """A thread that begins with the first number, and has a step for each other."""
    thread = make_thread(store, id, **record_)
    start = {**store.node(thread.start).payload, "workspace": put_tree(store, tree(numbers[0]))}
    thread.start = store.put_node("thread-start", start).hash
    thread.move(thread.start, start=thread.start)
    record(thread, store, *numbers[1:])
    return thread


@pytest.fixture
def thread(cli: Cli) -> Example:
    """Steps 1 to 12; steps 3, 4, 5 have the same tree, and step 10 is the first bad one."""
    with Store.open(cli.root) as store:
        return make(store, 0, 1, 2, 3, 3, 3, 4, 4, 5, 5, 6, 6, 7, name="fix")


def ran(runs: Path) -> list[int]:
    return [int(line) for line in runs.read_text().splitlines()]


def test_of_a_thread(cli: Cli, thread: Example, runs: Path, check: tuple[str, ...]) -> None:
    said = cli("thread", "bisect", "fix", *check).text
    assert ran(runs) == [0, 7, 3, 5, 6]
    lines = said.splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["good", "bad", "good", "good", "bad"]
    assert " s        00000000@3 planner command 2023-" in lines[2]
    assert lines[5] == "00000000@10 planner command 2023-11-14T22:13:30Z"
    assert lines[6:12] == ["diff --git a/n b/n", "--- a/n", "+++ b/n", "@@ -1 +1 @@", "-5", "+6"]
    assert "--- end of its prompt" in lines
    assert lines[-2:] == ["--- end of its output", "said \\x1b[31m6"]
    with Store.open(cli.root) as store:
        assert not (store.root / "tests").exists()


def test_the_second_runs_nothing(
    cli: Cli, thread: Example, runs: Path, check: tuple[str, ...]
) -> None:
    first = cli("thread", "bisect", "fix", "--json", *check).json
    runs.unlink()
    second = cli("thread", "bisect", "fix", "--json", *check).json
    assert not runs.exists()
    assert [row["hit"] for row in first["runs"]] == [False] * 5
    assert [row["hit"] for row in second["runs"]] == [True] * 5
    assert second["found"] == first["found"]
    assert [row["version"]["step"] for row in first["runs"]] == [0, 12, 3, 8, 10]
    assert [row["exitCode"] for row in first["runs"]] == [0, 1, 0, 0, 1]
    [found] = first["found"]
    assert found["version"]["revision"] == f"{thread.id}@10"
    assert found["patch"].endswith("-5\n+6\n")
    assert "Fix the parser." in found["prompt"]
    assert found["output"] == "said \x1b[31m6"
    assert " cached " in cli("thread", "bisect", "fix", *check).text
    shown = cli("action", "show", second["runs"][1]["action"]).text
    assert f"result: {second['runs'][1]['result']}, exit code 1, " in shown


def test_no_cache_runs_again(cli: Cli, thread: Example, runs: Path, check: tuple[str, ...]) -> None:
    for _ in range(2):
        value = cli("bisect", "fix", "--no-cache", "--json", *check).json
        assert value["found"][0]["version"]["step"] == 10
    assert ran(runs) == [0, 7, 3, 5, 6] * 2


def test_a_missing_program_is_not_cached(cli: Cli, thread: Example, tmp_path: Path) -> None:
    program = tmp_path / "program"
    argv = ("--", "sh", "-c", f"test $(cat n) -lt 6 || {program}")
    assert [row["exitCode"] for row in cli("bisect", "fix", "--json", *argv).json["runs"]][1] == 127
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert "is good: give another --bad" in cli("bisect", "fix", *argv, code=4).err


def test_a_failure_is_none_for_action_run(cli: Cli, tmp_path: Path) -> None:
    """A command that bisect has run, with the same environment and the same tree."""
    with Store.open(cli.root) as store:
        make(store, 0, 9, name="fix")
    argv = ("--", "sh", "-c", "test $(cat n) -lt 6")
    cli("bisect", "fix", *argv)
    bad = write_tree(tmp_path / "bad", tree(9))
    err = cli("action", "run", "--cache", "--input", str(bad), *argv, code=1).err
    assert "miss" in err


def test_ends(cli: Cli, thread: Example, runs: Path, check: tuple[str, ...]) -> None:
    found = cli("thread", "bisect", "fix", "--good", "8", "--bad", "10", "--json", *check).json
    assert [row["version"]["step"] for row in found["runs"]] == [8, 10]
    assert found["found"][0]["version"]["step"] == 10
    said = cli("thread", "bisect", "fix", "--good", "11", *check, code=4)
    assert said.err.endswith("@11 is bad: give another --good\n")
    assert cli("thread", "bisect", "fix", "--bad", "9", *check, code=4).err.endswith(
        "@8 is good: give another --bad\n"
    )
    assert "is not before" in cli.refused("thread", "bisect", "fix", "--good", "12", *check, code=3)
    assert "is not before" in cli.refused("bisect", "fix@3", "--good", "fix@5", *check, code=3)
    assert "has a path" in cli.refused("bisect", "fix:n", *check, code=3)
    assert "no step" in cli.refused("thread", "bisect", "fix", "--bad", "44", *check, code=3)
    assert "no thread" in cli.refused("thread", "bisect", "none", *check, code=3)
    assert "Missing" in cli("thread", "bisect", "fix", code=2).err


def flaky(runs: Path, *numbers: int) -> tuple[str, ...]:
    """A CMD that passes every second time on trees with these numbers."""
    odd = f"test $(($(grep -c ^$n$ {runs}) % 2)) = 1"
    cases = "|".join(map(str, numbers))
    script = (
        f"read n <n; echo $n >>{runs}; case $n in {cases}) {odd};; *) test $n -lt {LIMIT};; esac"
    )
    return ("--", "sh", "-c", script)


def test_a_flaky_command(cli: Cli, thread: Example, runs: Path) -> None:
    said = cli("bisect", "fix", "--repeat", "3", *flaky(runs, 5), code=1)
    assert ran(runs) == [number for number in (0, 7, 3, 5, 4, 6) for _ in range(3)]
    assert [line.split()[0] for line in said.text.splitlines()[:6]] == [
        "good", "bad", "good", "flaky", "good", "bad",
    ]  # fmt: skip
    assert "one of these 2, of which all but the last were skipped:" in said.text
    assert "CMD is flaky: its runs differ on 00000000@8" in said.err
    value = cli("bisect", "fix", "--repeat", "2", "--json", *flaky(runs, 5), code=1).json
    assert [row["outcome"] for row in value["runs"]][3] == "flaky"
    assert len(value["found"]) == 2


def test_a_flaky_end(cli: Cli, thread: Example, runs: Path) -> None:
    said = cli("bisect", "fix", "--repeat", "2", *flaky(runs, 7), code=4)
    assert said.err.endswith("@12 is flaky: give another --bad\n")


def test_a_steady_command_repeated(
    cli: Cli, thread: Example, runs: Path, check: tuple[str, ...]
) -> None:
    said = cli("bisect", "fix", "--repeat", "2", *check)
    assert ran(runs) == [number for number in (0, 7, 3, 5, 6) for _ in range(2)]
    assert "flaky" not in said.err
    assert "00000000@10 planner" in said.text


def test_skips(cli: Cli, thread: Example, runs: Path) -> None:
    script = f"read n <n; echo $n >>{runs}; case $n in 4|5) exit 125; esac; test $n -lt 6"
    said = cli("thread", "bisect", "fix", "--", "sh", "-c", script, code=1)
    assert ran(runs) == [0, 7, 3, 5, 4, 6]
    lines = said.text.splitlines()
    assert [line.split()[0] for line in lines[:6]] == [
        "good", "bad", "good", "skipped", "skipped", "bad",
    ]  # fmt: skip
    assert lines[6] == "one of these 3, of which all but the last were skipped:"
    assert [line.split()[0] for line in lines[7:]] == ["00000000@6", "00000000@8", "00000000@10"]
    value = cli("thread", "bisect", "fix", "--json", "--", "sh", "-c", script, code=1).json
    assert [one["version"]["step"] for one in value["found"]] == [6, 8, 10]
    err = cli("bisect", "fix", "--good", "6", "--", "sh", "-c", script, code=4).err
    assert err.endswith("@6 is skipped: give another --good\n")


@pytest.mark.parametrize(
    ("script", "code"), [("exit 128", 128), ("exit 255", 255), ("kill -9 $$", -9)]
)
def test_what_ends_the_search(cli: Cli, thread: Example, script: str, code: int) -> None:
    said = cli("thread", "bisect", "fix", "--", "sh", "-c", script, code=1)
    assert said.err == f"casfs: exit code {code} of CMD on {thread.id}@0\n"
    assert "no program 'nowhere'" in cli("bisect", "fix", "--", "nowhere", code=3).err
    assert cli("action", "list").text == "", "it is not cached"


def test_what_cmd_sees(cli: Cli, thread: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "1")
    monkeypatch.setenv("TWO", "2")
    script = "env >&2; cat; echo out; test $(cat n) -lt 6"
    said = cli("bisect", "fix", "--env", "ONE", "--env", "UNSET", "--", "sh", "-c", script)
    assert "ONE=1" in said.err
    assert f"CASFS_TREE={thread.tree}" in said.err
    assert "TWO" not in said.err
    assert said.err.count("out\n") == 5
    assert "out" not in said.text.split("---")[0].splitlines()[0]


def test_without_overlays_the_workspace_is_a_copy(
    cli: Cli,
    thread: Example,
    runs: Path,
    check: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = strategies.STRATEGIES[strategies.COPY]
    monkeypatch.setattr(strategy_choice, "choose", lambda name, store: [copy])
    assert cli("bisect", "fix", "--json", *check).json["found"][0]["version"]["step"] == 10
    assert ran(runs) == [0, 7, 3, 5, 6], "what the run before wrote is gone"
    assert not (cli.root / "tests").exists()


def test_of_checkpoints(cli: Cli, runs: Path, check: tuple[str, ...], tmp_path: Path) -> None:
    for number in (1, 2, 5, 6, 7):
        folder = write_tree(tmp_path / f"tree{number}", tree(number))
        cli("checkpoint", "create", "app", str(folder), "-m", f"message {number}")
    lines = cli("bisect", "app", *check).text.splitlines()
    assert ran(runs) == [1, 7, 5, 6]
    assert lines[4].endswith(" message 6")
    assert lines[-1] == "+6"
    value = cli("bisect", "app", "--good", "app~3", "--bad", "app~1", "--json", *check).json
    assert [row["version"]["message"] for row in value["runs"]] == [
        f"message {n}" for n in (2, 6, 5)
    ]
    assert value["found"][0]["version"]["message"] == "message 6"
    assert value["found"][0]["prompt"] is None


def test_a_name_of_both_a_checkpoint_and_a_thread(
    cli: Cli, thread: Example, check: tuple[str, ...], tmp_path: Path
) -> None:
    folder = write_tree(tmp_path / "tree", tree(1))
    cli("checkpoint", "create", "fix", str(folder))
    assert (
        cli("thread", "bisect", "fix", "--json", *check).json["found"][0]["version"]["step"] == 10
    )
    assert "is not before" in cli.refused("bisect", "fix", *check, code=3)


def test_in_called_threads(cli: Cli, runs: Path, check: tuple[str, ...]) -> None:
    with Store.open(cli.root) as store:
        parent = make(store, 0, 1, 2, name="parent")
        harmless = make(store, 2, 3, id=CHILD)
        broken = make(store, 3, 4, 5, 6, 6, 7, id=CHILD[:-1] + "2")
        ends = [harmless.end(), broken.end()]
        record(parent, store, 7, children=ends)
        record(parent, store, 8)
    value = cli("thread", "bisect", "parent", "--json", *check).json
    assert [row["version"]["revision"][-4:] for row in value["runs"]] == [
        "00@0", "00@4", "00@2", "00@3", "01@1", "02@2", "02@3",
    ]  # fmt: skip
    assert value["found"][0]["version"]["revision"] == f"{broken.id}@3"
    assert value["found"][0]["output"] == "said \x1b[31m6"


def test_a_step_that_broke_it_beside_its_call(cli: Cli, check: tuple[str, ...]) -> None:
    with Store.open(cli.root) as store:
        parent = make(store, 0, 1, name="parent")
        ends = [make(store, 1, 2, id=CHILD).end(), make_thread(store, CHILD[:-1] + "3").end()]
        record(parent, store, 7, children=ends)
    value = cli("thread", "bisect", "parent", "--json", *check).json
    assert value["found"][0]["version"]["revision"] == f"{parent.id}@2"


def test_in_the_turns_of_a_step(cli: Cli, opened: Store, check: tuple[str, ...]) -> None:
    """An agent whose turns have trees (`turnTrees`): the tool call that broke it is found."""

    def write(path: str, data: str) -> tuple[str, str]:
        return "write_file", json.dumps({"path": path, "text": data})

    script = [
        tool_calls(write("n", "3\n")),
        tool_calls(write("m", "1\n"), write("n", "8\n")),
        tool_calls(write("m", "2\n")),
        text("```json\n{}\n```"),
    ]
    with served(*script) as model:
        config = {"baseUrl": model.url, "model": "m", "turnTrees": True}
        hash, _ = workflows.add(opened, ONE)
        agents = {"a": Binding("react", config)}
        request = ThreadRequest(hash, "Do it.", agents, RecordedState(put_tree(opened, tree(1))))
        thread = run_thread(opened, lifecycle.create(opened, request))
    assert thread.status == "ended", thread.record
    value = cli("thread", "bisect", thread.id, "--json", *check).json
    [found] = value["found"]
    assert found["version"]["revision"] == f"{thread.id}@1.2"
    assert found["patch"].endswith("-3\n+8\n")
    assert cli("bisect", thread.id, *check).text.count(" cached ") == len(value["runs"])
    assert "is a turn" in cli.refused("bisect", f"{thread.id}@1.2", *check, code=3)
    ends = "--good", f"{thread.id}@1.1", *check
    assert "is not before" in cli.refused("bisect", thread.id, *ends, code=3)
    value = cli("blame", f"{thread.id}@1.2:n", "--json").json
    assert value[0]["version"]["revision"] == f"{thread.id}@1.2"
    value = cli("log", f"{thread.id}@1.2:n", "--json").json
    shown = [one["version"]["revision"] for one in value]
    assert shown == [f"{thread.id}@{one}" for one in ("1.2", "1.1", "0")]


def test_a_thread_of_command_agents(cli: Cli, opened: Store, runs: Path) -> None:
    """A real run: a writer and a shell formatter, in turn; what they leave is a real project."""
    rules = [
        rule("__start__", "writer"),
        rule("writer", "formatter"),
        rule("formatter", "writer", "$count($steps) < 8"),
        rule("formatter", "__end__"),
    ]
    more = 'n=$(ls notes | wc -l); echo "note $n" >notes/$n; [ $n -ne 3 ] || echo "exit 1" >>run.sh'
    agents = {"writer": says({}, more), "formatter": says({}, "touch notes")}
    first = put_tree(opened, {"run.sh": b"set -e\n", "notes": {"0": b"note 0\n"}})
    thread = begin(opened, workflow(rules, writer=None, formatter=None), agents, first)
    assert run_thread(opened, thread).status == "ended"
    argv = ("--", "sh", "-c", f"echo x >>{runs}; sh run.sh")
    value = cli("thread", "bisect", thread.id, "--json", *argv).json
    [found] = value["found"]
    assert (found["version"]["step"], found["version"]["role"]) == (5, "writer")
    assert "You are the writer." in found["prompt"]
    assert "+exit 1" in found["patch"].splitlines()
    assert [row["version"]["step"] for row in value["runs"]] == [0, 7, 3, 5]
    assert len(runs.read_text().splitlines()) == 4, "steps of the formatter are not run"


def test_of_a_killed_bisect_nothing_is_left(cli: Cli, thread: Example, tmp_path: Path) -> None:
    pid_file = tmp_path / "pids"
    argv = [sys.executable, "-m", "casfs", "--store", str(cli.root), "bisect", "fix", "--"]
    script = f"echo $$ >>{pid_file}; sleep 600"
    with subprocess.Popen([*argv, "sh", "-c", script]) as process:
        try:
            until(lambda: pids(pid_file), "the first run")
        finally:
            process.kill()
    [left] = pids(pid_file)
    try:
        assert alive(left)
        assert (cli.root / "tests").exists()
        # The same command again ends what the killed one left behind, and then runs anew.
        with subprocess.Popen([*argv, "sh", "-c", script]) as process:
            try:
                until(lambda: len(pids(pid_file)) == 2, "the second first run")
                assert not alive(left)
            finally:
                process.send_signal(signal.SIGTERM)
        until(lambda: not alive(pids(pid_file)[1]), "the end of CMD")
        assert process.returncode == 128 + signal.SIGTERM
        assert not (cli.root / "tests").exists()
        assert mounts.mounted_below(cli.root.resolve()) == []
    finally:
        for pid in pids(pid_file):
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        for point in mounts.mounted_below(cli.root.resolve()):
            mounts.unmount(point, lazy=True)

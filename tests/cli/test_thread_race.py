"""The first of several threads that passes wins, whatever is killed in between."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casfs import canonical
from casfs.checkpoints import checkpoint
from casfs.store.store import Store
from engine.workflow import registry as workflows
from tests.support.engine import (
    STATUS,
    Cli,
    daemon,
    kill,
    rule,
    says,
    start_thread,
    until,
    workflow,
)
from tests.support.helpers import put_tree, read_tree, write_tree

DONE = rule("a", "__end__", "$last('a').meta.status = 'done'")  # else: return code 1
FLOW = workflow([rule("__start__", "a"), DONE], a=STATUS)


class Field:
    """Threads of one step, each of which ends once its gate is open."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        self.cli = cli
        self.folder = folder
        with Store.open(cli.root) as store:
            workflows.add(store, FLOW)
            self.tree = put_tree(store, {"text": b"before\n"})

    def start(self, name: str, text: str, status: str = "done") -> str:
        gate = self.folder / name
        script = f"while [ ! -e {gate} ]; do sleep 0.02; done; echo {text} >text"
        agents = {"a": says({"status": status}, script)}
        return start_thread(self.cli.root, "sample", agents, workspace=self.tree, name=name)

    def open(self, name: str) -> None:
        """Opens a gate and waits for the end of the thread."""
        (self.folder / name).touch()
        over = ("succeeded", "failed")
        until(lambda: self.cli("thread", "show", name, "--json").json["status"] in over, name)

    def states(self, *names: str) -> list[str]:
        shown = self.cli("thread", "compare", *names, "--json").json
        return [one["status"] for one in shown]

    def checkpoints(self, name: str) -> list[str]:
        with Store.open(self.cli.root) as store:
            return [one.message for one in checkpoint.listing(store, name)]

    def race(self, *arguments: str | Path) -> subprocess.Popen[str]:
        """A race as a process of its own, in a session of its own."""
        words = ["--store", self.cli.root, "thread", "race", *arguments]
        command = [sys.executable, "-m", "casfs", *map(str, words)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, start_new_session=True, **pipes)


@pytest.fixture
def field(cli: Cli, tmp_path: Path) -> Field:
    folder = tmp_path / "gates"
    folder.mkdir()
    return Field(cli, folder)


@pytest.fixture
def running(field: Field) -> Iterator[int]:
    with daemon(field.cli.root) as pid:
        yield pid


def test_the_first_success_wins(field: Field, running: int, tmp_path: Path) -> None:
    cli, place = field.cli, write_tree(tmp_path / "project", {"text": b"before\n"})
    ids = {name: field.start(name, name) for name in ("slow", "fast", "never")}
    ids["wrong"] = field.start("wrong", "wrong", "failed")
    names = ("slow", "fast", "wrong", "never")
    for name in ("wrong", "fast", "slow"):
        field.open(name)
    race = ("thread", "race", *names, "--first-success", "--cancel-rest", "--apply", place)
    said, applied = cli(*race, "--promote", "best", "--json").json_lines
    assert said["winner"] == ids["fast"]
    assert applied["changes"] == [{"letter": "M", "path": "text"}]
    of = {id: name for name, id in ids.items()}
    outcomes = {
        of[one["id"]]: (one["status"], one["steps"], one["files"]) for one in said["threads"]
    }
    assert outcomes == {
        "slow": ("succeeded", 1, 1),
        "fast": ("succeeded", 1, 1),
        "wrong": ("failed", 1, 1),
        "never": ("cancelled", 0, 0),
    }
    summary = cli("thread", "show", "never", "--json").json["summary"]
    assert summary == f"cancelled: thread {ids['fast']} won the race"
    assert read_tree(place)[b"text"] == b"fast\n"
    assert cli("ls", said["checkpoint"]).text == "text\n"
    again = cli(*race, "--promote", "best").text.splitlines()
    assert again[0] == f"{ids['fast']} won {said['checkpoint']}"
    assert [line.split("\t")[0] for line in again[1:-1]] == [ids[name] for name in names]
    assert again[-1] == "nothing to apply"
    assert field.checkpoints("best") == [f"won by thread {ids['fast']}"]


def test_the_first_that_passes_the_command_wins(field: Field, running: int) -> None:
    cli, names = field.cli, ("one", "two", "three", "never")
    ids = {name: field.start(name, name) for name in names}
    for name in ("three", "two", "one"):
        field.open(name)
    ran = field.folder / "ran"
    test = f"cat text >>{ran}; grep -q o text"
    said = cli("thread", "race", *names, "--until", test, "--promote", "best", "--json").json
    assert said["winner"] == ids["two"]
    assert [one["exitCode"] for one in said["threads"]] == [None, 0, 1, None]
    assert ran.read_text() == "three\ntwo\n", "in the order in which they ended"
    assert field.states("never") == ["running"], "no one cancelled it"
    again = cli("thread", "race", *names, "--until", test).text
    assert again.startswith(f"{ids['two']} won\n")
    shown = cli("thread", "compare", *names[:3], "--json", "--", "sh", "-c", test).json
    assert [one["exitCode"] for one in shown] == [0, 0, 1]
    assert ran.read_text() == "three\ntwo\none\n", "the others are in the action cache"
    assert cli("thread", "race", "one", "--until", "./missing", code=1).text.count("\t127\t") == 1
    field.open("never")


def test_none_passes(field: Field, running: int) -> None:
    field.start("wrong", "wrong", "failed")
    field.open("wrong")
    said = field.cli("thread", "race", "wrong", "--first-success", code=1)
    assert said.text.startswith("none passed\n")
    assert (
        field.cli("thread", "race", "wrong", "--first-success", "--json", code=1).json["winner"]
        is None
    )


def test_what_is_refused(field: Field, running: int) -> None:
    def refused(*arguments: str, code: int) -> str:
        return field.cli("thread", "race", *arguments, code=code).err

    field.start("one", "one")
    assert "either --until" in refused("one", code=2)
    assert "either --until" in refused("one", "--until", "true", "--first-success", code=2)
    assert "latest" in refused("one", "--first-success", "--promote", "latest", code=4)
    assert "no thread 'other'" in refused("one", "other", "--first-success", code=3)
    field.open("one")


def test_all_goes_on_when_daemon_and_race_are_killed(field: Field, tmp_path: Path) -> None:
    cli, names = field.cli, ("one", "two", "three")
    arguments = (*names, "--first-success", "--cancel-rest", "--promote", "best")
    with daemon(cli.root) as pid:
        ids = [field.start(name, name) for name in names]
        first, second = field.race(*arguments), field.race(*arguments)
        until(lambda: field.states(*names) == ["running"] * 3)
        kill(pid)
    kill(first.pid)
    first.communicate()
    assert second.poll() is None, "it waits for another daemon"
    with daemon(cli.root):
        third = field.race(*arguments)
        field.open("two")
        said = [one.communicate(timeout=60) for one in (second, third)]
        assert [(second.returncode, third.returncode)] == [(0, 0)], said
        assert {out.split("\n")[0].split()[0] for out, _ in said} == {ids[1]}
        assert field.states(*names) == ["cancelled", "succeeded", "cancelled"]
    assert field.checkpoints("best") == [f"won by thread {ids[1]}"]
    assert cli("cat", "best:text").text == "two\n"


def test_a_race_that_is_killed_while_it_tests_goes_on(field: Field, running: int) -> None:
    names, begun, go = ("one", "two"), field.folder / "begun", field.folder / "go"
    ids = [field.start(name, name) for name in names]
    script = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.02; done; grep -q two text"
    arguments = (*names, "--until", script, "--promote", "best")
    first = field.race(*arguments)
    field.open("one")
    until(begun.exists)
    kill(first.pid)
    first.communicate()
    field.open("two")
    go.touch()
    said = field.cli("thread", "race", *arguments).text.splitlines()
    assert said[0].startswith(f"{ids[1]} won best@")
    assert [line.split("\t")[6] for line in said[1:]] == ["1", "0"]
    assert field.checkpoints("best") == [f"won by thread {ids[1]}"]


def test_compare_names_what_differs(field: Field, running: int) -> None:
    cli = field.cli
    id = field.start("old", "old")
    field.open("old")
    configs = [says({"status": "done"}, f"echo {n} >text") for n in "xy"]
    agents = [f"a=command:{canonical.encode(one).decode()}" for one in configs]
    given = [word for one in agents for word in ("--agent", one)]
    ids = cli("thread", "fork", id, "--at", "0", "--count", "2", *given).text.splitlines()
    until(lambda: field.states(*ids) == ["succeeded"] * 2)
    rows = [line.split("\t") for line in cli("thread", "compare", id, *ids).text.splitlines()]
    assert [row[0] for row in rows] == [id, *ids]
    assert [row[1:4] + row[5:7] for row in rows] == [["succeeded", "1", "0", "1", ""]] * 3
    assert [row[7] for row in rows[1:]] == agents, "as --agent takes it"
    same = cli("thread", "compare", ids[0], ids[0]).text.splitlines()
    assert [line.split("\t")[7] for line in same] == [""]

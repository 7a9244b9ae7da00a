"""Variables that an agent's config names and the daemon does not have: a command lends its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.system import daemon_socket
from engine.agents import loader
from engine.workflow import registry as workflows
from tests.support.engine import Cli, daemon, loop, says
from tests.support.helpers import write_tree

NAME, VALUE = "MYKEY", "kx93-plum-blossom-viaduct"
PRINTS = f"printf %s ${NAME} | wc -c | tr -d ' ' >>len; echo ${NAME}; printenv OTHER >>other"


@pytest.fixture
def agent(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    with Store.open(cli.root) as store:
        workflows.add(store, loop(1))
    monkeypatch.delenv(NAME, raising=False)
    return f"a=command:{json.dumps(says({}, PRINTS) | {'secrets': [NAME]})}"


def test_a_start_and_a_fork(
    cli: Cli, agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = write_tree(tmp_path / "w", {"x": b"1"})
    start = ("thread", "start", "sample", "--input", "x", "--workspace", place, "--wait")
    with daemon(cli.root):
        cli(*start, "--agent", agent, "--name", "without")
        monkeypatch.setenv(NAME, VALUE)
        monkeypatch.setenv("OTHER", "not named")
        cli(*start, "--agent", agent, "--name", "with")
        cli("thread", "fork", "without", "--at", "0", "--name", "fork", "--wait")
        monkeypatch.delenv(NAME)
        cli(*start, "--agent", agent, "--name", "after")
    for name, length in (("without", b"0"), ("with", b"%d" % len(VALUE)), ("after", b"0")):
        assert cli("cat", f"{name}:len").out == length + b"\n"
    assert cli("cat", "fork:len").out == b"%d\n" % len(VALUE)
    assert cli("cat", "with:other").out == b"", "what no config names is not lent"
    assert cli("grep", VALUE, code=1).out == b"", "it is redacted"


def test_variables_that_are_no_secrets(cli: Cli) -> None:
    config = {"model": "m", "baseUrlEnv": "A_URL", "apiKeyEnv": "A_KEY"}
    assert loader.load("llm").variable_names(config) == {"A_URL", "A_KEY"}
    assert loader.load("llm").secret_names(config) == {"A_KEY"}


def test_a_program_that_is_served_lends_nothing(
    cli: Cli, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the agent that asks may have chosen where the value goes."""
    config = json.loads(agent.removeprefix("a=command:"))
    with daemon(cli.root):
        monkeypatch.setenv(NAME, VALUE)
        made = daemon_socket.request(
            cli.root,
            "start",
            workflow="sample",
            input="x",
            agents={"a": {"name": "command", "config": config}},
        )
        daemon_socket.request(cli.root, "wait", id=made["id"])
    assert cli("cat", f"{made['id']}:len").out == b"0\n"


def test_a_summariser_is_lent_them_too(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = tmp_path / "lengths"
    script = f"printf %s ${NAME} | wc -c >>{lengths}"
    writer = f"command:{json.dumps(says({'summary': 'all'}, script) | {'secrets': [NAME]})}"
    with Store.open(cli.root) as store:
        workflows.add(store, loop(3))
    monkeypatch.delenv(NAME, raising=False)
    with daemon(cli.root):
        monkeypatch.setenv(NAME, VALUE)
        start = ("thread", "start", loop(3)["name"], "--input", "x", "--wait")
        agent = f"a=command:{json.dumps(says({}))}"
        cli(*start, "--agent", agent, "--compact-above", "1", "--compact-by", writer)
    assert {int(line) for line in lengths.read_text().split()} == {len(VALUE)}


def test_no_variable_of_the_daemon_is_replaced(
    cli: Cli, agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads(agent.removeprefix("a=command:"))
    monkeypatch.setenv(NAME, VALUE)
    with daemon(cli.root):
        started = daemon_socket.request(
            cli.root,
            "start",
            workflow="sample",
            input="x",
            agents={"a": {"name": "command", "config": config}},
            lent={NAME: "another-value"},
        )
        daemon_socket.request(cli.root, "wait", id=started["id"])
    assert cli("cat", f"{started['id']}:len").out == b"%d\n" % len(VALUE)

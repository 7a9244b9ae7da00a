"""Real agents outside casfs that are attached: what they do is in the store, and they run on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from casfs.attach import spool
from casfs.system import daemon_socket
from casfs.threads import sessions, threads
from engine import content
from tests.support.attached_program import Attached
from tests.support.engine import until

pytestmark = pytest.mark.agents


def test_a_session(attached: Attached) -> None:
    said = attached.ask(
        "Make two files",
        ("write", "a.txt", "hello"),
        ("run", "sed -i s/hello/bye/ a.txt; echo new > b.txt"),
        ("run", "exit 3"),
        ("say", "All done."),
    )
    assert "All done." in said
    thread = attached.thread()
    assert thread.pending is None
    (step,) = threads.last_steps(attached.store, thread, None)
    prompt = content.text(attached.store, step.payload["prompt"]["text"])
    assert prompt.strip('"').startswith("Make two files")
    assert content.text(attached.store, step.payload["content"]).endswith("All done.")
    turns = attached.turns(1)
    calls = [attached.call(turn) for turn in turns]
    assert len(calls) == 3
    trees = [attached.names(turn["workspace"]) for turn in turns]
    assert trees == [{b"README", b"a.txt"}, *[{b"README", b"a.txt", b"b.txt"}] * 2]
    befores = [attached.names(turn["before"]) for turn in turns]
    assert befores == [{b"README"}, *trees[:2]]
    assert [call.get("foreign") for call in calls] == [None] * 3
    session = attached.store.node(step.payload["detail"], "react-session").payload
    if attached.program.agent != "opencode":  # keeps no transcript
        assert session["totalTokens"] > 0
        assert content.text(attached.store, turns[0]["output"]).startswith("I shall use a tool.")
    if attached.program.agent == "claude":
        assert [call["name"] for call in calls] == ["Write", "Bash", "Bash"]
        statuses = [call["status"] for call in calls]
        assert statuses == ["completed", "completed", "failed"]


def test_a_session_that_is_resumed(attached: Attached) -> None:
    attached.ask("one", ("say", "First."))
    attached.ask("two", ("write", "b", "2"), ("say", "Second."), session=attached.session)
    steps = threads.last_steps(attached.store, attached.thread(), None)
    answers = [content.text(attached.store, step.payload["content"]) for step in steps]
    assert [answer.split()[-1] for answer in answers] == ["First.", "Second."]


def test_rewind_and_go_on(attached: Attached) -> None:
    """The files are back, and the model is asked with exactly the turns that were kept."""
    attached.ask(
        "first",
        ("run", "echo 1 > a"),
        ("run", "sed -i s/1/one/ a; echo 2 > b"),
        ("say", "First."),
    )
    id = attached.session
    attached.ask("second", ("run", "rm a"), ("say", "Second."), session=id)
    done = attached.cli("rewind", id, "--to", "2", "--what", "both", "--json").json
    assert (attached.project / "a").read_text() == "one\n"
    count = len(attached.model.requests)
    attached.ask("third", ("say", "Third."), session=done["conversation"]["id"])
    told = attached.requests_since(count)
    assert [word for kind, word in told if kind == "user"] == ["first", "third"]
    fork = next(thread for thread in sessions.newest_first(attached.store) if thread.fields["fork"])
    assert attached.prompts(fork) == ["first", "third"]
    within = attached.cli("rewind", id, "--to", "1.2", "--what", "conversation", "--json").json
    count = len(attached.model.requests)
    attached.ask("fourth", ("say", "."), session=within["conversation"]["id"])
    kinds = [kind for kind, _ in attached.requests_since(count)]
    # gemini tells its model each result twice, also where nothing was cut.
    results = 2 if attached.program.agent == "gemini" else 1
    assert kinds == ["user", *["result"] * results, "user"]


def test_without_a_daemon(attached: Attached) -> None:
    """The agent runs on; its next session starts the daemon, and nothing is lost."""
    root = attached.store.root
    daemon_socket.stop(root)
    script_file = root / "hooks/start-daemon"
    text = script_file.read_text()
    script_file.write_text("#!/bin/sh\nexit 1\n")
    assert "Done." in attached.ask("one", ("run", "echo 1 > a"), ("say", "Done."))
    assert len(spool.names(root)) >= 5
    script_file.write_text(text)
    attached.ask("two", ("say", "Done."))
    until(lambda: daemon_socket.runs(root), "a daemon")
    until(lambda: spool.names(root) == [], "an empty spool")
    assert len(list(sessions.newest_first(attached.store))) == 2


def test_a_store_that_is_gone(attached: Attached) -> None:
    root = attached.store.root
    daemon_socket.stop(root)
    os.rename(root, root.with_name("moved"))
    try:
        assert "Done." in attached.ask("one", ("run", "echo 1 > a"), ("say", "Done."))
    finally:
        os.rename(root.with_name("moved"), root)
    attached.cli("detach", attached.program.agent)
    assert "Done." in attached.ask("two", ("say", "Done."))
    assert list(sessions.newest_first(attached.store)) == []


@pytest.mark.parametrize("attached", ["claude-code", "codex-cli", "opencode-cli"], indirect=True)
def test_a_subagent(attached: Attached) -> None:
    """What it changes is of its own call; where it has a transcript, it is a thread, too."""
    agent = attached.program.agent
    waits: list[tuple[Any, ...]] = []
    if agent == "codex":  # by default it has none, and goes on beside it
        with (Path.home() / ".codex/config.toml").open("a") as file:
            file.write("\n[features]\nmulti_agent_v2 = true\n")
        waits.append(("tool", "wait_agent", {"timeout_ms": 20_000}))
    attached.ask(
        "one",
        ("run", "echo 1 > a"),
        ("delegate", "Do a part", [("run", "echo part >> a"), ("say", "The part is done.")]),
        *waits,
        ("run", "echo 2 >> a"),
        ("say", "Done."),
    )
    rows = attached.cli("blame", "a", "--json").json
    commands = [call["name"] for call in map(attached.call, attached.turns(1))]
    shells = [number for number, name in enumerate(commands, 1) if name.lower() == "bash"]
    assert [int(row["version"]["revision"].rpartition(".")[2]) for row in rows] == shells
    thread = attached.thread()
    children = list(threads.with_field(attached.store, "parent", [thread.id]))
    if agent == "opencode":  # keeps no transcript
        assert children == []
        return
    (child,) = children
    (step,) = threads.last_steps(attached.store, child, None)
    assert content.text(attached.store, step.payload["content"]) == "The part is done."
    assert "Do a part" in content.text(attached.store, step.payload["prompt"]["text"])
    (caller,) = threads.last_steps(attached.store, thread, None)
    assert caller.payload["childThreads"] == [child.hash]

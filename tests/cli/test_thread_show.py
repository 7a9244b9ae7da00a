"""Threads as they are listed, shown and logged; what runs them is in test_daemon.py."""

from __future__ import annotations

import json

import pytest

from casfs.backend.protocols import Head, Swap
from casfs.store.store import Store
from casfs.system.clock import rfc3339
from casfs.threads import threads
from casfs.threads.state import created_ms
from tests.support.cli import run_thread
from tests.support.engine import (
    ONE,
    Cli,
    begin,
    loop,
    says,
)


def test_threads(cli: Cli, opened: Store) -> None:
    meta = {"status": ["odd", "kinds"]}
    ended = run_thread(opened, begin(opened, loop(3), {"a": says(meta, "echo hi")}))
    suspended = run_thread(opened, begin(opened, ONE, {"a": says({}, "exit 1")}))
    listed = cli("thread", "list", "--json").json
    assert [(one["id"], one["status"]) for one in listed] == [
        (suspended.id, "suspended"),
        (ended.id, "succeeded"),
    ]
    assert listed[1] == {
        "id": ended.id,
        "workflow": "sample",
        "status": "succeeded",
        "head": ended.hash,
        "start": ended.record["start"],
        "updatedAt": rfc3339(ended.record["updatedAt"]),
        "reason": None,
        "cause": None,
        "returnCode": 0,
        "intent": None,
        "spent": ended.record["spent"],
        "parent": None,
        "createdAt": rfc3339(created_ms(ended.id)),
        "role": None,
        "task": "Do it.",
        "name": None,
        "archived": False,
        "pinned": False,
        "project": None,
        "worktree": None,
        "queuePlace": None,
    }
    lines = cli("thread", "list").text.splitlines()
    assert lines[0].split()[:3] == [suspended.id, "suspended", "a"]
    shown = cli("thread", "show", ended.id.lower(), "--json").json
    assert [step["index"] for step in shown["steps"]] == [1, 2, 3]
    assert (shown["input"], shown["summary"]) == ("Do it.", "ended after a")
    (agent,) = shown["agents"].values()
    assert (agent["package"], agent["hash"]) == ("command", threads.agents(opened, ended)["a"])
    text = cli("thread", "show", ended.id).text
    assert "\nagents: a=command\n" in text
    assert (agent["name"], agent["model"]) == (None, None)
    assert text.startswith(f"{ended.id}  sample  succeeded\nreturnCode: 0\nsummary: ended after")
    assert "reason: a: sh exited with 1" in cli("thread", "show", suspended.id).text


def test_the_log_of_a_thread(cli: Cli, opened: Store) -> None:
    ended = run_thread(opened, begin(opened, loop(3), {"a": says({}, "echo hi")}))
    assert cli("thread", "log", ended.id).text.count("a\nhi\n```json\n") == 3
    assert cli("thread", "log", ended.id, "--last", "2").text.startswith("--- 000002 a\nhi\n")
    assert cli("thread", "log", ended.id, "--follow", "--last", "1").text.count("--- ") == 1
    lines = cli("thread", "log", ended.id, "--json").text.splitlines()
    assert [json.loads(line)["index"] for line in lines] == [1, 2, 3]
    assert json.loads(lines[0])["output"].startswith("hi\n")
    fresh = begin(opened, ONE, {"a": says({})})
    assert cli("thread", "log", fresh.id).out == b""


def test_one_broken_thread_breaks_no_list(cli: Cli, opened: Store) -> None:
    bad, good = begin(opened, ONE, {"a": says({})}), begin(opened, ONE, {"a": says({})})
    opened.backend.publish([], [Swap(bad.name, bad.head, Head(bad.hash, {}))])
    assert [line.split()[0] for line in cli("thread", "list").text.splitlines()] == [
        good.id,
        bad.id,
    ]
    assert cli("thread", "list", "--json").json[1]["status"] == "broken"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("=command", "--agent =command: give NAME, NAME:TEXT or NAME:JSON"),
        ("a=", "--agent a: give NAME"),
        ("", "give NAME"),
        ("a=command:{", "--agent a: config is not JSON"),
        ("a=command:[1]", "--agent a: config must be a JSON object"),
    ],
)
def test_an_agent_option_that_is_none(option: str, said: str, cli: Cli) -> None:
    arguments = ("thread", "start", "sample", "--input", "x", "--agent", option)
    assert said in cli.refused(*arguments, code=2)


def test_a_thread_that_is_to_run_starts_the_daemon(cli: Cli, opened: Store) -> None:
    thread = begin(opened, ONE, {"a": says({})})
    assert cli.refused("daemon", "stop", code=5).startswith("casfs: no daemon runs")
    try:
        compacted = cli("thread", "compact", thread.id, "--text", "x")
        assert "casfs: daemon started" in compacted.err
        assert "daemon started" not in cli("thread", "log", thread.id, "--follow").err
    finally:
        cli("daemon", "stop")

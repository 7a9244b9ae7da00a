"""Names, the archive and pins of threads: by the daemon, or on the store, in the record alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from casfs.store.store import Store
from casfs.threads import lookup, threads
from casfs.threads.threads import ThreadId
from engine.workflow import registry as workflows
from tests.cli.test_sessions import transcript
from tests.scanner import samples
from tests.support.engine import ONE, Cli, daemon, says, start_thread, until


def listed(cli: Cli, *options: str) -> list[str]:
    return [row["task"] for row in cli("thread", "list", *options, "--json").json]


def imported(cli: Cli, *prompts: str) -> list[str]:
    """Records a session for each prompt; returns the ids of their threads."""
    ids = []
    for prompt in prompts:
        file = transcript(prompt.replace(" ", "-"), prompt)
        ids += cli("sessions", "import", "claude", file, "--json").json["imported"]
    return ids


def test_a_thread_is_renamed(cli: Cli) -> None:
    first, second = imported(cli, "Do it", "And more")
    assert cli("thread", "rename", first, "parser-fix").text == f"{first} named parser-fix\n"
    assert cli("thread", "rename", first, "parser-fix", "--json").json == {"ids": [first]}
    assert "is taken by thread" in cli.refused("thread", "rename", second, "parser-fix", code=4)
    assert "invalid thread name" in cli.refused("thread", "rename", second, "a:b", code=4)
    token = samples.github_token()
    assert "looks like a secret" in cli.refused("thread", "rename", second, token, code=4)
    assert "give NAME or --undo" in cli.refused("thread", "rename", second, code=2)
    titles = [line.split("\t")[6] for line in cli("sessions", "list").text.splitlines()]
    assert titles == ["And more", "parser-fix"], "a name, or the beginning of the first prompt"
    cli("thread", "rename", "parser-fix", "--undo")
    assert {row["name"] for row in cli("sessions", "list", "--json").json} == {None}


def test_an_archived_thread_is_in_no_list_until_one_asks(cli: Cli) -> None:
    first, second = imported(cli, "Do it", "And more")
    with Store.open(cli.root) as store:
        before: dict[str, Any] = dict(lookup.find(store, first).record)
    cli("thread", "archive", first)
    for verb in ("thread", "sessions"):
        (row,) = cli(verb, "list", "--json").json
        assert row.get("id", row.get("thread")) != first
        (archived,) = cli(verb, "list", "--archived", "--json").json
        assert (archived["archived"], archived["pinned"]) == (True, False)
    with Store.open(cli.root) as store:
        now = dict(lookup.find(store, first).record)
    assert now == {**before, "archived": True}, "nothing else changes"
    cli("thread", "archive", first, second)
    assert listed(cli) == []
    cli("thread", "archive", "--undo", first, second)
    assert listed(cli) == ["And more", "Do it"]


def test_a_pinned_thread_is_first(cli: Cli) -> None:
    first, _, _ = imported(cli, "one", "two", "three")
    cli("thread", "pin", first)
    assert listed(cli) == ["one", "three", "two"]
    assert listed(cli, "--limit", "1") == ["one"]
    assert listed(cli, "--status", "succeeded") == []
    assert cli("sessions", "list", "--json").json[0]["first"] == "one"
    cli("thread", "pin", first, "--undo")
    assert listed(cli) == ["three", "two", "one"]


def test_a_running_thread_goes_on_with_its_name(
    disk_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    tmp_path: Path,
) -> None:
    """The daemon moves its head itself, between the moves of the run."""
    cli = Cli(disk_store.root, monkeypatch, capfdbinary)
    workflows.add(disk_store, ONE)
    go = tmp_path / "go"
    agent = says({}, f"until [ -e {go} ]; do sleep 0.05; done")
    with daemon(disk_store.root):
        id = start_thread(disk_store.root, "sample", {"a": agent})
        until(lambda: threads.get(disk_store, ThreadId(id)).pending, "its step")
        cli("thread", "rename", id, "slow")
        cli("thread", "archive", id)
        go.touch()
        cli("thread", "show", "slow")
        until(lambda: threads.get(disk_store, ThreadId(id)).status == "ended", "its end")
    record = threads.get(disk_store, ThreadId(id)).record
    assert (record.get("name"), record.get("archived"), record.get("returnCode")) == (
        "slow",
        True,
        0,
    )

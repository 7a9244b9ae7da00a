"""What is removed can be restored, until gc has run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend.protocols import Head, HeadName, Swap
from casfs.checkpoints import checkpoint
from casfs.maintenance import fsck
from casfs.store import removals
from casfs.store.store import Store
from casfs.system import clock
from tests.support.cli import lines, value, written
from tests.support.engine import ONE, Cli, begin, says
from tests.support.helpers import blobs, set_head, write_tree
from tests.support.maintenance import age, ended, put_checkpoint, sql

DAY_MS = 86_400_000


def heads(store: Store) -> list[tuple[str, Head]]:
    return [(name, head) for name, head in store.heads.list() if not name.startswith("removed/")]


@pytest.fixture
def recorded(cli: Cli, tmp_path: Path) -> list[str]:
    """Three checkpoints of `work`, oldest first."""
    place = tmp_path / "place"
    found = []
    for text in (b"1", b"2", b"3"):
        write_tree(place, {"f": text})
        found.append(cli("checkpoint", "create", "work", place).word)
    return found


def test_a_checkpoint_is_removed_and_restored(cli: Cli, opened: Store, recorded: list[str]) -> None:
    before = heads(opened)
    done = cli("checkpoint", "rm", f"work@{recorded[1]}")
    assert done.text == (
        f"{done.word} removed work@{recorded[1]};"
        " `casfs undo --store` restores it until gc deletes it\n"
    )
    assert [one.id for one in checkpoint.listing(opened, "work")] == [recorded[0], recorded[2]]
    assert fsck.check(opened).faults == []
    assert cli("undo", "--store").text == f"{done.word} restored work@{recorded[1]}\n"
    assert heads(opened) == before
    assert "nothing to undo" in cli.refused("undo", "--store", code=3)
    shown = value(cli, "checkpoint", "rm", "work")
    assert shown["removed"] == [f"work@{id}" for id in recorded]
    assert "no checkpoint 'work'" in cli.refused("checkpoint", "rm", "work", code=3)
    (listed,) = value(cli, "undo", "--store", "--list")
    assert (listed["removal"], listed["names"]) == (shown["removal"], shown["removed"])
    assert lines(cli, "undo", "--store", "--list")[0].split("\t")[2] == ", ".join(shown["removed"])
    assert cli("undo", "work").word == shown["removal"]
    assert heads(opened) == before


def test_gc_makes_a_removal_final(
    cli: Cli, opened: Store, recorded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = blobs(opened)
    old = clock.now_ms() - 2 * DAY_MS
    monkeypatch.setattr(removals, "now_ms", lambda: old)
    first = cli("checkpoint", "rm", f"work@{recorded[0]}").word
    monkeypatch.undo()
    second = cli("checkpoint", "rm", f"work@{recorded[1]}").word
    assert first < second
    age(opened)
    text = "would make 1 removals final: `casfs undo` cannot undo them"
    assert lines(cli, "gc", "--dry-run")[-1] == text
    assert value(cli, "gc", "--dry-run")["removals"] == 1
    assert [one["removal"] for one in value(cli, "undo", "--store", "--list")] == [second, first]
    assert blobs(opened) == kept
    assert lines(cli, "gc")[-1] == text.replace("would make", "made")
    assert len(blobs(opened)) == len(kept) - 4  # file, directory, times and checkpoint
    assert [one["removal"] for one in value(cli, "undo", "--store", "--list")] == [second]
    assert "gc has deleted it since" in cli.refused("undo", f"work@{recorded[0]}", code=3)
    assert "no removal of 'other'" in cli.refused("undo", "other", code=3)
    assert cli("undo", second).word == second
    assert cli("checkpoint", "restore", f"work@{recorded[1]}", cli.root.parent / "out").word
    assert fsck.check(opened).faults == []


def test_a_name_with_a_new_value_is_not_overwritten(cli: Cli, opened: Store) -> None:
    definition = {**ONE, "description": "another"}
    path = cli.root.parent
    cli("workflow", "add", written(path / "w.json", ONE))
    name = ONE["name"]
    cli("workflow", "rm", name)
    assert f"no workflow '{name}'" in cli.refused("workflow", "rm", name, code=3)
    cli("workflow", "add", written(path / "v.json", definition))
    assert f"{name} has a new value since; remove that first" in cli.refused(
        "undo", "--store", code=4
    )
    newer = cli("workflow", "rm", name).word
    assert cli("undo", "workflows/" + name).word == newer
    assert cli("workflow", "show", name).text.startswith(f"{name}: another")


def test_ambiguous_and_missing_removals(cli: Cli, recorded: list[str]) -> None:
    for id in recorded[:2]:
        cli("checkpoint", "rm", f"work@{id}")
    assert "is ambiguous: " in cli.refused("undo", "20", "--store", code=4)
    assert "give --list, or what to take back" in cli.refused("undo", "--list", "x", code=2)


def test_a_thread_and_its_key(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "one").id
    before = heads(opened)
    assert f"{thread} removed; `casfs undo --store` restores it" in cli("thread", "rm", thread).text
    assert cli("undo", thread).text.endswith(f" restored {thread}\n")
    assert heads(opened) == before


def test_a_plugin(cli: Cli, opened: Store, tmp_path: Path) -> None:
    source = write_tree(tmp_path / "source", {"f": b"1"})
    cli("plugin", "sync", "p", "1.0", source)
    before = heads(opened)
    cli("plugin", "rm", "p", "1.0")
    assert "no plugin p 1.0" in cli.refused("plugin", "rm", "p", "1.0", code=3)
    assert cli("undo", "--store").text.endswith(" restored p/1.0\n")
    assert heads(opened) == before


def test_only_an_unused_schema_is_removed(cli: Cli, opened: Store, tmp_path: Path) -> None:
    note = {"$id": "note", "type": "object"}
    refers = {
        "$id": "about",
        "properties": {"n": {"type": "string", "format": "cas_ref", "cas_type": "note"}},
    }
    cli("schema", "add", written(tmp_path / "a", note))
    cli("schema", "add", written(tmp_path / "b", refers))
    assert "the type 'content' is built in" in cli.refused("schema", "rm", "content", code=4)
    assert "'about' refers to nodes of the type 'note'" in cli.refused(
        "schema", "rm", "note", code=4
    )
    cli("schema", "rm", "about")
    opened.put_node("note", {})
    assert "1 nodes are of the type 'note'" in cli.refused("schema", "rm", "note", code=4)
    cli("undo", "--store")
    assert cli("schema", "show", "about").json == refers


def test_a_head_that_leads_to_nothing_is_removed_for_good(opened: Store) -> None:
    name = HeadName(put_checkpoint(opened, {"f": b"1"}))
    head = opened.heads.get(name)
    assert head is not None
    sql(opened, "DELETE FROM blobs WHERE hash = ?", bytes.fromhex(head.hash))
    with opened.batch() as batch:
        removals.remove(opened, batch, [(name, head)])
    assert (opened.heads.get(name), removals.listing(opened)) == (None, [])


def test_a_key_that_is_used_again_stays_with_its_new_thread(opened: Store) -> None:
    one, two = (opened.put_node("content", {"text": text, "artifacts": []}).hash for text in "12")
    key, other = HeadName("keys/" + "0" * 32), HeadName("other/head")
    set_head(opened, key, one)
    set_head(opened, other, one)
    found = [(name, opened.heads.get(name)) for name in (key, other)]
    with opened.batch() as batch:
        removals.remove(opened, batch, [(name, head) for name, head in found if head])
    set_head(opened, key, two)
    removals.undo(opened)
    heads = [opened.heads.get(name) for name in (key, other)]
    assert [head and head.hash for head in heads] == [two, one]
    assert removals.listing(opened) == []


# -- forget: the policy of restic --------------------------------------------------------------


@pytest.fixture
def moments(opened: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Checkpoints at these local times, oldest first."""
    monkeypatch.setenv("TZ", "America/New_York")  # days end at 04:00 or 05:00 UTC
    time.tzset()
    stamps = [
        "2026-01-31 23:30", "2026-02-01 00:30", "2026-02-01 00:45", "2026-02-08 12:00",
        "2026-02-09 12:00", "2026-02-09 12:30", "2026-02-09 13:15",
    ]  # fmt: skip
    for stamp in stamps:
        at = int(time.mktime(time.strptime(stamp, "%Y-%m-%d %H:%M"))) * 1000
        monkeypatch.setattr("tests.support.maintenance.CREATED", at)
        put_checkpoint(opened, {"f": b"1"})
    yield stamps
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["--keep-last", "2"], [5, 6]),
        (["--keep-hourly", "3"], [3, 5, 6]),
        (["--keep-daily", "3"], [2, 3, 6]),
        (["--keep-daily", "9"], [0, 2, 3, 6]),
        (["--keep-weekly", "2"], [3, 6]),  # weeks begin on Monday, 2026-02-09
        (["--keep-monthly", "9"], [0, 6]),
        (["--keep-yearly", "1", "--keep-last", "1"], [6]),
        (["--keep-last", "1", "--keep-daily", "2"], [3, 6]),
    ],
)
def test_a_policy_keeps_the_newest_of_each_period(
    cli: Cli, opened: Store, moments: list[str], options: list[str], kept: list[int]
) -> None:
    ids = [one.id for one in checkpoint.listing(opened, "work")]
    assert len(ids) == len(moments)
    arguments = ("checkpoint", "forget", "work", *options)
    planned = value(cli, *arguments, "--dry-run")
    assert [one["id"] for one in planned["keep"]][::-1] == [ids[place] for place in kept]
    assert len(checkpoint.listing(opened, "work")) == len(ids)
    printed = lines(cli, *arguments)
    assert [line.split("\t")[0] for line in printed].count("keep") == len(kept)
    assert [one.id for one in checkpoint.listing(opened, "work")] == [ids[place] for place in kept]
    if planned["remove"]:
        cli("undo", "--store")
    assert [one.id for one in checkpoint.listing(opened, "work")] == ids


def test_forget_needs_a_policy_and_a_name(cli: Cli, recorded: list[str]) -> None:
    assert "give what to keep" in cli.refused("checkpoint", "forget", "work", code=2)
    assert "no checkpoint 'no'" in cli.refused(
        "checkpoint", "forget", "no", "--keep-last", "1", code=3
    )
    assert value(cli, "checkpoint", "forget", "work", "--keep-last", "3")["removal"] is None


def test_what_can_be_undone_is_said(cli: Cli, recorded: list[str]) -> None:
    assert cli("undo", "--store", "--list").err == "nothing to undo\n"
    forget = ("checkpoint", "forget", "work", "--keep-last", "1")
    assert cli(*forget, "--dry-run").err == "would forget 2 checkpoints\n"
    assert "removed 2 checkpoints; `casfs undo --store` restores them" in cli(*forget).err
    said = cli.refused("cat", "work", code=4)
    assert "'work' is a directory; use work:PATH" in said


def test_a_removed_thread_is_found_by_its_name(cli: Cli, opened: Store) -> None:
    made = ended(opened, "one")
    id = "01JD0000000000000000000001"
    named = Head(made.head.hash, {**made.head.record, "name": "nightly"})
    with opened.batch() as batch:
        batch.swap(HeadName(f"threads/{id}"), None, named)
    cli("thread", "rm", "nightly")
    assert cli("undo", "nightly").text.endswith(f" restored {id}\n")


def test_a_broken_thread_is_removed_for_good(cli: Cli, opened: Store) -> None:
    thread = begin(opened, ONE, {"a": says({})})
    opened.backend.publish([], [Swap(thread.name, thread.head, Head(thread.hash, {}))])
    done = cli("thread", "rm", thread.id)
    assert done.text == f"{thread.id} removed; it was damaged, so nothing restores it\n"
    assert "nothing to undo" in cli.refused("undo", "--store", code=3)

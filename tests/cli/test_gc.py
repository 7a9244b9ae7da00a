"""casfs gc."""

from __future__ import annotations

import pytest

from casfs.backend.derived import repairable, start_gc, total_stored
from casfs.store.store import Store
from tests.support.cli import lines, value
from tests.support.engine import Cli
from tests.support.helpers import ABSENT, LARGE, blobs, set_head
from tests.support.maintenance import age, ended, put_checkpoint


def test_gc(cli: Cli, opened: Store) -> None:
    ended(opened, "one")
    kept = total_stored(opened.blobs)
    opened.put(LARGE)
    opened.put(b"small")
    assert lines(cli, "gc")[0].startswith("freed 0 blobs, 0 bytes; kept ")
    age(opened)
    before = blobs(opened)
    dry = value(cli, "gc", "--dry-run")
    said = f"2 blobs, {len(LARGE) + 5} bytes; kept {kept.blobs} blobs, {kept.bytes} bytes"
    assert lines(cli, "gc", "--dry-run") == [f"would free {said}"]
    assert blobs(opened) == before
    assert lines(cli, "gc") == [f"freed {said}"]
    assert dry == {
        "kept": {"blobs": kept.blobs, "bytes": kept.bytes, "files": kept.files},
        "freed": {"blobs": 2, "bytes": len(LARGE) + 5, "files": 1},
        "evicted": [],
        "removals": 0,
        "turnTrees": 0,
        "dryRun": True,
    }
    assert value(cli, "gc")["freed"] == {"blobs": 0, "bytes": 0, "files": 0}
    assert total_stored(opened.blobs) == kept


def test_gc_takes_its_grace_period_from_the_flag_the_environment_or_the_file(
    cli: Cli, opened: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    age(opened, 500)
    for choose in ("flag", "environment", "file"):
        hash = opened.put(choose.encode()).hash
        age(opened, 500)
        assert hash in blobs(opened)
        if choose == "flag":
            cli("gc", "--grace", "600")
            assert hash in blobs(opened)
            cli("gc", "--grace", "400")
        elif choose == "environment":
            monkeypatch.setenv("CASFS_GC_GRACE_S", "400")
            cli("gc")
            monkeypatch.delenv("CASFS_GC_GRACE_S")
        else:
            (cli.root / "config.toml").write_text("[gc]\ngrace_s = 400\n")
            cli("gc")
        assert hash not in blobs(opened)


@pytest.mark.parametrize("option", ["--max-size", "--max-inodes"])
def test_gc_evicts_cache_to_a_limit(cli: Cli, opened: Store, option: str) -> None:
    for number in range(3):
        hash = opened.put(bytes([number]) * (200 << 10)).hash
        set_head(opened, f"actions/{number}", hash, createdAt=number)
    age(opened)
    limit = "500K" if option == "--max-size" else "2"
    found = value(cli, "gc", option, limit, "--dry-run")
    assert found["evicted"] == ["actions/0"]
    assert lines(cli, "gc", option, limit, "--dry-run")[1:] == ["would evict actions/0"]
    output = lines(cli, "gc", option, limit)
    assert output[0].startswith("freed 1 blobs, 204800 bytes; ")
    assert output[1:] == ["evicted actions/0"]
    assert value(cli, "gc", option, limit)["evicted"] == []
    assert sorted(value(cli, "gc", option, "0")["evicted"]) == ["actions/1", "actions/2"]


def test_gc_keeps_to_the_limits_of_the_settings(cli: Cli, opened: Store) -> None:
    for number in range(3):
        put_checkpoint(opened, {"f": bytes([number]) * 5000}, at=number)
    age(opened)
    (cli.root / "config.toml").write_text("[gc]\nmax_inodes = 1\n")
    assert value(cli, "gc")["evicted"] == []
    (cli.root / "config.toml").write_text("[gc]\nmax_inodes = 1\nkeep_checkpoints = 2\n")
    assert len(value(cli, "gc")["evicted"]) == 1
    assert len(lines(cli, "checkpoint", "list", "work")) == 2


@pytest.mark.parametrize("size", ["5G", "0", "1", "12K", "3M", "1T"])
def test_sizes(cli: Cli, size: str) -> None:
    cli("gc", "--dry-run", "--max-size", size)


@pytest.mark.parametrize("size", ["", "G", "5g", "5GB", "5 G", "-1", "1.5G", "5KM", "²", "٥", "x"])
def test_sizes_that_are_none(cli: Cli, size: str) -> None:
    assert "size" in cli.refused("gc", f"--max-size={size}", code=2)


@pytest.mark.parametrize("option", ["--grace=-1", "--max-inodes=-1", "--max-inodes=1K", "--grace="])
def test_numbers_that_are_none(cli: Cli, option: str) -> None:
    cli.refused("gc", option, code=2)


def test_gc_says_why(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "one")
    said = opened.node(thread.steps[0]).payload["content"]
    assert lines(cli, "gc", "--why", said) == [
        thread.name,
        f"  {thread.head.hash} thread-end",
        f"  {thread.steps[0]} thread-step",
        f"  {said} content",
    ]
    wanted = [thread.name, thread.head.hash, thread.steps[0], said]
    assert value(cli, "gc", "--why", said[:12]) == wanted
    tree = opened.node(thread.tree).payload["files"][0]["digest"]["hash"]
    assert lines(cli, "gc", "--why", tree)[-1] == f"  {tree} blob"


def test_gc_why_of_what_nothing_reaches(cli: Cli, opened: Store) -> None:
    garbage = opened.put(b"garbage").hash
    assert "no root reaches" in cli.refused("gc", "--why", garbage, code=3)
    cli.refused("gc", "--why", ABSENT, code=3)
    cli.refused("gc", "--why", ABSENT[:10], code=3)
    cli.refused("gc", "--why", "nonsense", code=4)


def test_gc_of_a_damaged_store(cli: Cli, opened: Store) -> None:
    thread = ended(opened, "one")
    opened.put(b"garbage")
    age(opened)
    repairable(opened.blobs).quarantine(thread.steps[0])
    assert "fsck" in cli.refused("gc", code=1)


def test_gc_beside_another(cli: Cli, opened: Store) -> None:
    with start_gc(opened.backend):
        assert "another gc" in cli.refused("gc", code=4)


def test_gc_with_bad_settings(cli: Cli) -> None:
    (cli.root / "config.toml").write_text("[gc]\nmax_size = 'much'\n")
    assert "gc.max_size" in cli.refused("gc", code=4)

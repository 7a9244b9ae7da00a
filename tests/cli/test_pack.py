"""casfs pack, and the figures of packs in stats."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.cli import daemon_process
from casfs.cli.sizes import parse_age
from casfs.config import SETTINGS
from casfs.errors import Invalid
from casfs.store.store import Store
from tests.support.cli import lines, value
from tests.support.engine import Cli
from tests.support.helpers import read_tree, write_tree
from tests.support.maintenance import age
from tests.support.packs import contents, freeze

AGE_S = 31 * 86400


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    found = {f"f{number}": data for number, data in enumerate(contents())}
    return write_tree(tmp_path / "tree", {"a": found, "b": {"small": b"x"}})


def test_pack_and_restore(cli: Cli, opened: Store, tree: Path, tmp_path: Path) -> None:
    cli("checkpoint", "create", "work", tree)
    assert lines(cli, "pack") == ["packed 0 blobs, 0, into 0 packs"]
    age(opened, AGE_S)
    assert lines(cli, "pack", "--older-than", "32d") == ["packed 0 blobs, 0, into 0 packs"]
    assert lines(cli, "pack", "--dry-run") == ["would pack 100 blobs, 586K"]
    hot = value(cli, "stats")["packs"]
    assert (hot["hot"]["blobs"], hot["hot"]["files"]) == (100, 1)
    assert value(cli, "pack") == {"blobs": 100, "bytes": 600_000, "packs": 1, "dryRun": False}
    cold = value(cli, "stats")["packs"]
    assert list(cold) == ["cold"]
    assert cold["cold"]["bytes"] < hot["hot"]["bytes"] * 0.6
    assert any(line.startswith("cold packs       1, 100 blobs, ") for line in lines(cli, "stats"))
    cli("checkpoint", "restore", "work", tmp_path / "out")
    assert read_tree(tmp_path / "out") == read_tree(tree)
    assert lines(cli, "fsck")[-1].endswith(": no faults")


def test_the_age_of_the_settings(cli: Cli, opened: Store, tree: Path) -> None:
    cli("checkpoint", "create", "work", tree)
    age(opened, 3 * 3600)
    cli("config", "set", "pack.older_than", "4h")
    assert value(cli, "pack")["blobs"] == 0
    cli("config", "set", "pack.older_than", "2h")
    assert value(cli, "pack")["blobs"] == 100


def test_the_daemon_packs_where_it_is_set(opened: Store, tree: Path, cli: Cli) -> None:
    cli("checkpoint", "create", "work", tree)
    values = {setting.name: setting.default for setting in SETTINGS}
    age(opened, AGE_S)
    daemon_process.maintenance(values)(opened)
    assert list(value(cli, "stats")["packs"]) == ["hot"]
    daemon_process.maintenance({**values, "pack.older_than": "30d"})(opened)
    assert list(value(cli, "stats")["packs"]) == ["cold"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("2m", 120), ("3h", 10800), ("30d", 2_592_000)]
)
def test_ages(text: str, seconds: int) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "3w", "-1d", "1.5d", "3dd", "٣d"])
def test_no_ages(text: str, cli: Cli) -> None:
    with pytest.raises(Invalid, match="invalid age"):
        parse_age(text)
    assert "invalid age" in cli.refused("pack", f"--older-than={text}", code=2)


def test_purge_and_export_of_packed_files(
    cli: Cli, opened: Store, tree: Path, tmp_path: Path
) -> None:
    cli("checkpoint", "create", "work", tree)
    cli("export", "work", "-o", tmp_path / "hot.tar")
    freeze(opened)
    cli("export", "work", "-o", tmp_path / "cold.tar")
    assert (tmp_path / "hot.tar").read_bytes() == (tmp_path / "cold.tar").read_bytes()
    cli("gc", "--purge", "work:a/f7", "--force")
    assert "was purged" in cli.refused("cat", "work:a/f7", code=3)
    assert cli("cat", "work:a/f8").out == (tree / "a/f8").read_bytes()

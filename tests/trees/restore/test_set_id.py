"""A restore gives files set-id bits only where that is asked for."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Properties
from casfs.store.store import Store
from tests.support.engine import Cli
from tests.support.restores import restore_tree


def powerful(store: Store, mode: int, content: bytes = b"#!/bin/sh") -> str:
    with store.batch() as batch:
        file = File(b"f", batch.put(content), True, Properties(unix_mode=mode))
        return batch.put_node("directory", directory.encode([file])).hash


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("given", [0o4755, 0o2755, 0o6755])
def test_set_id_bits_are_left_out_unless_asked_for(
    disk_store: Store, tmp_path: Path, given: int
) -> None:
    root = powerful(disk_store, given)
    restore_tree(disk_store, root, tmp_path / "out")
    assert mode(tmp_path / "out" / "f") == 0o755
    restore_tree(disk_store, root, tmp_path / "own", set_id=True)
    assert mode(tmp_path / "own" / "f") == given


def test_neither_an_incremental_restore_brings_them(disk_store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out"
    restore_tree(disk_store, powerful(disk_store, 0o755), out)
    for root in (powerful(disk_store, 0o4755), powerful(disk_store, 0o4755, b"other")):
        restore_tree(disk_store, root, out)
        assert mode(out / "f") == 0o755
    restore_tree(disk_store, root, out, verify=True, set_id=True)
    assert mode(out / "f") == 0o4755


def test_the_owner_asks_by_an_option(cli: Cli, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "f").touch(0o755)
    (work / "f").chmod(0o4755)
    cli("checkpoint", "create", "app", work, "--preserve", "mode")
    cli("checkpoint", "restore", "app", tmp_path / "plain")
    cli("checkpoint", "restore", "app", tmp_path / "own", "--preserve", "mode")
    assert mode(tmp_path / "plain" / "f") == 0o755
    assert mode(tmp_path / "own" / "f") == 0o4755

"""What a workspace must not do with a tree or an upper layer that somebody else made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.nodes import directory
from casfs.nodes.directory import File, Properties
from casfs.system import mounts
from casfs.workspaces import lifecycle, overlay_mount, strategies
from tests.support.served import Mount
from tests.support.strategies import able

VISIBLE = pytest.mark.parametrize(
    "strategy", [able(one.name) for one in strategies.STRATEGIES.values() if one.mount]
)


@pytest.fixture
def work(mount: Mount, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "work"
    yield folder
    if mounts.mounted_at(folder):
        overlay_mount.unmount(folder, lazy=True)


def opened(mount: Mount, work: Path, strategy: str, root: str) -> lifecycle.Workspace:
    chosen = strategies.STRATEGIES[strategy]
    return lifecycle.open(mount.store, root, work, chosen, lambda hash: mount.path / "trees" / hash)


@VISIBLE
def test_no_mount_of_a_tree_brings_privileges(mount: Mount, work: Path, strategy: str) -> None:
    with mount.store.batch() as batch:
        file = File(b"f", batch.put(b"#!"), True, Properties(unix_mode=0o4755))
        root = batch.put_node("directory", directory.encode([file])).hash
    opened(mount, work, strategy, root)
    options = next(
        line.split()[5]
        for line in reversed(mounts.TABLE.read_text().splitlines())
        if line.split()[4] == str(work)
    )
    assert {"nosuid", "nodev"} <= set(options.split(","))


def test_a_copy_brings_no_set_id_bits(mount: Mount, work: Path) -> None:
    with mount.store.batch() as batch:
        file = File(b"f", batch.put(b"#!"), True, Properties(unix_mode=0o6755))
        root = batch.put_node("directory", directory.encode([file])).hash
    opened(mount, work, strategies.COPY, root)
    assert (work / "f").stat().st_mode & 0o7777 == 0o755

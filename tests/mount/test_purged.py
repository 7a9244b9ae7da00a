"""A purge while a tree is mounted: the kernel drops what it has cached of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from casfs.digest import Digest
from casfs.maintenance import purge
from casfs.store import tombstones
from casfs.store.tombstones import Tombstone
from casfs.system.clock import now_ms
from tests.support.engine import until
from tests.support.helpers import put_tree, read_tree
from tests.support.served import Mount

SECRET = b"PASSWORD=hunter2hunter2\n" * 300
REST = b"PASSWORD=...\n"
OTHER = b"other\n"


@pytest.mark.parametrize("transport", ["builtin"], indirect=True)
def test_what_the_kernel_has_cached_goes(mount: Mount, tmp_path: Path) -> None:
    tree = put_tree(mount.store, {"d": {".env": SECRET, "f": OTHER}, "config": SECRET[1:]})
    top = mount.path / "trees" / tree
    before = read_tree(top)
    assert before == {b"d": {b".env": SECRET, b"f": OTHER}, b"config": SECRET[1:]}
    assert sorted(path.name for path in (top / "d").iterdir()) == [".env", "f"]
    rest = mount.store.put(REST).hash
    stones = [
        Tombstone(Digest.of(SECRET).hash, len(SECRET), now_ms()),
        Tombstone(Digest.of(SECRET[1:]).hash, len(SECRET) - 1, now_ms(), "", rest),
    ]
    purge.purge_all(mount.store, stones)
    expected = {b"d": {b"f": OTHER}, b"config": REST}
    until(lambda: shown(top) == expected)
    subprocess.run(["cp", "-a", top, tmp_path / "copy"], check=True)
    assert read_tree(tmp_path / "copy") == expected
    tombstones.remove(mount.store, stones[0].hash)
    mount.store.put(SECRET)
    until(lambda: shown(top) == before | {b"config": REST})


def shown(top: Path) -> dict[bytes, object]:
    """The tree, empty where a file is just going."""
    try:
        return read_tree(top)
    except OSError:
        return {}

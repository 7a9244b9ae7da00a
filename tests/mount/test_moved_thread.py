"""A thread that moved to another store looks there as it did at home, under real mounts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casfs.backend.protocols import Head, Swap
from casfs.exchange import arrivals
from casfs.maintenance import archive
from casfs.store.store import Store
from casfs.threads import threads
from tests.support.maintenance import export, fill
from tests.support.new_store import init_store
from tests.support.programs import needs_device
from tests.support.served import serving

pytestmark = needs_device


def everything(root: Path) -> dict[str, object]:
    """Every name below a directory: its kind, mode, size, and bytes or target."""
    found: dict[str, object] = {}
    for folder, names, files in os.walk(root):
        for path in (Path(folder, name) for name in [*names, *files]):
            stat, at = path.lstat(), str(path.relative_to(root))
            if path.is_symlink():
                found[at] = stat.st_mode, stat.st_size, os.readlink(path)
            elif path.is_dir():
                found[at] = stat.st_mode
            else:
                found[at] = stat.st_mode, stat.st_size, path.read_bytes()
    return found


@pytest.mark.parametrize("name", ["x.tar", "x.tar.zst"])
def test_a_thread_looks_the_same_under_both_mounts(
    tmp_path: Path, disk_store: Store, name: str
) -> None:
    with init_store(tmp_path / "there") as there:
        thread = fill(disk_store)
        export(disk_store, tmp_path / name, thread.id, zstd=name.endswith(".zst"))
        archive.load(there, tmp_path / name)
        moved = threads.get(there, thread.id)
        assert moved.record["origin"] == "import"  # until a person trusts it
        name_ = threads.head_name(thread.id)  # the marks of what came from elsewhere differ
        record = arrivals.without_marks(name_, moved.record)
        there.backend.publish([], [Swap(name_, moved.head, Head(moved.hash, record))])
        with serving(disk_store, tmp_path / "1") as one, serving(there, tmp_path / "2") as two:
            seen = everything(one.path / thread.name)
            assert everything(two.path / thread.name) == seen
            assert sum(path.endswith("output.md") for path in seen) == len(thread.steps)
            tree = f"trees/{thread.tree}"
            assert everything(one.path / tree) == everything(two.path / tree) != {}

"""A checkpoint of a directory in which a store is mounted."""

from __future__ import annotations

from casfs.checkpoints import create
from casfs.system.store_mounts import TYPE
from casfs.trees.snapshot import exclusions
from tests.support.helpers import put_tree, write_tree
from tests.support.served import Mount


def test_what_is_mounted_there_is_left_out_and_named(mount: Mount) -> None:
    folder = mount.path.parent / "w"
    assert exclusions.MOUNT_TYPE == TYPE
    write_tree(folder, {"f": b"1"})
    (folder / "link").symlink_to(mount.path)
    made = create.create(
        mount.store, "x", mount.path.parent, options=create.CreateOptions(defaults=False)
    )
    assert f"{mount.path}: left out, it is a mount of casfs" in made.report.warnings
    assert made.report.files < 10
    alone = create.create(mount.store, "alone", folder)
    assert alone.report.warnings == []
    assert put_tree(mount.store, {}) != alone.checkpoint.root

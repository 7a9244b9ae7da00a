"""Modes of plugins: those of a tarball or a directory, and the ordinary ones of a commit."""

from __future__ import annotations

import os
import stat
import subprocess
import tarfile
from pathlib import Path

from casfs.plugins import sources
from casfs.store.store import Store
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport
from tests.support.helpers import Program, put_tree, take, write_tree

TREE = {"key": b"k", "run": Program(b"#!"), "d": {"f": b""}}


def test_a_tarball_keeps_modes(store: Store, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "one", TREE)
    (folder / "key").chmod(0o600)
    (folder / "d").chmod(0o700)
    folder.chmod(0o750)
    os.link(folder / "key", folder / "same")
    for top in (".", "one"):
        with tarfile.open(tmp_path / "one.tar", "w") as tar:
            tar.add(folder, arcname=top)
        with store.batch() as batch:
            assert sources.store_source(
                store, batch, tmp_path / "one.tar", SnapshotOptions(), SnapshotReport()
            ) == take(store, folder)


def test_a_commit_is_the_same_tree_under_every_umask(store: Store, tmp_path: Path) -> None:
    folder = write_tree(tmp_path / "one", TREE)
    subprocess.run(
        "git init -q -b main; git add .; git -c user.name=n -c user.email=e commit -qm 1",
        shell=True,
        cwd=folder,
        check=True,
    )
    before = os.umask(0o077)
    try:
        with sources.checkout(str(folder), "refs/heads/main", os.environ) as (place, _):
            assert stat.S_IMODE(place.stat().st_mode) == 0o755
            with store.batch() as batch:
                options, report = SnapshotOptions(), SnapshotReport()
                made = sources.store_source(store, batch, place, options, report)
                assert made == put_tree(store, TREE)
    finally:
        os.umask(before)

"""What the kernel keeps of a checkpoint, it keeps for all that have the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from casfs.mount.attach import BDI, MAX_READ_BYTES, READ_AHEAD_KIB
from tests.support.helpers import write_tree
from tests.support.lasting import ROOT_ONLY, asked, drop_caches, opened, record
from tests.support.served import Mount

FILES = 40
CHANGED = 3
LARGE = 16 << 20  # bytes


@pytest.fixture(scope="module")
def mount(lasting_mount: Mount) -> Mount:
    return lasting_mount


@pytest.fixture(scope="module")
def pair(mount: Mount, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints, and a few files that differ."""
    work = tmp_path_factory.mktemp("pair") / "work"
    folder = {f"file-{number}": b"of number %d\n" % number * 500 for number in range(FILES)}
    write_tree(work, {"one": folder, "two": folder})
    first = record(mount, work, "pair")
    for number in range(CHANGED):
        (work / "one" / f"file-{number}").write_bytes(b"OF number %d\n" % number * 500)
    return first, record(mount, work, "pair")


@ROOT_ONLY
def test_two_checkpoints_are_compared_by_what_differs(
    mount: Mount, pair: tuple[Path, Path]
) -> None:
    """diff(1) reads no two files that have one number."""
    command = ["sh", "-c", f"diff -rq {pair[0].name} {pair[1].name} | wc -l | grep -qx {CHANGED}"]
    drop_caches()
    with opened(pair[0].parent) as fd:
        made = asked(mount, fd, command)
        assert made["read"] <= 2 * CHANGED
        assert made.get("open", 0) == (2 * CHANGED if mount.transport == "libfuse" else 0)
        assert "read" not in asked(mount, fd, command)


@ROOT_ONLY
def test_what_was_read_in_one_is_not_read_again_in_another(
    mount: Mount, pair: tuple[Path, Path]
) -> None:
    drop_caches()
    with opened(pair[0]) as fd:
        assert asked(mount, fd, ["cat", "one/file-7", "two/file-7"])["read"] <= 2
    with opened(pair[1]) as fd:
        assert "read" not in asked(mount, fd, ["cat", "one/file-7", "two/file-7"])


def test_that_there_is_nothing_is_kept(mount: Mount, pair: tuple[Path, Path]) -> None:
    command = ["sh", "-c", "! cat one/nothing none/at/all"]
    with opened(pair[0]) as fd:
        asked(mount, fd, command)
        assert asked(mount, fd, command).keys() <= {"access"}  # of the shell's own directory


@ROOT_ONLY
def test_the_kernel_reads_ahead(mount: Mount, tmp_path: Path) -> None:
    device = os.stat(mount.path).st_dev
    folder = BDI / f"{os.major(device)}:{os.minor(device)}"
    assert int((folder / "read_ahead_kb").read_text()) == READ_AHEAD_KIB
    (tmp_path / "file").write_bytes(os.urandom(LARGE))
    tree = record(mount, tmp_path, "large")
    drop_caches()
    with opened(tree) as fd:
        made = asked(mount, fd, ["cat", "file"])
    assert LARGE // MAX_READ_BYTES <= made["read"] <= LARGE // MAX_READ_BYTES * 3

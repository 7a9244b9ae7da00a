"""Killed commands: the same `casfs clone` goes on; `remote gc` removes what a killed push left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine import Cli, spawn
from tests.support.helpers import private_files, write_tree

NOISE = random.Random(11)
TREE = {
    "folder": {f"f{n}": NOISE.randbytes(200_000) for n in range(20)},
    **{f"small{n}": NOISE.randbytes(900) for n in range(60)},
    "large": NOISE.randbytes(24 << 20),
}
INSTANTS = [  # a path of the clone, and how many files have to match it
    ("", 1),
    ("store.db", 1),
    ("format", 1),
    ("shipped-workflows", 1),
    ("config.toml", 1),
    ("remotes/origin/state.db", 1),
    ("remotes/origin/packs/*.pack", 1),
    ("tmp/*/*", 3),
]
DELAYS_S = [0.05 * n for n in range(4, 24)]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a remote with a checkpoint `t`."""
    base = tmp_path_factory.mktemp("source")
    write_tree(base / "tree", TREE)
    (base / "remote").mkdir()
    url = (base / "remote").as_uri()
    for arguments in (
        ["init"],
        ["remote", "add", "origin", url],
        ["checkpoint", "create", "t", base / "tree"],
        ["push", "origin", "t"],
    ):
        done = spawn("--store", base / "store", *arguments)
        assert done.returncode == 0, done.stderr
    return url


def started(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "casfs", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def killed(process: subprocess.Popen[bytes], when: Callable[[], bool]) -> bool:
    """Kills a command as soon as `when` is true; returns False where it ended before."""
    while process.poll() is None and not when():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() in (0, -signal.SIGKILL)
    return process.returncode != 0


def check(root: Path, out: Path, *, lazy: bool) -> None:
    """The clone is whole, and nothing of the killed commands is left in it."""
    assert spawn("--store", root, "fsck").returncode == 0
    if not lazy:
        assert [*root.glob("remotes/origin/packs/*")] == []
    assert spawn("--store", root, "checkpoint", "restore", "t", out).returncode == 0
    for name, data in TREE["folder"].items():
        assert (out / "folder" / name).read_bytes() == data
    assert (out / "large").read_bytes() == TREE["large"]
    assert private_files(root) == []


@pytest.mark.parametrize("lazy", [False, True], ids=["whole", "lazy"])
def test_a_clone_that_is_killed_is_gone_on_with(remote: str, tmp_path: Path, *, lazy: bool) -> None:
    options = ["--lazy"] if lazy else []
    hit = 0
    for number, (pattern, count) in enumerate(INSTANTS):
        root = tmp_path / f"c{number}"

        def is_there(root: Path = root, pattern: str = pattern, count: int = count) -> bool:
            return (
                len([*root.glob(pattern)] if pattern else [*root.parent.glob(root.name)]) >= count
            )

        hit += killed(started("clone", remote, root, *options), is_there)
        done = spawn("clone", remote, root, *options)
        assert done.returncode == 0, (pattern, done.stderr)
        check(root, tmp_path / f"out{number}", lazy=lazy)
    assert hit >= 5
    again = spawn("clone", remote, root, *options)  # as after a kill at the very end
    assert (again.returncode, again.stdout) == (0, "everything is here already\n")


def test_a_clone_that_is_killed_many_times(remote: str, tmp_path: Path) -> None:
    root = tmp_path / "clone"
    for delay in DELAYS_S:
        end = time.monotonic() + delay
        killed(started("clone", remote, root), lambda end=end: time.monotonic() >= end)
    assert spawn("clone", remote, root).returncode == 0
    check(root, tmp_path / "out", lazy=False)


def test_a_clone_does_not_go_on_in_what_is_no_clone_of_it(
    cli: Cli, remote: str, tmp_path: Path
) -> None:
    cli("put", "-", stdin=b"kept")
    write_tree(tmp_path / "own", {"a": b"1"})
    cli("checkpoint", "create", "own", tmp_path / "own")
    assert "is not empty" in cli.refused("clone", remote, cli.root, code=4)
    cli("clone", remote, tmp_path / "clone")
    other = tmp_path / "other"
    other.mkdir()
    cli("remote", "add", "other", other.as_uri())
    assert "is not empty" in cli.refused("clone", other.as_uri(), tmp_path / "clone", code=4)


@pytest.fixture
def pushing(cli: Cli, tmp_path: Path) -> tuple[Cli, Path]:
    """The command line on a store with a large checkpoint `t`, and its remote, which is empty."""
    folder = tmp_path / "remote"
    folder.mkdir()
    write_tree(tmp_path / "tree", {"large": NOISE.randbytes(48 << 20)})
    cli("remote", "add", "origin", folder.as_uri())
    cli("checkpoint", "create", "t", tmp_path / "tree")
    return cli, folder


def unfinished(folder: Path) -> list[str]:
    return sorted(f".tmp/{path.name}" for path in (folder / ".tmp").iterdir())


def is_written(folder: Path, before: list[str]) -> bool:
    """Whether a new file in `.tmp` has some bytes."""
    for path in (folder / ".tmp").glob("*"):
        with suppress(FileNotFoundError):
            if f".tmp/{path.name}" not in before and path.stat().st_size > 1 << 20:
                return True
    return False


def collected(cli: Cli, *options: str) -> Any:
    return cli("remote", "gc", "origin", "--json", *options).json


def test_gc_names_and_removes_what_killed_pushes_left(pushing: tuple[Cli, Path]) -> None:
    cli, folder = pushing
    left: list[str] = []
    while len(left) < 2:
        push = started("--store", cli.root, "push", "origin", "t")
        killed(push, lambda left=left: is_written(folder, left))
        left = unfinished(folder)
    assert len(left) >= 2
    size = sum((folder / name).stat().st_size for name in left)
    dry = collected(cli, "--dry-run")
    assert (dry["unfinished"], dry["bytes"]) == (left, size)
    text = cli("remote", "gc", "origin", "--dry-run").text
    assert f"{len(left)} files of killed pushes would be deleted: {left[0]}, " in text
    assert unfinished(folder) == left
    assert collected(cli)["unfinished"] == left
    assert unfinished(folder) == []
    assert collected(cli)["unfinished"] == []
    cli("push", "origin", "t")
    assert cli("remote", "fsck", "origin", "--read-data").code == 0


def test_gc_leaves_what_a_push_writes(pushing: tuple[Cli, Path]) -> None:
    cli, folder = pushing
    push = started("--store", cli.root, "push", "origin", "t")
    try:
        while not is_written(folder, []):
            assert push.poll() is None
        push.send_signal(signal.SIGSTOP)
        left = unfinished(folder)
        old = time.time() - 10 * 86400
        for name in left:
            os.utime(folder / name, (old, old))
        assert collected(cli)["unfinished"] == []
        assert unfinished(folder) == left
    finally:
        push.send_signal(signal.SIGCONT)
    assert push.wait() == 0
    assert unfinished(folder) == []


def test_gc_waits_a_day_for_a_writer_of_another_machine(pushing: tuple[Cli, Path]) -> None:
    cli, folder = pushing
    (folder / ".tmp").mkdir(exist_ok=True)
    path = folder / ".tmp" / "0123456789abcdef-0011223344556677"
    path.write_bytes(b"some bytes")
    assert collected(cli)["unfinished"] == []
    old = time.time() - 86500
    os.utime(path, (old, old))
    assert collected(cli)["unfinished"] == [f".tmp/{path.name}"]
    assert not path.exists()

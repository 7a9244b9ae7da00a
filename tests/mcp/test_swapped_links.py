"""Directories that an agent names while another process swaps them with links to the outside.

CASFS_TEST_SWAPPED_CALLS=2000 makes as many calls; `-s` shows the counts.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from casfs.backend.sqlite_connection import Database
from casfs.checkpoints import checkpoint
from casfs.directories import operations
from casfs.mcp.writing import Writing
from casfs.store.store import Store
from casfs.system import paths
from casfs.trees.tree import walk
from tests.support.helpers import put_tree
from tests.support.mcp import connected

CALLS = int(os.environ.get("CASFS_TEST_SWAPPED_CALLS", "300"))
# Swaps `sub`, and a directory in it, with links to the outside. The inner ones by descriptor: the
# swapper itself must change nothing outside. It makes the links that restores replace anew.
SWAPS = """
import contextlib, ctypes, os, random, sys, time
allowed, outside = sys.argv[1:]
os.chdir(allowed)
sub = os.open("sub", os.O_RDONLY)
swap = ctypes.CDLL(None).renameat2
while True:
    for _ in range(10):
        swap(-100, b"sub", -100, b"link", 2)
        swap(sub, b"inner", sub, b"inner-link", 2)
        time.sleep(random.random() ** 4 / 100)
    if not any(os.path.islink(f"/proc/self/fd/{sub}/{name}") for name in ("inner", "inner-link")):
        with contextlib.suppress(OSError):
            os.unlink("inner-link/file", dir_fd=sub)
        with contextlib.suppress(OSError):
            os.rmdir("inner-link", dir_fd=sub)
            os.symlink(outside + "/inner", "inner-link", dir_fd=sub)
"""
LEADS_OUT = r"Invalid cross|Too many|Not a directory"
STATES = ("restored", "overwritten", "applied-steps")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside `allowed`, which may be written."""
    for top in (tmp_path / "outside", tmp_path / "allowed/sub"):
        (top / "inner").mkdir(parents=True)
    for name in ("secret", "inner/secret"):
        (tmp_path / "outside" / name).write_text("theirs")
    return tmp_path / "outside"


@contextmanager
def swapped(allowed: Path, outside: Path) -> Iterator[None]:
    (allowed / "link").symlink_to(outside)
    (allowed / "sub/inner-link").symlink_to(outside / "inner")
    swapper = subprocess.Popen([sys.executable, "-c", SWAPS, allowed, outside])
    try:
        yield
    finally:
        swapper.kill()
        swapper.wait()


def undo_writes(outside: Path) -> bool:
    """Returns whether anything had been written there."""
    known = {outside / "inner", outside / "secret", outside / "inner/secret"}
    entries = set(outside.rglob("*"))
    for entry in sorted(entries - known, reverse=True):
        entry.unlink() if entry.is_file() else entry.rmdir()
    is_changed = entries != known
    for entry in (outside / "secret", outside / "inner/secret"):
        is_changed = is_changed or entry.read_text() != "theirs"
        entry.parent.mkdir(exist_ok=True)
        entry.write_text("theirs")
    return is_changed


def states_of(store: Store, directory: Path) -> int:
    """Returns how much the store notes of a directory, or entry in it."""
    files = [
        entry.read_text() for folder in STATES for entry in store.root.glob(f"{folder}/*.json")
    ]
    with closing(Database(store.root / "index.db", "")) as database, database.read() as db:
        rows = db.execute("SELECT DISTINCT root FROM dated_directories").fetchall()
    prefix = os.fsencode(directory)
    return sum(f'"{directory}' in text for text in files) + sum(
        root.startswith(prefix) for (root,) in rows
    )


@pytest.mark.timeout(100 + CALLS)
async def test_links_that_are_swapped_lead_nothing_outside(
    disk_store: Store, outside: Path
) -> None:
    allowed = outside.parent / "allowed"
    tree = put_tree(disk_store, {b"file": b"ours", b"inner": {b"file": b"ours"}})
    counts: Counter[str] = Counter()
    async with connected(Writing(disk_store, directories=[allowed])) as agent:
        with swapped(allowed, outside):
            for number in range(CALLS):
                path = ("sub", "sub/inner", f"sub/new{number}", "sub/inner", "sub")[number % 5]
                tool, arguments = "restore", {"tree": tree, "force": True}
                if number % 2:
                    tool, arguments = "create_checkpoint", {"name": "taken"}
                called = await agent.client.call_tool(tool, {"directory": path, **arguments})
                counts[f"{tool} {'refused' if called.is_error else 'done'}"] += 1
                counts["written outside"] += undo_writes(outside)
                if called.is_error:
                    assert "/proc/" not in called.content[0].text
                    assert "Error executing" not in called.content[0].text
    for row in checkpoint.listing(disk_store):
        names = {path.rpartition(b"/")[2] for path, _ in walk(disk_store, row.root)}
        counts["read outside"] += b"secret" in names
    counts["noted outside"] = states_of(disk_store, outside)
    print(CALLS, "calls:", dict(sorted(counts.items())))
    assert [counts[f"{what} outside"] for what in ("written", "read", "noted")] == [0, 0, 0]
    assert min(counts["restore done"], counts["create_checkpoint done"]) > CALLS / 50


async def test_a_link_that_is_swapped_in_while_a_tool_works(
    disk_store: Store, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is noted of the directory is of its real path, not of where its former path leads."""
    allowed = outside.parent / "allowed"
    tree = put_tree(disk_store, {b"file": b"ours"})
    opened = paths.open_beneath

    def open_and_swap(root: int, path: bytes, flags: int) -> int:
        fd = opened(root, path, flags)
        if not (allowed / "moved").exists():
            (allowed / "sub").rename(allowed / "moved")
            (allowed / "sub").symlink_to(outside)
        return fd

    async with connected(Writing(disk_store, directories=[allowed])) as agent:
        for tool, arguments in (
            ("create_checkpoint", {"name": "taken"}),
            ("restore", {"tree": tree, "force": True}),
        ):
            (allowed / "sub/file").write_text(f"before {tool}")
            with monkeypatch.context() as patch:
                patch.setattr("casfs.mcp.writing.open_beneath", open_and_swap)
                await agent.call(tool, directory="sub", **arguments)
            (allowed / "sub").unlink()
            (allowed / "moved").rename(allowed / "sub")
    assert ((allowed / "sub/file").read_text(), undo_writes(outside)) == ("ours", False)
    assert states_of(disk_store, outside) == 0
    assert states_of(disk_store, allowed / "moved") > 1
    (operation,) = operations.logs(disk_store)
    assert operation.path == allowed / "moved"


async def test_patterns_are_read_from_no_file_outside(disk_store: Store, outside: Path) -> None:
    allowed = outside.parent / "allowed"
    (outside / "secret").write_text("a password\\\n")  # no pattern: the message would show it
    (allowed / "sub/patterns").write_text("left-out\n")
    (allowed / "sub/left-out").write_text("x")
    async with connected(Writing(disk_store, directories=[allowed])) as agent:
        for target in (outside / "secret", Path("../../outside/secret")):
            (allowed / "sub/.casfsignore").symlink_to(target)
            said = await agent.fault("create_checkpoint", name="taken", directory="sub")
            (allowed / "sub/.casfsignore").unlink()
            assert said.startswith(f"{allowed}/sub/.casfsignore: a link that leads out; ")
        (allowed / "sub/.casfsignore").symlink_to("patterns")
        made = await agent.call("create_checkpoint", name="taken", directory="sub")
    names = {path for path, _ in walk(disk_store, made["tree"])}
    assert names == {b".casfsignore", b"inner", b"patterns"}


async def test_a_tree_does_not_overwrite_the_store(disk_store: Store, tmp_path: Path) -> None:
    """The directory that an agent may write is above the store."""
    (tmp_path / "file").write_text("mine")
    tree = put_tree(disk_store, {b"store": {b"config.toml": b"# theirs"}})
    async with connected(Writing(disk_store, directories=[tmp_path])) as agent:
        await agent.call("create_checkpoint", name="before", directory=".")
        for force in (False, True):
            said = await agent.fault("restore", tree=tree, directory=".", force=force)
            assert "the tree has files at store, where the store itself is" in said
    assert not (tmp_path / "store/config.toml").exists()


async def test_a_kernel_without_openat2(
    disk_store: Store, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(root: int, path: bytes, flags: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    allowed = outside.parent / "allowed"
    monkeypatch.setattr(paths, "openat2_beneath", missing)
    (allowed / "inside").symlink_to("sub")
    tree = put_tree(disk_store, {b"file": b"ours"})
    async with connected(Writing(disk_store, directories=[allowed])) as agent:
        for path in ("new", "sub/inner/new", "inside/again"):
            await agent.call("restore", tree=tree, directory=path)
        await agent.call("create_checkpoint", name="taken", directory=".")
    assert (allowed / "sub/again/file").read_text() == "ours"
    (allowed / "sub/away").symlink_to(outside)
    root = os.open(allowed, paths.DIR_FLAGS)
    try:
        for path in (b"sub/away", b"sub/away/inner", b"sub/../../outside", bytes(outside)):
            with pytest.raises(OSError, match=LEADS_OUT):
                os.close(paths.open_beneath(root, path, os.O_RDONLY))
    finally:
        os.close(root)

"""Trees and workspaces on a second machine of a shared store, whose cache is evicted."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.backend import frame_mirror
from casfs.backend.postgres.backend import PostgresBackend
from casfs.checkpoints.create import create
from casfs.cli import implicit_mount
from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.store import Store
from casfs.system import mounts
from casfs.threads import threads
from casfs.trees import tree
from casfs.workspaces import desk
from tests.support.engine import Cli, begin, loop, shell, steps, until
from tests.support.helpers import Program, read_tree, write_tree
from tests.support.lasting import drop_caches
from tests.support.machines import machines
from tests.support.native import needs_native
from tests.support.postgres_server import PostgresServer
from tests.support.restores import restore_tree
from tests.support.s3_servers import S3Server
from tests.support.teams import Team, team, write_files

LARGE = random.Random(2).randbytes(3 << 20)
TREE = {
    "d": {f"f{n}": f"line {n}\n".encode() * (n * 40 + 1) for n in range(80)},
    "big": {"large": LARGE, "other": LARGE[:-1]},
    "run": Program(b"#!/bin/sh\n" + b"# comment\n" * 500),
    "empty": b"",
    "none": {},
}


@pytest.fixture
def pair(tmp_path: Path, database_url: str, s3: S3Server) -> Iterator[Team]:
    with team(tmp_path, database_url, s3) as made:
        yield made


@pytest.fixture
def source(pair: Team, tmp_path: Path) -> Path:
    """The directory of the checkpoint `t`, which the first machine has made."""
    made = write_tree(tmp_path / "source", TREE)
    pair.checkpoint(made)
    return made


@pytest.fixture
def second(
    pair: Team,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> Iterator[Cli]:
    """The command line of the second machine."""
    found = Cli(pair.second.root, monkeypatch, capfdbinary)
    try:
        yield found
    finally:
        for point in mounts.mounted_below(tmp_path.resolve()):
            mounts.unmount(point, lazy=True)
        implicit_mount.end(found.root, os.environ)


def local_bytes(store: Store) -> tuple[int, int]:
    """The bytes of rows and objects of a machine's cache, and of its mirrors."""
    assert isinstance(store.backend, PostgresBackend)
    with store.backend.local._db.read() as db:
        (rows,) = db.execute("SELECT sum(size) FROM blobs WHERE pack IS NULL").fetchone()
    return rows or 0, frame_mirror._room(store.root)


def forget(store: Store) -> None:
    """Evicts all that a machine has cached."""
    assert isinstance(store.backend, PostgresBackend)
    store.backend.local.evict(1, [])
    frame_mirror.evict(store.root, 1)
    rows, mirrors = local_bytes(store)
    assert rows == 0
    assert mirrors < 1 << 20
    assert not [name for _, _, names in os.walk(store.root / "objects") for name in names]
    drop_caches()


@needs_native
def test_a_native_mount_outlives_its_cache(
    pair: Team, second: Cli, source: Path, tmp_path: Path
) -> None:
    top = tmp_path / "m"
    for _ in range(2):
        second("tree", "mount", "t", top)
        assert mounts.mounted_at(top.resolve()).type == "overlay"  # type: ignore[union-attr]
        assert read_tree(top) == read_tree(source)
        forget(pair.second)
        assert read_tree(top) == read_tree(source)
        second("tree", "umount", top)


@needs_native
def test_a_workspace_outlives_its_cache(
    pair: Team, second: Cli, source: Path, tmp_path: Path
) -> None:
    said = second("workspace", "open", "t", tmp_path / "w", "--json").json
    assert said["backend"] == "erofs-overlay"
    assert (tmp_path / "w/big/large").read_bytes() == LARGE
    forget(pair.second)
    for top in (tmp_path / "w", source):
        with (top / "d/f9").open("ab") as file:
            file.write(b"more")
        (top / "big/other").unlink()
        (top / "new").write_bytes(LARGE[5:])
    second("workspace", "commit", tmp_path / "w")
    assert read_tree(tmp_path / "w") == read_tree(source)
    assert second("workspace", "list").out
    assert not [*pair.first.heads.list("workspaces/")]
    second("workspace", "close", tmp_path / "w")
    ((_, _), (_, head)) = pair.first.heads.list("checkpoints/t/")
    restore_tree(pair.first, head.record["root"], tmp_path / "restored")
    assert read_tree(tmp_path / "restored") == read_tree(source)


def test_a_tree_is_brought_at_once(pair: Team, tmp_path: Path) -> None:
    """All its directories come with the first, and none of its files."""
    paths = [f"d{n}/below/{m}" for n in range(10) for m in range(3)]
    files = {f"{path}/file": path.encode() * 1000 for path in paths}
    root = pair.checkpoint(write_files(tmp_path / "deep", files))
    assert isinstance(pair.second.backend, PostgresBackend)
    local = pair.second.backend.local.blobs
    pair.second.node(root, "directory")
    found = [tree.load(pair.second, root)]
    for entries in found:
        hashes = [one.digest.hash for one in entries.values() if isinstance(one, Subdirectory)]
        assert not local.missing(hashes)
        found += [tree.load(pair.second, hash) for hash in hashes]
        contents = [one.digest.hash for one in entries.values() if isinstance(one, File)]
        assert local.missing(contents) == contents
    assert len(found) == 51


def test_the_cache_is_bounded(pair: Team, source: Path, tmp_path: Path) -> None:
    """What is read over and over stays; the rest goes, and comes again."""
    limit = 4 << 20
    config = pair.second.root / "config.toml"
    config.write_text(config.read_text() + f"\n[cache]\nmax_size = {limit}\n")
    kept = pair.first.put(LARGE[1:]).hash
    others = [pair.first.put(LARGE[n:-n]).hash for n in range(1, 9)]
    with Store.open(pair.second.root) as store:
        for round in range(2):
            for n, hash in enumerate(others, start=1):
                with store.blobs.open(kept) as file:
                    assert file.read() == LARGE[1:]
                with store.blobs.open(hash) as file:
                    assert file.read() == LARGE[n:-n], round
                rows, mirrors = local_bytes(store)
                assert rows <= limit + (4 << 20)
                assert mirrors <= limit + (4 << 20)


WRITES = """n=$(ls | wc -l); head -c 2000000 /dev/urandom >"file$n"; echo "$n" >short; echo x >>"$1"
printf '%s\\n' '```json' '{}' '```'"""


def test_a_workspace_goes_on_elsewhere(
    postgres: PostgresServer, s3: S3Server, tmp_path: Path
) -> None:
    """A step is visible once its tree is in object storage, where another machine takes it."""
    write_tree(tmp_path / "workspace", TREE)
    with machines(postgres, s3, 2) as (first, second), Store.open(second.root) as store:
        agents = {"a": shell(WRITES, str(tmp_path / "runs"))}
        with Store.open(first.root) as own:
            root = create(own, "t", tmp_path / "workspace").checkpoint.root
            thread = begin(own, loop(4), agents, root)
        runs = tmp_path / "runs"
        try:
            first.start_daemon()
            until(lambda: len(steps(store, threads.get(store, thread.id))) >= 1, "a step")
            first.cut("objects")
            count = len(runs.read_text())
            until(lambda: len(runs.read_text()) > count, "a run without object storage")
            check_steps(store, threads.get(store, thread.id), tmp_path / "early")
            first.kill_daemon()
            second.start_daemon()
            until(
                lambda: threads.get(store, thread.id).status == threads.ENDED,
                "the end of the thread",
            )
        finally:
            second.stop_daemon()
            for machine in (first, second):
                desk.unmount_all(machine.root)
        ended = threads.get(store, thread.id)
        assert len(steps(store, ended)) == 4
        check_steps(store, ended, tmp_path / "all")
        names = {f"file{n}" for n in (5, 7, 8, 9)}
        assert names < {*os.listdir(tmp_path / "all" / "4")}


def check_steps(store: Store, thread: threads.Thread, into: Path) -> None:
    """Restores the tree of each visible step."""
    for step in steps(store, thread):
        restore_tree(store, step["workspace"], into / str(step["index"]), parents=True)

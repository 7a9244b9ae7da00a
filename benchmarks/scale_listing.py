"""A second machine mounts a tree, for `benchmarks.scale`: the store, and JuiceFS with its metadata
in the same PostgreSQL and its objects in the same SeaweedFS.

Each has the tree written by a first machine, and is mounted with an empty cache in another
directory, after the kernel's caches were dropped. JuiceFS is filled by `juicefs sync`, and
with empty files of the same names: with content that did not end in 15 minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmarks import common, packs, workspaces
from benchmarks.common import in_seconds, table, timed
from benchmarks.mount_peers import casfs_mount
from benchmarks.network import Network, network
from benchmarks.remote_peers import JuiceFS
from benchmarks.workspaces_peers import run
from casfs.checkpoints.create import create
from tests.support.s3_servers import BUCKET, KEY_ID, SECRET, S3Server
from tests.support.shared_stores import join, make_store

if TYPE_CHECKING:
    from benchmarks.scale import Servers

PASSES = ("first `ls -lR`", "second", "third")
LIMIT_S = 240  # of a pass
Column = dict[str, str]


def list_tree(top: Path, column: Column, net: Network | None) -> None:
    for name in PASSES:
        before = net.passed() if net else None
        seconds = timed(f"timeout {LIMIT_S} ls -lR . | cat", top=top)
        said = in_seconds(seconds)
        if net and before and name == PASSES[0]:
            said += f", {net.since(before).requests:,} requests to S3"
        column[name] = said


def shared_store(one: Servers, work: Path, tree: Path, net: Network) -> tuple[Column, ...]:
    """Returns the figures of the machine that has written the tree, of a second one, and of a
    third one that mounts the tree natively."""
    first: Column = {}
    second: Column = {}
    native: Column = {}
    s3 = S3Server(one.s3.name, f"http://127.0.0.1:{net.port}")
    with make_store(work / "first", one.url, s3) as store:
        start = perf_counter()
        create(store, "b", tree)
        first["the tree is written"] = in_seconds(perf_counter() - start)
    start = perf_counter()
    join(work / "second", one.url).close()
    second["the store is joined"] = in_seconds(perf_counter() - start)
    for name, column in (("first", first), ("second", second)):
        common.drop_caches()
        with casfs_mount(work / name, work / f"{name}.mnt") as ready:
            column["mount"] = in_seconds(ready)
            latest = work / f"{name}.mnt" / "trees" / "b"
            list_tree(latest / (latest / "latest").readlink(), column, net)
    start = perf_counter()
    join(work / "third", one.url).close()
    native["the store is joined"] = in_seconds(perf_counter() - start)
    common.drop_caches()
    casfs = [sys.executable, "-m", "casfs", "--store", work / "third", "tree"]
    start = perf_counter()
    run(*casfs, "mount", "b", work / "third.mnt")
    native["mount"] = in_seconds(perf_counter() - start)
    try:
        list_tree(work / "third.mnt", native, net)
    finally:
        run(*casfs, "umount", work / "third.mnt")
    return first, second, native


def juicefs(one: Servers, work: Path, tree: Path, net: Network, beside: Path) -> Column:
    column: Column = {}
    os.environ["PATH"] += f":{beside}"
    with one.postgres.database() as url:
        address = urlsplit(url)
        meta = f"postgres://{address.netloc}{address.path}?sslmode=disable"
        volume = Volume(work, "volume", meta)
        volume.format(net.port)
        start = perf_counter()
        run("cp", "-a", "--attributes-only", tree, work / "empty")
        volume.fill(work / "empty")
        column["the tree is written"] = f"{in_seconds(perf_counter() - start)}, empty files"
        common.drop_caches()
        start = perf_counter()
        with volume.shown() as point:
            column["mount"] = in_seconds(perf_counter() - start)
            list_tree(point / "tree", column, net)
    return column


class Volume(JuiceFS):
    def _bucket(self, port: int) -> list[str]:
        where = f"http://127.0.0.1:{port}/{BUCKET}"
        return ["--bucket", where, "--access-key", KEY_ID, "--secret-key", SECRET]


def listing(work: Path, options: argparse.Namespace) -> None:
    from benchmarks.scale import load, servers

    tree = options.tree.resolve() if options.tree else workspaces.make_tree(work)
    columns: dict[str, Column] = {"ext4": {}}
    list_tree(tree, columns["ext4"], None)
    with servers(work) as one:
        port = urlsplit(one.s3.endpoint).port
        assert port is not None
        with network(port) as net:
            found = shared_store(one, work, tree, net)
            machines = ("casfs, where it was written", "a second machine", "… mounted natively")
            columns |= dict(zip(machines, found, strict=True))
            if options.peers:
                beside = Path(options.peers).parent
                columns["JuiceFS, a second machine"] = juicefs(one, work, tree, net, beside)
    names = ["the tree is written", "the store is joined", "mount", *PASSES]
    rows = [[name, *(column.get(name, "") for column in columns.values())] for name in names]
    table(f"{len(packs.files_of(tree)):,} files; load {load()}", ["", *columns], rows)

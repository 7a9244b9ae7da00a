"""Trees whose files come from a bucket when they are read: `casfs clone --lazy` and JuiceFS, for
`benchmarks.remote`.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from statistics import median

from benchmarks import packs
from benchmarks.common import in_seconds, megabytes, table, timed
from benchmarks.mount_passes import GREP
from benchmarks.mount_peers import casfs_mount
from benchmarks.network import Network, network
from benchmarks.remote_peers import BUCKET, Casfs, JuiceFS, redis, s3_env, seaweed
from benchmarks.workspaces_peers import CASFS, run

LATENCY_S = 0.02
LIMIT_S = 100  # of a pass through JuiceFS


@contextmanager
def counted(columns: dict[str, list[str]], name: str, net: Network) -> Iterator[None]:
    before, start = net.passed(), time.perf_counter()
    yield
    seconds, passed = time.perf_counter() - start, net.since(before)
    asked = f"{passed.requests:,} requests, {megabytes(passed.down)}" if passed.requests else ""
    columns.setdefault(name, []).append(", ".join(filter(None, (in_seconds(seconds), asked))))
    print(f"{name}: {columns[name][-1]}", flush=True)


def _passes(
    top: Path, tree: Path, rows: dict[str, list[str]], net: Network, limit_s: int = 3600
) -> None:
    """Measures the first commands in a tree just cloned; a pass is stopped at the limit."""
    stop = f"timeout {limit_s} sh -c "
    files = packs.files_of(tree)
    size = sum(path.stat().st_size for path in files)
    chosen = [path.relative_to(tree) for path in random.Random(5).sample(files, 21)]
    with counted(rows, "first `ls -lR`", net):
        timed(stop + quote("ls -lR . | cat"), top=top)
    with counted(rows, "`head` of one file", net):
        timed(f"head {quote(str(chosen[0]))} | cat", top=top)
    before = net.passed()
    others = [timed(f"head {quote(str(path))} | cat", top=top) for path in chosen[1:]]
    asked = net.since(before)
    cell = f"{in_seconds(median(others))}, {asked.requests / len(others):.1f} requests"
    rows.setdefault("… of another, median of 20", []).append(cell)
    start = time.perf_counter()
    for number in ("first", "second", "third"):
        if time.perf_counter() - start > limit_s:
            rows.setdefault(f"{number} `grep -r`", []).append("")
            continue
        with counted(rows, f"{number} `grep -r`", net):
            timed(stop + quote(GREP), top=top)
    rows.setdefault("content", []).append(megabytes(size))


def lazy(work: Path, tree: Path) -> None:
    rows: dict[str, list[str]] = {}
    names = ["plain copy", "casfs mount, all local", "casfs clone --lazy"]
    with seaweed(work) as port, network(port) as net, ExitStack() as stack:
        stored = Casfs(work / "origin", tree)
        stored.port = net.port
        stored.prepare()
        before = net.passed()
        stored.push()
        print(f"\nThe push has sent {megabytes(net.since(before).up)}.")
        for top in (tree, None):
            rows.setdefault("the command", []).append("")
            rows.setdefault("mount", []).append("")
            if top is not None:
                _passes(top, tree, rows, net)
                continue
            with casfs_mount(stored.place, work / "eager.mnt"):
                latest = work / "eager.mnt" / "trees" / "b"
                _passes(latest / (latest / "latest").readlink(), tree, rows, net)
        net.delay(LATENCY_S)
        place, point = work / "cloned", work / "cloned.mnt"
        env = s3_env(net.port)
        os.environ.update(env)
        with counted(rows, "the command", net):
            run(*CASFS, "clone", "--lazy", f"s3://{BUCKET}/{Casfs.prefix}", place, cwd=None, **env)
        start = time.perf_counter()
        stack.enter_context(casfs_mount(place, point))
        rows["mount"].append(in_seconds(time.perf_counter() - start))
        latest = point / "trees" / "b"
        _passes(latest / (latest / "latest").readlink(), tree, rows, net)
    title = f"Lazy clone, {LATENCY_S * 1000:.0f} ms of added latency"
    table(title, ["", *names], [[name, *cells] for name, cells in rows.items()])


def juicefs(work: Path, tree: Path) -> None:
    rows: dict[str, list[str]] = {}
    names = []
    with seaweed(work) as port, redis(work) as meta, ExitStack() as stack:
        objects = stack.enter_context(network(port))
        metadata = stack.enter_context(network(meta))
        for name, local, far in (
            ("metadata in Redis, as far away", f"redis://127.0.0.1:{meta}/1", True),
            ("metadata in a local SQLite", f"sqlite3://{work}/meta.db", False),
        ):
            names.append(f"JuiceFS, {name}")
            volume = JuiceFS(work, f"volume{len(names)}", local)
            volume.format(port)
            taken, _ = packs.spent(partial(volume.fill, tree))
            rows.setdefault("`juicefs sync` of the tree into it, no latency", []).append(
                in_seconds(taken)
            )
            url = f"redis://127.0.0.1:{metadata.port}/1" if far else local
            volume.connect(objects.port, local)
            volume.meta = url
            for one in (objects, metadata):
                one.delay(LATENCY_S)
            with volume.shown() as point:
                _passes(point / "tree", tree, rows, objects, LIMIT_S)
            for one in (objects, metadata):
                one.delay(0)
    title = f"JuiceFS on the same server, {LATENCY_S * 1000:.0f} ms of added latency"
    table(title, ["", *names], [[name, *cells] for name, cells in rows.items()])

"""Measure push, lazy clones and damaged answers beside restic, rclone and JuiceFS on the same S3
server; prints Markdown.

    .venv/bin/python -m benchmarks.remote [--dir DIR] [--tree DIR] [--rounds N] [PART ...]

Parts: push steps lazy juicefs damage. The server is SeaweedFS on this machine (`weed`), reached
through a proxy of the benchmark's own where requests are counted or latency is added; each tool
has its defaults. Without --tree: a copy of the Python installation that runs this for push, and
/usr/share, /usr/include, /usr/lib/python3 for the lazy clone. As root: caches are dropped.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from statistics import median

from benchmarks import common, packs, workspaces
from benchmarks.common import Times, add, compared, in_seconds, table, timed
from benchmarks.engine_peers import Shape
from benchmarks.engine_runs import run_threads
from benchmarks.mount_passes import GREP
from benchmarks.mount_peers import casfs_mount
from benchmarks.network import Network, Passed, network
from benchmarks.remote_peers import (
    BUCKET,
    Casfs,
    JuiceFS,
    Rclone,
    RcloneTar,
    Remote,
    Restic,
    redis,
    s3_env,
    seaweed,
)
from benchmarks.workspaces_peers import CASFS, ENV, run
from casfs import threads
from casfs.digest import NodeHash
from casfs.store import Store
from casfs.threads import Thread

LATENCY_S = 0.02
LIMIT_S = 100  # of a pass through JuiceFS
STEPS, NEW_STEPS = 100_000, 10


def since(net: Network, before: Passed) -> Passed:
    now = net.passed()
    return Passed(now.requests - before.requests, now.up - before.up, now.down - before.down)


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f} MB" if value >= 1e5 else f"{value / 1e3:,.1f} kB"


# -- push -------------------------------------------------------------------------------------


class Whole(Casfs):
    """As a backup does: the tree is read, too."""

    name = "casfs checkpoint + push"
    prefix = "whole"

    def record(self) -> None: ...

    def push(self) -> None:
        super(Casfs, self).record()
        super().push()


PUSHING: tuple[type[Remote], ...] = (Casfs, Whole, Restic, Rclone, RcloneTar)


def push(work: Path, tree: Path, rounds: int) -> None:
    columns: dict[str, Times] = {}
    sent: dict[str, dict[str, list[Passed]]] = {}
    state = work / "pushed"
    run("cp", "-a", tree, state)
    common.cache(state)
    said = ""
    victim = next(path for path in packs.files_of(state) if 8000 < path.stat().st_size < 12000)
    for turn in range(rounds):
        place = work / f"push-{turn}"
        place.mkdir()
        with seaweed(place) as port, network(port) as net:
            tools = [make(place / make.__name__, state) for make in PUSHING]
            for tool in tools:
                _push(tool, net, "first push", columns, sent)
            time.sleep(3)  # past the racy moment, after which a file's times are believed
            with victim.open("a") as out:
                out.write(f"# {turn}\n")
            for tool in tools:
                if isinstance(tool, Casfs) and not isinstance(tool, Whole):
                    tool.record()
                    said = would_push(tool)
                _push(tool, net, "one file changed", columns, sent)
        shutil.rmtree(place)
    rows = compared(columns, [tool.name for tool in PUSHING], Restic.name, in_seconds)
    for row in rows:
        for found in sent.values():
            last = found[row[0]][-1]
            row.append(f"{last.requests:,} requests, {megabytes(last.up)}")
    header = ["", *columns, *(f"{name}: sent" for name in sent)]
    table(f"Push, medians of {rounds} (× restic); sent in the last round", header, rows)
    print(f"\nThe changed file has {megabytes(victim.stat().st_size)}. `push --dry-run`: {said}")


def would_push(tool: Casfs) -> str:
    command = [*CASFS, "--store", str(tool.place), "push", "--dry-run", "r", "b"]
    env = {**ENV, **s3_env(tool.port)}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def _push(
    tool: Remote,
    net: Network,
    name: str,
    columns: dict[str, Times],
    sent: dict[str, dict[str, list[Passed]]],
) -> None:
    tool.port = net.port
    if name == "first push":
        tool.prepare()
    os.sync()
    before = net.passed()
    seconds, processor = packs.spent(tool.push)
    add(columns.setdefault(name, {}), tool.name, seconds)
    add(columns.setdefault(f"{name}, processors", {}), tool.name, processor)
    sent.setdefault(name, {}).setdefault(tool.name, []).append(since(net, before))


# -- steps ------------------------------------------------------------------------------------


def grown(store: Store, hashes: list[NodeHash], thread: Thread, count: int) -> Thread:
    """The thread with so many more steps, all of the same text."""
    first = threads.step_at(store, thread, 1)
    end = len(hashes) + count
    with store.batch() as batch:
        while len(hashes) < end:
            links = {"index": len(hashes) + 1, **threads.links(hashes)}
            hashes.append(batch.put_node("thread-step", {**first.payload, **links}).hash)
        batch.move(thread.name, thread.head, hashes[-1], thread.record)
    return threads.get(store, thread.id)


def steps(work: Path, tree: Path, rounds: int) -> None:
    place = work / "steps"
    rows = []

    def pushed(title: str) -> None:
        before = net.passed()
        seconds, _ = packs.spent(lambda: run(*command, "push", "r", thread.id, cwd=None, **env))
        passed = since(net, before)
        values = (in_seconds(seconds), f"{passed.requests:,}", megabytes(passed.up))
        rows.append([title, *values])

    with seaweed(work) as port, network(port) as net:
        env = s3_env(net.port)
        command = [*CASFS, "--store", place]
        with Store.init(place) as store:
            run(*command, "remote", "add", "r", f"s3://{BUCKET}/steps", cwd=None, **env)
            _, thread = run_threads(store, Shape(1, 1))
            hashes = [threads.step_at(store, thread, 1).hash]
            thread = grown(store, hashes, thread, STEPS - 1)
            pushed(f"first push, {STEPS:,} steps")
            for _ in range(rounds):
                pushed("nothing new")
                thread = grown(store, hashes, thread, NEW_STEPS)
                pushed(f"{NEW_STEPS} new steps")
            seconds, _ = packs.spent(lambda: run(*CASFS, "--version"))
            rows.append(["`casfs --version`: the start of Python", in_seconds(seconds), "", ""])
    table("A long thread", ["push", "", "requests", "sent"], rows)


# -- lazy -------------------------------------------------------------------------------------


@contextmanager
def counted(columns: dict[str, list[str]], name: str, net: Network) -> Iterator[None]:
    before, start = net.passed(), time.perf_counter()
    yield
    seconds, passed = time.perf_counter() - start, since(net, before)
    asked = f"{passed.requests:,} requests, {megabytes(passed.down)}" if passed.requests else ""
    columns.setdefault(name, []).append(", ".join(filter(None, (in_seconds(seconds), asked))))
    print(f"{name}: {columns[name][-1]}", flush=True)


def _passes(
    top: Path, tree: Path, rows: dict[str, list[str]], net: Network, limit_s: int = 3600
) -> None:
    """What somebody does with a tree that has just come; a pass is stopped at the limit."""
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
    asked = since(net, before)
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


def lazy(work: Path, tree: Path, rounds: int) -> None:
    rows: dict[str, list[str]] = {}
    names = ["plain copy", "casfs mount, all local", "casfs clone --lazy"]
    with seaweed(work) as port, network(port) as net, ExitStack() as stack:
        stored = Casfs(work / "origin", tree)
        stored.port = net.port
        stored.prepare()
        before = net.passed()
        stored.push()
        print(f"\nThe push has sent {megabytes(since(net, before).up)}.")
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


def juicefs(work: Path, tree: Path, rounds: int) -> None:
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


PARTS: dict[str, Callable[[Path, Path, int], None]] = {
    "push": push,
    "steps": steps,
    "lazy": lazy,
    "juicefs": juicefs,
}
OF_USR = ("lazy", "juicefs")  # the other tree


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    common.unwind_on_signals()
    with common.workplace(options.dir) as work:
        print(common.machine(work), flush=True)
        for part in options.parts or PARTS:
            place = work / part
            place.mkdir()
            if options.tree:
                tree = options.tree.resolve()
            elif part in OF_USR:
                tree = workspaces.make_tree(place)
            else:
                tree = packs.make_tree(place)
            print(f"\n## {part}: {len(packs.files_of(tree)):,} files", flush=True)
            PARTS[part](place, tree, options.rounds)
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()

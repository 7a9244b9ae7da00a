"""Measure push and lazy clones beside restic, rclone and JuiceFS on the same S3 server; prints
Markdown.

    .venv/bin/python -m benchmarks.remote [--dir DIR] [--tree DIR] [--rounds N] [--steps N]
                                          [PART ...]

Parts: push steps lazy juicefs. The server is SeaweedFS on this machine (`weed`), reached
through a proxy of the benchmark's own where requests are counted or latency is added; each tool
has its defaults. Without --tree: a copy of the Python installation that runs this for push, and
/usr/share, /usr/include, /usr/lib/python3 for the lazy clone. As root: caches are dropped.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import common, packs, workspaces
from benchmarks.common import Times, add, compared, in_seconds, megabytes, table
from benchmarks.engine_peers import Shape
from benchmarks.engine_runs import run_threads
from benchmarks.network import Network, Passed, network
from benchmarks.remote_lazy import juicefs, lazy
from benchmarks.remote_peers import (
    BUCKET,
    Casfs,
    Rclone,
    RcloneTar,
    Remote,
    Restic,
    s3_env,
    seaweed,
)
from benchmarks.workspaces_peers import CASFS, ENV, installed, run
from casfs.digest import NodeHash
from casfs.store.store import Store
from casfs.threads import threads
from casfs.threads.threads import Thread

NEW_STEPS = 10


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


def push(work: Path, tree: Path, options: argparse.Namespace) -> None:
    kinds, rounds = installed(PUSHING), options.rounds
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
            tools = [make(place / make.__name__, state) for make in kinds]
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
    rows = compared(columns, [make.name for make in kinds], Restic.name, in_seconds)
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
    sent.setdefault(name, {}).setdefault(tool.name, []).append(net.since(before))


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


def steps(work: Path, tree: Path, options: argparse.Namespace) -> None:
    place = work / "steps"
    rows = []

    def pushed(title: str) -> None:
        before = net.passed()
        seconds, _ = packs.spent(lambda: run(*command, "push", "r", thread.id, cwd=None, **env))
        passed = net.since(before)
        values = (in_seconds(seconds), f"{passed.requests:,}", megabytes(passed.up))
        rows.append([title, *values])

    with seaweed(work) as port, network(port) as net:
        env = s3_env(net.port)
        command = [*CASFS, "--store", place]
        with Store.init(place) as store:
            run(*command, "remote", "add", "r", f"s3://{BUCKET}/steps", cwd=None, **env)
            _, thread = run_threads(store, Shape(1, 1))
            hashes = [threads.step_at(store, thread, 1).hash]
            thread = grown(store, hashes, thread, options.steps - 1)
            pushed(f"first push, {options.steps:,} steps")
            for _ in range(options.rounds):
                pushed("nothing new")
                thread = grown(store, hashes, thread, NEW_STEPS)
                pushed(f"{NEW_STEPS} new steps")
            seconds, _ = packs.spent(lambda: run(*CASFS, "--version"))
            rows.append(["`casfs --version`: the start of Python", in_seconds(seconds), "", ""])
    table("A long thread", ["push", "", "requests", "sent"], rows)


PARTS: dict[str, Callable[[Path, Path, argparse.Namespace], None]] = {
    "push": push,
    "steps": steps,
    "lazy": lambda work, tree, options: lazy(work, tree),
    "juicefs": lambda work, tree, options: juicefs(work, tree),
}
OF_USR = ("lazy", "juicefs")  # the other tree


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--tree", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100_000, help="of the part steps")
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
            PARTS[part](place, tree, options)
            shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()

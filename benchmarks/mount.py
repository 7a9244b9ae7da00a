"""Measure mounts beside the native file system and other FUSE programs; prints Markdown.

    .venv/bin/python -m benchmarks.mount [--dir DIR] [--tree DIR] [--rounds N] [--parts PART ...]

Parts: walks greps git reads ready memory kills. Peers from Debian: squashfuse, borgbackup and
restic. Without --tree a tree of more than 50,000 files is put together from /usr/share,
/usr/include and /usr/lib/python3. As root, who may drop the kernel's caches: that slows the
whole machine down, so give it an hour of its own. Compare ratios of one run: absolute times
drift. It may be interrupted: everything is unmounted and removed then.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks import common, mount_growth, mount_passes
from benchmarks.mount_peers import OURS, PEERS, made
from benchmarks.workspaces import make_tree, size

PARTS = ("walks", "greps", "git", "reads", "ready", "memory", "kills")
OF_TREE = {"walks", "greps", "git"}


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def options() -> argparse.Namespace:
    names = [kind.name for kind in PEERS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="where to work: on the native file system")
    parser.add_argument("--tree", type=Path, help="the tree; it is only read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=names, default=names, metavar="PEER")
    parser.add_argument("--large", type=int, default=1024, help="MiB of the large file")
    parser.add_argument("--checkpoints", type=numbers, default=[1, 1000, 100_000], metavar="N,N")
    parser.add_argument("--files", type=int, default=1_000_000, help="of the walk for memory")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    return parser.parse_args()


def of_tree(work: Path, wanted: argparse.Namespace) -> None:
    tree = wanted.tree.resolve() if wanted.tree else make_tree(work)
    count = sum(len(files) for _, _, files in os.walk(tree))
    print(f"\n## The tree: {count:,} files, {size(tree) >> 20:,} MiB on disk", flush=True)
    peers = made(work, tree, wanted.peers)
    for part in (part for part in wanted.parts if part in OF_TREE):
        if part == "walks":
            mount_passes.walks(peers, wanted.rounds)
        elif part == "greps":
            mount_passes.greps(peers, wanted.rounds)
        else:
            mount_passes.git(work, peers, wanted.rounds)


def others(work: Path, wanted: argparse.Namespace) -> None:
    ours = [kind for kind in OURS if kind.name in wanted.peers]
    for part in (part for part in wanted.parts if part not in OF_TREE):
        if part == "reads":
            mount_passes.reads(work, wanted.peers, wanted.large, wanted.rounds)
        elif part == "ready":
            mount_growth.ready(work, ours, wanted.checkpoints, wanted.rounds)
        elif part == "memory":
            mount_growth.memory(work, ours, wanted.files)
        else:
            mount_growth.kills(ours, wanted.kills, wanted.readers)


def main() -> None:
    wanted = options()
    common.unwind_on_signals()
    with common.workplace(wanted.dir) as work:
        print(common.machine(work), flush=True)
        if OF_TREE & set(wanted.parts):
            of_tree(work, wanted)
        others(work, wanted)


if __name__ == "__main__":
    main()

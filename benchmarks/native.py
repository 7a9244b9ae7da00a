"""Measure trees that the kernel shows alone, beside their peers on the same files; prints Markdown.

    .venv/bin/python -m benchmarks.native [--dir DIR] [--tree DIR] [--rounds N] [--files N]
                                          [--parts PART ...]

Parts: image commands shared workspace suite. The peers: a plain copy on the native file system,
a FUSE mount, an image by mkfs.erofs that the kernel mounts too, and squashfuse_ll; who is missing
is left out, with the reason. Without --tree a tree of more than 50,000 files is put together
from /usr/share, /usr/include and /usr/lib/python3. As root, and --dir on a real disk: the
kernel's caches are dropped, which slows the whole machine down. Compare ratios of one run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import common
from benchmarks.common import Times, add, compared, in_seconds, table, timed
from benchmarks.mount_passes import COMMANDS
from benchmarks.mount_peers import made
from benchmarks.native_peers import PEERS, Copy, native, opened, stored
from benchmarks.native_suite import suite
from benchmarks.overlay_commit import SIZE, deepest, plant
from benchmarks.overlay_commit import timed as milliseconds
from benchmarks.workspaces import make_tree
from benchmarks.workspaces_peers import run
from casfs.backend.protocols import INLINE_MAX_BYTES
from casfs.checkpoints import create
from casfs.native import images
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File
from casfs.store.store import FORMAT_FILE, Store
from casfs.trees import tree
from casfs.trees.dated import DatedTree
from casfs.trees.recorded_state import RecordedState
from casfs.workspaces import lifecycle, registry, strategies, strategy_choice
from casfs.workspaces.commit import commit_workspace

WARM = 3  # passes of each round, after the cold one
READ_FILES = 1000  # files that are read through two checkpoints
SECTOR = 512  # bytes, of the kernel's counts


# -- parts ------------------------------------------------------------------------------------


def image(work: Path, source: Path, options: argparse.Namespace) -> None:
    rounds = options.rounds
    place, point = work / "image-store", work / "image"
    with Store.init(place) as store:
        root = stored(store, source)
    first, again, shown = [], [], []
    for _ in range(rounds):
        shutil.rmtree(place / images.FOLDER, ignore_errors=True)
        os.sync()  # the image is; what waits to be written besides is none of its business
        with Store.open(place) as store:
            first.append(milliseconds(partial(images.ensure, store, DatedTree(root))))
        with Store.open(place) as store:
            again.append(milliseconds(partial(images.ensure, store, DatedTree(root))))
            shown.append(milliseconds(partial(opened, store, root, point, read_only=True)))
            lifecycle.close(store, registry.find(store, point))
    with Store.open(place) as store:
        files = [one for _, one in tree.walk(store, root) if isinstance(one, File)]
        size = images.ensure(store, DatedTree(root)).stat().st_size
    inline = sum(
        one.digest.size_bytes for one in files if one.digest.size_bytes <= INLINE_MAX_BYTES
    )
    share = 50_000 / len(files)
    rows = [
        ["made", f"{median(first):.0f} ms", f"{median(first) * share:.0f} ms"],
        ["size", f"{size / 1e6:.1f} MB", f"{size * share / 1e6:.1f} MB"],
        ["… beside inline data", *(f"{(size - inline) * by / 1e6:.1f} MB" for by in (1, share))],
        ["asked for again", f"{median(again):.2f} ms", ""],
        ["read-only mount, image there", f"{median(shown):.1f} ms", ""],
    ]
    header = ["", f"{len(files):,} files", "for 50,000 of them"]
    table(f"The image, medians of {rounds}; the store is opened anew each time", header, rows)


def commands(work: Path, source: Path, options: argparse.Namespace) -> None:
    rounds = options.rounds
    peers = made(work, source, [kind.name for kind in PEERS], PEERS)
    cold: dict[str, Times] = {name: {} for name in COMMANDS}
    warm: dict[str, Times] = {name: {} for name in COMMANDS}
    asked: dict[tuple[str, str], str] = {}
    for _ in range(rounds):
        for name, command in COMMANDS.items():
            for peer in peers:
                with peer.shown() as top:
                    common.drop_caches()
                    before = from_disk(work)
                    add(cold[name], peer.name, timed(command, top=top))
                    requests, read = map(int.__sub__, from_disk(work), before)
                    asked[peer.name, name] = f"{requests:,} for {read >> 20:,} MiB"
                    for _ in range(WARM):
                        add(warm[name], peer.name, timed(command, top=top))
    names = [peer.name for peer in peers]
    header = ["", *COMMANDS]
    for title, times, count in (("Warm", warm, WARM * rounds), ("Cold", cold, rounds)):
        rows = compared(times, names, Copy.name, in_seconds)
        table(f"{title}, medians of {count} (× the plain copy)", header, rows)
    rows = [[peer, *(asked[peer, name] for name in COMMANDS)] for peer in names]
    table("Cold: requests to the disk, in the last round", header, rows)


def shared(work: Path, source: Path, options: argparse.Namespace) -> None:
    """What the disk is read for when a file is cached through another checkpoint."""
    with Store.init(work / "shared-store") as store, ExitStack() as stack:
        first = stored(store, source)
        with store.batch() as batch:
            one_more = File(b"one more", batch.put(b"one more"))
            entries = [*tree.load(store, first).values(), one_more]
            second = batch.put_directory(directory.encode(entries)).hash
        points = [work / "shared-1", work / "shared-2"]
        for root, point in zip((first, second), points, strict=True):
            stack.enter_context(native(store, root, point, read_only=True))
        found = [(os.fsdecode(path), one) for path, one in tree.walk(store, first)]
        files = [path for path, one in found if isinstance(one, File) and large(one)][:READ_FILES]
        for point in points:
            run("find", point)
        common.drop_caches()
        for point in points:
            for path in files:
                (point / path).stat()
        rows = []
        for point, title in zip(points, ("first", "another"), strict=True):
            cached, before = resident(point, files), read_here()
            size = sum(len((point / path).read_bytes()) for path in files)
            read = read_here() - before
            values = (size, cached, cached_below(store), read)
            rows.append([title, *(f"{value >> 10:,} KiB" for value in values)])
    header = [
        *("through", "content", "its pages cached before (fincore)"),
        *("then pages of packs and objects", "read from the disk"),
    ]
    table(f"{len(files):,} files through one checkpoint, then through another", header, rows)


def workspaces(work: Path, source: Path, options: argparse.Namespace) -> None:
    count, rounds = options.files, options.rounds
    place = work / "workspace-store"
    counts = {"files": count, "bytes": count * SIZE, "added": count, "modified": 0, "deleted": 0}
    with Store.init(place) as store, store.batch() as batch:
        root = plant(batch, count, "many").hash
        batch.commit()
        origin = create.put(
            batch, "many", None, create.Content(RecordedState(root), "", counts, [])
        )
    os.sync()
    with Store.open(place) as store:
        making = milliseconds(partial(images.ensure, store, DatedTree(root)))
    opening: dict[str, list[float]] = {"fresh": [], "same": []}
    committing: dict[str, list[float]] = {"fresh": [], "same": []}
    with Store.open(place) as same:
        for number in range(2 * rounds):
            point = work / f"work-{number}"
            with Store.open(place) as fresh:
                for store, name in ((fresh, "fresh"), (same, "same"))[:: 1 - number % 2 * 2]:
                    action = partial(opened, store, root, point, read_only=False, origin=origin)
                    opening[name].append(milliseconds(action))
                    deepest(point).write_text(f"changed {number} {name}")
                    found = registry.find(store, point)
                    committing[name].append(milliseconds(partial(commit_workspace, store, found)))
                    lifecycle.close(store, registry.find(store, point))
    rows = [["image made (once)", f"{making:.0f} ms", ""]]
    for title, times in (("open", opening), ("commit of one change", committing)):
        rows.append([title, *(f"{median(one):.1f} ms" for one in times.values())])
    header = ["", "store just opened", "store in use"]
    table(f"A writable workspace of {count:,} files, medians of {2 * rounds}", header, rows)


# -- what the kernel counts -------------------------------------------------------------------


def from_disk(work: Path) -> tuple[int, int]:
    """Requests that have read from the disk that a path is on, and the bytes."""
    device = work.stat().st_dev
    path = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat"
    found = Path(path).read_text().split()
    return int(found[0]), int(found[2]) * SECTOR


def read_here() -> int:
    """Bytes that this process has had read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes: "))


def resident(point: Path, files: list[str]) -> int:
    """How many bytes of these the page cache has."""
    command = ["xargs", "-0", "-r", "fincore", "--bytes", "--noheadings", "--output", "RES"]
    names = "\0".join(files)
    said = subprocess.run(
        command, cwd=point, check=True, capture_output=True, text=True, input=names
    ).stdout
    return sum(map(int, said.split()))


def cached_below(store: Store) -> int:
    """How many bytes of packs and objects the page cache has."""
    assert store.root is not None
    found = (path for kind in ("packs", "objects") for path in (store.root / kind).rglob("*"))
    return resident(store.root, [str(path) for path in found if path.is_file()])


def large(one: File) -> bool:
    return one.digest.size_bytes > INLINE_MAX_BYTES


PARTS: dict[str, Callable[[Path, Path, argparse.Namespace], None]] = {
    "image": image,
    "commands": commands,
    "shared": shared,
    "workspace": workspaces,
    "suite": lambda work, source, options: suite(work, options.rounds),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path, help="where to work: on the native file system")
    parser.add_argument("--tree", type=Path, help="the tree; it is only read")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--files", type=int, default=100_000, help="of the part workspace")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    wanted = parser.parse_args()
    common.unwind_on_signals()
    with common.workplace(wanted.dir) as work:
        print(common.machine(work), flush=True)
        with Store.init(work / "store") as store:
            assert store.root is not None
            why = strategy_choice.unavailable(
                strategies.STRATEGIES[strategies.NATIVE], store.root / FORMAT_FILE
            )
        if why is not None:
            sys.exit(f"no native mounts here: {why}")
        source = wanted.tree.resolve() if wanted.tree else make_tree(work)
        count = sum(len(files) for _, _, files in os.walk(source))
        print(f"\n## The tree: {count:,} names of files and links", flush=True)
        for part in wanted.parts:
            PARTS[part](work, source, wanted)


if __name__ == "__main__":
    main()

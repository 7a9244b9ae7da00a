"""Reads of packs with damaged bytes: how many are right, refused, wrong; prints Markdown.

    .venv/bin/python -m benchmarks.damage [--dir DIR] [--tree DIR] [--reads N] [KIND ...]

Kinds: hot cold remote. Some thousand files of a tree lie in hot packs, in cold packs, or only in a
bucket. Again and again some bytes of the packs change, anywhere in them, or of what the server
answers; then files are read in random order, through the library or a mount, and compared with the
originals. The library keeps frames and a mount pages, so both begin anew each time. Needs root: the
kernel's caches are dropped.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import common, packs
from benchmarks.mount_peers import casfs_mount
from benchmarks.network import damaged, network
from benchmarks.remote_peers import BUCKET, Casfs, s3_env, seaweed
from benchmarks.workspaces_peers import CASFS, run
from casfs.checkpoints import checkpoint
from casfs.errors import CasfsError
from casfs.packs.index import read_trailer
from casfs.packs.layout import TRAILER
from casfs.store.nodes.directory import File
from casfs.store.store import Store
from casfs.trees import tree as trees

FILES, MIN_BYTES, MAX_BYTES = 4000, 1025, 200_000
READS_A_TURN = 4000
BYTES_A_FLIP = 250_000  # of content, in which one byte is changed
TURNS_A_BROKEN_INDEX = 10  # in one of so many the damage is anywhere, and all of a pack refused
DAMAGED_ANSWERS = 0.3  # of the pieces of up to 64 KiB that the server sends
CACHE_BYTES = 1 << 20

Content = dict[str, bytes]
Read = Callable[[str], bytes]


def sample(tree: Path, target: Path) -> Content:
    """Copies some files of the tree."""
    fitting = [
        path for path in packs.files_of(tree) if MIN_BYTES <= path.stat().st_size <= MAX_BYTES
    ]
    content = {}
    for path in random.Random(1).sample(fitting, min(FILES, len(fitting))):
        name = str(path.relative_to(tree))
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / name)
        content[name] = path.read_bytes()
    return content


@contextmanager
def library(place: Path) -> Iterator[Read]:
    with Store.open(place) as store:
        made = checkpoint.latest(store, "b")
        assert made is not None
        hashes = {
            os.fsdecode(path): one.digest.hash
            for path, one in trees.walk(store, made.root)
            if isinstance(one, File)
        }

        def read(name: str) -> bytes:
            with store.blobs.open(hashes[name]) as stream:
                return stream.read()

        yield read


@contextmanager
def mount(place: Path) -> Iterator[Read]:
    point = place.with_suffix(".mnt")
    with casfs_mount(place, point):
        latest = point / "trees" / "b"
        top = latest / (latest / "latest").readlink()
        common.CACHES.write_text("1\n")
        yield lambda name: (top / name).read_bytes()


def turn(read: Read, content: Content, counts: Counter[str], reads: int) -> None:
    for name in random.choices(list(content), k=min(READS_A_TURN, reads)):
        try:
            found = read(name)
        except (CasfsError, OSError):
            counts["refused"] += 1
        else:
            counts["right" if found == content[name] else "wrong"] += 1


def local(place: Path, content: Content, reads: int) -> list[list[str]]:
    whole = place.with_suffix(".whole")
    shutil.copytree(place, whole, symlinks=True)
    rows = []
    for title, how in (("library", library), ("mount", mount)):
        counts: Counter[str] = Counter()
        while counts.total() < reads:
            for path in (place / "packs").glob("*.pack"):
                data = path.read_bytes()
                _, end, _ = read_trailer(data[-TRAILER.size :], len(data))
                if random.randrange(TURNS_A_BROKEN_INDEX) == 0:
                    end = len(data)
                path.unlink()
                path.write_bytes(damaged(data[:end], max(1, end // BYTES_A_FLIP)) + data[end:])
            try:
                with how(place) as read:
                    turn(read, content, counts, reads)
            except CasfsError as error:
                print(f"not opened: {error}", file=sys.stderr)
            shutil.rmtree(place)
            shutil.copytree(whole, place, symlinks=True)
        rows.append([title, *_cells(counts)])
    shutil.rmtree(whole)
    return rows


def remote(work: Path, place: Path, content: Content, reads: int) -> list[str]:
    counts: Counter[str] = Counter()
    cloned = work / "cloned"
    with seaweed(work) as port, network(port) as net:
        env = s3_env(net.port)
        os.environ.update(env)
        address = f"s3://{BUCKET}/damage"
        run(*CASFS, "--store", place, "remote", "add", "r", address, cwd=None, **env)
        run(*CASFS, "--store", place, "push", "r", "b", cwd=None, **env)
        run(*CASFS, "clone", "--lazy", address, cloned, cwd=None, **env)
        run(*CASFS, "--store", cloned, "config", "set", "cache.max_size", CACHE_BYTES)
        net.damage(DAMAGED_ANSWERS)
        while counts.total() < reads:
            with mount(cloned) as read:
                turn(read, content, counts, reads)
    return _cells(counts)


def _cells(counts: Counter[str]) -> list[str]:
    total = counts.total()
    return [f"{total:,}", *(f"{counts[kind]:,}" for kind in ("right", "refused", "wrong"))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--tree", type=Path, default=Path(sys.base_prefix))
    parser.add_argument("--reads", type=int, default=40_000, help="of each kind")
    parser.add_argument("kinds", nargs="*", default=["hot", "cold", "remote"])
    options = parser.parse_args()
    common.unwind_on_signals()
    random.seed(0)
    rows = []
    with common.workplace(options.dir) as work:
        source, place = work / "source", work / "store"
        content = sample(options.tree.resolve(), source)
        stored = Casfs(place, source)
        super(Casfs, stored).prepare()
        stored.record()
        for kind in options.kinds:
            if kind == "remote":
                rows.append(
                    ["only in the bucket, mount", *remote(work, place, content, options.reads)]
                )
                continue
            if kind == "cold":
                run(*CASFS, "--store", place, "pack", "--older-than", "0s")
            found = local(place, content, options.reads // 2)
            rows += [[f"{kind} packs, {title}", *cells] for title, *cells in found]
    common.table("Reads", ["", "reads", "right", "refused", "wrong"], rows)


if __name__ == "__main__":
    main()

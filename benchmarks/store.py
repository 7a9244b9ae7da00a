"""Measure the store beside git's loose objects and one file per node; prints Markdown.

    .venv/bin/python benchmarks/store.py [--dir DIR] [--count N] [--mib N]
                                         [nodes] [reads] [large] [million]

Absolute times drift from machine to machine and hour to hour: compare ratios of one run.
Durable means: every batch of 20 is on disk when the call returns (fsync).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from casfs.backend.derived import find_missing
from casfs.backend.protocols import Head, HeadName
from casfs.digest import NodeHash, hash_bytes, hash_stream
from casfs.maintenance import fsck, gc
from casfs.store.store import Store

BATCH = 20
READS = 10_000
CHUNK_MIB = 16  # of the large file
WORDS = "the moderator asked a tester why every third build of that branch failed again".split()


def text(number: int) -> str:
    """About 400 characters of prose that no other number has."""
    chosen = random.Random(number).choices(WORDS, k=70)
    return f"{number} " + " ".join(chosen)


def payload(number: int) -> dict[str, Any]:
    return {"text": text(number), "artifacts": []}


@contextmanager
def clock() -> Iterator[Callable[[], float]]:
    start = time.perf_counter()
    end: list[float] = []
    yield lambda: (end[0] if end else time.perf_counter()) - start
    end.append(time.perf_counter())


def disk_usage(path: Path) -> int:
    return sum(f.stat().st_blocks * 512 for f in path.rglob("*") if f.is_file())


def fsyncs(code: str, *arguments: str) -> int | None:
    """How often a piece of code syncs, as strace counts; None without strace."""
    if shutil.which("strace") is None:
        return None
    with tempfile.NamedTemporaryFile() as out:
        trace = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync,syncfs", "-o", out.name]
        subprocess.run([*trace, sys.executable, "-c", code, *arguments], check=True)
        return sum(b"sync" in line for line in Path(out.name).read_bytes().splitlines())


# -- nodes ------------------------------------------------------------------------------------


def put_casfs(root: Path, count: int) -> float:
    with Store.init(root) as store, clock() as seconds:
        for start in range(0, count, BATCH):
            with store.batch() as batch:
                for number in range(start, start + BATCH):
                    batch.put_node("content", payload(number))
    return seconds()


def put_files(root: Path, count: int) -> float:
    """One file per node: temp name, fsync, rename, and its directory synced per batch."""
    for shard in range(256):
        (root / f"{shard:02x}").mkdir(parents=True)
    with clock() as seconds:
        for start in range(0, count, BATCH):
            folders = set()
            for number in range(start, start + BATCH):
                data = json.dumps(payload(number)).encode()
                name = hash_bytes(data)
                target = root / name[:2] / name[2:]
                temp = root / f"tmp{number}"
                with temp.open("wb") as out:
                    out.write(data)
                    out.flush()
                    os.fsync(out.fileno())
                temp.rename(target)
                folders.add(target.parent)
            for folder in folders:
                fd = os.open(folder, os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
    return seconds()


def put_git(root: Path, count: int) -> float:
    source = root / "source"
    source.mkdir(parents=True)
    names = [source / str(number) for number in range(count)]
    for number, name in enumerate(names):
        name.write_text(json.dumps(payload(number)))
    repository = root / "repository"
    subprocess.run(["git", "init", "-q", repository], check=True)
    command = ["git", "-C", str(repository), "-c", "core.fsync=all", "hash-object", "-w"]
    with clock() as seconds:
        paths = "\n".join(map(str, names)).encode()
        subprocess.run([*command, "--stdin-paths"], input=paths, stdout=-3, check=True)
    shutil.rmtree(source)
    return seconds()


def nodes(work: Path, count: int) -> None:
    size = sum(len(json.dumps(payload(n), separators=(",", ":"))) for n in range(1000)) / 1000
    rows = []
    for name, put, share in (
        ("casfs", put_casfs, 1),
        ("one file per node", put_files, 10),
        ("git loose objects", put_git, 10),
    ):
        root, number = work / name.replace(" ", "-"), count // share
        seconds = put(root, number)
        rows.append((name, number, number / seconds, disk_usage(root) / number))
        shutil.rmtree(root)
    code = "import sys; sys.path[:0] = sys.argv[3:]; import benchmarks.store as b, pathlib;"
    traced = min(1000, count)
    code += f"getattr(b, sys.argv[1])(pathlib.Path(sys.argv[2]), {traced})"
    here = str(Path(__file__).resolve().parent.parent)
    counts = {
        "casfs": fsyncs(code, "put_casfs", str(work / "traced1"), here),
        "one file per node": fsyncs(code, "put_files", str(work / "traced2"), here),
        "git loose objects": fsyncs(code, "put_git", str(work / "traced3"), here),
    }
    base = next(rate for name, _, rate, _ in rows if name == "one file per node")
    print(f"\nNodes with a payload of {size:.0f} bytes on average, batches of {BATCH}\n")
    print("| | nodes | nodes/s | × file per node | syncs per 1,000 | bytes on disk | × payload |")
    print("|---|---|---|---|---|---|---|")
    for name, number, rate, used in rows:
        counted = counts[name]
        syncs = "–" if counted is None else f"{counted * 1000 // traced}"
        print(
            f"| {name} | {number:,} | {rate:,.0f} | {rate / base:.1f} | {syncs} "
            f"| {used:.0f} | {used / size:.2f} |"
        )


# -- reads ------------------------------------------------------------------------------------


def reads(work: Path, count: int) -> None:
    root = work / "reads"
    put_casfs(root, count)
    with Store.open(root) as store:
        hashes = [hash for _, hash, _ in store.blobs.iterate()]
        chosen = random.Random(1).sample(hashes, min(READS, len(hashes)))
        times = []
        for hash in chosen * 2:
            start = time.perf_counter()
            store.get(hash)
            times.append(time.perf_counter() - start)
        warm = times[len(chosen) :]
        half = len(chosen) // 2
        asked = [*chosen[:half], *(hash[::-1] for hash in chosen[half:])]
        found = []
        for _ in range(5):
            with clock() as seconds:
                find_missing(store.blobs, asked)
            found.append(seconds())
    print(f"\nReads from a store of {count:,} nodes\n\n| | median | 99 % |\n|---|---|---|")
    micro = [value * 1e6 for value in warm]
    tail = statistics.quantiles(micro, n=100)[98]
    print(f"| get of a warm node, verified | {statistics.median(micro):.1f} µs | {tail:.1f} µs |")
    print(f"| missing of {len(asked):,} digests | {statistics.median(found) * 1e3:.1f} ms | |")
    shutil.rmtree(root)


# -- a large file -----------------------------------------------------------------------------


def large(work: Path, mib: int) -> None:
    source = work / "large"
    with source.open("wb") as out:
        for _ in range(mib // CHUNK_MIB):
            out.write(random.randbytes(CHUNK_MIB << 20))
    ours, theirs = [], []
    with Store.init(work / "large-store") as store:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for turn in range(3):
            os.sync()
            with clock() as seconds, source.open("rb") as stream:
                store.put_stream(stream)
            ours.append(seconds())
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            with source.open("r+b") as out:  # other content for the next turn
                out.write(bytes([turn]))
            os.sync()
            with clock() as seconds:
                subprocess.run(["cp", source, work / "copy"], check=True)
                fd = os.open(work / "copy", os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)
                with (work / "copy").open("rb") as stream:
                    hash_stream(stream)
            theirs.append(seconds())
            (work / "copy").unlink()
    rate = [mib / 1024 / value for value in ours]
    peer = [mib / 1024 / value for value in theirs]
    ratio = statistics.median(theirs) / statistics.median(ours)
    print(f"\nOne file of {mib:,} MiB, medians of 3\n\n| | GiB/s |\n|---|---|")
    print(f"| put, durable | {statistics.median(rate):.2f} |")
    print(f"| cp, fsync, then a BLAKE3 of the copy | {statistics.median(peer):.2f} |")
    print(f"\nput is {ratio:.2f} × the rate of the pair; memory grew by {grown >> 10} MiB.")
    source.unlink()
    shutil.rmtree(work / "large-store")


# -- a million --------------------------------------------------------------------------------


def million(work: Path, count: int) -> None:
    """Each size in a process of its own, so that peak memory is its own."""
    print("\ngc and fsck, a fifth of the nodes garbage\n")
    print("| nodes | gc s | µs a node | peak RSS | fsck s | µs a node | peak RSS |")
    print("|---|---|---|---|---|---|---|")
    for number in (count // 4, count // 2, count):
        root = work / f"million-{number}"
        _grow(root, number)
        cells = [f"| {number:,} "]
        for verb in ("gc", "fsck"):
            out = subprocess.run(
                [sys.executable, __file__, "--child", verb, str(root)],
                capture_output=True,
                text=True,
                check=True,
            )
            seconds, peak = map(float, out.stdout.split())
            cells.append(f"| {seconds:.1f} | {seconds / number * 1e6:.0f} | {peak:.0f} MB ")
        print("".join(cells) + "|", flush=True)
        shutil.rmtree(root)


def _grow(root: Path, count: int) -> None:
    """Nodes in chains of 50 that a head keeps, and every fifth chain without a head."""
    with Store.init(root) as store:
        for chain in range(count // 50):
            with store.batch() as batch:
                last: list[NodeHash] = []
                for number in range(chain * 50, chain * 50 + 50):
                    node = batch.put_node("content", {"text": text(number), "artifacts": last})
                    last = [node.hash]
                if chain % 5:
                    batch.swap(HeadName(f"benchmarks/{chain}"), None, Head(last[0]))


def child(verb: str, root: Path) -> None:
    with Store.open(root) as store, clock() as seconds:
        if verb == "gc":
            gc.collect(store, grace=0)
        else:
            assert not fsck.check(store).faults
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(seconds(), peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="where to work (a temporary directory)")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--mib", type=int, default=4096, help="of the large file; in sixteens")
    parser.add_argument("--child", choices=("gc", "fsck"))
    parser.add_argument("parts", nargs="*")
    options = parser.parse_args()
    if options.child:
        child(options.child, Path(options.parts[0]))
        return
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        work = Path(folder)
        for part in options.parts or ("nodes", "reads", "large", "million"):
            if part == "large":
                large(work, options.mib)
            elif part == "million":
                million(work, options.count * 10)
            else:
                {"nodes": nodes, "reads": reads}[part](work, options.count)


if __name__ == "__main__":
    main()

"""Measure the index of reverse references: catching up, a question, bytes an edge; prints Markdown.

    .venv/bin/python benchmarks/store_referrers.py [--dir DIR] [--nodes N] [--runs N] [--among N]

Each node refers to ten of the N nodes before it, as steps and trees do; without `--among`, to any
ten earlier ones, which is the worst case. A thousand of them refer to one blob. With `--dir` the
store is kept there, and taken again by the next run.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from casfs.backend.sqlite_connection import Connection, Database
from casfs.store.referrers import FILE, Referrers, remove
from casfs.store.store import Store

REFS, BATCH_NODES = 10, 20_000
QUESTIONS = 50


def fill(store: Store, count: int, among: int) -> str:
    """Puts the nodes; returns the blob that a thousand of them refer to."""
    popular, chosen, hashes = store.put(b"popular").hash, random.Random(1), list[str]()
    for start in range(0, count, BATCH_NODES):
        with store.batch() as batch:
            for number in range(start, min(start + BATCH_NODES, count)):
                refs = set(chosen.choices(hashes[-among:], k=REFS)) if hashes else set()
                if number % (count // 1000) == 0:
                    refs.add(popular)
                payload = {"text": f"node {number}", "artifacts": sorted(refs)}
                hashes.append(batch.put_node("content", payload).hash)
    return popular


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def bytes_of(db: Connection, where: str) -> int:
    (found,) = db.execute(f"SELECT sum(pgsize) FROM dbstat WHERE name {where}").fetchone()
    return int(found)


def measure(store: Store, popular: str, runs: int) -> None:
    rates: list[float] = []
    for _ in range(runs):
        remove(store)
        with Referrers(store) as index:
            spent = seconds(index.catch_up)
        database = Database((store.root or Path()) / FILE)
        with database.read() as db:
            (edges,) = db.execute("SELECT count(*) FROM edges").fetchone()
            (blobs,) = db.execute("SELECT count(*) FROM numbers").fetchone()
            sizes = bytes_of(db, "= 'edges'") / edges, bytes_of(db, "!= 'edges'") / blobs
        database.close()
        rates.append(edges / spent)
    with Referrers(store) as index:
        first = seconds(lambda: index.of(popular))
        times = [seconds(lambda: index.of(popular)) for _ in range(QUESTIONS)]
        found = len(index.of(popular))
    print("| what | reach | here |\n|---|---|---|")
    print(f"| catching up, edges/s (best of {runs}) | ≥ 200,000 | {max(rates):,.0f} |")
    print(f"| catching up, edges/s (median of {runs}) | | {statistics.median(rates):,.0f} |")
    print(f"| referrers of a blob with {found:,}, ms (median) | ≤ 5 | ", end="")
    print(f"{statistics.median(times) * 1e3:.1f} |")
    print(f"| the same, the first time, ms | | {first * 1e3:.1f} |")
    print(f"| bytes an edge | ≤ 14 | {sizes[0]:.1f} |")
    print(f"| bytes a blob beside that (its hash, twice) | | {sizes[1]:.1f} |")
    print(f"\n{blobs:,} blobs, {edges:,} edges.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--nodes", type=int, default=1_000_000, help="At least a thousand.")
    parser.add_argument("--among", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = (options.dir or Path(temporary)) / "store"
        kept = root.with_name("popular")
        with Store.open(root) if kept.exists() else Store.init(root) as store:
            if not kept.exists():
                kept.write_text(fill(store, options.nodes, options.among))
            measure(store, kept.read_text(), options.runs)


if __name__ == "__main__":
    main()

"""The scanner of secrets: what a scan of a tree costs beside a first checkpoint of it, and what it
finds in a tree.

    python -m benchmarks.secrets cost DIR [--rounds N]
    python -m benchmarks.secrets findings DIR...
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.common import table
from casfs.scanner import scan
from casfs.store.store import Store
from casfs.trees.snapshot import walker
from casfs.trees.snapshot.ignore import IgnoreRules


def contents(top: str) -> Iterator[bytes]:
    for folder, _, names in os.walk(top):
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path.read_bytes()


def checkpoint_seconds(top: str) -> float:
    with tempfile.TemporaryDirectory() as folder, Store.init(Path(folder, "store")) as store:
        start = time.perf_counter()
        with store.batch() as batch:
            walker.snapshot(batch, Path(top), IgnoreRules())
        return time.perf_counter() - start


def scan_seconds(files: list[bytes]) -> float:
    start = time.perf_counter()
    for data in files:
        scan(data)
    return time.perf_counter() - start


def cost(top: str, rounds: int) -> None:
    files = list(contents(top))
    scan(b"the database is built or read")
    pairs = [(scan_seconds(files), checkpoint_seconds(top)) for _ in range(rounds)]
    rows = [
        [f"{scanned:.3f} s", f"{recorded:.2f} s", f"{scanned / recorded:.1%}"]
        for scanned, recorded in pairs
    ]
    median = statistics.median(scanned / recorded for scanned, recorded in pairs)
    rows.append(["median", "", f"{median:.1%}"])
    title = f"{len(files):,} files, {sum(map(len, files)) / 1e6:.0f} MB"
    table(title, ["scan", "checkpoint", "scan / checkpoint"], rows)


def findings(tops: list[str]) -> None:
    rows = []
    for top in tops:
        kinds = Counter(finding.kind for data in contents(top) for finding in scan(data))
        said = ", ".join(f"{kind} {count:,}" for kind, count in kinds.most_common())
        rows.append([top, said or "–"])
    table("Findings", ["directory", "kinds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["cost", "findings"])
    parser.add_argument("directories", nargs="+")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.what == "cost":
        cost(arguments.directories[0], arguments.rounds)
    else:
        findings(arguments.directories)


if __name__ == "__main__":
    main()

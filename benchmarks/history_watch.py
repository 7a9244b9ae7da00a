"""A watched directory of 100,000 files: idle, after a change, and what git takes beside it.

    python -m benchmarks.history watch [DIR] [--directories N] [--rounds N] [--idle SECONDS]

1,000 directories of 100 files of 200 bytes. The daemon's processor time and memory are the kernel's
figures; a change is a file that is overwritten, one recorded by a request to the daemon at once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from casfs.store.store import Store
from casfs.system import daemon_socket
from tests.support.engine import daemon, spawn, until

FILES, BYTES = 100, 200  # of a directory; of a file
REST_S = 5.0  # until the daemon is idle
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def fill(top: Path, directories: int) -> list[Path]:
    made = []
    for number in range(directories):
        folder = top / f"part{number % 10}/d{number:04}"
        folder.mkdir(parents=True)
        for file in range(FILES):
            made.append(folder / f"f{file:02}.txt")
            made[-1].write_text(f"{number} {file}\n".ljust(BYTES, "x"))
    return made


def processor(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) >> 10


def each(files: list[Path], rounds: int, action: Callable[[], object]) -> tuple[float, float]:
    """Returns the median of the seconds of an action after a change, and the processor's in the
    commands that it ran."""
    times = []
    before = sum(os.times()[2:4])
    for number in range(rounds):
        files[number * 997 % len(files)].write_text(f"changed {time.monotonic_ns()}")
        begin = time.monotonic()
        action()
        times.append(time.monotonic() - begin)
    return statistics.median(times), (sum(os.times()[2:4]) - before) / rounds


def row(name: str, *values: str) -> None:
    print(f"| {name} | {' | '.join(values)} |", flush=True)


def timed(found: tuple[float, float]) -> str:
    return f"{found[0] * 1000:.0f} ms" + f" ({found[1] * 1000:.0f} ms)" * bool(found[1])


def measure(place: Path, directories: int, rounds: int, idle_s: float) -> None:
    store, top = place / "store", place / "work"
    files = fill(top, directories)
    changed = partial(each, files, rounds)
    Store.init(store).close()
    with daemon(store) as pid:
        before = memory(pid)
        begin = time.monotonic()
        assert spawn("--store", store, "watch", top, "--settle", "2s").returncode == 0

        def watched() -> dict[str, str]:
            (found,) = json.loads(spawn("--store", store, "watch", "--list", "--json").stdout)
            return dict(found)

        def has_looked() -> bool:
            if watched()["checkpoint"]:
                return True
            time.sleep(0.5)  # asking takes processor time, too
            return False

        until(has_looked)
        row("first look", f"{time.monotonic() - begin:.1f} s, by {watched()['method']}")
        row("memory of the daemon", f"{before} MiB before, {memory(pid)} MiB with the watch")
        time.sleep(min(REST_S, idle_s))
        start = processor(pid)
        time.sleep(idle_s)
        row(f"idle, {idle_s:g} s", f"{processor(pid) - start:.2f} s of the processor")

        def record() -> None:
            fields = {"directory": str(top), "name": "work", "message": ""}
            daemon_socket.request(store, "record", timeout=None, skip=False, **fields)

        start = processor(pid)
        found = changed(record)
        row("a change, recorded by request", timed(found))
        spent = (processor(pid) - start) / rounds * 1000
        row("processor of the daemon per change", f"{spent:.0f} ms")
        command = ("--store", store, "checkpoint", "create", "work", top)
        row("`checkpoint create`, whole command", timed(changed(lambda: spawn(*command))))
    with daemon(store) as pid:
        begin = time.monotonic()
        record()
        row("look at everything, after a restart", f"{time.monotonic() - begin:.1f} s")
        row("memory after a restart", f"{memory(pid)} MiB")
    row("`checkpoint create` without a daemon", timed(changed(lambda: spawn(*command))))
    git = ["git", "-C", str(top)]
    subprocess.run([*git, "init", "-q"], check=True)
    add = f"git -C {top} add -A && git -C {top} write-tree"
    subprocess.run(["sh", "-c", add], check=True, stdout=subprocess.DEVNULL)
    for name, words in (
        ("add -A && git write-tree", ["sh", "-c", add]),
        ("status", [*git, "status"]),
    ):
        run = partial(subprocess.run, words, check=True, stdout=subprocess.DEVNULL)
        row(f"`git {name}`", timed(changed(run)))


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("dir", type=Path, nargs="?", help="Where to work.")
    parser.add_argument("--directories", type=int, default=1000, help=f"Of {FILES} files each.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--idle", type=float, default=60, metavar="SECONDS")
    options = parser.parse_args(argv)
    print(f"| {options.directories * FILES:,} files | |\n|---|---|")
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        measure(Path(place), options.directories, options.rounds, options.idle)

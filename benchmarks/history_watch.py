"""A watched directory of 100,000 files: idle, after a change, and what git takes beside it.

    python -m benchmarks.history watch [DIR]

1,000 directories of 100 files of 200 bytes. The daemon's processor time and memory are the kernel's
figures; a change is a file that is overwritten, one recorded by a request to the daemon at once.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from casfs import daemon_socket
from casfs.store import Store
from tests.support.engine import daemon, spawn, until

DIRECTORIES, FILES, BYTES, ROUNDS, IDLE_S = 1000, 100, 200, 15, 60
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def fill(top: Path) -> list[Path]:
    made = []
    for number in range(DIRECTORIES):
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


def each(files: list[Path], action: Callable[[], object]) -> tuple[float, float]:
    """Returns the median of the seconds of an action after a change, and the processor's in the
    commands that it ran."""
    times = []
    before = sum(os.times()[2:4])
    for number in range(ROUNDS):
        files[number * 997].write_text(f"changed {time.monotonic_ns()}")
        begin = time.monotonic()
        action()
        times.append(time.monotonic() - begin)
    return statistics.median(times), (sum(os.times()[2:4]) - before) / ROUNDS


def row(name: str, *values: str) -> None:
    print(f"| {name} | {' | '.join(values)} |", flush=True)


def timed(found: tuple[float, float]) -> str:
    return f"{found[0] * 1000:.0f} ms" + f" ({found[1] * 1000:.0f} ms)" * bool(found[1])


def measure(place: Path) -> None:
    store, top = place / "store", place / "work"
    files = fill(top)
    Store.init(store).close()
    with daemon(store) as pid:
        before = memory(pid)
        begin = time.monotonic()
        assert spawn("--store", store, "watch", top, "--settle", "2s").returncode == 0

        def watched() -> dict[str, str]:
            (found,) = json.loads(spawn("--store", store, "watch", "--list", "--json").stdout)
            return dict(found)

        until(lambda: watched()["checkpoint"] or time.sleep(0.5))
        row("first look", f"{time.monotonic() - begin:.1f} s, by {watched()['method']}")
        row("memory of the daemon", f"{before} MiB before, {memory(pid)} MiB with the watch")
        time.sleep(5)
        start = processor(pid)
        time.sleep(IDLE_S)
        row(f"idle, {IDLE_S} s", f"{processor(pid) - start:.2f} s of the processor")

        def record() -> None:
            fields = {"directory": str(top), "name": "work", "message": ""}
            daemon_socket.request(store, "record", timeout=None, skip=False, **fields)

        start = processor(pid)
        found = each(files, record)
        row("a change, recorded by request", timed(found))
        spent = (processor(pid) - start) / ROUNDS * 1000
        row("processor of the daemon per change", f"{spent:.0f} ms")
        command = ("--store", store, "checkpoint", "create", "work", top)
        row("`checkpoint create`, whole command", timed(each(files, lambda: spawn(*command))))
    with daemon(store) as pid:
        begin = time.monotonic()
        record()
        row("look at everything, after a restart", f"{time.monotonic() - begin:.1f} s")
        row("memory after a restart", f"{memory(pid)} MiB")
    row("`checkpoint create` without a daemon", timed(each(files, lambda: spawn(*command))))
    git = ["git", "-C", str(top)]
    subprocess.run([*git, "init", "-q"], check=True)
    add = f"git -C {top} add -A && git -C {top} write-tree"
    subprocess.run(["sh", "-c", add], check=True, stdout=subprocess.DEVNULL)
    for name, words in (
        ("add -A && git write-tree", ["sh", "-c", add]),
        ("status", [*git, "status"]),
    ):
        run = partial(subprocess.run, words, check=True, stdout=subprocess.DEVNULL)
        row(f"`git {name}`", timed(each(files, run)))


def main(folder: str | None = None) -> None:
    print("| 100,000 files | |\n|---|---|")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        measure(Path(place))

"""What a mount costs as it grows: until it is ready, in memory, and when its worker is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks import common
from benchmarks.common import in_seconds, table, timed
from benchmarks.mount_peers import Kernel, casfs_mount
from casfs.checkpoints import create
from casfs.checkpoints.checkpoint import Checkpoint
from casfs.checkpoints.create import Content
from casfs.digest import TreeHash
from casfs.errors import Failed
from casfs.mount import mount_points
from casfs.store.nodes import directory
from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.store import Store
from casfs.trees.recorded_state import RecordedState

BATCH_CHECKPOINTS = 10_000  # checkpoints in a batch
OF_ONE_NAME = 1000  # checkpoints
SIDE = 1000  # files in a directory of the large tree
DROPS = 50  # of the kernel's caches, at most: it frees from the bottom up
KILLS = Path(__file__).resolve().parent.parent / "tests" / "harness" / "mount_kills.py"
BACK = re.compile(r"back after (\d+) ms \(median\), (\d+) ms \(most\)")
ERRORS = re.compile(r"errors (\d+)")
TABLE = "memfd:casfs-inodes"


# -- until it is ready ------------------------------------------------------------------------


def ready(work: Path, wanted: Sequence[type[Kernel]], counts: Sequence[int], rounds: int) -> None:
    rows = []
    for count in counts:
        store = work / f"ready-{count}"
        _fill(store, count)
        for kind in wanted:
            warm = [_until_ready(store, work / "ready.mnt", kind) for _ in range(rounds)]
            cold = []
            for _ in range(rounds if common.may_drop() else 0):
                common.drop_caches()
                cold.append(_until_ready(store, work / "ready.mnt", kind))
            cells = [in_seconds(statistics.median(one)) if one else "–" for one in (warm, cold)]
            rows.append([f"{count:,}", kind.name, *cells])
    title = f"From `casfs mount` to its return, the mount ready, medians of {rounds}"
    table(title, ["checkpoints", "", "caches warm", "caches dropped"], rows)


def _until_ready(store: Path, point: Path, kind: type[Kernel]) -> float:
    with casfs_mount(store, point, "--transport", kind.transport) as taken:
        if not (point / "trees" / "n0" / "latest").is_symlink():
            raise Failed(f"{point} is not ready")
        return taken


def _fill(root: Path, count: int) -> None:
    """A store with that many checkpoints of one small tree."""
    with Store.init(root) as store:
        with store.batch() as batch:
            file = File(b"file", batch.put(b"a file\n"))
            tree = batch.put_directory(directory.encode([file]))
        stats = {"files": 1, "bytes": 7, "added": 0, "modified": 0, "deleted": 0}
        last: Checkpoint | None = None
        for start in range(0, count, BATCH_CHECKPOINTS):
            with store.batch() as batch:
                for number in range(start, min(start + BATCH_CHECKPOINTS, count)):
                    if number % OF_ONE_NAME == 0:
                        last = None
                    content = Content(RecordedState(tree.hash), "", stats, [])
                    last = create.put(batch, f"n{number // OF_ONE_NAME}", last, content)


# -- memory -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes resident: of the supervisor, of the worker, and of it the part of the mapped table."""

    supervisor: int
    worker: int
    table: int


def memory(work: Path, wanted: Sequence[type[Kernel]], files: int) -> None:
    store = work / "memory"
    side = min(SIDE, files)
    root = _large_tree(store, side, files // side)
    rows = []
    for kind in wanted:
        point = work / "memory.mnt"
        with casfs_mount(store, point, "--transport", kind.transport):
            pids = mount_points.served(store, point)
            held = _inodes(point)
            states = {"mounted": _memory(pids.supervisor, pids.worker)}
            taken = timed("ls -lR .", top=point / "trees" / root)
            label = f"after `ls -lR`, {in_seconds(taken)}, {_inodes(point):,} inodes"
            states[label] = _memory(pids.supervisor, pids.worker)
            if common.may_drop():
                times = _forget(point, held)
                label = f"after `drop_caches`, {times} times, {_inodes(point):,} inodes"
                states[label] = _memory(pids.supervisor, pids.worker)
        base = states["mounted"].table
        for name, state in states.items():
            sizes = [
                f"{value / 1e6:,.1f} MB" for value in (state.supervisor, state.worker, state.table)
            ]
            each = f"{(state.table - base) / (side * (files // side)):.0f}"
            rows.append([kind.name, name, *sizes, each])
    title = f"Memory, a walk of {side * (files // side):,} files"
    header = ["", "", "supervisor RSS", "worker RSS", "of it the table", "bytes of table a file"]
    table(title, header, rows)


def _large_tree(root: Path, files: int, folders: int) -> TreeHash:
    """One directory under many names: no path is another's, so neither are their inodes."""
    with Store.init(root) as store, store.batch() as batch:
        blob = batch.put(b"a file\n")
        names = [File(b"file-%06d" % number, blob) for number in range(files)]
        below = batch.put_directory(directory.encode(names))
        tops = [Subdirectory(b"directory-%06d" % number, below) for number in range(folders)]
        top = batch.put_directory(directory.encode(tops))
        stats = {"files": files * folders, "bytes": 7 * files * folders}
        stats |= {"added": 0, "modified": 0, "deleted": 0}
        create.put(batch, "large", None, Content(RecordedState(top.hash), "", stats, []))
        return top.hash


def _memory(supervisor: int, worker: int) -> Memory:
    return Memory(_resident(supervisor), _resident(worker), _mapped(worker))


def _resident(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) << 10


def _mapped(pid: int) -> int:
    """What of the table of inodes is resident in a process."""
    total, inside = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            inside = TABLE in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def _inodes(point: Path) -> int:
    """How many the kernel knows."""
    report = json.loads((point / ".casfs" / "stats.json").read_text())
    return int(report["cache"]["inodes"])


def _forget(point: Path, held: int) -> int:
    """Have the kernel forget its inodes, down to so many; the times that it had to be told."""
    for times in range(1, DROPS + 1):
        common.drop_caches()
        if _inodes(point) <= held:
            return times
    return DROPS


# -- kills ------------------------------------------------------------------------------------


def kills(wanted: Sequence[type[Kernel]], count: int, readers: int) -> None:
    rows = []
    for kind in wanted:
        said = _kill(kind.transport, count, readers)
        back, errors = BACK.search(said), ERRORS.search(said)
        if back is None or errors is None:
            raise Failed(f"{KILLS} said: {said}")
        rows.append(
            [kind.name, f"{count}", f"{readers}", f"{back[1]} ms", f"{back[2]} ms", errors[1]]
        )
    header = ["", "kills", "readers", "serves again, median", "most", "errors of readers"]
    table("kill -9 of the worker, until it serves again", header, rows)


def _kill(transport: str, count: int, readers: int) -> str:
    command = [sys.executable, KILLS, "--kills", count, "--readers", readers]
    with common.process([*command, "--transport", transport], stdout=subprocess.PIPE) as started:
        try:
            out, _ = started.communicate()
        finally:
            if started.poll() is None:  # it unmounts what it has mounted
                os.kill(started.pid, signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    started.wait(common.TIMEOUT_S)
    return out.decode()

"""What benchmarks of mounts share: commands and their times, the kernel's caches, a directory
to work in, tables.

A benchmark may be interrupted at any moment. So every process that is started here has a
session of its own, out of the terminal's reach, and is ended by whoever started it; the first
signal unwinds all of it and later ones are ignored meanwhile; and the working directory is
removed only when nothing is mounted below it any more.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from casfs.errors import Failed
from casfs.mount.attach import detach
from casfs.mount.registry import wait_until
from casfs.system import mounts

CACHES = Path("/proc/sys/vm/drop_caches")
TIMEOUT_S = 60.0  # seconds for a process to end, or to serve
PIECE = 1 << 20
Times = dict[str, list[float]]


# -- the machine ------------------------------------------------------------------------------


def may_drop() -> bool:
    return os.access(CACHES, os.W_OK)


def drop_caches() -> None:
    """Pages, entries and inodes of every file system; what is dirty is written first."""
    os.sync()
    CACHES.write_text("3\n")


def cache(folder: Path) -> None:
    """Bring all that is stored there into the page cache."""
    for path in (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        with path.open("rb") as stream:
            while stream.read(PIECE):
                pass


def file_system(path: Path) -> str:
    """The type of the file system that a path is on."""
    command = ["df", "--output=fstype", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1]


def machine(work: Path) -> str:
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"Linux {platform.release()}, {os.cpu_count()} CPUs, {file_system(work)},"
        f" Python {platform.python_version()}; load before: {load}"
    )


# -- signals, and what is left ----------------------------------------------------------------


def unwind_on_signals() -> None:
    """SIGTERM and SIGHUP end the program as Ctrl-C does, and only the first signal counts."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def unwind(number: int, _: object) -> None:
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt(signal.Signals(number).name)

    for one in signals:
        signal.signal(one, unwind)


@contextmanager
def workplace(parent: Path | None) -> Iterator[Path]:
    """A new directory, gone at the end; kept where something stays mounted in it."""
    work = Path(tempfile.mkdtemp(prefix="casfs-mount-", dir=parent)).resolve()
    try:
        yield work
    finally:
        for point in mounts.mounted_below(work):
            with suppress(OSError):
                detach(point, lazy=True)
        if mounts.mounted_below(work):
            print(f"something is still mounted below {work}: kept", file=sys.stderr)
        else:
            shutil.rmtree(work, ignore_errors=True)


def end_mount(point: Path) -> None:
    """Unmount what is mounted there; lazily where it is busy."""
    for lazy in (False, True):
        if mounts.mounted_at(point) is None:
            return
        with suppress(OSError):
            detach(point, lazy=lazy)


# -- commands ---------------------------------------------------------------------------------


@contextmanager
def process(command: Sequence[object], **how: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own; that session is over at the end."""
    argv = [str(part) for part in command]
    settings = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **how}
    started = subprocess.Popen(argv, start_new_session=True, **settings)  # type: ignore[call-overload]  # the settings are only handed on
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


@contextmanager
def server(command: Sequence[object], point: Path, env: Mapping[str, str]) -> Iterator[None]:
    """A peer's server in the foreground, from when it has mounted until it is gone.

    Raises Failed with what it said.
    """
    point.mkdir(exist_ok=True)
    said = point.with_name(f"{point.name}.said")
    with said.open("wb") as out, process(command, stdout=out, stderr=out, env=env) as started:
        try:
            wait_until(lambda: mounts.mounted_at(point) is not None or started.poll() is not None)
            if mounts.mounted_at(point) is None:
                lines = said.read_text(errors="replace").strip().splitlines()
                raise Failed(lines[-1] if lines else f"exit code {started.poll()}")
            yield
        finally:
            end_mount(point)
            with suppress(subprocess.TimeoutExpired):
                started.wait(TIMEOUT_S)


def timed(*commands: str, top: Path, env: Mapping[str, str] = os.environ) -> float:
    """Seconds until all of these shell commands are done, started at once. What they complain
    of is passed on: a pass with errors is no measurement."""
    env = {**env, "LC_ALL": "C.UTF-8"}
    with tempfile.TemporaryFile() as said, ExitStack() as stack:
        start = time.perf_counter()
        started = [
            stack.enter_context(process(["sh", "-c", command], cwd=top, stderr=said, env=env))
            for command in commands
        ]
        for one in started:
            one.wait()
        taken = time.perf_counter() - start
        said.seek(0)
        for line in said.read().decode(errors="replace").splitlines()[:10]:
            print(f"{top}: {line}", file=sys.stderr)
    return taken


# -- tables -----------------------------------------------------------------------------------


def add(times: Times, name: str, value: float) -> None:
    times.setdefault(name, []).append(value)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    sys.stdout.flush()


def compared(
    columns: Mapping[str, Times], names: Sequence[str], base: str, show: Callable[[float], str]
) -> list[list[str]]:
    """A row for each name: in each column the median and its ratio to that of `base`."""
    rows = []
    for name in names:
        cells = [name]
        for times in columns.values():
            cells.append(_cell(times.get(name), times.get(base), show))
        rows.append(cells)
    return rows


def _cell(
    values: list[float] | None, base: list[float] | None, show: Callable[[float], str]
) -> str:
    if not values:
        return "–"
    value = statistics.median(values)
    if not base or not statistics.median(base):
        return show(value)
    return f"{show(value)} ({value / statistics.median(base):.2f} ×)"


def in_seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 0.1 else f"{value * 1000:.0f} ms"


def megabytes(value: float) -> str:
    return f"{value / 1e6:,.1f} MB" if value >= 1e5 else f"{value / 1e3:,.1f} kB"

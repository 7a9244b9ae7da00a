"""Measure trees that the kernel shows alone, beside their peers on the same files; Markdown.

    .venv/bin/python benchmarks/native.py --tree DIR [--dir DIR] [--rounds N] [--suite CMD] [PART …]

Parts: image commands shared workspace. As root. --tree is copied, so that every peer has
the same files: a plain copy on the disk's own file system, a native mount, a FUSE mount, an
image by mkfs.erofs, and one for squashfuse; peers whose tools are not there are left out, and
said. They take turns. --dir must be on a real disk. Cold is after sync and drop_caches, on
the whole machine. --suite is a shell command, run in a copy and in a native workspace.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from casfs import checkpoint, images, kernel, mount
from casfs.store import Store
from casfs.workspaces import record, ways, workspace

CASFS = [sys.executable, "-m", "casfs"]
NULL = subprocess.DEVNULL
COMMANDS = {
    "grep -r": "grep -r no-such-words . || true",
    "find": "find . -type f -newer /proc/1",
    "ls -lR": "ls -lR .",
    "tar c": "tar c . | cat",
}
BASE, NATIVE = "copy", "native"
Times = dict[str, dict[str, list[float]]]


def run(*command: object, cwd: Path | None = None) -> None:
    argv = [str(part) for part in command]
    subprocess.run(argv, check=True, cwd=cwd, stdout=NULL, stderr=NULL)


def milliseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def pages_read() -> int:
    """KiB that the machine has read from its disks."""
    lines = Path("/proc/vmstat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("pgpgin "))


class Place:
    """The copy of the tree, and a store that has a checkpoint of it."""

    def __init__(self, folder: Path, tree: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.copy = folder / BASE
        run("cp", "-a", tree, self.copy)
        self.store = Store.init(folder / "store")
        self.root = self.checkpoint(self.copy)

    def checkpoint(self, folder: Path) -> str:
        return checkpoint.create(self.store, "tree", folder, defaults=False).checkpoint.root

    def native(self, root: str, point: Path, *, read_only: bool) -> record.Workspace:
        def none(hash: str) -> Path:
            raise AssertionError("a native workspace asks for no mount")

        way = ways.WAYS[ways.NATIVE]
        return workspace.open(self.store, root, point, way, none, read_only=read_only)


# -- peers --------------------------------------------------------------------------------


@contextmanager
def peers(place: Place) -> Iterator[dict[str, Path]]:
    """Each with a directory that shows the tree."""
    with ExitStack() as stack:
        found = {BASE: place.copy}
        for name, make in {NATIVE: _native, "FUSE": _fuse, **IMAGES}.items():
            point = place.folder / f"at-{name.replace('.', '-')}"
            missing = [tool for tool in TOOLS.get(name, ()) if shutil.which(tool) is None]
            if missing:
                print(f"(no {name}: {', '.join(missing)} not installed)\n")
                continue
            found[name] = stack.enter_context(make(place, point))
        yield found


@contextmanager
def _native(place: Place, point: Path) -> Iterator[Path]:
    opened = place.native(place.root, point, read_only=True)
    try:
        yield point
    finally:
        workspace.close(place.store, opened)


@contextmanager
def _fuse(place: Place, point: Path) -> Iterator[Path]:
    point.mkdir()
    run(*CASFS, "--store", place.store.root, "mount", point)
    try:
        yield point / "trees" / place.root
    finally:
        mount.unmount(point)


@contextmanager
def _erofs(place: Place, point: Path) -> Iterator[Path]:
    image = place.folder / "mkfs.erofs.image"
    run("mkfs.erofs", image, place.copy)
    point.mkdir()
    kernel.mount(str(image), point, "erofs", kernel.MS_RDONLY)
    try:
        yield point
    finally:
        kernel.unmount(point)


@contextmanager
def _squash(place: Place, point: Path) -> Iterator[Path]:
    image = place.folder / "squashfs.image"
    run("mksquashfs", place.copy, image, "-comp", "zstd", "-no-progress")
    point.mkdir()
    run("squashfuse", image, point)
    try:
        yield point
    finally:
        kernel.unmount(point)


IMAGES = {"mkfs.erofs": _erofs, "squashfuse": _squash}
TOOLS = {"mkfs.erofs": ("mkfs.erofs",), "squashfuse": ("mksquashfs", "squashfuse")}

# -- parts --------------------------------------------------------------------------------


def image(place: Place) -> None:
    assert place.store.root is not None
    first: list[float] = []
    for _ in range(place.rounds):
        shutil.rmtree(place.store.root / images.FOLDER, ignore_errors=True)
        first.append(milliseconds(lambda: images.ensure(place.store, place.root)))
    again = [
        milliseconds(lambda: images.ensure(place.store, place.root)) for _ in range(place.rounds)
    ]
    size = images.ensure(place.store, place.root).stat().st_size
    print("### The image\n\n| | |\n|---|---|")
    print(f"| made | {statistics.median(first):.0f} ms |")
    print(f"| asked for again | {statistics.median(again):.2f} ms |")
    print(f"| size | {size / 1e6:.1f} MB |\n", flush=True)


def commands(place: Place) -> None:
    with peers(place) as shown:
        for title, cold in (("Warm", False), ("Cold", True)):
            times: Times = {}
            for name, command in COMMANDS.items():
                for path in () if cold else shown.values():
                    run("sh", "-c", command, cwd=path)
                for _ in range(place.rounds):
                    for peer, path in shown.items():
                        if cold:
                            drop_caches()
                        taken = milliseconds(lambda: run("sh", "-c", command, cwd=path))  # noqa: B023
                        times.setdefault(name, {}).setdefault(peer, []).append(taken)
            table(title, times, list(shown))


def shared(place: Place) -> None:
    """What the disk is read for when a file is cached through another checkpoint."""
    other = place.folder / "other"
    run("cp", "-a", place.copy, other)
    (other / "one-more").write_text("one more")
    root = place.checkpoint(other)
    points = place.folder / "first", place.folder / "second"
    opened = [
        place.native(one, point, read_only=True)
        for one, point in zip((place.root, root), points, strict=True)
    ]
    try:
        largest = max(
            (path for path in place.copy.rglob("*") if path.is_file() and not path.is_symlink()),
            key=lambda path: path.stat().st_size,
        ).relative_to(place.copy)
        for point in points:
            run("find", point)  # the names
        drop_caches()
        figures = []
        for point in points:
            for parent in reversed((point / largest).parents):
                parent.stat()
            (point / largest).stat()
            before = pages_read()
            (point / largest).read_bytes()
            figures.append(pages_read() - before)
    finally:
        for one in opened:
            workspace.close(place.store, one)
    size = (place.copy / largest).stat().st_size
    print(f"### One file of {size:,} bytes through two checkpoints\n")
    print(f"The first read took {figures[0]} KiB from the disk, the second {figures[1]} KiB.\n")


def workspaces(place: Place) -> None:
    images.ensure(place.store, place.root)
    opening, committing = [], []
    for number in range(place.rounds):
        point = place.folder / f"work-{number}"
        opening.append(
            milliseconds(lambda: place.native(place.root, point, read_only=False))  # noqa: B023
        )
        found = record.find(place.store, point)
        (point / "changed").write_text(f"changed {number}")
        committing.append(milliseconds(lambda: workspace.commit(place.store, found)))  # noqa: B023
        workspace.close(place.store, record.find(place.store, point))
    print("### A writable workspace, image cached\n\n| | median |\n|---|---|")
    print(f"| open | {statistics.median(opening):.1f} ms |")
    print(f"| commit of one change | {statistics.median(committing):.1f} ms |\n", flush=True)


def suite(place: Place, command: str) -> None:
    point = place.folder / "suite"
    found = place.native(place.root, point, read_only=False)
    times: Times = {}
    try:
        for _ in range(place.rounds):
            for name, path in ((BASE, place.copy), (NATIVE, point)):
                taken = milliseconds(lambda: run("sh", "-c", command, cwd=path))  # noqa: B023
                times.setdefault(command, {}).setdefault(name, []).append(taken)
    finally:
        workspace.close(place.store, found, force=True)
    table("A command in a workspace", times, [BASE, NATIVE])


def table(title: str, times: Times, names: list[str]) -> None:
    count = max(len(taken) for row in times.values() for taken in row.values())
    print(f"### {title}, ms (× {BASE}), medians of {count}\n")
    print(f"| | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for label, row in times.items():
        medians = {name: statistics.median(taken) for name, taken in row.items()}
        cells = [f"{medians[name]:.0f} ({medians[name] / medians[BASE]:.2f})" for name in names]
        print(f"| `{label}` | {' | '.join(cells)} |")
    print(flush=True)


PARTS = {"image": image, "commands": commands, "shared": shared, "workspace": workspaces}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True, help="the directory to measure with")
    parser.add_argument("--dir", type=Path, help="where to work")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--suite", metavar="CMD")
    parser.add_argument("parts", nargs="*", metavar="PART")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        place = Place(Path(folder), options.tree.resolve(), options.rounds)
        why = ways.WAYS[ways.NATIVE].missing(place.folder / "store" / "format")
        if why is not None:
            sys.exit(f"no native mounts here: {why}")
        count = sum(len(files) for _, _, files in os.walk(place.copy))
        print(f"## The tree: {count:,} files\n\nThe commands:\n")
        for name, command in COMMANDS.items():
            print(f"- {name}: `{command}`")
        print()
        for part in options.parts or PARTS:
            PARTS[part](place)
        if options.suite:
            suite(place, options.suite)
        place.store.close()


if __name__ == "__main__":
    main()

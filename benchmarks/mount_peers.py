"""The file systems that are measured beside each other: each keeps a copy of one directory,
and shows it by a fresh mount as often as it is asked to.

A peer whose program is missing, or that cannot mount here, is left out and says why. Each
server has its default settings, and only one runs at a time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks import common, workspaces_peers
from benchmarks.common import timed
from benchmarks.workspaces_peers import CASFS, ENV, run
from casfs.errors import CasfsError, Failed, Refused
from casfs.mount import mount_points, registry
from casfs.native import mounted_trees
from casfs.system import mounts

Counted = Counter[str]


class Peer:
    """`place`: what it keeps; `source`: the directory that it keeps there."""

    name = ""
    needs: tuple[str, ...] = ()

    def __init__(self, place: Path, source: Path) -> None:
        self.place, self.source = place, source
        self.point = place.with_name(f"{place.name}.mnt")

    def prepare(self) -> None: ...

    @contextmanager
    def shown(self) -> Iterator[Path]:
        """The directory as it is seen through a fresh mount."""
        raise NotImplementedError
        yield

    def requests(self) -> Counter[str] | None:
        """What has reached the server of the mount so far; None where nobody counts."""
        return None


class Native(Peer):
    name = "native"

    def prepare(self) -> None:
        run("cp", "-a", self.source, self.place)

    @contextmanager
    def shown(self) -> Iterator[Path]:
        yield self.place


class Kernel(Peer):
    name = "casfs, builtin"
    transport = "builtin"

    def prepare(self) -> None:
        kept = workspaces_peers.Casfs(self.place, self.source)
        kept.prepare()
        kept.record()

    @contextmanager
    def shown(self) -> Iterator[Path]:
        flags = ("--transport", self.transport, "--native", "off")
        with casfs_mount(self.place, self.point, *flags):
            yield self.tree()

    def tree(self) -> Path:
        tree = self.point / "trees" / "b"
        return tree / (tree / "latest").readlink()

    def requests(self) -> Counter[str]:
        report = json.loads((self.point / ".casfs" / "stats.json").read_text())
        return Counter(report["requests"])


class MountedNatively(Kernel):
    """As it is by default for root: the tree was walked before, so that its image is there and is
    mounted over it."""

    name = "casfs, native"

    @contextmanager
    def shown(self) -> Iterator[Path]:
        with casfs_mount(self.place, self.point, "--native", "auto"):
            tree = self.tree()
            registry.wait_until(lambda: _is_native(tree), f"{tree} is not mounted natively")
            yield tree


def _is_native(tree: Path) -> bool:
    """Also lists what is in the tree, which has it mounted."""
    for path in tree.iterdir():
        if path.is_dir() and not path.is_symlink():
            os.listdir(path)
    mount = mounts.mounted_at(tree)
    return mount is not None and mount.source.startswith(mounted_trees.PREFIX)


class Pyfuse3(Kernel):
    name = "casfs, pyfuse3"
    transport = "libfuse"


class Squash(Peer):
    """By libfuse's high-level interface; `_ll` by the low-level one."""

    name = "squashfuse"
    needs = ("mksquashfs", "squashfuse")

    def prepare(self) -> None:
        self.place.mkdir()
        run("mksquashfs", self.source, self.place / "image", "-quiet", "-no-progress")

    @contextmanager
    def shown(self) -> Iterator[Path]:
        with common.server([self.name, "-f", self.place / "image", self.point], self.point, ENV):
            yield self.point


class SquashLow(Squash):
    name = "squashfuse_ll"
    needs = ("mksquashfs", "squashfuse_ll")


class Borg(Peer):
    name = "borg mount"
    needs = ("borg",)

    def prepare(self) -> None:
        kept = workspaces_peers.Borg(self.place, self.source)
        kept.prepare()
        kept.record()
        self._archive = f"{self.place}::a{kept.count}"

    @contextmanager
    def shown(self) -> Iterator[Path]:
        command = ["borg", "mount", "-f", self._archive, self.point]
        with common.server(command, self.point, ENV):
            yield self.point


class Restic(Peer):
    name = "restic mount"
    needs = ("restic",)

    def prepare(self) -> None:
        kept = workspaces_peers.Restic(self.place, self.source)
        kept.prepare()
        kept.record()

    @contextmanager
    def shown(self) -> Iterator[Path]:
        command = ["restic", "-r", self.place, "mount", self.point]
        with common.server(command, self.point, ENV):
            yield (self.point / "snapshots" / "latest").resolve()


PEERS: tuple[type[Peer], ...] = (
    Native, Kernel, MountedNatively, Pyfuse3, Squash, SquashLow, Borg, Restic,
)  # fmt: skip
OURS: tuple[type[Kernel], ...] = (Kernel, Pyfuse3)


def made(
    work: Path, source: Path, wanted: Sequence[str], kinds: Sequence[type[Peer]] = PEERS
) -> list[Peer]:
    """Those peers, ready to show `source`; who cannot is left out with the reason."""
    found = []
    for number, kind in enumerate(kinds):
        if kind.name not in wanted:
            continue
        peer = kind(work / f"{source.name}-{number}", source)
        try:
            if lacking := [name for name in kind.needs if shutil.which(name) is None]:
                raise Failed(f"no {', '.join(lacking)}")
            peer.prepare()
            with peer.shown() as top:
                if not any(top.iterdir()):
                    raise Failed("it shows nothing")
        except (CasfsError, OSError, ValueError, subprocess.CalledProcessError) as error:
            print(f"\nLeft out: {kind.name}: {error}", flush=True)
            continue
        found.append(peer)
    return found


def spent(peer: Peer, top: Path, command: str, env: Mapping[str, str]) -> tuple[float, Counted]:
    """The seconds that a command takes, and its requests; those of going there and of reading
    the counts are taken off."""
    if peer.requests() is None:
        return timed(command, top=top, env=env), Counter()

    def visit(command: str) -> tuple[float, Counted]:
        return timed(command, top=top, env=env), peer.requests() or Counter()

    visit("true")
    _, first = visit("true")
    _, before = visit("true")
    taken, after = visit(command)
    return taken, after - before - (before - first)


@contextmanager
def casfs_mount(store: Path, point: Path, *flags: str) -> Iterator[float]:
    """A mount by the ordinary command; gives the seconds from the command to its return,
    when the mount is ready. Raises Failed."""
    point.mkdir(exist_ok=True)
    command = [*CASFS, "--store", store, "mount", point, *flags]
    start = time.perf_counter()
    # It is waited for whatever happens: ended half-way it would leave a supervisor that goes on.
    with common.process(command, stderr=subprocess.PIPE) as started:
        try:
            _, said = started.communicate()
            taken = time.perf_counter() - start
            if started.returncode:
                raise Failed(said.decode(errors="replace").strip())
            yield taken
        finally:
            with suppress(subprocess.TimeoutExpired):
                started.wait(common.TIMEOUT_S)
            _unmount(store, point)


def _unmount(store: Path, point: Path) -> None:
    if mounts.mounted_at(point) is None:
        return
    try:
        mount_points.unmount(point, root=store)
    except Refused as error:
        print(f"{error}; unmounted lazily", file=sys.stderr)
        mount_points.unmount(point, root=store, lazy=True)
        registry.wait_until(lambda: not registry.listing(store))

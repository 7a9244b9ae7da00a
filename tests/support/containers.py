"""Containers by podman and bubblewrap, whose system is busybox alone.

What podman keeps of itself is below the test's own directories, so the user's containers and
storage are neither seen nor touched.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from casfs.system import mounts
from tests.support import programs
from tests.support.helpers import Link, Program, Tree, write_tree

NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
BUSYBOX = Path("/bin/busybox")
APPLETS = ("sh", "cat", "cmp", "find", "id", "ls", "mkdir", "rm", "sort", "touch", "tr", "xargs")
PASSWD = b"root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
# Where podman mounts something there must be something, since it cannot make it.
SYSTEM = {
    **{name: {} for name in ("dev", "proc", "src", "sys", "job")},
    "run": {".containerenv": b""},
    "etc": {
        **dict.fromkeys(("hosts", "hostname", "resolv.conf"), b""),
        "mtab": Link(b"/proc/mounts"),
        "passwd": PASSWD,
        "group": b"root:x:0:\nnogroup:x:65534:\n",
    },
}


class Asked(NamedTuple):
    """A shell script in a container: its root, and what is bound where."""

    root: Path | str
    script: str
    ro: Mapping[str, Path] = {}
    rw: Mapping[str, Path] = {}
    nobody: bool = False


class Container:
    """A way of running one; `folder` has a short path, since podman makes sockets in it."""

    tools: tuple[str, ...]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = dict(os.environ)

    def command(self, asked: Asked) -> list[str]:
        raise NotImplementedError

    def end(self) -> None:
        """End what still runs."""

    def __call__(self, *arguments: Any, **more: Any) -> subprocess.CompletedProcess[str]:
        command = self.command(Asked(*arguments, **more))
        return finished(command, env=self.env)


class Bubblewrap(Container):
    tools = ("bwrap",)

    def command(self, asked: Asked) -> list[str]:
        made = [*(AS_NOBODY if asked.nobody else ()), "bwrap", "--ro-bind", str(asked.root), "/"]
        for option, binds in (("--ro-bind", asked.ro), ("--bind", asked.rw)):
            for target, source in binds.items():
                made += [option, str(source), target]
        made += ["--dev", "/dev", "--proc", "/proc", "--unshare-all", "--die-with-parent"]
        return [*made, "/bin/sh", "-c", asked.script]


class Podman(Container):
    tools = ("podman", "runc")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        settings = folder / "containers.conf"
        settings.write_text(
            f'[engine]\nlock_type = "file"\n[network]\nnetwork_config_dir = "{folder}/net"\n'
        )
        self.env["CONTAINERS_CONF"] = str(settings)
        runtime = self.tools[1]
        self.podman = ["podman", "--storage-driver", "vfs", "--runtime", runtime]
        self.podman += ["--root", f"{folder}/root", "--runroot", f"{folder}/runroot"]
        self.podman += ["--tmpdir", f"{folder}/tmp", "--runtime-flag", f"root={folder}/{runtime}"]
        self.name = folder.name

    def command(self, asked: Asked) -> list[str]:
        made = [*self.podman, "run", "--rm", "--interactive", "--name", self.name]
        made += ["--network=none", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
        if asked.nobody:
            made += ["--user", f"{NOBODY}:{NOBODY}"]
        if not str(asked.root).endswith(":O"):
            made += ["--read-only", "--read-only-tmpfs=false"]
        for option, binds in ((":ro", asked.ro), ("", asked.rw)):
            for target, source in binds.items():
                made += ["-v", f"{source}:{target}{option}"]
        return [*made, "--rootfs", str(asked.root), "/bin/sh", "-c", asked.script]

    def end(self) -> None:
        command = [*self.podman, "rm", "--force", "--time", "0", "--ignore", self.name]
        done = finished(command, env=self.env)
        for point in mounts.mounted_below(self.folder):
            mounts.unmount(point, lazy=True)
        assert done.returncode == 0, done.stderr


class Crun(Podman):
    """By crun, which refuses a machine that has cgroups of both versions: it sees but one."""

    tools = ("podman", "crun")

    def command(self, asked: Asked) -> list[str]:
        hide = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
        return ["unshare", "--mount", "sh", "-c", hide, "sh", *super().command(asked)]


def finished(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **more
    )


@cache
def refused(kind: type[Container]) -> str | None:
    """Why no such container runs here, casfs aside."""
    with TemporaryDirectory(prefix="casfs-", dir="/tmp") as folder:
        root = write_tree(Path(folder, "system"), a_system())
        done = kind(Path(folder))(root, "true")
    return None if done.returncode == 0 else " ".join(done.stderr.split())


@contextmanager
def ready(kind: type[Container], folder: Path) -> Iterator[Container]:
    programs.require(*kind.tools, str(BUSYBOX))
    why = refused(kind)
    if why is not None:
        pytest.skip(f"no container by {kind.tools[0]} here: {why}")
    made = kind(folder)
    try:
        yield made
    finally:
        made.end()


def a_system() -> Tree:
    busybox = {"busybox": Program(BUSYBOX.read_bytes())}
    return {**SYSTEM, "bin": {**busybox, **dict.fromkeys(APPLETS, Link(b"busybox"))}}

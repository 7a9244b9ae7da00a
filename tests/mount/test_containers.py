"""Checkpoints in containers: bound into one, built on in one, and as the root of one."""

from __future__ import annotations

import os
import signal
import site
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import casfs
from casfs.checkpoints import create
from casfs.mount.mount_points import unmount
from casfs.store.store import Store
from tests.support.containers import (
    APPLETS,
    AS_NOBODY,
    NOBODY,
    PASSWD,
    Asked,
    Bubblewrap,
    Container,
    Podman,
    a_system,
    finished,
    ready,
)
from tests.support.helpers import Program, put_tree, read_tree, write_tree
from tests.support.served import TIMEOUT_S, Mount, unmounted_after

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="what root may, and what root may drop")

EITHER = pytest.mark.parametrize("transport", ["builtin"])  # where both would be tested for nothing
BUILD = b"#!/bin/sh\nset -e\ntr a-z A-Z <words >loud\nmkdir out\nsort words >out/sorted\nrm old\n"
PROJECT = {"build": Program(BUILD), "words": b"one\ntwo\nthree\n", "old": b"-"}
BUILT = {
    "build": Program(BUILD),
    "words": b"one\ntwo\nthree\n",
    "loud": b"ONE\nTWO\nTHREE\n",
    "out": {"sorted": b"one\nthree\ntwo\n"},
}
# -- containers ---------------------------------------------------------------------------


@pytest.fixture(params=[Podman, Bubblewrap])
def container(request: pytest.FixtureRequest, runtime_dir: Path) -> Iterator[Container]:
    with ready(request.param, runtime_dir) as made:
        yield made


@pytest.fixture
def podman(runtime_dir: Path) -> Iterator[Container]:
    with ready(Podman, runtime_dir) as made:
        yield made


@pytest.fixture
def bubblewrap(runtime_dir: Path) -> Iterator[Container]:
    with ready(Bubblewrap, runtime_dir) as made:
        yield made


# -- what is in them ----------------------------------------------------------------------


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A small system on the disk."""
    return write_tree(tmp_path / "system", a_system())


def recorded(mount: Mount, name: str, folder: Path) -> Path:
    """A checkpoint of the folder, as it is shown."""
    made = create.create(
        mount.store, name, folder, options=create.CreateOptions(defaults=False)
    ).checkpoint
    return mount.path / "trees" / name / made.id


@pytest.fixture
def project(mount: Mount, tmp_path: Path) -> Path:
    return recorded(mount, "app", write_tree(tmp_path / "project", PROJECT))


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    """Where a workspace is opened."""
    with unmounted_after(tmp_path / "try") as folder:
        yield folder / "w"


def run(store: Store, *words: str | Path) -> str:
    """`casfs WORDS…`, in a process of its own as a person would."""
    command = [sys.executable, "-m", "casfs", "--store", str(store.root), *map(str, words)]
    done = finished(command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def committed(store: Store, path: Path) -> str:
    root = run(store, "workspace", "commit", path).split()[0]
    run(store, "workspace", "close", path)
    return root


# -- bound --------------------------------------------------------------------------------


def test_a_bound_checkpoint_is_read_and_never_written(
    mount: Mount, container: Container, system: Path, project: Path
) -> None:
    script = "cd /src && find . | sort && cat words && touch new old"
    done = container(system, script, ro={"/src": project})
    assert done.stdout.split() == [".", "./build", "./old", "./words", "one", "two", "three"]
    assert done.returncode != 0
    assert done.stderr.count("Read-only file system") == 2
    assert read_tree(project) == read_tree(write_tree(mount.path.parent / "again", PROJECT))


def test_a_build_on_an_overlay_over_a_checkpoint(
    mount: Mount, container: Container, system: Path, project: Path, work: Path
) -> None:
    """The project is bound twice: as it was, and where the build writes."""
    run(mount.store, "workspace", "open", "app", work, "--backend", "overlay")
    script = "cd /job && ./build && cmp words /src/words && ls /src"
    done = container(system, script, ro={"/src": project}, rw={"/job": work})
    assert (done.returncode, done.stdout.split()) == (0, ["build", "old", "words"]), done.stderr
    assert committed(mount.store, work) == put_tree(mount.store, BUILT)
    latest = mount.path / "trees/app/latest"
    assert os.listdir(latest / "out") == ["sorted"]
    assert sorted(os.listdir(project)) == ["build", "old", "words"]


# -- as the root --------------------------------------------------------------------------


def test_a_checkpoint_is_the_root(mount: Mount, container: Container, system: Path) -> None:
    root = recorded(mount, "system", system)
    done = container(root, "id -u; ls /; cat /etc/passwd; touch /new /bin/new")
    first, *rest = done.stdout.splitlines()
    assert (first, rest[:8]) == ("0", sorted(os.listdir(system))), done.stderr
    assert rest[8:] == PASSWD.decode().splitlines()
    assert done.stderr.count("Read-only file system") == 2


@EITHER
def test_a_root_that_takes_changes(
    mount: Mount, podman: Container, system: Path, tmp_path: Path
) -> None:
    """podman's own overlay; nothing needs to be in the tree for what podman mounts."""
    bare = write_tree(tmp_path / "bare", {"bin": read_tree(system)[b"bin"]})
    root = recorded(mount, "bare", bare)
    done = podman(f"{root}:O", "touch /new && rm /bin/tr && ls / /bin")
    assert done.returncode == 0, done.stderr
    assert "new" in done.stdout.split()
    assert "tr" not in done.stdout.split()
    assert os.listdir(root) == ["bin"]
    assert sorted(os.listdir(root / "bin")) == sorted(["busybox", *APPLETS])


# -- other users --------------------------------------------------------------------------


@contextmanager
def shown(store: Store, where: Path, *options: str) -> Iterator[Path]:
    where.mkdir()
    run(store, "mount", where, *options)
    try:
        yield where
    finally:
        run(store, "umount", "-l", where)


@pytest.mark.parametrize("options", [[], ["--allow-other"]])
def test_as_another_user(
    disk_store: Store,
    container: Container,
    system: Path,
    runtime_dir: Path,
    tmp_path: Path,
    options: list[str],
) -> None:
    runtime_dir.chmod(0o755)
    source = write_tree(tmp_path / "project", PROJECT)
    ids = [
        create.create(
            disk_store, name, folder, options=create.CreateOptions(defaults=False)
        ).checkpoint.id
        for name, folder in (("system", system), ("app", source))
    ]
    script = "id -u; cat /src/words; touch /src/new"
    with shown(disk_store, runtime_dir / "m", *options) as point:
        root, project = point / "trees/system" / ids[0], point / "trees/app" / ids[1]
        done = container(root, script, ro={"/src": project}, nobody=True)
    if not options:
        assert done.returncode != 0
        assert done.stdout == ""
        return
    assert done.stdout.split() == [str(NOBODY), "one", "two", "three"], done.stderr
    assert "Read-only file system" in done.stderr


@pytest.fixture
def namespaces() -> None:
    done = finished(["unshare", "-Ur", "true"])
    if done.returncode != 0:
        pytest.skip(f"no user namespaces here: {done.stderr}")


# A namespace of mounts and one of processes: when it ends, whatever was in there is gone.
# /dev/fuse is as it comes on most systems, for all to open.
OUTER = """
set -e
mount -t tmpfs none "$1/dev"; mknod "$1/dev/fuse" c 10 229; chmod 666 "$1/dev/fuse"
mount --bind "$1/dev/fuse" /dev/fuse
shift; exec "$@"
"""
INNER = """
set -e
cd "$1"
casfs() { "$PYTHON" -m casfs "$@"; }
casfs init >/dev/null
casfs checkpoint create app project >/dev/null
casfs mount mnt >/dev/null
trap 'casfs umount -l mnt >/dev/null' EXIT
casfs workspace open app try --backend copy >/dev/null
ls try mnt/trees/app/latest/
(cd try; id -u; ./build)
casfs workspace commit try
(cd try; unshare -Ur sh -c 'id -u; cat loud')
casfs workspace close try >/dev/null
"""


def interpreter() -> str:
    """Of a Python that the user nobody may run, with casfs in it."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, f"/usr/bin/python{version}"):
        command = [*AS_NOBODY, "sh", "-c", f'"{python}" -m casfs --version']
        if finished(command, env=environment(python)).returncode == 0:
            return python
    pytest.skip("the user nobody may not run this Python")


def environment(python: str, **more: str) -> dict[str, str]:
    paths = [str(Path(casfs.__file__).parent.parent), *site.getsitepackages()]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return {**kept, "PYTHON": python, "PYTHONPATH": ":".join(paths), **more}


@pytest.mark.usefixtures("namespaces")
def test_without_root(runtime_dir: Path, store: Store) -> None:
    """A store, a mount and a workspace of the user nobody."""
    python = interpreter()
    (runtime_dir / "dev").mkdir()
    write_tree(runtime_dir / "project", PROJECT)
    (runtime_dir / "mnt").mkdir()
    for path in (runtime_dir, *runtime_dir.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    env = environment(python, HOME=str(runtime_dir), CASFS_STORE=str(runtime_dir / "store"))
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", OUTER, "sh"]
    command += [str(runtime_dir), *AS_NOBODY, "sh", "-c", INNER, "sh", str(runtime_dir)]
    done = finished(command, env=env, cwd="/")
    assert done.returncode == 0, done.stderr
    shown = "mnt/trees/app/latest/: build old words try: build old words"
    seen = done.stdout.split()
    root = put_tree(store, BUILT)
    assert seen[:9] == [*shown.split(), str(NOBODY)]
    assert seen[9] == root
    assert seen[11:] == ["0", "ONE", "TWO", "THREE"]


# -- the mount goes ------------------------------------------------------------------------


def test_what_a_container_uses_is_served_until_it_ends(
    mount: Mount, container: Container, system: Path, project: Path
) -> None:
    script = "ls /src; read word; cat /src/words"
    command = container.command(Asked(system, script, ro={"/src": project}))
    with talking(container, command) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(3)] == sorted(PROJECT)
        unmount(mount.path)
        assert os.listdir(mount.path) == []
        out, _ = process.communicate("go\n", TIMEOUT_S)
        assert out.split() == ["one", "two", "three"]
    assert mount.supervisor.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize("transport", ["builtin"])
def test_a_container_goes_on_with_the_next_server(
    mount: Mount, container: Container, system: Path, project: Path
) -> None:
    """pyfuse3 mounts anew instead, which containers that run do not see."""
    command = container.command(
        Asked(system, "echo up; read word; cat /src/words", {"/src": project})
    )
    with talking(container, command) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        os.kill(mount.state().worker, signal.SIGKILL)
        out, _ = process.communicate("go\n", TIMEOUT_S)
        assert out.split() == ["one", "two", "three"]


@contextmanager
def talking(container: Container, command: list[str]) -> Iterator[subprocess.Popen[str]]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=container.env, stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
            container.end()

"""Workspaces of a user who is not root: which backend is used."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casfs.system import mounts
from casfs.workspaces import overlay_mount
from tests.mount.test_containers import environment, interpreter
from tests.mount.test_other_users import DEVICE, by_nobody, open_to_all, owned, ran
from tests.support.containers import AS_NOBODY, NOBODY, finished
from tests.support.helpers import read_tree, write_tree
from tests.support.lasting import ROOT_ONLY
from tests.support.programs import require

Run = Callable[..., str]


@pytest.fixture
def nobody(runtime_dir: Path) -> Iterator[Run]:
    """Runs casfs as the user nobody, on a store of his that has the checkpoint `app`."""
    require("setpriv")
    python = interpreter()
    runtime_dir.chmod(0o755)
    write_tree(runtime_dir / "source", {"a": b"one"})
    (runtime_dir / "run").mkdir(mode=0o700)
    owned(runtime_dir)

    def run(*arguments: str | Path) -> str:
        env = ["env", f"XDG_RUNTIME_DIR={runtime_dir / 'run'}", python, "-m", "casfs"]
        return ran(by_nobody(runtime_dir, *env, *arguments))

    run("init")
    run("checkpoint", "create", "app", runtime_dir / "source")
    try:
        yield run
        for point in mounts.mounted_below(runtime_dir):
            run("umount", point)  # waits for its processes
    finally:
        for point in mounts.mounted_below(runtime_dir):
            mounts.unmount(point, lazy=True)


@ROOT_ONLY
def test_fuse_overlayfs_is_preferred(nobody: Run, runtime_dir: Path) -> None:
    """Unless it is one that shows deleted files again."""
    require("fuse-overlayfs", "fusermount3")
    work = runtime_dir / "w"
    with open_to_all():
        best = "copy" if overlay_mount.forgets_deletions() else "fuse-overlayfs"
        assert f"backend: {best}\n" in nobody("workspace", "open", "app", work)
        nobody("workspace", "close", work)
        nobody("workspace", "open", "app", work, "--backend", "fuse-overlayfs")
        ran(by_nobody(runtime_dir, "sh", "-c", f"echo typed >{work}/typed.txt"))
        made = nobody("workspace", "commit", work).split()[0]
        assert "typed.txt" in nobody("tree", "ls", made)
        nobody("workspace", "close", work)


@ROOT_ONLY
def test_a_copy_where_the_device_cannot_be_opened(nobody: Run, runtime_dir: Path) -> None:
    """What was opened works: nothing that needs the device was chosen."""
    closed = runtime_dir / "closed"
    closed.touch(0o600)
    script = f'mount --bind {closed} {DEVICE}; exec {" ".join(AS_NOBODY)} "$0" -m casfs "$@"'
    env = environment(interpreter(), HOME=str(runtime_dir), CASFS_STORE=str(runtime_dir / "store"))
    work = str(runtime_dir / "w")
    command = ["unshare", "--mount", "sh", "-c", script, interpreter(), "workspace"]
    assert "backend: copy\n" in ran(finished([*command, "open", "app", work], env=env, cwd="/"))
    assert read_tree(Path(work)) == {b"a": b"one"}
    nobody("workspace", "close", work)


@ROOT_ONLY
def test_a_directory_of_ones_own_in_one_of_roots(nobody: Run, runtime_dir: Path) -> None:
    above = runtime_dir / "roots"
    above.mkdir(mode=0o755)
    for name in ("target", "work"):
        (above / name).mkdir()
        os.chown(above / name, NOBODY, NOBODY)
    with open_to_all():
        nobody("checkpoint", "restore", "app", above / "target")
        nobody("workspace", "open", "app", above / "work", "--backend", "copy")
        assert read_tree(above / "target") == read_tree(above / "work") == {b"a": b"one"}
        made = os.stat(runtime_dir / "source/a").st_mtime_ns
        assert os.stat(above / "target/a").st_mtime_ns == made
        nobody("workspace", "close", above / "work")


@ROOT_ONLY
def test_an_ignored_directory_of_another_user(nobody: Run, runtime_dir: Path) -> None:
    source = runtime_dir / "source"
    (source / ".casfsignore").write_text("data/\n")
    write_tree(source / "data", {"kept": b"kept", "pg": {"secret": b""}})
    (runtime_dir / "agent.sh").write_text("cat data/kept; ls data\n")
    owned(source)
    os.chown(source / "data/pg", 0, 0)
    (source / "data/pg").chmod(0o700)
    agent = f"command:sh {runtime_dir}/agent.sh"
    run = [f"XDG_RUNTIME_DIR={runtime_dir / 'run'}", interpreter(), "-m", "casfs", "run"]
    with open_to_all():
        done = by_nobody(runtime_dir, "env", *run, "--no-apply", agent, "Look.", source)
        nobody("daemon", "stop")
    assert "kept" in ran(done)
    assert f"not in the thread's workspace: {source}/data/pg: Permission denied" in done.stderr

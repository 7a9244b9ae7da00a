"""Where a mount may stand, and how it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from casfs.errors import NotFound, Refused
from casfs.mount.mount_points import check, unmount
from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.processes import start_time
from casfs.system.store_mounts import mounted
from tests.support.mount_users import USES, user
from tests.support.new_store import init_store
from tests.support.programs import needs_device
from tests.support.served import Mount, held, kill, serving, states

pytestmark = [needs_device, pytest.mark.usefixtures("nothing_stays_mounted")]
BIND = 1 << 12  # MS_BIND


def test_how_it_stands_in_the_mount_table(mount: Mount) -> None:
    assert mounted(mount.store.root) == [mount.path]
    assert mounted(mount.path.parent / "other") == []
    line = next(
        line for line in Path("/proc/self/mounts").read_text().splitlines()
        if line.split()[1] == str(mount.path)
    )  # fmt: skip
    origin, _, kind, options = line.split()[:4]
    assert (origin, kind) == (str(mount.store.root), "fuse.casfs")
    assert {"ro", "nosuid", "nodev"} <= set(options.split(","))
    assert ("default_permissions" in options.split(",")) is (mount.transport == "libfuse")


def test_any_path_will_do(tmp_path: Path) -> None:
    odd = tmp_path / "odd, ünd \\ spaced"
    odd.mkdir()
    with init_store(odd / "store") as store, serving(store, odd / "mnt") as mount:
        assert (mount.path / "README.txt").exists()
        assert mounted(store.root) == [mount.path]
        unmount(mount.path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_unmounts(mount: Mount, number: int) -> None:
    mount.supervisor.send_signal(number)
    assert mount.supervisor.wait() == 0
    assert os.listdir(mount.path) == []
    assert not os.path.ismount(mount.path)


def test_unmount(mount: Mount) -> None:
    with (mount.path / "README.txt").open():
        with pytest.raises(Refused, match="busy"):
            unmount(mount.path)
        assert os.path.ismount(mount.path)
    unmount(mount.path)
    assert mount.supervisor.wait() == 0
    with pytest.raises(NotFound):
        unmount(mount.path)


def test_a_lazy_unmount_waits_for_nobody(mount: Mount) -> None:
    with (mount.path / "README.txt").open() as held:
        unmount(mount.path, lazy=True)
        assert os.listdir(mount.path) == []
        assert held.read().startswith("This is a casfs store")
    assert mount.supervisor.wait() == 0


def test_where_a_mount_is_refused(mount: Mount, tmp_path: Path) -> None:
    store = mount.store
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    (store.root / "inside").mkdir()
    for where, error, reason in (
        (tmp_path / "none", NotFound, "no directory"),
        (tmp_path / "full", Refused, "not empty"),
        (tmp_path / "full" / "file", Refused, "not a directory"),
        (mount.path, Refused, "mount point already"),
        (store.root / "inside", Refused, "inside the store"),
    ):
        with pytest.raises(error, match=reason):
            check(store.root, where)


def test_a_store_inside_its_mount_point_is_refused(tmp_path: Path) -> None:
    with init_store(tmp_path / "mnt" / "store") as store, pytest.raises(Refused):
        check(store.root, tmp_path / "mnt")


@pytest.mark.parametrize("use", USES)
def test_umount_says_who_keeps_it_busy(mount: Mount, use: str) -> None:
    with user(USES[use](mount.path)) as process:
        with pytest.raises(Refused, match="is busy") as caught:
            unmount(mount.path)
        assert f"pid {process.pid} (" in str(caught.value)
        assert "-l" in str(caught.value)
    unmount(mount.path)
    assert mount.supervisor.wait(10) == 0
    assert states(mount.store) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a tmpfs")
def test_umount_names_what_is_mounted_below(mount: Mount) -> None:
    below = mount.path / "trees"
    mounts.mount("none", below, "tmpfs", 0)
    try:
        with pytest.raises(Refused, match=f"the mount {below}"):
            unmount(mount.path)
    finally:
        mounts.unmount(below)


def test_umount_waits_for_the_end(mount: Mount) -> None:
    found = mount.state()
    unmount(mount.path)
    assert mount.supervisor.wait(10) == 0
    assert start_time(found.worker) is None


def test_a_lazy_umount_waits_for_nobody(mount: Mount) -> None:
    with held(mount.path / "README.txt") as fd:
        unmount(mount.path, lazy=True)
        assert os.listdir(mount.path) == []
        if mount.transport == "builtin":
            kill(states(mount.store)[0].worker)
        assert os.read(fd, 100).startswith(b"This is a casfs store")
    assert mount.supervisor.wait(60) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may bind")
def test_umount_does_not_wait_for_who_sees_it_elsewhere(mount: Mount, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    mounts.mount(str(mount.path), other, "none", BIND)
    try:
        unmount(mount.path)
        assert mounts.mounted_at(mount.path) is None
        assert (other / "README.txt").read_text().startswith("This is a casfs store")
    finally:
        mounts.unmount(other, lazy=True)
    assert mount.supervisor.wait(60) == 0


def test_another_mount_at_the_same_place(disk_store: Store, tmp_path: Path, transport: str) -> None:
    """Who still serves what was unmounted lazily leaves the new one alone."""
    where = tmp_path / "mnt"
    with serving(disk_store, where, transport=transport) as old, held(where / "README.txt"):
        unmount(where, lazy=True)
        with serving(disk_store, where, transport=transport) as new:
            assert len(states(disk_store)) == 2
            old.supervisor.send_signal(signal.SIGTERM)
            assert old.supervisor.wait(60) == 0
            assert (where / "README.txt").exists()
            (found,) = states(disk_store)
            assert found.supervisor == new.supervisor.pid


def test_what_cannot_be_unmounted(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no casfs mount"):
        unmount(tmp_path)
    with pytest.raises(NotFound, match="no casfs mount"):
        unmount(Path("/proc"))

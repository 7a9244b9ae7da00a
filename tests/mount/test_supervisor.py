"""A mount outlives its workers, and leaves nothing dead behind."""

from __future__ import annotations

import json
import mmap
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

from casfs.errors import Refused
from casfs.mount import registry
from casfs.mount.mount_points import unmount
from casfs.mount.supervisor import replace_program
from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.store_mounts import mounted
from tests.support.programs import needs_device
from tests.support.served import CASFS, Mount, end, gone, held, kill, start, states

pytestmark = [needs_device, pytest.mark.usefixtures("nothing_stays_mounted")]

TOOL = Path(__file__).resolve().parents[1] / "harness" / "mount_kills.py"


def successor(mount: Mount, before: registry.MountState) -> registry.MountState:
    """The state when another worker than the one in `before` serves."""
    now: list[registry.MountState] = []

    def serves() -> bool:
        found = before.reload()
        now[:] = [found] if found is not None else []
        return found is not None and found.starts > before.starts and found.serves

    registry.wait_until(serves, "there is no successor")
    return now[0]


def readable(folder: Path) -> bool:
    with suppress(OSError):
        return os.listdir(folder) is not None
    return False


@pytest.mark.parametrize("how", ["kill", "replace"])
def test_readers_do_not_notice_that_workers_end(how: str) -> None:
    """The long run is the tool: `python tests/harness/mount_kills.py`."""
    done = subprocess.run(
        [sys.executable, TOOL, "--kills", "5", "--readers", "16", "--how", how],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills 5, errors 0" in done.stdout


def test_where_no_request_is_sent_again_those_in_flight_fail() -> None:
    """And no caller hangs."""
    done = subprocess.run(
        [sys.executable, TOOL, "--kills", "5", "--readers", "16", "--older"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills 5, errors 0" in done.stdout


def test_a_killed_worker_has_a_successor(mount: Mount) -> None:
    hash = mount.store.put(b"seen " * 1000).hash
    before = mount.state()
    assert before.supervisor == mount.supervisor.pid
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        kill(before.worker, number)
        now = successor(mount, before)
        assert (now.supervisor, now.starts) == (before.supervisor, before.starts + 1)
        assert now.worker != before.worker
        assert (mount.path / "blobs" / hash).read_bytes() == b"seen " * 1000
        assert mounted(mount.store.root) == [mount.path]
        before = now


@pytest.mark.parametrize("transport", ["builtin"])
def test_what_is_open_stays_open(mount: Mount) -> None:
    hash = mount.store.put(bytes(range(256)) * 20_000).hash
    before = mount.state()
    at = os.open(mount.path / "threads", os.O_DIRECTORY)
    with (mount.path / "blobs" / hash).open("rb", buffering=0) as file:
        first = file.read(1000)
        kill(before.worker)
        assert first + file.read() == bytes(range(256)) * 20_000
        file.seek(0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            assert mapped[-3:] == b"\xfd\xfe\xff"
    assert os.listdir(at) == []
    os.close(at)
    assert os.stat(mount.path / "blobs" / hash).st_size == 256 * 20_000


def test_killed_at_every_start_it_always_comes_back(mount: Mount) -> None:
    before = mount.state()
    for _ in range(12):
        kill(before.worker)
        before = successor(mount, before)
    assert (mount.path / "README.txt").exists()


EARLY = """
import os, signal, sys
from pathlib import Path
from casfs.fuse.kernel import server as transport
from casfs.fuse.inode_table import InodeTable

mark, when, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
negotiate, note = transport.negotiate, InodeTable.transport_state

def die():
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)

def asked(*arguments):
    die()
    return negotiate(*arguments)

def answering(table, value):
    note.fset(table, value)
    die()

if when == "asked":
    transport.negotiate = asked
else:
    InodeTable.transport_state = property(note.fget, answering)
sys.argv[0] = "casfs"
from casfs.cli.main import main
main()
"""


@pytest.mark.parametrize("when", ["asked", "answering"])
def test_killed_before_the_kernel_has_its_first_answer(
    disk_store: Store, tmp_path: Path, when: str
) -> None:
    where = tmp_path / "mnt"
    where.mkdir()
    casfs = [sys.executable, "-c", EARLY, str(tmp_path / "mark"), when]
    supervisor = subprocess.Popen(
        [*casfs, "--store", str(disk_store.root), "mount", str(where), "--foreground",
         "--transport", "builtin"]
    )  # fmt: skip
    try:
        registry.wait_until(
            lambda: any(one.serves for one in states(disk_store)), "nobody serves", seconds=10
        )
        assert (where / "README.txt").exists()
        assert states(disk_store)[0].starts == 2
    finally:
        end(where, supervisor)


def test_a_worker_whose_map_is_cut_off_has_a_successor(mount: Mount) -> None:
    hash = mount.store.put(b"seen " * 1000).hash
    before = mount.state()
    mount.store.close()
    os.truncate(mount.store.root / "store.db-shm", 0)
    assert not readable(mount.path / "threads") or mount.transport == "builtin"
    now = successor(mount, before)
    assert now.supervisor == before.supervisor
    assert (mount.path / "blobs" / hash).read_bytes() == b"seen " * 1000


def test_while_the_store_cannot_be_read_there_are_errors(mount: Mount, tmp_path: Path) -> None:
    """An empty directory in the mount's place would say that all is gone."""
    hash = mount.store.put(b"seen " * 1000).hash
    before = mount.state()
    mount.store.close()
    database = mount.store.root / "store.db"
    with closing(sqlite3.connect(database)) as now, closing(sqlite3.connect(tmp_path / "db")) as to:
        now.backup(to)
    for part in ("", "-wal", "-shm"):
        os.truncate(f"{database}{part}", 0)
    readable(mount.path / "threads")  # that one dies of
    found = successor(mount, before)
    for name in ("", "threads.json", "history", f"blobs/{hash}", "trees/latest"):
        with pytest.raises(OSError, match="Input/output error"):
            os.listdir(mount.path / name)
    assert mounted(mount.store.root) == [mount.path]
    for part in ("-wal", "-shm"):
        Path(f"{database}{part}").unlink(missing_ok=True)
    (tmp_path / "db").rename(database)
    registry.wait_until(lambda: readable(mount.path / "threads"), "nobody has looked again")
    assert mount.state().starts > found.starts
    assert (mount.path / "blobs" / hash).read_bytes() == b"seen " * 1000


def test_workers_that_fail_at_once_are_given_up(disk_store: Store, tmp_path: Path) -> None:
    """Whose own fault it is: the store is of another version when a successor opens it."""
    where = tmp_path / "mnt"
    where.mkdir()
    supervisor = start(disk_store, where)
    try:
        (found,) = states(disk_store)
        written = (disk_store.root / "format").read_text()
        (disk_store.root / "format").write_text("casfs 999\n")
        kill(found.worker)
        assert supervisor.wait(60) == 1
        (disk_store.root / "format").write_text(written)
        assert os.listdir(where) == []
        assert mounts.mounted_at(where) is None
    finally:
        end(where, supervisor)
    log = (disk_store.root / "log" / "mount.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in log]
    assert "keep failing at once" in events[-1]["error"]
    assert [one["event"] for one in events].count("worker ended") == 7


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_even_when_it_is_busy(mount: Mount, number: signal.Signals) -> None:
    serving = mount.state().worker
    with held(mount.path / "README.txt"):
        mount.supervisor.send_signal(number)
        assert mount.supervisor.wait(60) == 0
    assert mounts.mounted_at(mount.path) is None
    assert os.listdir(mount.path) == []
    gone(serving)
    assert states(mount.store) == []


def test_a_signal_while_nobody_serves(mount: Mount) -> None:
    kill(mount.state().worker)
    mount.supervisor.send_signal(signal.SIGTERM)
    assert mount.supervisor.wait(60) == 0
    assert mounts.mounted_at(mount.path) is None


@pytest.mark.parametrize("how", ["umount", "SIGTERM"])
def test_a_worker_goes_on_without_its_supervisor(mount: Mount, how: str) -> None:
    before = mount.state()
    assert before.supervised
    mount.supervisor.kill()
    mount.supervisor.wait()
    (now,) = states(mount.store)
    assert (now.supervised, "no supervisor" in str(now)) == (False, True)
    assert (mount.path / "README.txt").read_text().startswith("This is a casfs store")
    with pytest.raises(Refused, match=r"supervisor of .* has ended"):
        replace_program(now)
    if how == "umount":
        unmount(mount.path)
    else:
        kill(before.worker, signal.SIGTERM)
    gone(before.worker)
    assert mounts.mounted_at(mount.path) is None
    assert os.listdir(mount.path) == []
    assert states(mount.store) == []


def test_a_state_file_without_a_lock_is_removed(mount: Mount) -> None:
    mount.kill()  # waits for that
    assert states(mount.store) == []
    assert os.listdir(mount.store.root / registry.FOLDER) == []


def test_it_is_replaced_in_place(mount: Mount) -> None:
    hash = mount.store.put(bytes(range(256)) * 20_000).hash
    before = mount.state()
    with (mount.path / "blobs" / hash).open("rb", buffering=0) as file:
        file.read(10)
        command = [*CASFS, "--store", str(mount.store.root), "mount", "--replace"]
        done = subprocess.run([*command, str(mount.path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if mount.transport == "builtin":
            assert len(file.read()) == 256 * 20_000 - 10
    now = mount.state()
    assert (now.supervisor, now.generation) == (before.supervisor, before.generation + 1)
    assert now.worker != before.worker
    assert now.transport == before.transport == mount.transport
    assert (mount.path / "blobs" / hash).stat().st_size == 256 * 20_000
    kill(now.worker)
    successor(mount, now)
    unmount(mount.path)
    assert mount.supervisor.wait(60) == 0


def test_replace_takes_no_other_option(disk_store: Store, tmp_path: Path) -> None:
    command = [*CASFS, "--store", str(disk_store.root), "mount", "--replace", str(tmp_path)]
    assert subprocess.run([*command, "--xattr"], capture_output=True).returncode == 2
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "no casfs mount" in done.stderr) == (3, True)


def test_a_foreign_directory_lends_no_code(disk_store: Store, tmp_path: Path) -> None:
    """The supervisor starts its successor in its own working directory."""
    (tmp_path / "casfs").mkdir()
    (tmp_path / "casfs" / "__init__.py").write_text("import sys\nsys.exit('planted')\n")
    (tmp_path / "mnt").mkdir()
    command = [sys.executable, "-P", "-m", "casfs", "--store", str(disk_store.root), "mount"]
    ours, theirs = os.pipe()
    foreground = [*command, "mnt", "--foreground", "--ready-fd", str(theirs)]
    supervisor = subprocess.Popen(foreground, cwd=tmp_path, pass_fds=(theirs,))
    os.close(theirs)
    try:
        with open(ours) as pipe:
            assert pipe.readline() == "ready\n"
        replaced = [*command, "--replace", str(tmp_path / "mnt")]
        done = subprocess.run(replaced, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    finally:
        end(tmp_path / "mnt", supervisor)

"""Mounts of users who are not root: by fusermount3, in a user namespace, and open to others."""

from __future__ import annotations

import json
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from casfs.backend.disk import DiskBackend
from casfs.mount import registry
from casfs.mount.attach import FUSE_CONF
from casfs.store.store import Store
from casfs.system import mounts
from tests.mount.test_containers import AS_NOBODY, environment, finished, interpreter
from tests.mount.test_readonly import LEAST, plant
from tests.support import mutations
from tests.support.lasting import ROOT_ONLY, read_only
from tests.support.mount_users import USES, user
from tests.support.mutations import MUTATIONS, NOBODY, outcomes
from tests.support.programs import needs_device, require
from tests.support.served import BY_EACH, CASFS, end, kill, start, states

DEVICE = Path("/dev/fuse")
SOMEBODY = 4321  # neither root nor who has mounted
pytestmark = needs_device
IN_NAMESPACE = ["unshare", "-Ur", "-m"]
BOTH = pytest.mark.parametrize("transport", BY_EACH)
Outcomes = dict[str, str]


@contextmanager
def open_to_all() -> Iterator[None]:
    """/dev/fuse, as it is on most systems."""
    mode = stat.S_IMODE(DEVICE.stat().st_mode)
    DEVICE.chmod(0o666)
    try:
        yield
    finally:
        DEVICE.chmod(mode)


@pytest.fixture
def home(runtime_dir: Path) -> Iterator[Path]:
    """A directory of the user nobody, with the tree to be shown; /dev/fuse is for all."""
    require("fusermount3", "setpriv")
    runtime_dir.chmod(0o755)
    folder = runtime_dir / "nobody"
    folder.mkdir()
    (folder / "source").mkdir()
    plant(folder / "source")
    owned(folder)
    with open_to_all():
        yield folder


def owned(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def opened_by_root(root: Path) -> Store:
    """As `Store.open`, which refuses root in the store of another user."""
    return Store(DiskBackend(root), root)


def by_nobody(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    env = environment(interpreter(), HOME=str(folder), CASFS_STORE=str(folder / "store"))
    return finished([*AS_NOBODY, *map(str, command)], env=env, cwd="/")


def ran(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def mounted_by_nobody(folder: Path, *options: str) -> Iterator[Path]:
    """A checkpoint of the tree, in a mount of his."""
    casfs = [interpreter(), "-m", "casfs"]
    where = folder / "mnt"
    ran(by_nobody(folder, *casfs, "init"))
    ran(by_nobody(folder, *casfs, "checkpoint", "create", "app", folder / "source"))
    ran(by_nobody(folder, "mkdir", where))
    try:
        ran(by_nobody(folder, *casfs, "mount", where, *options))
        yield where / "trees/app/latest"
        ran(by_nobody(folder, *casfs, "umount", where))
    finally:
        if mounts.mounted_at(where) is not None:
            mounts.unmount(where, lazy=True)
    assert mounts.mounted_at(where) is None


@pytest.fixture
def oracle(tmp_path: Path) -> Iterator[Path]:
    """The same tree of nobody's, in a file system that was mounted read-only."""
    (tmp_path / "oracle").mkdir()

    def planted(root: Path) -> None:
        plant(root)
        owned(root)

    with read_only(tmp_path / "oracle", planted) as point:
        yield point


def refused(shown: Outcomes, other: Outcomes) -> None:
    assert shown == other
    assert set(shown) == set(MUTATIONS)
    assert all(shown.values()), shown
    assert list(shown.values()).count("EROFS") >= LEAST


def expected(oracle: Path, who: int) -> Outcomes:
    fd = os.open(oracle, os.O_RDONLY)  # the way there is root's
    try:
        return outcomes(fd, who, MUTATIONS)
    finally:
        os.close(fd)


# -- by fusermount3 -----------------------------------------------------------------------


@ROOT_ONLY
@BOTH
def test_its_owner_can_change_nothing(home: Path, oracle: Path, transport: str) -> None:
    with mounted_by_nobody(home, "--transport", transport) as tree:
        refused(outcomes(str(tree), NOBODY, MUTATIONS), expected(oracle, NOBODY))
        found = by_nobody(home, "stat", "-c", "%U %a", tree / "file").stdout.split()
        assert found == [pwd.getpwuid(NOBODY).pw_name, "644"]
        ran(by_nobody(home, "diff", "-r", "--no-dereference", home / "source", f"{tree}/."))
        for who in ([], ["setpriv", f"--reuid={SOMEBODY}", "--clear-groups"]):
            done = finished([*who, "ls", str(tree)])
            assert (done.returncode, "Permission denied" in done.stderr) == (2, True)


@ROOT_ONLY
@BOTH
def test_open_to_others(home: Path, oracle: Path, transport: str) -> None:
    """Where the machine's settings allow that to users: here in a namespace that has others."""
    settings = home.parent / "fuse.conf"
    settings.write_text("user_allow_other\n")
    program = [sys.executable, mutations.__file__]
    script = f"""
        set -e
        mount --bind "$1" {FUSE_CONF}
        cd "$2"
        casfs() {{ {" ".join(AS_NOBODY)} "$PYTHON" -m casfs "$@"; }}
        casfs init >/dev/null
        casfs checkpoint create app source >/dev/null
        {" ".join(AS_NOBODY)} mkdir mnt
        casfs mount mnt --allow-other --transport "$3" >/dev/null
        trap 'casfs umount mnt >/dev/null' EXIT
        {" ".join(program)} mnt/trees/app/latest 0 {NOBODY} {SOMEBODY}
    """
    env = environment(interpreter(), HOME=str(home), CASFS_STORE=str(home / "store"))
    command = ["unshare", "--mount", "sh", "-c", script, "sh", str(settings), str(home), transport]
    shown: dict[str, Outcomes] = json.loads(ran(finished(command, env=env)))
    for who in (0, NOBODY, SOMEBODY):
        refused(shown[str(who)], expected(oracle, who))
    with opened_by_root(home / "store") as store:
        assert states(store) == []


@ROOT_ONLY
def test_open_to_others_where_that_is_not_allowed(home: Path) -> None:
    if FUSE_CONF.exists() and "\nuser_allow_other" in f"\n{FUSE_CONF.read_text()}":
        pytest.skip(f"{FUSE_CONF} allows it")
    reason = "--allow-other needs the line user_allow_other"
    with pytest.raises(AssertionError, match=reason), mounted_by_nobody(home, "--allow-other"):
        pass


@ROOT_ONLY
@BOTH
def test_its_server_is_replaced(home: Path, transport: str) -> None:
    where = home / "mnt"
    casfs = [*AS_NOBODY, *CASFS, "--store", str(home / "store")]
    done = finished([*casfs, "init"], env={"PATH": os.environ["PATH"], "HOME": str(home)})
    if "denied" in done.stderr or "No module named casfs" in done.stderr:
        pytest.skip(f"another user cannot run this program: {done.stderr}")
    assert done.returncode == 0, done.stderr
    subprocess.run([*AS_NOBODY, "mkdir", where], check=True)
    with opened_by_root(home / "store") as store:
        supervisor = start(store, where, "--transport", transport, before=AS_NOBODY)
        try:
            check_without_root(store, where, casfs)
            assert supervisor.wait(10) == 0
        finally:
            end(where, supervisor)
        assert states(store) == []


def check_without_root(store: Store, where: Path, casfs: Sequence[str]) -> None:
    (before,) = states(store)
    assert Path(f"/proc/{before.worker}").stat().st_uid == NOBODY
    read = [*AS_NOBODY, "cat", str(where / "README.txt")]
    assert b"casfs store" in subprocess.check_output(read)
    with pytest.raises(PermissionError):  # nobody else comes in, not even root
        os.listdir(where)
    kill(before.worker)
    registry.wait_until(
        lambda: (now := before.reload()) is not None and now.starts == 2 and now.serves,
        "there is no successor",
    )
    assert b"casfs store" in subprocess.check_output(read)
    with user([*AS_NOBODY, *USES["has it open"](where)]) as process:
        done = finished([*casfs, "umount", str(where)])
        assert done.returncode == 4
        assert f"pid {process.pid} (" in done.stderr
    assert finished([*casfs, "umount", str(where)]).returncode == 0
    assert mounts.mounted_at(where) is None


# -- in a user namespace ------------------------------------------------------------------

SERVED = """
import json, sys
print(json.load(sys.stdin)["serving"][0]["worker"])"""
SCRIPT_IN_NAMESPACE = f"""
set -e
cd "$1"
casfs() {{ "$PYTHON" -m casfs "$@"; }}
casfs init >/dev/null
casfs checkpoint create app source >/dev/null
mkdir mnt oracle
casfs mount mnt --transport "$2" >/dev/null
trap 'casfs umount -l mnt >/dev/null' EXIT
cat mnt/README.txt >readme
diff -r --no-dereference source mnt/trees/app/latest/
mount -t tmpfs none oracle
cp -a source/. oracle
mount --options-mode ignore -o remount,ro,nosuid,nodev oracle
"$PYTHON" "$3" mnt/trees/app/latest 0 >shown
"$PYTHON" "$3" oracle 0 >other
kill -9 $(casfs status --json | "$PYTHON" -c '{SERVED}')
for attempt in 1 2 3 4 5 6 7 8 9; do
    cmp readme mnt/README.txt && break
    sleep 0.2
done
cmp readme mnt/README.txt
trap - EXIT
casfs umount mnt
rmdir mnt
"""


def check_in_a_namespace(folder: Path, transport: str, before: Sequence[str], env: Any) -> None:
    if finished([*before, *IN_NAMESPACE, "true"]).returncode:
        pytest.skip("this kernel gives users no namespaces of their own")
    command = [
        *before,
        *IN_NAMESPACE,
        "sh",
        "-c",
        SCRIPT_IN_NAMESPACE,
        "sh",
        str(folder),
        transport,
    ]
    ran(finished([*command, mutations.__file__], env=env, cwd="/"))
    shown, other = (json.loads((folder / name).read_text())["0"] for name in ("shown", "other"))
    refused(shown, other)
    assert "This is a casfs store" in (folder / "readme").read_text()


@BOTH
def test_in_a_user_namespace(tmp_path: Path, transport: str) -> None:
    """Root there may mount by himself."""
    (tmp_path / "source").mkdir()
    plant(tmp_path / "source")
    env = environment(sys.executable, CASFS_STORE=str(tmp_path / "store"))
    check_in_a_namespace(tmp_path, transport, [], env)


@ROOT_ONLY
@BOTH
def test_in_a_user_namespace_of_nobodys(home: Path, transport: str) -> None:
    """The same by somebody who is root nowhere else."""
    env = environment(interpreter(), HOME=str(home), CASFS_STORE=str(home / "store"))
    check_in_a_namespace(home, transport, AS_NOBODY, env)

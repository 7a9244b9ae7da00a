"""Which transport a mount takes, and how `casfs status` shows it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import casfs
from casfs.cli.json_values import record
from casfs.mount import registry
from casfs.mount.mount_points import unmount
from casfs.store.store import Store
from casfs.system import mounts
from tests.support.programs import needs_device, needs_pyfuse3
from tests.support.served import CASFS, Mount, end, serving, states

pytestmark = [needs_device, pytest.mark.usefixtures("nothing_stays_mounted")]


def test_status_says_who_serves(mount: Mount) -> None:
    found = mount.state()
    command = [*CASFS, "--store", str(mount.store.root), "status"]
    value = json.loads(subprocess.check_output([*command, "--json"]))
    assert value["mounts"] == [str(mount.path)]
    assert value["serving"] == [record(found)]
    assert value["serving"][0]["transport"] == mount.transport
    assert subprocess.check_output(command, text=True).splitlines()[-2:] == [
        f"mount   {mount.path}",
        f"        {mount.transport}, worker {found.worker}, supervisor {found.supervisor},"
        f" version {casfs.__version__}",
    ]
    stats = (mount.path / ".casfs/stats.json").read_text()
    assert f'"transport": "{mount.transport}"' in stats


def test_by_itself_it_takes_our_transport(disk_store: Store, tmp_path: Path) -> None:
    with serving(disk_store, tmp_path / "mnt") as mount:
        assert mount.state().transport == "builtin"
        maps = Path(f"/proc/{mount.state().worker}/maps").read_text()
        assert "pyfuse3" not in maps


NEWER = """
import sys
from casfs.cli.main import main
sys.argv[0] = "casfs"
main()
"""
OLDER = f"""
from casfs.fuse.kernel import init_handshake
init_handshake.NEEDED |= 1 << 62  # as if this kernel were too old
{NEWER}
"""


@pytest.mark.parametrize("older", [False, True])
def test_without_pyfuse3(disk_store: Store, tmp_path: Path, older: bool) -> None:
    """It is an extra: the built-in transport works, and a message says how to get the other."""
    where = tmp_path / "mnt"
    where.mkdir()
    program = f"import sys\nsys.modules['pyfuse3'] = None\n{OLDER if older else NEWER}"
    command = [sys.executable, "-c", program, "--store", str(disk_store.root), "mount", str(where)]
    command.append("--foreground")
    done = subprocess.run([*command, "--transport", "libfuse"], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install 'casfs-store[pyfuse3]' (needs a C compiler and libfuse3-dev)" in done.stderr
    assert mounts.mounted_at(where) is None
    if older:
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "too old; use --transport libfuse" in done.stderr
    else:
        supervisor = subprocess.Popen(command)
        try:
            registry.wait_until(
                lambda: any(one.serves for one in states(disk_store)), "nobody serves the mount"
            )
            assert states(disk_store)[0].transport == "builtin"
        finally:
            end(where, supervisor)


@needs_pyfuse3
def test_the_config_chooses_the_transport(disk_store: Store, tmp_path: Path) -> None:
    where = tmp_path / "mnt"
    where.mkdir()
    (disk_store.root / "config.toml").write_text('[mount]\ntransport = "libfuse"\n')
    command = [*CASFS, "--store", str(disk_store.root), "mount", str(where)]
    try:
        assert subprocess.run(command, capture_output=True).returncode == 0
        assert states(disk_store)[0].transport == "libfuse"
        unmount(where)
    finally:
        if mounts.mounted_at(where):
            unmount(where, lazy=True)
    (disk_store.root / "config.toml").write_text('[mount]\ntransport = "pigeon"\n')
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "no transport 'pigeon'" in done.stderr) == (4, True)

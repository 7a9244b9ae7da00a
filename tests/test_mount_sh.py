"""The scripts, and `./mount.sh demo` as a person would run it, on a store of its own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from casfs import daemon_socket, threads
from casfs.mount import mount_points
from casfs.store import Store
from tests.support.engine import alive

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [ROOT / "mount.sh", ROOT / "tests/run.sh", ROOT / ".ci/run"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_can_be_run(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/")


def run(*arguments: str | Path, store: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "mount.sh", *arguments],
        env={**os.environ, "CASFS_STORE": str(store)},
        capture_output=True,
        text=True,
        timeout=110,
    )


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["-h"], 0), (["--help"], 0), (["--nope"], 2), (["a", "b"], 2), (["stop", "x"], 2)],
)
def test_usage(arguments: list[str], code: int, tmp_path: Path) -> None:
    answer = run(*arguments, store=tmp_path / "store")
    assert answer.returncode == code
    assert "usage: ./mount.sh [DIR]" in (answer.stdout if code == 0 else answer.stderr)
    assert not (tmp_path / "store").exists()


def test_stop_with_nothing_to_stop(tmp_path: Path) -> None:
    answer = run("stop", store=tmp_path / "store")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "nothing to stop\n", "")
    assert not (tmp_path / "store").exists()


def test_the_demo_and_its_end(tmp_path: Path) -> None:
    """What `demo` shows is checked by the script itself: it fails where something differs."""
    store, point = tmp_path / "store", tmp_path / "mnt"
    pid = None
    try:
        shown = run("demo", point, store=store)
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert "FAILED" in shown.stdout
        assert shown.stdout.count("\nidentical\n") == 2
        found = daemon_socket.find(store)
        assert found is not None
        pid = found["pid"]
        assert mount_points.mounted(store) == [point]
        with Store.open(store) as opened:
            (thread,) = threads.list_threads(opened)
        assert (point / "threads" / thread.id / "status").read_text().strip() == "ended"
        again = run(point, store=store)
        assert again.returncode == 0, again.stderr
        assert f"the daemon runs already (pid {pid})" in again.stdout
        assert "mounted already" in again.stdout
    finally:
        ended = run("stop", store=store)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert mount_points.mounted(store) == []
    assert daemon_socket.find(store) is None
    assert pid is not None
    assert not alive(pid)
    assert os.listdir(point) == []

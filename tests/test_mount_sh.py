"""The scripts, and `./mount.sh demo` as a person would run it, on a store of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from casfs.mount import registry
from casfs.store.store import Store
from casfs.system import daemon_socket, store_mounts
from casfs.threads import threads
from tests.support.engine import alive
from tests.support.programs import needs_device
from tests.support.served import serving
from tests.support.web import Web

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [ROOT / "mount.sh", ROOT / "tests/run.sh", ROOT / ".ci/run"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_can_be_run(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/")


class Checkout:
    """A directory that is to mount.sh what this one is, with a `./mnt` of its own: all of it but
    the script are links."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.point, env = folder, folder / "mnt", folder / ".venv"
        env.mkdir(parents=True)
        (env / "bin").symlink_to(ROOT / ".venv/bin")
        for name in ("engine", "pyproject.toml", *(one.name for one in ROOT.glob("*.lock"))):
            (folder / name).symlink_to(ROOT / name)
        shutil.copy(ROOT / "mount.sh", folder)
        made = "source ./mount.sh; fingerprint python3 >.venv/casfs-stamp"
        subprocess.run(["bash", "-c", made], cwd=folder, check=True)

    def __call__(
        self, *arguments: str | Path, store: Path | None, **env: str
    ) -> subprocess.CompletedProcess[str]:
        named = {} if store is None else {"CASFS_STORE": str(store)}
        return subprocess.run(
            [self.folder / "mount.sh", *arguments],
            env={**os.environ, **named, **env},
            capture_output=True,
            text=True,
            timeout=110,
        )


@pytest.fixture
def run(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "checkout")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["-h"], 0), (["--help"], 0), (["--nope"], 2), (["a", "b"], 2), (["stop", "x"], 2)],
)
def test_usage(run: Checkout, arguments: list[str], code: int, tmp_path: Path) -> None:
    answer = run(*arguments, store=tmp_path / "store")
    assert answer.returncode == code
    assert "usage: ./mount.sh [DIR]" in (answer.stdout if code == 0 else answer.stderr)
    assert not (tmp_path / "store").exists()


def test_stop_with_nothing_to_stop(run: Checkout, tmp_path: Path) -> None:
    answer = run("stop", store=tmp_path / "store")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "nothing to stop\n", "")
    assert not (tmp_path / "store").exists()


@needs_device
def test_the_demo_and_its_end(run: Checkout, tmp_path: Path) -> None:
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
        assert store_mounts.mounted(store) == [point]
        with Store.open(store) as opened:
            (thread,) = threads.list_threads(opened)
        assert (point / "threads" / thread.id / "status").read_text().strip() == "succeeded"
        url = re.findall(r"^the dashboard: (http://\S+)$", shown.stdout, re.MULTILINE)[0]
        web = Web(url, None)
        web.log_in()
        assert thread.id in web.get("/").text
        again = run(point, store=store)
        assert again.returncode == 0, again.stderr
        assert f"the daemon runs already (pid {pid})" in again.stdout
        assert "mounted already" in again.stdout
    finally:
        ended = run("stop", store=store)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "dashboard stopped\n" in ended.stdout
    with pytest.raises(ConnectionRefusedError):
        web.get("/")
    assert store_mounts.mounted(store) == []
    assert daemon_socket.find(store) is None
    assert pid is not None
    assert not alive(pid)
    assert os.listdir(point) == []


@needs_device
@pytest.mark.parametrize("name", ["store", "störe"], ids=["by the mount", "by the note"])
def test_stop_with_other_settings(run: Checkout, tmp_path: Path, name: str) -> None:
    """HOME and CASFS_STORE differ from the start's; the kernel's table names a store whose path
    is plain, and the note of the start any other."""
    store, other = tmp_path / name, tmp_path / "other"
    other.mkdir()
    try:
        assert run(store=store).returncode == 0
        started = daemon_socket.find(store)
        assert started is not None
        (served,) = registry.listing(store)
        if name == "store":
            (run.folder / ".venv/casfs-store").unlink()
        else:
            assert str(store) not in Path("/proc/self/mounts").read_text("utf-8")
        ended = run("stop", store=other / "store", HOME=str(other))
    finally:
        run("stop", store=store)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.splitlines() == ["daemon stopped", f"unmounted {run.point}"]
    assert store_mounts.mounted(store) == []
    assert daemon_socket.find(store) is None
    for pid in (started["pid"], served.supervisor, served.worker):
        assert not alive(pid)
    assert not run.point.exists()
    assert run("stop", store=other / "store").stdout == "nothing to stop\n"


@needs_device
def test_stop_where_the_store_is_gone(run: Checkout, tmp_path: Path) -> None:
    store = tmp_path / "störe"
    with Store.init(store) as opened:
        run.point.mkdir()
        with serving(opened, run.point):
            ended = run("stop", store=tmp_path / "other")
            assert "its store is not known here" in ended.stdout
            assert store_mounts.mounted(store) == []
    assert not run.point.exists()

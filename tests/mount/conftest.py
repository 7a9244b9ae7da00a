"""Fixtures: an empty store on disk, mounted; by each transport in turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.store.store import Store
from casfs.system import mounts
from casfs.system.store_mounts import mounted
from tests.support.engine import Cli
from tests.support.lasting import another, lasting
from tests.support.served import BY_EACH, Mount, serving
from tests.support.thread_example import Example, make_thread

# Both transports are thin adapters of one model, whose tests run once. These modules test what an
# adapter does itself: reads, forgetting, live files, errors, and the choice between the two.
OF_EACH_TRANSPORT = {
    "test_budgets", "test_forgetting", "test_live", "test_live_events", "test_mount_damage",
    "test_reads", "test_transports",
}  # fmt: skip
SCOPES = {"transport": "function", "lasting_mount": "module"}  # fixtures that take a transport


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = metafunc.module.__name__.rpartition(".")[2]
    transports = BY_EACH if module in OF_EACH_TRANSPORT else ["builtin"]
    marks = metafunc.definition.iter_markers("parametrize")
    of_test = [name for mark in marks for name in str(mark.args[0]).split(",")]
    for name, scope in SCOPES.items():
        if name in metafunc.fixturenames and name not in of_test:
            metafunc.parametrize(name, transports, indirect=True, scope=scope)


@pytest.fixture
def transport(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def mount(disk_store: Store, tmp_path: Path, transport: str) -> Iterator[Mount]:
    with serving(disk_store, tmp_path / "mnt", transport=transport) as mount:
        yield mount


@pytest.fixture
def xattr_mount(disk_store: Store, tmp_path: Path, transport: str) -> Iterator[Mount]:
    """Mounted with `--xattr`."""
    with serving(disk_store, tmp_path / "mnt", xattr=True, transport=transport) as mount:
        yield mount


@pytest.fixture
def cli(cli: Cli, tmp_path: Path) -> Iterator[Cli]:
    """The command line on a new store; what it mounts is unmounted."""
    yield cli
    for point in dict.fromkeys([*mounts.mounted_below(tmp_path), *mounted(cli.root)]):
        mounts.unmount(point, lazy=True)


@pytest.fixture(scope="module")
def lasting_mount(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    """One for a whole module, whose tests do not get in one another's way."""
    with lasting(tmp_path_factory, request.param) as mount:
        yield mount


@pytest.fixture(scope="module")
def lasting_thread(lasting_mount: Mount) -> Example:
    return make_thread(lasting_mount.store)


@pytest.fixture
def thread(lasting_thread: Example) -> Example:
    """A thread of a test's own, at its start."""
    return another(lasting_thread)


@pytest.fixture
def nothing_stays_mounted(tmp_path: Path) -> Iterator[None]:
    yield
    assert [one.point for one in mounts.mounts() if tmp_path in one.point.parents] == []

"""Fixtures and hooks of every test: an isolated environment, trio for `async def`, empty stores,
and the rule for missing programs."""

from __future__ import annotations

import inspect
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import settings

from casfs.store.store import Store
from tests.support import programs
from tests.support.engine import Cli
from tests.support.new_store import init_store, memory_store
from tests.support.postgres_server import database_url, postgres  # noqa: F401
from tests.support.s3_servers import moto_server, proxy, s3, seaweedfs  # noqa: F401

COMPILED = Path(sys.prefix) / "casfs-cache"  # what casfs keeps in a user's cache directory
SLOW = Path(__file__).parent / "support" / "slow.txt"  # paths below tests/ that --fast leaves out
LARGE = {"llm": "a small real model", "agents": "real agents"}  # only with an option: downloads

# Background jobs of a shell start with these ignored; programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if programs.IN_CI else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help=f"without what {SLOW.name} lists")
    parser.addoption("--update-costs", action="store_true", help="write tests/costs.json anew")
    for name, what in LARGE.items():
        parser.addoption(f"--{name}", action="store_true", help=f"also test with {what}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not config.getoption("--fast"):
        return None
    slow = [SLOW.parent.parent / line for line in SLOW.read_text().split()]
    return True if collection_path in slow else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for name, what in LARGE.items():
        skip = pytest.mark.skip(reason=f"needs {what}; run with --{name}")
        for item in items if not config.getoption(f"--{name}") else ():
            if item.get_closest_marker(name):
                item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that is skipped for a missing program has failed."""
    report = yield
    if programs.IN_CI and report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if programs.is_missing(reason):
            report.outcome, report.longrepr = "failed", reason
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs an `async def` test under trio; other tests are left to pytest."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def call() -> None:
        await test(**arguments)

    trio.run(call)
    return True


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A directory with a short path: a unix socket's is limited to 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="casfs-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the user's settings and stores from every test."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "CASFS_", "XDG_")):
            monkeypatch.delenv(name)
    # Commands under test share the byte code and the scanner's rules, which take 0.3 s to compile.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    COMPILED.mkdir(mode=0o700, exist_ok=True)
    (home / "cache" / "casfs").symlink_to(COMPILED)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime_dir))


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty store in memory."""
    with memory_store() as opened:
        yield opened


@pytest.fixture
def disk_store(tmp_path: Path) -> Iterator[Store]:
    """An empty store on disk."""
    with init_store(tmp_path / "store") as opened:
        yield opened


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    """The command line on a new store."""
    found = Cli(tmp_path / "store", monkeypatch, capfdbinary)
    init_store(found.root).close()
    return found

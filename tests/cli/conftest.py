"""Stores for the tests of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.store.store import Store
from tests.support.attached_agent import AttachedAgent
from tests.support.engine import (
    Cli,
)
from tests.support.following import OwnSessionDirectory
from tests.support.new_store import init_store


@pytest.fixture
def own_daemon(cli: Cli) -> Iterator[None]:
    """A daemon of the store, in a process of its own: `casfs run` would start one and leave it."""
    cli("daemon", "start")
    yield
    cli("daemon", "stop")


@pytest.fixture
def opened(cli: Cli) -> Iterator[Store]:
    """The same store, for what no verb does."""
    with Store.open(cli.root) as store:
        yield store


@pytest.fixture
def there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    """The command line on another new store."""
    found = Cli(tmp_path / "there", monkeypatch, capfdbinary)
    init_store(found.root).close()
    return found


@pytest.fixture
def bare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Cli:
    """The command line, and no store yet."""
    return Cli(tmp_path / "store", monkeypatch, capfdbinary)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src/main.py").write_text("print()\n")
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("run")
    (folder / "__pycache__").mkdir()
    return folder


@pytest.fixture
def agent(cli: Cli, project: Path) -> Iterator[AttachedAgent]:
    """An agent that is attached in the module's `project`."""
    with Store.open(cli.root) as store:
        followed = OwnSessionDirectory(store, project, None)
        yield AttachedAgent(store, project, followed)
        followed.close()

"""A project with an agent in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from casfs.store.store import Store
from tests.support.attached_agent import AttachedAgent
from tests.support.following import OwnSessionDirectory


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a").write_text("1\n2\n3\n4\n5\n6\n7\n8\n")
    (folder / "b").write_text("b\n")
    return folder


@pytest.fixture
def agent(disk_store: Store, project: Path, tmp_path: Path) -> Iterator[AttachedAgent]:
    followed = OwnSessionDirectory(disk_store, project, None)
    yield AttachedAgent(disk_store, project, followed, tmp_path / "copies")
    followed.close()

"""Remotes of each kind, and stores that use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from casfs.remotes.remote import Settings
from tests.support.remotes import Site, site
from tests.support.s3_servers import CREDENTIALS, S3Server

Sites = Callable[..., Site]


@pytest.fixture
def directory(tmp_path: Path) -> Settings:
    return Settings((tmp_path / "remote").as_uri())


@pytest.fixture(params=["directory", "seaweedfs", "moto_server"])
def anywhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Settings:
    found = request.getfixturevalue(request.param)
    if isinstance(found, Settings):
        return found
    assert isinstance(found, S3Server)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return Settings(found.url(), found.endpoint)


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    """Makes stores with a remote; they are closed at the end."""
    made: list[Site] = []

    def make(settings: Settings) -> Site:
        made.append(site(tmp_path / f"store{len(made)}", settings))
        return made[-1]

    yield make
    for one in made:
        one.store.close()

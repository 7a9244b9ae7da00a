"""Every object storage passes one suite: a directory, SeaweedFS, moto's server, and a second prefix
of one bucket does not see the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from tests.support import object_storage_contract as contract
from tests.support.s3_servers import CREDENTIALS, S3Server


@pytest.fixture(params=["directory", "seaweedfs", "moto_server"])
def make_storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], ObjectStorage]:
    if request.param == "directory":
        return lambda: open_storage((tmp_path / "remote").as_uri())
    server: S3Server = request.getfixturevalue(request.param)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return lambda: open_storage(server.url(), endpoint=server.endpoint)


@pytest.mark.parametrize("check", contract.CONTRACT, ids=lambda check: check.__name__)
def test_conformance(
    check: Callable[[contract.Factory], None], make_storage: contract.Factory
) -> None:
    check(make_storage)


def test_a_large_file(make_storage: contract.Factory, tmp_path: Path) -> None:
    contract.a_large_file(make_storage, tmp_path)


def test_prefixes_of_a_bucket_are_apart(s3: S3Server) -> None:
    one, two = (open_storage(s3.url(), endpoint=s3.endpoint) for _ in range(2))
    one.put("a", b"1")
    assert two.head("a") is None
    assert list(two.list("")) == []
    inner = open_storage(one.url + "/b", endpoint=s3.endpoint)
    inner.put("c", b"2")
    assert sorted(key for key, _ in one.list("")) == ["a", "b/c"]
    assert two.put_if_absent("a", b"3")

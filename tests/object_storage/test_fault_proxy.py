"""The fault proxy of the tests itself: each fault is what it says."""

from __future__ import annotations

import pytest

from casfs.errors import AccessDenied, NotFound, Unreachable
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from tests.support.fault_proxy import (
    Changed,
    Cut,
    Delayed,
    Dropped,
    Edited,
    Fault,
    FaultProxy,
    Lost,
    Request,
    Status,
)
from tests.support.s3_servers import S3Server

BYTES = bytes(range(256)) * 1024


@pytest.fixture
def storage(s3: S3Server, proxy: FaultProxy) -> ObjectStorage:
    """Without patience: each fault is seen."""
    opened = open_storage(s3.url(), endpoint=proxy.endpoint, patience_s=0)
    opened.put("a", BYTES)
    proxy.reset()
    return opened


def test_without_a_rule_all_is_passed_on_and_counted(
    storage: ObjectStorage, proxy: FaultProxy
) -> None:
    assert storage.get("a") == BYTES
    assert storage.head("a") is not None
    assert storage.get_range("a", 256, 256) == BYTES[:256]
    assert [key for key, _ in storage.list("")] == ["a"]
    assert (proxy.count(), proxy.count("GET"), proxy.count("HEAD")) == (4, 3, 1)
    assert proxy.requests[0].key.endswith("/a")


@pytest.mark.parametrize(
    "fault", [Status(500), Status(503), Lost(), Dropped(), Cut(0), Cut(1000), Cut(len(BYTES) - 1)]
)
def test_a_fault_is_seen(storage: ObjectStorage, proxy: FaultProxy, fault: Fault) -> None:
    proxy.rule = lambda request: fault if request.method == "GET" else None
    with pytest.raises(Unreachable):
        storage.get("a")
    proxy.reset()
    assert storage.get("a") == BYTES


def test_a_lost_answer_is_of_a_request_that_was_carried_out(
    storage: ObjectStorage, proxy: FaultProxy
) -> None:
    for fault, there in ((Dropped(), False), (Lost(), True)):
        proxy.rule = lambda request, fault=fault: fault if request.method == "PUT" else None
        with pytest.raises(Unreachable):
            storage.put("b", BYTES)
        assert (storage.head("b") is not None) is there


def test_what_is_changed(storage: ObjectStorage, proxy: FaultProxy) -> None:
    proxy.rule = lambda request: Changed(bytes.swapcase)
    assert storage.get("a") == BYTES.swapcase()
    proxy.rule = lambda request: Edited(Request("GET", "/elsewhere", request.headers, b""))
    with pytest.raises((AccessDenied, NotFound)):
        storage.get("a")


def test_slow(storage: ObjectStorage, proxy: FaultProxy) -> None:
    proxy.latency_s, proxy.bytes_per_s = 0.01, 1e7
    proxy.rule = lambda request: Delayed(0.01)
    assert storage.get("a") == BYTES


def test_down_and_up(storage: ObjectStorage, proxy: FaultProxy) -> None:
    assert storage.get("a") == BYTES
    proxy.down()
    with pytest.raises(Unreachable, match="cannot connect"):
        storage.get("a")
    proxy.up()
    assert storage.get("a") == BYTES

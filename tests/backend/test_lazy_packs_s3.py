"""Lazy packs over a real S3 server, behind a proxy that counts requests and makes faults."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from casfs.backend.lazy_packs import LazyPack, LazyRemote
from casfs.errors import CorruptBlob, Unreachable
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.location import open_storage
from tests.support.fault_proxy import (
    Changed,
    Cut,
    Dropped,
    Fault,
    FaultProxy,
    Lost,
    Request,
)
from tests.support.lazy import contents, make_pack
from tests.support.s3_servers import S3Server

MEMBERS = contents(400, 2000, seed=5)


@pytest.fixture
def storage(s3: S3Server, proxy: FaultProxy) -> ObjectStorage:
    return open_storage(s3.url(), endpoint=proxy.endpoint, patience_s=2)


@pytest.fixture
def pack(storage: ObjectStorage, tmp_path: Path, proxy: FaultProxy) -> str:
    name, _ = make_pack(tmp_path / "made", MEMBERS)
    key = f"packs/{name}.pack"
    storage.put(key, tmp_path / "made" / key)
    proxy.reset()
    return name


def lazy(store: Path, storage: ObjectStorage, pack: str) -> LazyPack:
    return LazyPack(LazyRemote(store, "origin", 0, lambda: storage), pack)


def moved(proxy: FaultProxy) -> list[tuple[int, int]]:
    """The ranges that were asked for, without those of the index."""
    texts = [request.headers["range"].removeprefix("bytes=") for request in proxy.requests]
    pairs = [text.split("-") for text in texts if not text.startswith("-")]
    return sorted((int(start), int(end) + 1) for start, end in pairs)


def test_opening_and_one_file_cost_a_request_each(
    tmp_path: Path, storage: ObjectStorage, pack: str, proxy: FaultProxy
) -> None:
    opened = lazy(tmp_path, storage, pack)
    assert proxy.count() == 1
    assert opened.read(200) == MEMBERS[200]
    assert proxy.count() == 2


def test_many_readers_at_some_latency_move_each_byte_once(
    tmp_path: Path, storage: ObjectStorage, pack: str, proxy: FaultProxy
) -> None:
    packs = [lazy(tmp_path, storage, pack) for _ in range(4)]
    proxy.latency_s = 0.02

    def read(opened: LazyPack) -> bool:
        return all(opened.read(number) == data for number, data in enumerate(MEMBERS))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, packs))
    ranges = moved(proxy)
    assert all(end <= start for (_, end), (start, _) in pairwise(ranges))
    assert len(ranges) < packs[0].index.frames / 2


def test_any_damaged_answer_is_noticed(
    tmp_path: Path, storage: ObjectStorage, pack: str, proxy: FaultProxy
) -> None:
    source = random.Random(3)

    def flipped(data: bytes) -> bytes:
        changed = bytearray(data)
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
        return bytes(changed)

    def rule(request: Request) -> Fault | None:
        faults = [None, None, None, Changed(flipped), Changed(flipped), Cut(100), Lost()]
        return source.choice(faults)

    good = 0
    for turn in range(5):
        opened = lazy(tmp_path / str(turn), storage, pack)
        proxy.rule = rule
        for number in source.sample(range(len(MEMBERS)), 50):
            try:
                assert opened.read(number) == MEMBERS[number]
                good += 1
            except (CorruptBlob, Unreachable):
                time.sleep(0.01)
        proxy.rule = lambda request: None
    assert good > 100


@pytest.mark.parametrize("fault", ["down", "dropped"])
def test_without_the_server_the_rest_goes_on_and_it_heals(
    tmp_path: Path, storage: ObjectStorage, pack: str, proxy: FaultProxy, fault: str
) -> None:
    opened = lazy(tmp_path, storage, pack)
    assert opened.read(0) == MEMBERS[0]
    if fault == "down":
        proxy.down()
    else:
        proxy.rule = lambda request: Dropped()
    with ThreadPoolExecutor(8) as pool:
        failed = [pool.submit(opened.read, number) for number in range(390, 398)]
        assert all(isinstance(one.exception(), Unreachable) for one in failed)
    assert opened.read(0) == MEMBERS[0]
    if fault == "down":
        proxy.up()
    proxy.rule = lambda request: None
    for _ in range(200):
        try:
            assert opened.read(390) == MEMBERS[390]
            break
        except Unreachable:
            time.sleep(0.1)
    else:
        pytest.fail("it does not heal")

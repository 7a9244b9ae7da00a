from __future__ import annotations

import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from casfs.backend.lazy_packs import LazyPack, NotLocal, waiting
from casfs.errors import Corrupt, CorruptBlob, Unreachable
from tests.support.lazy import RecordingStorage, contents, lazy_remote, make_pack, open_lazy

MEMBERS = contents(300, 2000)
LARGE = random.Random(9).randbytes(3 << 20)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return tmp_path / "remote"


@pytest.fixture
def storage(remote: Path) -> RecordingStorage:
    return RecordingStorage(remote)


@pytest.fixture
def pack(remote: Path) -> tuple[str, int]:
    return make_pack(remote, MEMBERS)


def frames_only(storage: RecordingStorage) -> list[tuple[int, int]]:
    """The requests for frames, without those for the index."""
    return [(at, size) for _, at, size in storage.requests if at >= 0]


def test_the_first_read_fetches_a_frame_and_its_members_come_along(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int]
) -> None:
    lazy = open_lazy(tmp_path, storage, pack)
    opened = len(storage.requests)
    assert lazy.read(100) == MEMBERS[100]
    frame = lazy.index.member(100).frame
    assert len(storage.requests) == opened + 1
    for number in range(len(MEMBERS)):
        if lazy.index.member(number).frame == frame:
            assert lazy.read(number) == MEMBERS[number]
    assert len(storage.requests) == opened + 1


def test_a_whole_reading_moves_each_byte_once_in_few_requests(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int]
) -> None:
    lazy = open_lazy(tmp_path, storage, pack)
    for number, data in enumerate(MEMBERS):
        assert lazy.read(number) == data
    asked = sorted(frames_only(storage))
    assert sum(size for _, size in asked) == sum(
        lazy.index.frame(one).stored for one in range(lazy.index.frames)
    )
    assert all(at + size <= after for (at, size), (after, _) in pairwise(asked))
    assert len(asked) < lazy.index.frames / 2


def test_what_was_fetched_needs_no_remote(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int], remote: Path
) -> None:
    lazy = open_lazy(tmp_path, storage, pack)
    lazy.read(3)
    (remote / "packs" / f"{pack[0]}.pack").unlink()
    again = open_lazy(tmp_path, RecordingStorage(remote), pack)
    assert again.read(3) == MEMBERS[3]
    with pytest.raises(CorruptBlob, match="gone from the remote origin"):
        again.read(299)


def test_readers_of_one_frame_fetch_it_once(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int]
) -> None:
    def slow(data: bytes) -> bytes:
        time.sleep(0.02)
        return data

    packs = [open_lazy(tmp_path, storage, pack) for _ in range(8)]  # as many processes have
    storage.requests.clear()
    storage.change = slow
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda lazy: lazy.read(42), packs))
    assert found == [MEMBERS[42]] * 8
    assert len(storage.requests) == 1


def test_processes_share_what_one_fetches(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int]
) -> None:
    lazy = open_lazy(tmp_path, storage, pack)
    child = os.fork()
    if child == 0:
        os._exit(0 if open_lazy(tmp_path, storage, pack).read(7) == MEMBERS[7] else 1)
    assert os.waitpid(child, 0)[1] == 0
    storage.requests.clear()
    assert lazy.read(7) == MEMBERS[7]
    assert storage.requests == []


def test_a_damaged_mirror_heals(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int]
) -> None:
    lazy = open_lazy(tmp_path, storage, pack)
    lazy.read(50)
    frame = lazy.index.frame(lazy.index.member(50).frame)
    mirror = tmp_path / "remotes" / "origin" / "packs" / f"{pack[0]}.pack"
    with mirror.open("r+b") as file:
        file.seek(frame.offset)
        file.write(b"\xff" * frame.stored)
    again = open_lazy(tmp_path, storage, pack)
    assert again.read(50) == MEMBERS[50]
    assert open_lazy(tmp_path, storage, pack).read(50) == MEMBERS[50]


@pytest.mark.parametrize("damage", ["index", "trailer", "cut", "gone"])
def test_a_mirror_without_its_index_fetches_that(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int], damage: str
) -> None:
    open_lazy(tmp_path, storage, pack).read(50)
    mirror = tmp_path / "remotes" / "origin" / "packs" / f"{pack[0]}.pack"
    if damage == "gone":
        mirror.unlink()
    elif damage == "cut":
        os.truncate(mirror, pack[1] // 2)
    else:
        with mirror.open("r+b") as file:
            file.seek(pack[1] - (1 if damage == "trailer" else 80))
            file.write(b"\xff")
    assert open_lazy(tmp_path, storage, pack).read(50) == MEMBERS[50]


def test_a_damaged_remote_frame_is_named_and_the_others_are_read(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int], remote: Path
) -> None:
    lazy = open_lazy(tmp_path, storage, pack)
    damaged = lazy.index.member(50).frame
    path = remote / "packs" / f"{pack[0]}.pack"
    with path.open("r+b") as file:
        file.seek(lazy.index.frame(damaged).offset + 9)
        file.write(b"\xff\x00\xff")
    for number, data in enumerate(MEMBERS):
        if lazy.index.member(number).frame == damaged:
            with pytest.raises(CorruptBlob, match=f"frame {damaged}.*remote origin"):
                lazy.read(number)
        else:
            assert lazy.read(number) == data


def test_flipped_bits_in_answers_are_never_served(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int]
) -> None:
    source = random.Random(1)

    def flip(data: bytes) -> bytes:
        if source.random() < 0.5:
            return data
        changed = bytearray(data)
        for _ in range(source.randint(1, 20)):
            changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
        return bytes(changed)

    sound = damaged = 0
    for turn in range(12):
        lazy = open_lazy(tmp_path / str(turn), storage, pack)
        storage.change = flip
        for _ in range(1000):
            number = source.randrange(len(MEMBERS))
            try:
                assert lazy.read(number) == MEMBERS[number]
                sound += 1
            except CorruptBlob:
                damaged += 1
        lazy._fetcher.remote.close()
        storage.change = bytes
    assert sound > 1000
    assert damaged > 10


def test_an_unreachable_remote_fails_at_once_after_the_first_time_and_heals(
    tmp_path: Path,
    storage: RecordingStorage,
    pack: tuple[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(data: bytes) -> bytes:
        raise Unreachable("no route")

    lazy = open_lazy(tmp_path, storage, pack)
    lazy.read(0)
    storage.change, before = gone, len(storage.requests)
    for number in (298, 299, 200):
        with pytest.raises(Unreachable):
            lazy.read(number)
    assert len(storage.requests) == before + 1
    assert lazy.read(0) == MEMBERS[0]
    storage.change = bytes
    monkeypatch.setattr(lazy._fetcher.remote, "_again", 0.0)  # the pause is over
    assert lazy.read(299) == MEMBERS[299]
    assert lazy.read(200) == MEMBERS[200]


def test_a_thread_that_must_not_wait_is_given_what_fetches(
    tmp_path: Path, storage: RecordingStorage, pack: tuple[str, int], remote: Path
) -> None:
    large = make_pack(remote, [LARGE])
    lazy, other = open_lazy(tmp_path, storage, pack), open_lazy(tmp_path, storage, large)
    storage.requests.clear()
    waiting.allowed = False

    try:
        for read in (lambda: lazy.read(9), lambda: other.read(0)):
            with pytest.raises(NotLocal) as caught:
                read()
            assert storage.requests == []
            thread = threading.Thread(target=caught.value.fetch)
            thread.start()
            thread.join()
            assert read() in (MEMBERS[9], LARGE)
            storage.requests.clear()
    finally:
        waiting.allowed = True


def test_a_large_member_is_verified_at_its_end_and_heals(
    tmp_path: Path, storage: RecordingStorage, remote: Path
) -> None:
    lazy = open_lazy(tmp_path, storage, make_pack(remote, [b"small", LARGE]))
    storage.change = lambda data: bytes(len(data))
    with pytest.raises(CorruptBlob):
        list(lazy.pieces(1))
    storage.change = bytes
    assert b"".join(lazy.pieces(1)) == LARGE
    assert lazy.read(1) == LARGE


def test_the_cache_keeps_to_its_limit_while_it_is_read(tmp_path: Path, remote: Path) -> None:
    members = contents(4000, 2000, seed=4)
    storage = RecordingStorage(remote)
    packs = [make_pack(remote, members[at : at + 1000]) for at in range(0, 4000, 1000)]
    limit = 1 << 20
    origin = lazy_remote(tmp_path, storage, limit)
    opened = [LazyPack(origin, one[0]) for one in packs]
    assert sum(size for _, size in packs) > 3 * limit

    def read(seed: int) -> None:
        source = random.Random(seed)
        for _ in range(1500):
            place, number = source.randrange(4), source.randrange(1000)
            assert opened[place].read(number) == members[1000 * place + number]

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(read, seed) for seed in range(4)]:
            done.result()
    origin.close()
    held = [path.stat().st_blocks * 512 for path in (tmp_path / "remotes").rglob("*.pack")]
    assert sum(held) <= limit * 1.2


def test_hostile_indexes_are_refused(tmp_path: Path, storage: RecordingStorage) -> None:
    (tmp_path / "remote" / "packs").mkdir(parents=True)
    name = "ab" * 32
    (tmp_path / "remote" / "packs" / f"{name}.pack").write_bytes(os.urandom(500))
    with pytest.raises(Corrupt):
        open_lazy(tmp_path, storage, (name, 500))
    other, size = make_pack(tmp_path / "remote", MEMBERS[:5])
    (tmp_path / "remote" / "packs" / f"{other}.pack").rename(
        tmp_path / "remote" / "packs" / f"{name}.pack"
    )
    with pytest.raises(Corrupt, match="another pack"):
        open_lazy(tmp_path, storage, (name, size))

"""The conformance suite of object storage: functions of a factory of new, empty storages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest

from casfs.errors import Corrupt, Invalid, NotFound
from casfs.object_storage.interface import ObjectStorage
from casfs.object_storage.probe import probe
from casfs.object_storage.retrying import parallel

Factory = Callable[[], ObjectStorage]
BYTES = bytes(range(256)) * 300
SMALL = [b"", b"\0", b"one", b"one ", BYTES]
BAD_KEYS = [
    "",
    "/a",
    "a/",
    "a//b",
    "../a",
    "a/..",
    "a/../b",
    ".a",
    "a b",
    "ä",
    "a\n",
    "a?b",
    "a%2e",
]


def what_is_put_is_got(make: Factory) -> None:
    storage = make()
    for number, data in enumerate(SMALL):
        storage.put(f"dir/{number}", data)
    assert [storage.get(f"dir/{number}") for number in range(len(SMALL))] == SMALL
    found = [storage.head(f"dir/{number}") for number in range(len(SMALL))]
    assert [one and one.size for one in found] == [len(data) for data in SMALL]


def a_put_replaces(make: Factory) -> None:
    storage = make()
    for data in SMALL:
        storage.put("a/b/c.pack", data)
        assert storage.get("a/b/c.pack") == data


def a_large_file(make: Factory, tmp_path: Path) -> None:
    """Larger than one part of an upload, and of no round size."""
    storage, file = make(), tmp_path / "file"
    with file.open("wb") as out:
        for number in range(37):
            out.write(bytes([number]) * (1 << 20))
        out.write(b"end")
    storage.put("large", file)
    size = file.stat().st_size
    assert storage.get("large") == file.read_bytes()
    assert storage.get_tail("large", 4) == (b"\x24end", size)
    assert storage.get_range("large", (20 << 20) - 1, 2) == b"\x13\x14"


def what_is_absent(make: Factory) -> None:
    storage = make()
    for read in (storage.get, partial(storage.get_range, offset=0, size=1)):
        with pytest.raises(NotFound, match="no/such: no such object"):
            read("no/such")
    with pytest.raises(NotFound, match="no/such: no such object"):
        storage.get_tail("no/such", 1)
    assert storage.head("no/such") is None
    storage.delete("no/such")
    assert list(storage.list("no/")) == []


def a_range_is_exact(make: Factory) -> None:
    storage = make()
    storage.put("a", BYTES)
    for offset, size in ((0, 1), (0, len(BYTES)), (255, 3), (len(BYTES) - 1, 1), (5, 0)):
        assert storage.get_range("a", offset, size) == BYTES[offset : offset + size]
    for offset, size in ((len(BYTES), 1), (len(BYTES) - 1, 2), (0, len(BYTES) + 1), (10**9, 10)):
        with pytest.raises(Corrupt, match="/a ends early"):
            storage.get_range("a", offset, size)


def a_tail_is_what_there_is(make: Factory) -> None:
    storage = make()
    storage.put("a", BYTES)
    for size in (1, 56, len(BYTES) - 1, len(BYTES), len(BYTES) + 1, 10**9):
        assert storage.get_tail("a", size) == (BYTES[-size:], len(BYTES))


def more_than_expected_is_not_read(make: Factory) -> None:
    storage = make()
    storage.put("a", BYTES)
    assert storage.get("a", max_size=len(BYTES)) == BYTES
    with pytest.raises(Corrupt, match=r"/a has 76800 bytes, more than 76799"):
        storage.get("a", max_size=len(BYTES) - 1)


def one_put_if_absent_wins(make: Factory) -> None:
    storage = make()
    assert storage.put_if_absent("log/1", b"one")
    for other in (b"two", b"", b"on", b"one ", BYTES):
        assert not storage.put_if_absent("log/1", other)
        assert storage.get("log/1") == b"one"
    assert storage.put_if_absent("log/1", b"one")  # an own put, whose answer was lost
    assert storage.put_if_absent("log/2", b"one")
    storage.delete("log/1")
    assert storage.put_if_absent("log/1", b"two")


def one_of_many_at_once_wins(make: Factory) -> None:
    storage = make()
    probe(storage)
    assert list(storage.list("probe/")) == []


def what_is_deleted_is_gone(make: Factory) -> None:
    storage = make()
    storage.put("a/b", b"1")
    storage.delete("a/b")
    assert storage.head("a/b") is None
    storage.delete("a/b")


def a_listing_has_what_is_below(make: Factory) -> None:
    storage = make()
    keys = [f"packs/{number:04}.pack" for number in range(1100)]  # more than a page
    others = ["packs2/a", "log/1", "packs.old"]
    for _ in parallel([partial(storage.put, key, key.encode()) for key in keys + others]):
        pass
    found = dict(storage.list("packs/"))
    assert sorted(found) == keys
    assert {one.size for one in found.values()} == {15}
    assert sorted(key for key, _ in storage.list("")) == sorted(keys + others)


def the_clock_is_that_of_modification_times(make: Factory) -> None:
    storage = make()
    before = storage.now()
    storage.put("a", b"1")
    after, found = storage.now(), storage.head("a")
    second = timedelta(seconds=1)  # the resolution of HTTP
    assert found is not None
    assert before - second <= found.modified <= after + second
    assert [entry for _, entry in storage.list("")] == [
        found._replace(modified=entry.modified) for _, entry in storage.list("")
    ]


def what_is_not_a_key_is_refused(make: Factory) -> None:
    storage = make()
    for key in BAD_KEYS:
        for use in (
            storage.get,
            storage.head,
            storage.delete,
            partial(storage.put, data=b""),
            partial(storage.put_if_absent, data=b""),
            partial(storage.get_tail, size=1),
            partial(storage.get_range, offset=0, size=1),
        ):
            with pytest.raises(Invalid, match="not the key of an object"):
                use(key)


def threads_share_a_storage(make: Factory) -> None:
    storage, start = make(), Barrier(8)

    def work(number: int) -> bytes:
        start.wait(60)
        data = bytes([number]) * 10_000
        for turn in range(5):
            storage.put(f"{number}/{turn}", data)
            assert storage.get_range(f"{number}/{turn}", 100, 9000) == data[:9000]
        return storage.get(f"{number}/0")

    found = list(parallel([partial(work, number) for number in range(8)]))
    assert found == [bytes([number]) * 10_000 for number in range(8)]


CONTRACT = [
    what_is_put_is_got,
    a_put_replaces,
    what_is_absent,
    a_range_is_exact,
    a_tail_is_what_there_is,
    more_than_expected_is_not_read,
    one_put_if_absent_wins,
    one_of_many_at_once_wins,
    what_is_deleted_is_gone,
    a_listing_has_what_is_below,
    the_clock_is_that_of_modification_times,
    what_is_not_a_key_is_refused,
    threads_share_a_storage,
]

"""Small files of a directory are read a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from casfs.digest import Digest
from casfs.errors import Corrupt, CorruptBlob
from casfs.fuse.views import read_ahead
from casfs.fuse.views.read_ahead import ReadAhead


class Files:
    """Of a directory; `damaged` cannot be read, `long` is to be read otherwise."""

    def __init__(self, count: int, size: int = 10) -> None:
        self.contents = {Digest.of(b"%d" % n).hash: b"%d" % n * size for n in range(count)}
        self.digest = "directory"
        self.damaged = self.long = ""
        self.stated = {hash: len(content) for hash, content in self.contents.items()}
        self.batches: list[list[str]] = []
        self.yielded: list[int] = []  # of each batch

    def small_files(self) -> dict[str, int]:
        return dict(self.stated)

    def read_many(self, hashes: Sequence[str]) -> Iterator[bytes | None]:
        self.batches.append(list(hashes))
        self.yielded.append(0)
        for hash in hashes:
            self.yielded[-1] += 1
            if hash == self.damaged:
                raise CorruptBlob(hash)
            yield None if hash == self.long else self.contents[hash]


def test_batches_grow_and_nothing_is_read_twice() -> None:
    files = Files(200)
    ahead = ReadAhead(files.read_many)
    assert [ahead.read(hash, files) for hash in files.contents] == list(files.contents.values())
    assert [len(batch) for batch in files.batches] == [4, 8, 16, 32, 64, 64, 12]
    assert [hash for batch in files.batches for hash in batch] == list(files.contents)


def test_any_order() -> None:
    files = Files(100)
    ahead = ReadAhead(files.read_many)
    contents = {hash: ahead.read(hash, files) for hash in sorted(files.contents)}
    read = {hash: content for hash, content in contents.items() if content is not None}
    assert len(read) > 80
    assert read.items() <= files.contents.items()
    hashes = [hash for batch in files.batches for hash in batch]
    assert len(hashes) == len(set(hashes))
    assert len(files.batches) < 40


def test_a_few_files_of_many_read_few_others() -> None:
    files = Files(4000)
    ahead = ReadAhead(files.read_many)
    for hash in list(files.contents)[::400]:
        ahead.read(hash, files)
    assert sum(map(len, files.batches)) <= 4 + 2 * 9


def test_a_directory_that_is_gone_has_nothing_to_read_ahead() -> None:
    """A file has one inode in all trees that have it, and the directory of the first of them."""

    class Gone(Files):
        def small_files(self) -> dict[str, int]:
            raise Corrupt("its node was collected")

    gone = Gone(4)
    assert ReadAhead(gone.read_many).read(next(iter(gone.contents)), gone) is None


def test_files_that_are_longer_than_the_tree_says() -> None:
    files = Files(60, size=read_ahead.MAX_BATCH_BYTES // 2)
    files.stated = dict.fromkeys(files.contents, 1)
    ahead = ReadAhead(files.read_many)
    for hash in files.contents:
        ahead.read(hash, files)
    assert max(files.yielded) <= 4


def test_a_batch_is_bounded_in_bytes() -> None:
    files = Files(20, size=read_ahead.MAX_BATCH_BYTES // 3)
    ahead = ReadAhead(files.read_many)
    for hash in files.contents:
        ahead.read(hash, files)
    sizes = [sum(len(files.contents[hash]) for hash in batch) for batch in files.batches]
    assert max(sizes) <= read_ahead.MAX_BATCH_BYTES


@pytest.mark.parametrize("position", [0, 1, 3])
def test_what_cannot_be_read_is_read_by_itself(position: int) -> None:
    files = Files(4)
    hashes = list(files.contents)
    files.damaged = hashes[position]
    ahead = ReadAhead(files.read_many)
    read = [ahead.read(hash, files) for hash in hashes]
    assert read[:position] == list(files.contents.values())[:position]
    assert read[position] is None
    files = Files(4)
    files.long = hashes[position]
    ahead = ReadAhead(files.read_many)
    read = [ahead.read(hash, files) for hash in hashes]
    assert [content is None for content in read] == [n == position for n in range(4)]


def test_few_files_and_many() -> None:
    one = Files(1)
    assert ReadAhead(one.read_many).read(next(iter(one.contents)), one) is None
    many = Files(read_ahead.MAX_FILES + 1)
    assert ReadAhead(many.read_many).read(next(iter(many.contents)), many) is None
    assert one.batches == many.batches == []
    assert ReadAhead(many.read_many).read("ab" * 32, Files(5)) is None


def test_what_was_read_before_a_purge_is_not_kept() -> None:
    files = Files(4)
    ahead = ReadAhead(files.read_many)
    hashes = list(files.contents)

    def purging(wanted: Sequence[str]) -> Iterator[bytes | None]:
        for content in files.read_many(wanted):
            ahead.contents.clear()
            yield content

    ahead = ReadAhead(purging)
    assert ahead.read(hashes[0], files) is None
    assert len(ahead.contents) == 0

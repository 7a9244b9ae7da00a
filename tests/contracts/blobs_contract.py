"""The conformance suite for blobs."""

from __future__ import annotations

import io
import os

import pytest

from casfs.backend.derived import find_missing, find_prefix, of_types
from casfs.backend.protocols import INLINE_MAX_BYTES, META, Head, discard
from casfs.digest import CHUNK, Digest, NodeHash
from casfs.errors import Conflict, NotFound
from tests.contracts.contract import ABSENT, Factory, checks, put, stage, swap

SIZES = (0, 1, INLINE_MAX_BYTES, INLINE_MAX_BYTES + 1, (1 << 20) + 1)


def content(size: int) -> bytes:
    return (b"casfs %d " % size * (size // 8 + 1))[:size]


def what_was_put_is_read_back(make_backend: Factory) -> None:
    backend = make_backend()
    for size in SIZES:
        data = content(size)
        hash = put(backend, data)
        assert hash == Digest.of(data).hash
        assert backend.blobs.get(hash).data == data
        assert backend.blobs.get(hash).type is None
        assert backend.blobs.info([hash])[hash].size == size


def holes_are_read_back_as_zeros(make_backend: Factory) -> None:
    backend = make_backend()
    data = bytes(3 << 20) + b"end" + bytes(2 << 20)
    assert backend.blobs.get(put(backend, data)).data == data


def a_raw_stream_that_gives_little_at_a_time_is_read_to_its_end(make_backend: Factory) -> None:
    class Drops(io.RawIOBase):
        left = content(5000)

        def read(self, size: int = -1) -> bytes:
            size = min(7, size) if size >= 0 else len(self.left)
            piece, self.left = self.left[:size], self.left[size:]
            return piece

    backend = make_backend()
    staged = backend.blobs.stage(Drops())  # type: ignore[arg-type]  # a raw stream on purpose
    assert staged.digest == Digest.of(content(5000))
    backend.publish([staged])
    assert backend.blobs.get(staged.digest.hash).data == content(5000)


def what_a_source_raises_reaches_the_caller(make_backend: Factory) -> None:
    class Broken(io.RawIOBase):
        calls = 0

        def read(self, size: int = -1) -> bytes:
            self.calls += 1
            if size < 0 or self.calls > 2:
                raise OSError(5, os.strerror(5))
            return bytes(size)

    with pytest.raises(OSError, match="Input/output error"):
        make_backend().blobs.stage(Broken())  # type: ignore[arg-type]


def an_open_blob_can_be_sought(make_backend: Factory) -> None:
    backend = make_backend()
    for size in SIZES:
        data = content(size)
        hash = put(backend, data)
        for _ in range(2):  # the second time it is known to be sound
            with backend.blobs.open(hash) as source:
                assert source.read() == data
                source.seek(size // 2)
                assert source.read() == data[size // 2 :]


def what_is_not_there_is_not_found(make_backend: Factory) -> None:
    blobs = make_backend().blobs
    for hash in (ABSENT, "no hash", "", ABSENT.upper()):
        with pytest.raises(NotFound):
            blobs.get(hash)
        with pytest.raises(NotFound):
            blobs.open(hash)
    assert blobs.info([ABSENT, "no hash"]) == {}
    assert find_prefix(blobs, ABSENT[:8]) == []
    assert list(blobs.iterate()) == []


def contents_are_given_in_the_order_asked_for(make_backend: Factory) -> None:
    backend = make_backend()
    known = {put(backend, content(size)): content(size) for size in SIZES}
    hashes = [*known, *reversed(known)] * 100
    for hash, data in zip(hashes, backend.blobs.get_many(hashes), strict=True):
        assert data == known[hash] or (data is None and len(known[hash]) >= CHUNK)
    assert list(backend.blobs.get_many([])) == []
    for absent in (ABSENT, "no hash"):
        with pytest.raises(NotFound):
            list(backend.blobs.get_many([*known, absent]))


def a_hash_has_one_spelling(make_backend: Factory) -> None:
    backend = make_backend()
    hash = put(backend, b"spelled")
    assert backend.blobs.info([hash.upper()]) == {}
    with pytest.raises(NotFound):
        backend.blobs.get(hash.upper())


def info_answers_for_many_hashes_at_once(make_backend: Factory) -> None:
    backend = make_backend()
    staged = [stage(backend, b"%d" % n) for n in range(1200)]
    backend.publish(staged)
    hashes = [one.digest.hash for one in staged]
    found = backend.blobs.info([*hashes, ABSENT, hashes[0]])
    assert found.keys() == set(hashes)
    assert all(found[one.digest.hash].size == one.digest.size_bytes for one in staged)


def missing_names_what_is_not_stored(make_backend: Factory) -> None:
    backend = make_backend()
    assert find_missing(backend.blobs, []) == []
    here = [put(backend, b"%d" % number) for number in range(700)]
    away = [Digest.of(b"away %d" % number).hash for number in range(700)]
    asked = [hash for pair in zip(away, here, strict=True) for hash in pair]
    assert find_missing(backend.blobs, [*asked, *asked]) == away
    assert find_missing(backend.blobs, ["no hash", here[0].upper()]) == ["no hash", here[0].upper()]


def staged_is_not_visible(make_backend: Factory) -> None:
    backend = make_backend()
    for size in SIZES:
        staged = stage(backend, content(size))
        assert backend.blobs.info([staged.digest.hash]) == {}
        discard([staged])


def what_was_discarded_can_be_put_again(make_backend: Factory) -> None:
    backend = make_backend()
    for size in SIZES:
        discard([stage(backend, content(size))])
        assert backend.blobs.get(put(backend, content(size))).data == content(size)


def the_same_bytes_are_stored_once(make_backend: Factory) -> None:
    backend = make_backend()
    for size in SIZES:
        put(backend, content(size))
    for size in SIZES:
        assert backend.blobs.get(put(backend, content(size))).data == content(size)
    twice = [stage(backend, b"twice"), stage(backend, b"twice")]
    backend.publish(twice)
    large = [stage(backend, content(9000)), stage(backend, content(9000))]
    backend.publish(large)
    assert len(list(backend.blobs.iterate())) == len(SIZES) + 2
    assert backend.blobs.get(large[0].digest.hash).data == content(9000)


def a_node_knows_its_type(make_backend: Factory) -> None:
    backend = make_backend()
    meta = put(backend, b"the meta-schema", META)
    type = put(backend, b"a schema", meta)
    node = put(backend, b"a node", type)
    info = backend.blobs.info([meta, type, node])
    assert [info[hash].type for hash in (meta, type, node)] == [META, meta, type]
    assert backend.blobs.get(node).type == type
    assert backend.blobs.get(meta).type == META


def a_type_may_come_with_its_node(make_backend: Factory) -> None:
    backend = make_backend()
    meta = stage(backend, b"meta", META)
    type = stage(backend, b"schema", meta.digest.hash)
    node = stage(backend, b"node", type.digest.hash)
    backend.publish([meta, type, node])
    assert backend.blobs.get(node.digest.hash).type == type.digest.hash


def a_node_of_an_unknown_type_is_refused(make_backend: Factory) -> None:
    backend = make_backend()
    with pytest.raises(NotFound, match=ABSENT):
        put(backend, b"node", ABSENT)
    assert list(backend.blobs.iterate()) == []


def a_blob_becomes_a_node_and_stays_one(make_backend: Factory) -> None:
    backend = make_backend()
    meta = put(backend, b"meta", META)
    for data in (content(50), content(5000)):
        hash = put(backend, data)
        assert backend.blobs.get(hash).type is None
        put(backend, data, meta)
        assert backend.blobs.get(hash) == backend.blobs.get(hash)
        assert backend.blobs.get(hash).type == meta
        put(backend, data)
        assert backend.blobs.info([hash])[hash].type == meta
        assert backend.blobs.get(hash).data == data


def find_gives_sorted_hashes_of_a_prefix(make_backend: Factory) -> None:
    backend = make_backend()
    hashes = sorted(put(backend, b"%d" % n) for n in range(40))
    first = [hash for hash in hashes if hash[0] == hashes[0][0]]
    assert find_prefix(backend.blobs, hashes[0][0], limit=100) == first
    assert find_prefix(backend.blobs, "", limit=3) == hashes[:3]
    assert len(find_prefix(backend.blobs, "")) == 2
    for hash in hashes:
        assert find_prefix(backend.blobs, hash) == [hash]
        assert find_prefix(backend.blobs, hash[:63]) == [hash]


def iterate_gives_all_in_order_of_arrival(make_backend: Factory) -> None:
    backend = make_backend()
    staged = [stage(backend, b"%d" % n) for n in range(1100)]
    backend.publish(staged)
    late = put(backend, b"late")
    found = list(backend.blobs.iterate())
    assert [hash for _, hash, _ in found] == [*(one.digest.hash for one in staged), late]
    assert found[-1][2].size == 4
    positions = [position for position, _, _ in found]
    assert positions == sorted(set(positions))
    for after in (0, 1, 600, 1099, 1100):
        assert list(backend.blobs.iterate(positions[after])) == found[after + 1 :]


def bytes_that_become_a_node_arrive_anew(make_backend: Factory) -> None:
    backend = make_backend()
    meta = put(backend, b"meta", META)
    hash = put(backend, b"plain so far")
    (*_, (last, _, _)) = backend.blobs.iterate()
    put(backend, b"plain so far", meta)
    assert [found for _, found, _ in backend.blobs.iterate(last)] == [hash]
    assert [found for _, found, _ in backend.blobs.iterate()] == [meta, hash]


def nodes_are_found_by_their_types(make_backend: Factory) -> None:
    backend = make_backend()
    meta = put(backend, b"meta", META)
    types = [put(backend, b"type %d" % n, meta) for n in range(2)]
    nodes = [put(backend, b"node %d" % n, types[n % 2]) for n in range(6)]
    put(backend, b"plain")
    assert [hash for hash, _ in of_types(backend.blobs, {types[0]})] == nodes[::2]
    assert [hash for hash, _ in of_types(backend.blobs, {META})] == [meta]
    assert [hash for hash, _ in of_types(backend.blobs, {meta})] == types
    assert list(of_types(backend.blobs, {ABSENT})) == []


def what_is_required_must_be_there(make_backend: Factory) -> None:
    backend = make_backend()
    here = put(backend, b"here")
    backend.publish([stage(backend, b"new")], require=[here])
    for size in SIZES[1:]:
        with pytest.raises(NotFound, match=ABSENT):
            backend.publish([stage(backend, content(size))], require=[here, ABSENT])
    assert {hash for _, hash, _ in backend.blobs.iterate()} == {here, Digest.of(b"new").hash}


def a_refused_publish_can_be_repeated(make_backend: Factory) -> None:
    """Nothing that the first try left behind is in the way of the second."""
    backend = make_backend()
    hash = NodeHash(Digest.of(content(5000)).hash)
    wrong = swap("name", Head(ABSENT), Head(hash))
    staged = stage(backend, content(5000))
    with pytest.raises(Conflict):
        backend.publish([staged], [wrong])
    discard([staged])
    assert backend.blobs.info([hash]) == {}
    assert put(backend, content(5000)) == hash
    assert backend.blobs.get(hash).data == content(5000)


def new_blobs_can_be_local(make_backend: Factory) -> None:
    backend = make_backend()
    old = put(backend, b"old")
    staged = [stage(backend, one) for one in (b"old", b"new", b"large" * 100_000, b"work")]
    hashes = [one.digest.hash for one in staged]
    assert backend.blobs.local_among(hashes) == set()
    backend.publish(staged, local=[*hashes[:3], ABSENT])
    assert backend.blobs.local_among([*hashes, ABSENT]) == {*hashes[1:3]}
    assert old == hashes[0]


def a_put_or_a_reference_of_work_ends_a_mark(make_backend: Factory) -> None:
    backend = make_backend()
    staged = [stage(backend, one) for one in (b"put", b"required", b"unmarked", b"kept")]
    hashes = [one.digest.hash for one in staged]
    backend.publish(staged, local=hashes)
    backend.publish([stage(backend, b"kept")], require=hashes[3:], local=hashes)
    assert backend.blobs.local_among(hashes) == {*hashes}
    backend.publish([stage(backend, b"put")], require=[hashes[1]])
    backend.blobs.unmark_local([hashes[2]])
    assert backend.blobs.local_among(hashes) == {hashes[3]}


def a_large_publication_ends_marks(make_backend: Factory) -> None:
    backend = make_backend()
    private = stage(backend, b"7")
    backend.publish([private], local=[private.digest.hash])
    many = [stage(backend, b"%d" % number) for number in range(1000)]
    backend.publish(many, require=[private.digest.hash])
    assert backend.blobs.local_among([one.digest.hash for one in many]) == set()


CONTRACT = checks(globals())

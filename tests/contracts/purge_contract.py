"""The conformance suite for backends that can purge (`casfs.backend.capabilities.Purgeable`)."""

from __future__ import annotations

import pytest

from casfs.backend.capabilities import Purgeable
from casfs.backend.protocols import INLINE_MAX_BYTES, META, Backend, BlobInfo, Head, Purge
from casfs.digest import Digest, NodeHash
from casfs.errors import Conflict, Invalid, NotFound, Purged
from tests.contracts.contract import ABSENT, Factory, checks, get, put, stage, swap

SIZES = (1, 40, INLINE_MAX_BYTES + 1, (1 << 20) + 1)


def content(size: int) -> bytes:
    return (b"secret %d " % size * (size // 8 + 1))[:size]


def purgeable(backend: Backend) -> Purgeable:
    if not isinstance(backend.blobs, Purgeable):
        pytest.skip("this backend cannot purge")
    return backend.blobs


def a_purged_blob_keeps_its_size_and_cannot_be_read(make_backend: Factory) -> None:
    backend = make_backend()
    for size in SIZES:
        hash = put(backend, content(size))
        purgeable(backend).purge([Purge(hash)])
        assert backend.blobs.info([hash]) == {hash: BlobInfo(size, None, purged=True)}
        for read in (backend.blobs.get, backend.blobs.open):
            with pytest.raises(Purged, match="was purged"):
                read(hash)
        with pytest.raises(Purged):
            list(backend.blobs.get_many([hash]))


def readers_get_the_substitute(make_backend: Factory) -> None:
    backend = make_backend()
    for size in SIZES:
        for other in (b"short", bytes(5000) + b"end", bytes((1 << 20) + 7)):
            hash = put(backend, b"%d" % len(other) + content(size))
            substitute = put(backend, other)
            purgeable(backend).purge([Purge(hash, substitute)])
            info = backend.blobs.info([hash])[hash]
            assert info.purged
            assert info.substitute == substitute
            assert backend.blobs.get(hash).data == other
            assert list(backend.blobs.get_many([hash])) in ([other], [None])
            with backend.blobs.open(hash) as source:
                assert source.read() == other
                source.seek(2)
                assert source.read() == other[2:]


def a_put_of_purged_bytes_stores_nothing(make_backend: Factory) -> None:
    backend = make_backend()
    for size in SIZES:
        hash = put(backend, content(size))
        purgeable(backend).purge([Purge(hash)])
        assert put(backend, content(size)) == hash
        many = [stage(backend, b"%d %d" % (size, number)) for number in range(1100)]
        backend.publish([*many, stage(backend, content(size))])
        assert backend.blobs.info([hash])[hash].purged
        with pytest.raises(Purged):
            backend.blobs.get(hash)


def what_is_not_stored_can_be_purged(make_backend: Factory) -> None:
    """As a tombstone that comes from another store does."""
    backend = make_backend()
    for size in SIZES:
        hash = Digest.of(content(size)).hash
        purgeable(backend).purge([Purge(hash, size=size)])
        assert backend.blobs.info([hash]) == {hash: BlobInfo(size, None, purged=True)}
        assert hash in {found for _, found, _ in backend.blobs.iterate()}
        put(backend, content(size))
        with pytest.raises(Purged):
            backend.blobs.get(hash)


def a_node_is_purged_with_a_substitute_of_its_type(make_backend: Factory) -> None:
    backend = make_backend()
    meta = put(backend, b"meta", META)
    node = put(backend, b"node" * 500, meta)
    plain = put(backend, b"plain")
    redacted = put(backend, b"redacted node", meta)
    blobs = purgeable(backend)
    for substitute in (None, plain):
        with pytest.raises(Invalid, match=node):
            blobs.purge([Purge(node, substitute)])
    assert backend.blobs.get(node).data == b"node" * 500
    blobs.purge([Purge(node, redacted), Purge(ABSENT, redacted, 7)])
    for hash, size in ((node, 2000), (ABSENT, 7)):
        assert backend.blobs.get(hash).type == meta
        assert backend.blobs.get(hash).data == b"redacted node"
        info = BlobInfo(size, meta, purged=True, substitute=redacted)
        assert backend.blobs.info([hash]) == {hash: info}
    put(backend, b"node" * 500, meta)
    assert backend.blobs.get(node).data == b"redacted node"


def a_purge_can_be_given_another_substitute(make_backend: Factory) -> None:
    backend = make_backend()
    hash, first, second = (put(backend, one) for one in (b"secret", b"first", b"second"))
    blobs = purgeable(backend)
    blobs.purge([Purge(hash, first)])
    blobs.purge([Purge(first, second)])
    assert backend.blobs.get(hash).data == b"second"
    blobs.purge([Purge(hash, second)])
    assert backend.blobs.info([hash])[hash].substitute == second


def heads_move_with_a_purge_or_nothing_happens(make_backend: Factory) -> None:
    backend = make_backend()
    hash = put(backend, b"secret")
    head = Head(NodeHash(hash))
    blobs = purgeable(backend)
    with pytest.raises(Conflict):
        blobs.purge([Purge(hash)], [swap("name", head, None)])
    with pytest.raises(NotFound):
        blobs.purge([Purge(hash, ABSENT)], [swap("name", None, head)])
    assert backend.blobs.get(hash).data == b"secret"
    blobs.purge([Purge(hash)], [swap("name", None, head)])
    assert get(backend, "name") == head


def what_is_allowed_again_comes_back_with_a_put(make_backend: Factory) -> None:
    backend = make_backend()
    blobs = purgeable(backend)
    for size in SIZES:
        hash = put(backend, content(size))
        blobs.purge([Purge(hash)])
        blobs.unpurge(hash)
        info = backend.blobs.info([hash])[hash]
        assert not info.purged
        assert not info.is_here
        with pytest.raises(Purged):
            backend.blobs.get(hash)
        put(backend, content(size))
        assert backend.blobs.info([hash]) == {hash: BlobInfo(size, None)}
        assert backend.blobs.get(hash).data == content(size)
        with pytest.raises(NotFound):
            blobs.unpurge(hash)
    with pytest.raises(NotFound):
        blobs.unpurge(ABSENT)


CONTRACT = checks(globals())

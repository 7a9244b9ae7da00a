"""What a damaged or hostile database and object storage give is never served, nor kept."""

from __future__ import annotations

import pytest

from casfs.backend.postgres.backend import PostgresBackend
from casfs.errors import Corrupt, NotFound
from tests.contracts.contract import put

DAMAGE = [
    "data = 'other bytes'",
    "size = 99",
    "data = NULL",
    "type = 'short'",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_row_is_not_served_and_is_read_again(
    backend: PostgresBackend, other: PostgresBackend, damage: str
) -> None:
    meta = put(backend, b"meta", "schema")
    node = put(backend, b"node", meta)
    key = bytes.fromhex(node)
    ((before),) = backend.pool.run(
        "SELECT size, type, data FROM casfs.blobs WHERE hash = %b", [key]
    )
    backend.pool.run(f"UPDATE casfs.blobs SET {damage} WHERE hash = %b", [key])
    with pytest.raises((Corrupt, NotFound)):
        other.blobs.get(node)
    repair = "UPDATE casfs.blobs SET size = %s, type = %b, data = %b WHERE hash = %b"
    backend.pool.run(repair, [*before, key])
    assert other.blobs.get(node).data == b"node"
    assert other.blobs.get(node).type == meta


def test_a_node_below_that_is_damaged_harms_no_other(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    meta = put(backend, b"meta", "schema")
    below = put(backend, b"below", meta)
    above = put(backend, b'"%s"' % below.encode(), meta)
    key = bytes.fromhex(below)
    backend.pool.run("UPDATE casfs.blobs SET data = 'x', size = 1 WHERE hash = %b", [key])
    assert other.blobs.get(above).data == b'"%s"' % below.encode()
    with pytest.raises(Corrupt):
        other.blobs.get(below)


def test_a_place_in_a_pack_that_is_gone_is_looked_up_again(
    backend: PostgresBackend, other: PostgresBackend
) -> None:
    data = bytes(range(256)) * 100
    hash = put(backend, data)
    other.blobs.bring([hash])  # its place, not its bytes
    backend.pool.run("DELETE FROM casfs.blobs")  # as gc does
    ((name,),) = backend.pool.run("DELETE FROM casfs.packs RETURNING name")
    backend.uploads._storage.delete(f"packs/{name.hex()}.pack")
    assert put(backend, data) == hash
    assert other.blobs.get(hash).data == data

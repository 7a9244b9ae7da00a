"""An image that is made after a purge has what readers of the tree get."""

from __future__ import annotations

from pathlib import Path

import pytest

from casfs.digest import hash_bytes
from casfs.maintenance import purge
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from tests.support.helpers import put_tree
from tests.support.native import ensure_image

SHORT, LONG, WHOLE = b"KEY=short-secret", b"KEY=long-secret" * 200, b"whole-secret"


@pytest.mark.parametrize("is_first", [True, False])
def test_no_image_has_it(disk_store: Store, is_first: bool) -> None:
    root = put_tree(disk_store, {"short": SHORT, "long": LONG, "whole": WHOLE, "f": b"other file"})
    before = ensure_image(disk_store, root) if is_first else None
    stones = [
        Tombstone(hash_bytes(data), len(data), 1, "", rest and disk_store.put(rest).hash)
        for data, rest in ((SHORT, b"KEY=..."), (LONG, b"KEY=!!!"), (WHOLE, None))
    ]
    assert purge.purge_all(disk_store, stones)
    assert before is None or not before.exists()
    image = ensure_image(disk_store, root)
    data = Path(image).read_bytes()
    for text in (b"KEY=...", b"KEY=!!!", b"other file", b"short", b"long"):
        assert text in data
    assert b"secret" not in data
    assert b"whole" not in data

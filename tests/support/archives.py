"""Archives taken apart and put together again, and the check of a refused one."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest

from casfs.digest import hash_bytes
from casfs.errors import CasfsError, Corrupt
from casfs.maintenance import archive
from casfs.store.store import Store

Members = list[tuple[str, bytes]]


ID = "01JD0000000000000000000000"


def state(store: Store) -> tuple[object, ...]:
    """All that an import could change."""
    files = sorted(path for path in (store.root / "objects").rglob("*") if path.is_file())
    private = [p for p in (store.root / "tmp").rglob("*") if p.is_file() and p.name != "lock"]
    return list(store.blobs.iterate()), list(store.heads.list()), files, private


def members(path: Path) -> Members:
    with tarfile.open(path) as tar:
        return [(one.name, tar.extractfile(one).read()) for one in tar]  # type: ignore[union-attr]  # files all


def build(path: Path, found: Members) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in found:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def sealed(path: Path, found: Members) -> Path:
    """As a clever forger would: the end fits what is there."""
    middle = found[1:-1]
    names = "".join(f"{name}\n" for name, _ in middle).encode()
    end = {"members": len(middle), "seal": hash_bytes(found[0][1] + names)}
    return build(path, [found[0], *middle, ("end.json", json.dumps(end).encode())])


def refused(
    store: Store, path: Path, match: str | None = None, kind: type[CasfsError] = Corrupt
) -> None:
    before = state(store)
    with pytest.raises(kind, match=match) as raised:
        archive.load(store, path)
    assert "\n" not in str(raised.value)
    assert state(store) == before

"""The first and the last member of an archive: the manifest, and what seals the members between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from casfs import canonical
from casfs.backend.protocols import Head, HeadName
from casfs.digest import Hasher, is_hash
from casfs.errors import Corrupt, Invalid
from casfs.exchange.portable_heads import parse_foreign_head
from casfs.maintenance.archive_members import Member
from casfs.maintenance.archive_purged import is_tombstone, parse_tombstone
from casfs.store.tombstones import Tombstone

FORMAT = "casfs export 1"
MANIFEST = "manifest.json"
END = "end.json"
MAX_MANIFEST_BYTES = 32 << 20  # parsed, it takes up to 25 times as much memory


@dataclass(frozen=True, slots=True)
class Manifest:
    """`data`: its bytes; `tombstones`: of what the archive leaves out."""

    data: bytes
    roots: list[str]
    heads: list[tuple[HeadName, Head]]
    tombstones: list[Tombstone]


def parse_manifest(member: Member | None) -> Manifest:
    """Raises Corrupt, Invalid."""
    if member is None or member.name != MANIFEST:
        raise Corrupt("not a casfs archive: it does not begin with manifest.json")
    if member.size > MAX_MANIFEST_BYTES:
        raise Invalid(f"invalid manifest: over {MAX_MANIFEST_BYTES >> 20} MiB")
    data = member.readall()
    value = canonical.parse(data)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise Invalid("unsupported archive format")
    roots = value.get("roots")
    heads = value.get("heads")
    if not isinstance(roots, list) or not all(map(is_hash, roots)) or not isinstance(heads, list):
        raise Invalid("invalid manifest: roots or heads missing")
    marks = [head for head in heads if is_tombstone(head)]
    named = [parse_foreign_head(head) for head in heads if not is_tombstone(head)]
    if len(dict(named)) != len(named):
        raise Invalid("invalid manifest: a head occurs twice")
    return Manifest(
        data=data,
        roots=roots,
        heads=named,
        tombstones=[parse_tombstone(mark) for mark in marks],
    )


class Seal:
    """Accumulates the content of end.json."""

    def __init__(self, manifest: bytes) -> None:
        self._hasher = Hasher(manifest)
        self._members = 0

    def add(self, name: str) -> None:
        self._hasher.update(f"{name}\n".encode())
        self._members += 1

    def value(self) -> dict[str, Any]:
        return {"members": self._members, "seal": self._hasher.hexdigest()}

"""The log of a remote: every change there is one entry, put if absent, and nothing else moves.

    casfs-remote        {"format": "casfs remote 1", "id"}
    log/<number>        an entry: 16 digits from 1; JSON, compressed by zstd
    log/latest          the number of a recent entry: where to begin, never believed alone
    packs/<name>.pack   nodes, or blobs; never both in one

    id, after   of this entry and of the one before, random: a writer whose answer was lost finds
                its own entry by it, and a reader that its remote is not another one since
    refs        {name: null (deleted) or {"hash", "record", "previous": hash before, "size": bytes
                of a checkpoint's files, else null}}; names and records are those of heads, and
                of tombstones (`casfs.remotes.purged`)
    packs       {name: {"kind", "size", "offset", "index"}}: added; `offset` of the index, which is
                here as well where it is short (base64), else null
    orphaned    packs whose content counts as not there from now on, though their files are
    live        orphaned ones that are live again
    deleted     orphaned ones whose files are about to be deleted
    all         every SNAPSHOT_INTERVAL entries, else null: {"refs", "packs", "orphaned": {name:
                number of the entry since}}, the state before this entry; readers begin there

An entry is atomic over all its refs and packs, and serialises pushes with each other and with gc.
**Closure**: what a node in a live pack of nodes refers to is in live packs, so a push stops at the
first node that is there. A gc keeps it so: where it orphans what a node refers to, that node does
not stay in a live pack. **Names** of packs are never used again: each has a random member.
"""

from __future__ import annotations

import base64
from typing import Any, NamedTuple, TypeAlias

from casfs import canonical
from casfs.backend.protocols import MAX_RECORD_BYTES
from casfs.errors import Corrupt, Failed, Invalid
from casfs.store.nodes.schema import Schema
from casfs.system.zstd import Dictionary

FORMAT = "casfs remote 1"
IDENTITY = "casfs-remote"
LATEST = "log/latest"
SNAPSHOT_INTERVAL = 64
HINT_INTERVAL = 16
INLINE_INDEX_BYTES = 64 << 10
MAX_ENTRY_BYTES = 256 << 20
NODES = "nodes"  # kinds of packs
BLOBS = "blobs"
Entry: TypeAlias = dict[str, Any]


def _object(**required: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required}


def _by(pattern: str, value: Any) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {pattern: value}, "additionalProperties": False}


PACK_NAME = "^[0-9a-f]{64}$"
HASH = {"type": "string", "pattern": PACK_NAME}
ID = {"type": "string", "pattern": "^[0-9a-f]{32}$"}
COUNT = {"type": "integer", "minimum": 0, "maximum": canonical.MAX_INT}
BASE64 = "^([A-Za-z0-9+/]{4})*[A-Za-z0-9+/]{2}[A-Za-z0-9+/=]{2}$"
INDEX = {"type": ["string", "null"], "pattern": BASE64}
REF = _object(
    hash=HASH,
    record={"type": "object"},
    previous={**HASH, "type": ["string", "null"]},
    size={**COUNT, "type": ["integer", "null"]},
)
REFS = _by("^[!-~]{1,256}$", {**REF, "type": ["object", "null"]})
PACKS = _by(
    PACK_NAME, _object(kind={"enum": [NODES, BLOBS]}, size=COUNT, offset=COUNT, index=INDEX)
)
NAMES = {"type": "array", "items": HASH}
ALL = _object(refs=REFS, packs=PACKS, orphaned=_by(PACK_NAME, COUNT))
ENTRY = Schema(
    _object(
        id=ID,
        after={**ID, "type": ["string", "null"]},
        refs=REFS,
        packs=PACKS,
        orphaned=NAMES,
        live=NAMES,
        deleted=NAMES,
        all={**ALL, "type": ["object", "null"]},
    )
)


class Pack(NamedTuple):
    """`offset` of the index; `data`: the index, None where it is in the pack alone."""

    name: str
    kind: str
    size: int
    offset: int
    data: bytes | None = None

    def encode(self) -> dict[str, Any]:
        is_here = self.data is not None and len(self.data) <= INLINE_INDEX_BYTES
        text = base64.b64encode(self.data or b"").decode() if is_here else None
        return {"kind": self.kind, "size": self.size, "offset": self.offset, "index": text}

    @classmethod
    def decode(cls, name: str, value: dict[str, Any]) -> Pack:
        data = None if value["index"] is None else base64.b64decode(value["index"])
        # To JSON Schema 2.0 is an integer, too.
        size, offset = int(value["size"]), int(value["offset"])
        return cls(name, value["kind"], size, offset=offset, data=data)


def key(number: int) -> str:
    return f"log/{number:016d}"


def pack_key(name: str) -> str:
    return f"packs/{name}.pack"


def new_entry(id: str, after: str | None) -> Entry:
    lists: Entry = {"orphaned": [], "live": [], "deleted": []}
    return {"id": id, "after": after, "refs": {}, "packs": {}, **lists, "all": None}


def encode(entry: Entry) -> bytes:
    """Raises Failed for an entry that no reader would take."""
    data = canonical.encode(entry)
    if len(data) > MAX_ENTRY_BYTES:
        raise Failed(f"an entry of {len(data)} bytes is too long; push fewer names at once")
    return Dictionary().compress(data)


def decode(number: int, data: bytes) -> Entry:
    """Raises Corrupt."""
    try:
        entry: Entry = canonical.parse(Dictionary().decompress(data, MAX_ENTRY_BYTES))
        ENTRY.check(entry)
        for refs in (entry["refs"], (entry["all"] or entry)["refs"]):
            for ref in refs.values():
                if ref and len(canonical.encode(ref["record"])) > MAX_RECORD_BYTES:
                    raise Invalid("a record is too long")
    except (Corrupt, Invalid) as error:
        raise Corrupt(f"{key(number)} of the remote is damaged: {error}") from None
    return entry

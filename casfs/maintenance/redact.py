"""Purges a text: each blob and node that has it gets a substitute without it.

The substitute of a file is its content with MARK in place of the text, that of a node a valid node
of its type with the same references. So no hash of what refers to them changes. Heads' records are
rewritten; logs and live outputs are overwritten in place, since their writers go on appending;
derived files are deleted. Names of files are not changed: a tree would have another hash.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import dataclass, field

from casfs.backend.capabilities import Compressing
from casfs.backend.derived import open_stream
from casfs.backend.pack_files import PieceStream
from casfs.backend.protocols import Head, HeadName
from casfs.backend.row_compression import DICTIONARIES
from casfs.backend.sqlite_connection import remove_derived
from casfs.errors import CasfsError, Failed, Invalid, Refused
from casfs.exchange import arrivals
from casfs.history import path_index
from casfs.maintenance import grep, purge
from casfs.maintenance.grep import Found, FoundBlob, FoundFile
from casfs.maintenance.needle import Needle
from casfs.store import tombstones
from casfs.store.conflict_retry import retry_on_conflict
from casfs.store.nodes import node
from casfs.store.store import Store
from casfs.store.tombstones import Tombstone
from casfs.system.clock import now_ms
from casfs.threads import threads

INDEXES = ("index.db", "edges.db", path_index.FILE)
# Kinds of files whose writers may be running, or whose readers want the rest.
OVERWRITTEN = ("log", "live output", "report of an agent")
SUBSTITUTES_AT_ONCE = 1000
MAX_ROUNDS = 10  # in which what running writers have added is purged as well


@dataclass(slots=True)
class Redacted:
    """`left`: what still has the text, a line each with the reason. `is_erased`: False where copies
    may remain in the database's log for now."""

    purged: list[Tombstone] = field(default_factory=list)
    heads: list[HeadName] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    is_erased: bool = True


def redact(store: Store, needle: Needle, findings: Found, why: str) -> Redacted:
    """Purges the text from what a search has found, and from what has arrived since. Raises
    Refused where the store cannot purge."""
    done = Redacted()
    _remove_derived(store, findings)
    for _ in range(MAX_ROUNDS):
        while findings.blobs:
            group = findings.blobs[:SUBSTITUTES_AT_ONCE]
            findings.blobs = findings.blobs[SUBSTITUTES_AT_ONCE:]
            _purge(store, needle, group=group, why=why, done=done)
        for name in findings.heads:
            _redact_head(store, needle, name=name, done=done)
        findings.heads = []
        before = findings.position
        grep.search_blobs(store, needle, findings)
        if findings.position == before:
            break
    for file in findings.files:
        _erase_file(store, needle, file=file, done=done)
    _remove_derived(store, findings)
    done.is_erased &= tombstones.purgeable(store).erase_remains(needle.is_in_stream)
    done.left += [f"{file.path}: {file.kind}" for file in grep.files(store, needle)]
    return done


def _purge(store: Store, needle: Needle, group: list[FoundBlob], why: str, done: Redacted) -> None:
    dictionaries = {head.hash for _, head in store.heads.list(DICTIONARIES)}
    purged = []
    for blob in group:
        if blob.hash in dictionaries:
            continue
        if blob.is_name:
            done.left.append(f"{blob.hash}: a name in a {blob.type}, which is not changed")
            continue
        try:
            substitute = _substitute(store, needle, blob)
        except CasfsError as error:
            done.left.append(f"{blob.hash}: {error}")
            continue
        purged.append(
            Tombstone(blob.hash, blob.info.size, purged_at=now_ms(), why=why, substitute=substitute)
        )
    if purged:
        done.is_erased &= purge.purge_all(store, purged)
        done.purged += purged
    if isinstance(store.backend, Compressing):
        store.backend.recompression().retire(needle.shares)


def _substitute(store: Store, needle: Needle, blob: FoundBlob) -> str:
    """Stores the substitute of a blob, hidden where that is. Raises Invalid where its schema does
    not allow it."""
    if store.blobs.local_among([blob.hash]):
        store = store.local_writes()
    if blob.info.type is None:
        with open_stream(store.blobs, blob.hash) as source:
            return store.put_stream(io.BufferedReader(PieceStream(needle.redacted(source)))).hash
    type_hash, payload = node.decode(blob.hash, store.get(blob.hash))
    with store.batch() as batch:
        data = node.encode(type_hash, needle.redacted_value(payload))
        digest = batch.put_encoded(data)
    if needle.is_in(data):
        raise Invalid("the text is in its JSON, not in its strings")
    return digest.hash


def _redact_head(store: Store, needle: Needle, name: HeadName, done: Redacted) -> None:
    def rewrite() -> bool:
        head = store.heads.get(name)
        if head is None or not any(needle.strings_in(dict(head.record))):
            return False
        if name.startswith(threads.HEADS) and head.record.get("status") == threads.RUNNING:
            raise Refused("its record is its daemon's; suspend the thread, and purge again")
        record = arrivals.redacted(needle.redacted_value(dict(head.record)), now_ms())
        with store.batch() as batch:
            batch.swap(name, head, Head(head.hash, record))
        return True

    if any(needle.strings_in(name)):
        done.left.append(f"{name}: the name of a head, which is not changed; remove it")
    try:
        if retry_on_conflict(rewrite):
            done.heads.append(name)
    except (Invalid, Refused) as error:
        done.left.append(f"{name}: {error}")


def _erase_file(store: Store, needle: Needle, file: FoundFile, done: Redacted) -> None:
    path = store.root / file.path
    try:
        if file.kind in OVERWRITTEN:
            with path.open("r+b") as out:
                data = out.read()
                out.seek(0)
                out.write(needle.blanked(data))
            done.files.append(file.path)
        elif file.kind == "damaged blob":
            path.unlink(missing_ok=True)
            done.files.append(file.path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Failed(f"cannot erase the text from {path}: {error.strerror}") from error


def _remove_derived(store: Store, findings: Found) -> None:
    """Deletes the index of words, and other indexes where they have the text; they are made anew
    when they are used."""
    files = {file.path.partition(".db")[0] + ".db" for file in findings.files}
    for name in {purge.SEARCH_INDEX, *files.intersection(INDEXES)}:
        with suppress(OSError):
            remove_derived(store.root / name)

"""`casfs grep`: a text in all that a store has."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from casfs.backend.derived import total_stored
from casfs.cli.common import STDIO, open_store
from casfs.cli.output import echo_lines, json_option, warn
from casfs.cli.progress import progress
from casfs.errors import Invalid
from casfs.store.removals import label
from casfs.store.store import Store

if TYPE_CHECKING:
    from casfs.maintenance.grep import Found
    from casfs.maintenance.needle import Needle


@dataclass(frozen=True, slots=True)
class Place:
    """A line of what was found: `kind` as a person says it; `lines`: of the text, where known."""

    kind: str
    hash: str | None
    where: list[str]
    lines: list[int]

    @property
    def value(self) -> dict[str, Any]:
        return {"kind": self.kind, "hash": self.hash, "where": self.where, "lines": self.lines}

    @property
    def line(self) -> str:
        where = ", ".join(self.where) or str(self.hash)
        lines = f", line {', '.join(map(str, self.lines))}" if self.lines else ""
        return f"{self.kind:12} {where}{lines}"


@click.command()
@click.argument("text")
@json_option
@click.pass_context
def grep(ctx: click.Context, text: str) -> None:
    """Find TEXT in all that the store has; exit 1 where it is not found.

    Contents are searched whatever holds them, packs too, with nodes, records, logs and indexes;
    also as it reads without colours and escapes, in base64 and UTF-16. A text of several lines is
    all of them in order, each behind any prefix, as in a diff. `-` reads the text from stdin, which
    no list of processes shows. What is inside compressed files, as .git/objects, is not found.

    \b
    casfs grep "BEGIN PRIVATE KEY"
    casfs grep - <key.txt
    """
    from casfs.maintenance.needle import Needle

    needle = Needle(read_text() if text == STDIO else text)
    with open_store() as store:
        findings = search_store(store, needle)
        places = find_places(store, findings)
    echo_lines([location.value for location in places], (location.line for location in places))
    if not places:
        ctx.exit(1)


def read_text() -> str:
    """Returns the text on stdin, without the newline at its end. Raises Invalid."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError:
        raise Invalid(
            "the text on stdin is not UTF-8; purge the files that have it by hash"
        ) from None


def search_store(store: Store, needle: Needle) -> Found:
    """Searches with a bar on a terminal, and warns of what was not read."""
    from casfs.maintenance import grep as searching

    total = total_stored(store.blobs)
    with progress("searching", "blobs", total=total.blobs, total_bytes=total.bytes) as update:
        findings = searching.search(store, needle, update)
    if findings.remote:
        warn(f"{findings.remote} blobs are in a remote only, and were not searched")
    for hash in findings.unread:
        warn(f"{hash} is damaged, and was not searched; see `casfs fsck`")
    return findings


def find_places(store: Store, findings: Found) -> list[Place]:
    """Returns where a person finds what was found, a line each."""
    from casfs.maintenance.whereabouts import Whereabouts

    places = []
    with Whereabouts(store, _refs_of_remotes(store)) as whereabouts:
        for blob in findings.blobs:
            kind = blob.type or "file"
            if blob.is_name:
                kind = "name"
            places.append(Place(kind, blob.hash, where=whereabouts.of(blob.hash), lines=blob.lines))
    places += [Place("record", hash=None, where=[label(name)], lines=[]) for name in findings.heads]
    places += [Place(file.kind, hash=None, where=[file.path], lines=[]) for file in findings.files]
    return places


def reaches_remote(store: Store, hash: str) -> bool:
    """Returns whether a ref of a remote leads to a blob, as of the last contact with it."""
    from casfs.store.referrers import Referrers

    refs = set(_refs_of_remotes(store).values())
    if not refs:
        return False
    with Referrers(store) as index:
        return not refs.isdisjoint({hash, *index.walk_up(hash)})


def _refs_of_remotes(store: Store) -> dict[str, str]:
    """Returns the refs of all remotes, as of the last contact with each, and where they lead."""
    from casfs.remotes.remote import DIRECTORY, listing
    from casfs.remotes.state import FILE, State

    remote_refs: dict[str, str] = {}
    for name in listing(store.root):
        path = Path(str(store.root), DIRECTORY, name, FILE)
        if path.exists():
            with closing(State(path)) as state:
                refs = state.refs().items()
                remote_refs |= {
                    f"remote {name}: {label(ref)}": value["hash"] for ref, value in refs
                }
    return remote_refs

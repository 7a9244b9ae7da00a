"""What a push leaves here: the private files of the heads that it sends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from casfs import revisions
from casfs.backend.protocols import Head
from casfs.errors import NotFound
from casfs.nodes.directory import File
from casfs.scanner import Scanner
from casfs.store import Store
from casfs.trees import recorded_state
from casfs.trees.snapshot import policy

MAX_SCANNED_BYTES = 1 << 20  # of a file, to say in which line its secret is


class PrivateFile(NamedTuple):
    """`line`: of the first secret in it, 0 where it is private for its name."""

    path: bytes
    line: int


def private_files(store: Store, heads: Iterable[Head]) -> list[PrivateFile]:
    """Returns the private files in the trees of checkpoints and threads, each path once, sorted."""
    scanner = policy.load(store).scanner()
    files: dict[bytes, File] = {}
    for head in heads:
        try:
            state = revisions.state_if_any(store, head.hash)
        except NotFound:  # a workflow, a schema
            continue
        if state is not None:
            private = recorded_state.private_files(store, state)
            files |= {path: entry for path, entry in private.items() if isinstance(entry, File)}
    return [PrivateFile(path, _line(store, scanner, files[path])) for path in sorted(files)]


def _line(store: Store, scanner: Scanner, file: File) -> int:
    if file.digest.size_bytes > MAX_SCANNED_BYTES:
        return 0
    findings = scanner.scan(store.get(file.digest.hash))
    return findings[0].line if findings else 0

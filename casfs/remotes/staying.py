"""What a push leaves here: the private files and git repositories of the heads that it sends."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from casfs.backend.protocols import Head
from casfs.checkpoints import revisions
from casfs.errors import NotFound
from casfs.scanner import Scanner
from casfs.store.nodes.directory import File, Subdirectory
from casfs.store.store import Store
from casfs.trees import recorded_state
from casfs.trees.git.index import GIT
from casfs.trees.snapshot import policy

MAX_SCANNED_BYTES = 1 << 20  # of a file, to say in which line its secret is


class PrivateFile(NamedTuple):
    """`line`: of the first secret in it, 0 where it is private for its name."""

    path: bytes
    line: int


class Staying(NamedTuple):
    """`repositories`: the paths of recorded `.git` directories."""

    files: list[PrivateFile]
    repositories: list[bytes]


NOTHING = Staying([], [])


def of_heads(store: Store, heads: Iterable[Head]) -> Staying:
    """Returns what stays here of the trees of checkpoints and threads, each path once, sorted."""
    scanner = policy.load(store).scanner()
    files: dict[bytes, File] = {}
    repositories: set[bytes] = set()
    for head in heads:
        try:
            state = revisions.state_if_any(store, head.hash)
        except NotFound:  # a workflow, a schema
            continue
        if state is None or state.local is None:
            continue
        for path, entry in recorded_state.local_paths(store, state.tree, state.full):
            if isinstance(entry, File):
                files[path] = entry
            elif isinstance(entry, Subdirectory) and entry.name == os.fsencode(GIT):
                repositories.add(path)
    private = [PrivateFile(path, _line(store, scanner, files[path])) for path in sorted(files)]
    return Staying(private, sorted(repositories))


def _line(store: Store, scanner: Scanner, file: File) -> int:
    if file.digest.size_bytes > MAX_SCANNED_BYTES:
        return 0
    findings = scanner.scan(store.get(file.digest.hash))
    return findings[0].line if findings else 0

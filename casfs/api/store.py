"""The store of the Python API: `casfs.open`, `casfs.init` and the class they return."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeAlias

from casfs import config
from casfs.api.actions import Actions
from casfs.api.checkpoints import Checkpoints
from casfs.api.plugins import Plugins
from casfs.api.threads import Threads
from casfs.api.trees import HostPath, Trees
from casfs.api.workflows import Workflows
from casfs.backend import derived
from casfs.digest import Digest
from casfs.errors import NotFound
from casfs.store import graph
from casfs.store import store as trunk
from casfs.store.nodes.node import Node

Hash: TypeAlias = str | Digest


class Store(trunk.Store):
    """A content-addressed store, opened by any number of processes at once.

    A context manager; `close` ends it. It may be shared between threads of a process, a `Batch`
    may not. Where no path is given, the store is that of the command line: CASFS_STORE, else
    `casfs` in the user's data directory (XDG_DATA_HOME).
    """

    @classmethod
    def open(cls, root: HostPath | None = None) -> Self:
        """Opens the store at `root`. Raises NotFound, Refused (of another version), Failed."""
        return super().open(_root(root))

    @classmethod
    def init(cls, root: HostPath | None = None) -> Self:
        """Creates a store at `root` and opens it; an existing one is opened and keeps its
        content. Raises Refused for a directory with other files, Failed."""
        return super().init(_root(root))

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Trees recorded under a name."""
        return Checkpoints(self)

    @cached_property
    def trees(self) -> Trees:
        """Directories as values."""
        return Trees(self)

    @cached_property
    def threads(self) -> Threads:
        """Runs of workflows."""
        return Threads(self, os.environ)

    @cached_property
    def workflows(self) -> Workflows:
        """Roles and rules."""
        return Workflows(self)

    @cached_property
    def actions(self) -> Actions:
        """Cached results of commands."""
        return Actions(self)

    @cached_property
    def plugins(self) -> Plugins:
        """Trees of a name and a version."""
        return Plugins(self, os.environ)

    def get(self, hash: Hash) -> bytes:
        """Returns the verified bytes of a blob. Raises NotFound (also for a digest of another size)
        or CorruptBlob."""
        data = super().get(str(hash))
        if isinstance(hash, Digest) and hash.size_bytes != len(data):
            raise NotFound(f"{hash} has {len(data)} bytes, not {hash.size_bytes}")
        return data

    def stream(self, hash: Hash) -> BinaryIO:
        """Opens a blob of any size for reading: seekable, verified. Raises as `get`."""
        return self.blobs.open(str(hash))

    def has(self, hash: Hash) -> bool:
        """Returns whether a blob is stored."""
        return bool(self.blobs.info([str(hash)]))

    def find_missing(self, hashes: Collection[Hash]) -> list[str]:
        """Returns those of `hashes` that are not stored, in their order, each once."""
        return derived.find_missing(self.blobs, [str(hash) for hash in hashes])

    def node(self, hash: Hash, type: str | None = None) -> Node[Any]:
        """Returns a node. Raises NotFound (also for a blob that is not a node, or not of `type`),
        Corrupt."""
        return super().node(str(hash), type)

    def walk(self, *roots: Hash) -> Iterator[str]:
        """Yields every hash reachable from `roots`, types included, each once, a node before its
        refs."""
        return graph.walk(self, map(str, roots))


open = Store.open
init = Store.init


def _root(path: HostPath | None) -> Path:
    if path is not None:
        return Path(path).absolute()
    root: Path = config.store_root(None, os.environ).value
    return root

"""Plugins: trees of a name and a version that many workspaces use, stored once.

The head `plugins/<name>/<version>` leads to the tree. It is cache (`casfs.maintenance.gc`): what
was evicted is synced again from its source.

    record  root, source (without password), commit (of git, else null), syncedAt, createdAt

How one comes here and is written to a directory: `casfs.plugins.transfer`. Whoever only reads
them, as the mount does, needs nothing of that.
"""

from __future__ import annotations

from dataclasses import dataclass

from casfs.backend.protocols import Head
from casfs.errors import NotFound
from casfs.store import Store

HEADS = "plugins/"


@dataclass(frozen=True, slots=True)
class Plugin:
    """`synced_at`: ms since 1970 UTC."""

    name: str
    version: str
    root: str
    source: str
    commit: str | None
    synced_at: int


def find(store: Store, name: str, version: str) -> Plugin:
    """Raises NotFound."""
    found = get(store, name, version)
    if found is None:
        raise NotFound(f"no plugin {name} {version}; see `casfs plugin list`")
    return found


def listing(store: Store, name: str | None = None) -> list[Plugin]:
    """Every plugin, or the versions of one, sorted."""
    prefix = HEADS if name is None else f"{HEADS}{name}/"
    return [of_head(key, head) for key, head in store.heads.list(prefix)]


def get(store: Store, name: str, version: str) -> Plugin | None:
    """As `find`; None where there is none."""
    key = f"{HEADS}{name}/{version}"
    head = store.heads.get(key)
    return None if head is None else of_head(key, head)


def of_head(key: str, head: Head) -> Plugin:
    """What the head of that name says."""
    name, _, version = key[len(HEADS) :].partition("/")
    record = head.record
    commit = record["commit"] and str(record["commit"]).removeprefix("git:")
    return Plugin(name, version, head.hash, record["source"], commit, record["syncedAt"])

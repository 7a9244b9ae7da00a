"""The plugin registry: dependency trees of a name and a version, stored once.

The head `plugins/<name>/<version>` leads to the tree. It is cache (`casfs.maintenance.gc`): an
evicted plugin is synced again from its source.

    record  root, source (without password), commit (of git, else null), syncedAt, createdAt

`casfs.plugins.transfer` syncs and restores them; readers, as the mount, need only this module.
"""

from __future__ import annotations

from dataclasses import dataclass

from casfs.backend.protocols import Head, HeadName
from casfs.digest import TreeHash
from casfs.errors import NotFound
from casfs.store.nodes import head_kinds
from casfs.store.store import Store

HEADS = "plugins/"


@dataclass(frozen=True, slots=True)
class Plugin:
    """`synced_at`: ms since 1970 UTC."""

    name: str
    version: str
    root: TreeHash
    source: str
    commit: str | None
    synced_at: int


def head_name(name: str, version: str) -> HeadName:
    return HeadName(f"{HEADS}{name}/{version}")


def find(store: Store, name: str, version: str) -> Plugin:
    """Returns a plugin. Raises NotFound."""
    plugin = get(store, name, version)
    if plugin is None:
        raise NotFound(f"no plugin {name} {version}; see `casfs plugin list`")
    return plugin


def listing(store: Store, name: str | None = None) -> list[Plugin]:
    """Returns all plugins, or the versions of one, sorted by head name."""
    prefix = HEADS if name is None else f"{HEADS}{name}/"
    return [of_head(key, head) for key, head in head_kinds.sound(store.heads, prefix)]


def get(store: Store, name: str, version: str) -> Plugin | None:
    """Returns a plugin; None also where its head is damaged: it is synced again."""
    key = head_name(name, version)
    head = store.heads.get(key)
    return None if head is None or head_kinds.fault(key, head) else of_head(key, head)


def of_head(key: HeadName, head: Head) -> Plugin:
    name, _, version = key[len(HEADS) :].partition("/")
    record = head.record
    commit = record["commit"] and str(record["commit"]).removeprefix("git:")
    return Plugin(
        name,
        version,
        root=TreeHash(head.hash),
        source=record["source"],
        commit=commit,
        synced_at=record["syncedAt"],
    )

"""Plugins from their source into the store, and from there into directories.

A version is a promise: what is stored stays, until somebody asks for it with `refresh`.
Syncing again what came from git only asks where the tag or branch stands now, and says
when it has moved; that the remote does not answer is no error then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from casfs.backend.derived import note_use
from casfs.backend.protocols import Head
from casfs.checkpoints.checkpoint import NAME
from casfs.digest import is_hash
from casfs.errors import Failed, Invalid, NotFound
from casfs.plugins import sources
from casfs.plugins.registry import HEADS, Plugin, find, get, of_head
from casfs.store import Store
from casfs.system.clock import now_ms
from casfs.trees.restore.restore import restore

MAX_SOURCE = 1000  # characters in a record


@dataclass(frozen=True, slots=True)
class Synced:
    """What `sync` did. `stored`: it took what the source has. `warning`: why that should be
    looked at, or empty."""

    plugin: Plugin
    stored: bool
    warning: str = ""


def sync(
    store: Store,
    name: str,
    version: str,
    source: str,
    env: Mapping[str, str],
    *,
    refresh: bool = False,
) -> Synced:
    """Store a version from a directory, a git repository or a tarball, unless it is here.

    `env` is what git gets. Raises Invalid, NotFound, Failed; then nothing has changed.
    """
    _check(name, "name")
    _check(version, "version")
    if not sources.is_git(source) and "://" not in source:
        source = str(Path(source).absolute())
    old = get(store, name, version)
    if old is not None and not refresh:
        note_use(store.heads, [f"{HEADS}{name}/{version}"])
        return Synced(old, stored=False, warning=_difference(old, source, env))
    if not sources.is_git(source):
        return _store(store, name, version, source, Path(source), None)
    ref, _ = sources.upstream(source, version, env)
    with sources.fetched(source, ref, env) as (folder, commit):
        return _store(store, name, version, source, folder, commit)


def materialize(store: Store, name: str, version: str, target: Path) -> Plugin:
    """Make the directory `target` hold a plugin. Raises NotFound, and as `casfs.trees.restore`."""
    found = find(store, name, version)
    restore(store, found.root, target)
    note_use(store.heads, [f"{HEADS}{name}/{version}"])
    return found


def _check(text: str, what: str) -> None:
    if not NAME.match(text) or is_hash(text):
        raise Invalid(
            f"invalid plugin {what} {text!r}: use 1 to 64 letters,"
            " digits, '.', '_', '-', and not a hash"
        )


def _store(
    store: Store, name: str, version: str, source: str, path: Path, commit: str | None
) -> Synced:
    now = now_ms()
    with store.batch() as batch:
        root = sources.take(batch, path).hash
        key = f"{HEADS}{name}/{version}"
        old = store.heads.get(key)
        record: dict[str, Any] = {
            "root": root,
            "source": sources.shown(source)[:MAX_SOURCE],
            "commit": commit and f"git:{commit}",  # it may look like a hash, and is none of ours
            "syncedAt": now,
            "createdAt": old.record["createdAt"] if old else now,
        }
        new = batch.move(key, old, root, record) if old else Head(root, record)
        if old is None:
            batch.swap(key, None, new)
    return Synced(of_head(key, new), stored=True)


def _difference(old: Plugin, source: str, env: Mapping[str, str]) -> str:
    """What the source would give instead of what is stored, as far as a question tells."""
    if sources.shown(source)[:MAX_SOURCE] != old.source:
        return f"it was stored from {old.source}; --refresh takes it from the one given"
    if old.commit is None:
        return ""
    try:
        _, now = sources.upstream(source, old.version, env)
    except NotFound as error:
        return f"it is gone upstream: {error}"
    except Failed as error:
        return f"whether it has moved could not be asked: {error}"
    if now == old.commit:
        return ""
    return f"it has moved: was {old.commit}, is {now}; --refresh takes the new one"

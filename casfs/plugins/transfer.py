"""Syncs plugins from their source to the store, and restores them to directories.

A stored version is immutable until it is synced with `refresh`. Syncing a version from git
again only queries the tag or branch and warns when it has moved; an unreachable remote is no
error then.
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
from casfs.plugins.registry import Plugin, find, get, head_name, of_head
from casfs.store.nodes import head_kinds
from casfs.store.store import Store
from casfs.system.clock import now_ms
from casfs.system.paths import printable
from casfs.trees.recorded_state import RecordedState
from casfs.trees.restore.options import RestoreOptions
from casfs.trees.restore.restore import restore
from casfs.trees.snapshot.report import Progress, SnapshotOptions, SnapshotReport

MAX_SOURCE_CHARS = 1000  # in a record


@dataclass(frozen=True, slots=True)
class Synced:
    """`stored`: the source was stored by this call. `warning`: how the source differs from the
    stored version, or what of it is private and was left out, or empty."""

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
    progress: Progress = lambda files, bytes: None,
) -> Synced:
    """Stores a version from a directory, a git repository or a tarball, unless it is stored. `env`:
    git's environment. Raises Invalid, NotFound, Failed; an error changes nothing."""
    _check_name(name, "name")
    _check_name(version, "version")
    if not sources.is_git(source) and "://" not in source:
        source = str(Path(source).absolute())
    old = get(store, name, version)
    if old is not None and not refresh:
        note_use(store.heads, [head_name(name, version)])
        return Synced(old, stored=False, warning=_upstream_warning(old, source, env))
    if not sources.is_git(source):
        return _store(
            store,
            name,
            version=version,
            source=source,
            path=Path(source),
            commit=None,
            progress=progress,
        )
    ref, _ = sources.upstream(source, version, env)
    with sources.checkout(source, ref, env) as (folder, commit):
        return _store(
            store,
            name,
            version=version,
            source=source,
            path=folder,
            commit=commit,
            progress=progress,
        )


def materialize(store: Store, name: str, version: str, target: Path) -> Plugin:
    """Restores a plugin to `target`. Raises NotFound, and as `casfs.trees.restore`."""
    plugin = find(store, name, version)
    options = RestoreOptions(parents=True, advice="use an empty directory")
    restore(store, RecordedState(plugin.root), target, options)
    note_use(store.heads, [head_name(name, version)])
    return plugin


def _check_name(text: str, field: str) -> None:
    if not NAME.match(text) or is_hash(text):
        raise Invalid(
            f"invalid plugin {field} {text!r}: use 1 to 64 letters,"
            " digits, '.', '_', '-', and not a hash"
        )


def _store(
    store: Store,
    name: str,
    version: str,
    source: str,
    path: Path,
    commit: str | None,
    progress: Progress,
) -> Synced:
    synced_at = now_ms()
    report = SnapshotReport()
    options = SnapshotOptions(progress=progress, times=False, must_be_whole=True)
    with store.batch() as batch:
        root = sources.store_source(store, batch, source=path, options=options, report=report)
        key = head_name(name, version)
        old = store.heads.get(key)
        record: dict[str, Any] = {
            "root": root,
            "source": sources.without_credentials(source)[:MAX_SOURCE_CHARS],
            "commit": commit and f"git:{commit}",  # prefixed: not taken for a ref
            "syncedAt": synced_at,
            "createdAt": old.record["createdAt"]
            if old and not head_kinds.fault(key, old)
            else synced_at,
        }
        new = Head(root, record)
        batch.swap(key, old, new)
    private = ", ".join(map(printable, sorted(report.local)))
    warning = f"private, left out: {private}; see [snapshot] work" if private else ""
    return Synced(of_head(key, new), stored=True, warning=warning)


def _upstream_warning(old: Plugin, source: str, env: Mapping[str, str]) -> str:
    """Returns how the source differs from the stored version, from one query; or empty."""
    if sources.without_credentials(source)[:MAX_SOURCE_CHARS] != old.source:
        return f"it was stored from {old.source}; use --refresh to take the given source"
    if old.commit is None:
        return ""
    try:
        _, upstream_commit = sources.upstream(source, old.version, env)
    except NotFound as error:
        return f"it no longer exists upstream: {error}"
    except Failed as error:
        return f"cannot check upstream: {error}"
    if upstream_commit == old.commit:
        return ""
    return f"it has moved: was {old.commit}, is {upstream_commit}; use --refresh to update"

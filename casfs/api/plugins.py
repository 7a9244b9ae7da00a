"""Plugins of a store: trees of a name and a version, stored once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from casfs.api.actions import NO_ENV
from casfs.api.trees import HostPath, Warn
from casfs.plugins import registry, transfer
from casfs.plugins.registry import Plugin
from casfs.store.store import Store


class Plugins:
    """The plugins of a store."""

    def __init__(self, store: Store, env: Mapping[str, str] = NO_ENV) -> None:
        self._store = store
        self._env = env

    def sync(
        self,
        name: str,
        version: str,
        source: HostPath,
        *,
        refresh: bool = False,
        warn: Warn | None = None,
    ) -> Plugin:
        """Stores a version from a directory, a tarball or a git repository, unless it is stored;
        `refresh` stores it again. Raises Invalid, NotFound, Failed."""
        synced = transfer.sync(
            self._store, name, version=version, source=str(source), env=self._env, refresh=refresh
        )
        if warn is not None and synced.warning:
            warn(synced.warning)
        return synced.plugin

    def materialize(self, name: str, version: str, target: HostPath) -> Plugin:
        """Restores a plugin to the directory `target`. Raises NotFound, Refused, Failed."""
        return transfer.materialize(self._store, name, version=version, target=Path(target))

    def list(self, name: str | None = None) -> list[Plugin]:
        """Returns all plugins, or the versions of one."""
        return registry.listing(self._store, name)

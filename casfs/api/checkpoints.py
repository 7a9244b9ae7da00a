"""Checkpoints of a store: create, list, find."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeAlias

from casfs.api.trees import HostPath, Warn, pass_on_report
from casfs.api.values import Checkpoint, from_ms
from casfs.checkpoints import checkpoint, create
from casfs.store.store import Store
from casfs.trees.snapshot.report import SnapshotOptions

Names: TypeAlias = list[str]  # `Checkpoints.list` hides the built-in


class Checkpoints:
    """The checkpoints of a store: trees recorded under a name, which gc keeps."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self,
        name: str,
        source: HostPath,
        message: str = "",
        *,
        default_excludes: bool = True,
        exclude: Sequence[str] = (),
        preserve: Collection[str] = (),
        max_bytes: int | None = None,
        skip_if_unchanged: bool = False,
        warn: Warn | None = None,
    ) -> Checkpoint:
        """Records the directory `source` under `name`; files unchanged since are not read again.

        `default_excludes`, `exclude` and `warn` are as for `Trees.build`; `preserve` may hold
        "mtime" and "mode"; more than `max_bytes` of files are refused; `skip_if_unchanged` returns
        the previous checkpoint where it has the same tree. Raises Invalid (the name, a pattern),
        NotFound (the directory), Failed, Refused; then nothing is recorded.
        """
        created = create.create(
            self._store,
            name,
            options=create.CreateOptions(
                defaults=default_excludes,
                patterns=exclude,
                snapshot=SnapshotOptions(preserve, max_bytes),
                skip_if_unchanged=skip_if_unchanged,
            ),
            directory=Path(source),
            message=message,
        )
        pass_on_report(created.report, warn)
        return _public(created.checkpoint)

    def list(self, name: str | None = None) -> list[Checkpoint]:
        """Returns the checkpoints of `name`, or all: by name, then oldest first."""
        return [_public(stored) for stored in checkpoint.listing(self._store, name)]

    def names(self) -> Names:
        """Returns every name that has a checkpoint, sorted."""
        return checkpoint.names(self._store)

    def find(self, revision: str) -> Checkpoint:
        """Returns a checkpoint: NAME (its newest), NAME~N, NAME@ID, NAME@{TIME}, or an ID.

        An id may be its beginning, or a part of its random end. Raises NotFound, Conflict
        (ambiguous), Invalid (a time).
        """
        return _public(checkpoint.find(self._store, revision))


def _public(stored: checkpoint.Checkpoint) -> Checkpoint:
    return Checkpoint(
        stored.name,
        stored.id,
        hash=stored.hash,
        root=stored.root,
        created_at=from_ms(stored.created_at),
        message=stored.message,
    )

"""`checkpoint create` in this process, without a daemon."""

from __future__ import annotations

from pathlib import Path

from casfs.checkpoints import checkpoint as checkpoints
from casfs.checkpoints.create import CreateOptions, create
from casfs.cli.checkpoint.list import recorded_size
from casfs.cli.checkpoint.options import RecordOptions
from casfs.cli.checkpoint.recorded import Recorded
from casfs.cli.common import open_store, read_input, step_secrets
from casfs.cli.json_values import record
from casfs.cli.progress import progress
from casfs.cli.snapshot_options import print_dry_run
from casfs.digest import hash_bytes
from casfs.errors import Usage
from casfs.store import tombstones
from casfs.store.store import Store
from casfs.trees.snapshot.report import SnapshotOptions


def record_here(path: Path, name: str, message: str, options: RecordOptions) -> Recorded | None:
    """Records a directory, or prints what would be recorded and returns None."""
    with open_store() as store, progress("recording", "files", _expected(store, name)) as update:
        reading = SnapshotOptions(_properties(options.preserve), options.max_size, update)
        if options.dry_run:
            checkpoints.check_name(name)
            print_dry_run(
                store,
                path,
                defaults=options.defaults,
                patterns=options.patterns,
                options=reading,
                with_derived=options.with_derived,
            )
            return None
        for name_of_file in options.allowed:
            _allow_purged(store, path / name_of_file)
        created = create(
            store,
            name,
            options=CreateOptions(
                defaults=options.defaults,
                patterns=options.patterns,
                snapshot=reading,
                skip_if_unchanged=options.skip_if_unchanged,
                with_derived=options.with_derived,
                allow_secret=options.allow_secret,
            ),
            directory=path,
            message=step_secrets().redact(message),
        )
    return Recorded(
        record(created.checkpoint),
        created.report,
        stats=created.stats,
        new_bytes=created.new_bytes,
        skipped=created.skipped,
    )


def _allow_purged(store: Store, path: Path) -> None:
    """Takes back the purge of what a file holds, if there was one. Raises NotFound, Failed."""
    hash = hash_bytes(read_input(str(path)))
    if tombstones.get(store, hash) is not None:
        tombstones.remove(store, hash)


def _expected(store: Store, name: str) -> int:
    """Returns the number of files in the previous checkpoint; 0 without one."""
    before = checkpoints.latest(store, name)
    return (before and recorded_size(store, before)[0]) or 0


def _properties(text: str) -> tuple[str, ...]:
    properties = tuple(part for part in text.split(",") if part)
    for part in properties:
        if part not in ("mtime", "mode"):
            raise Usage(f"--preserve {part!r}: give mtime, mode, or mtime,mode")
    return properties

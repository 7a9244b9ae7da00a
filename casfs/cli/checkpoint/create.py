"""`checkpoint create`: a directory recorded under a name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click

from casfs.checkpoints import checkpoint as checkpoints
from casfs.checkpoints.create import Created, CreateOptions
from casfs.checkpoints.create import create as create_checkpoint
from casfs.cli.checkpoint.by_daemon import create_by_daemon
from casfs.cli.checkpoint.list import recorded_size
from casfs.cli.common import (
    force_option,
    message_option,
    open_store,
    options_as,
    read_input,
    step_secrets,
)
from casfs.cli.json_values import record
from casfs.cli.output import echo_result, json_option
from casfs.cli.progress import progress
from casfs.cli.sizes import SizeOption
from casfs.cli.snapshot_options import (
    allow_secret_option,
    notes,
    print_dry_run,
    print_notes,
    snapshot_options,
)
from casfs.digest import hash_bytes
from casfs.errors import Usage
from casfs.store.store import Store
from casfs.system.home import refuse_home_or_root
from casfs.trees.snapshot.report import SnapshotOptions

DEFAULT_MAX_BYTES = 20 << 30


@dataclass(frozen=True, slots=True)
class RecordOptions:
    defaults: bool
    patterns: tuple[str, ...]
    dry_run: bool
    preserve: str
    max_size: int
    skip_if_unchanged: bool
    with_derived: bool
    allow_secret: bool
    allowed: tuple[str, ...]
    force: bool

    def is_plain(self) -> bool:
        """Returns whether it is to be recorded as a daemon records what it watches."""
        has_more = self.patterns or self.preserve or self.with_derived or self.allow_secret
        return self.defaults and not has_more and self.max_size == DEFAULT_MAX_BYTES


@click.command()
@click.argument("name")
@click.argument("directory")
@message_option
@snapshot_options
@click.option("--preserve", default="", metavar="mtime,mode", help="File attributes to record.")
@click.option("--max-size", type=SizeOption(), default=DEFAULT_MAX_BYTES, help="Size limit (20G).")
@click.option("--skip-if-unchanged", is_flag=True, help="Make none if it had the previous tree.")
@click.option("--with-derived", is_flag=True, help="Keep derived directories, in this store only.")
@allow_secret_option
@click.option(
    "--allow-purged", "allowed", multiple=True, metavar="PATH", help="Record it, though purged."
)
@force_option
@json_option
@options_as(RecordOptions)
def create(name: str, directory: str, message: str, options: RecordOptions) -> None:
    """Record DIRECTORY under NAME and print the checkpoint's id.

    Files unchanged since the last checkpoint are not read again. Private files (.env, id_ed25519,
    untracked files with a secret, …) are kept in this store only: a restore brings them back, and
    nothing else shows or sends them. Left out are .git, directories that are derived by evidence
    (node_modules beside a package.json, a CACHEDIR.TAG, …), and the patterns of .casfsignore and
    --exclude, in gitignore syntax. Permissions are recorded without the write bits of group and
    others; --preserve mode records all bits.

    \b
    casfs checkpoint create work ./project -m "before the refactoring"
    """
    path = Path(directory)
    refuse_home_or_root(path, options.force)
    message = step_secrets().redact(message)
    start = time.monotonic()
    with open_store() as store, progress("recording", "files", _expected(store, name)) as update:
        reading = SnapshotOptions(
            _properties(options.preserve), options.max_size, update, leaves_out_unreadable=True
        )
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
            return
        for name_of_file in options.allowed:
            _allow_purged(store, path / name_of_file)
        by_daemon = options.is_plain() and create_by_daemon(
            store, path, name=name, message=message, skip=options.skip_if_unchanged
        )
        created = by_daemon or create_checkpoint(
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
            message=message,
        )
    value = {
        **record(created.checkpoint),
        "skipped": created.skipped,
        "stats": created.stats,
        "read": created.report.read,
        "readBytes": created.report.read_bytes,
        "newBytes": created.new_bytes,
        "seconds": round(time.monotonic() - start, 3),
        **notes(created.report),
    }
    echo_result(value, _line(created, value["seconds"]))
    print_notes(created.report)


def _allow_purged(store: Store, path: Path) -> None:
    """Takes back the purge of what a file holds, if there was one. Raises NotFound, Failed."""
    from casfs.store import tombstones

    hash = hash_bytes(read_input(str(path)))
    if tombstones.get(store, hash) is not None:
        tombstones.remove(store, hash)


def _expected(store: Store, name: str) -> int:
    """Returns the number of files in the previous checkpoint; 0 without one."""
    before = checkpoints.latest(store, name)
    return (before and recorded_size(store, before)[0]) or 0


def _line(created: Created, seconds: float) -> str:
    stats = created.stats
    report = created.report
    changes = ", ".join(f"{stats[key]} {key}" for key in ("added", "modified", "deleted"))
    if created.skipped:
        changes = "unchanged"
    return (
        f"{created.checkpoint.id} {changes}; {report.files} files seen, {report.read} read,"
        f" {created.new_bytes} new bytes, {seconds:.2f} s"
    )


def _properties(text: str) -> tuple[str, ...]:
    properties = tuple(part for part in text.split(",") if part)
    for part in properties:
        if part not in ("mtime", "mode"):
            raise Usage(f"--preserve {part!r}: give mtime, mode, or mtime,mode")
    return properties

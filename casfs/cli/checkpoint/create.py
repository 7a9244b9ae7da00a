"""`checkpoint create`: a directory recorded under a name."""

from __future__ import annotations

import time
from pathlib import Path

import click

from casfs.checkpoints import checkpoint as checkpoints
from casfs.checkpoints.create import Created
from casfs.checkpoints.create import create as create_checkpoint
from casfs.cli.checkpoint.by_daemon import create_by_daemon
from casfs.cli.checkpoint.list import recorded_size
from casfs.cli.common import (
    force_option,
    json_option,
    message_option,
    open_store,
    read_input,
    refuse_home_or_root,
    step_secrets,
)
from casfs.cli.json_values import record
from casfs.cli.output import echo_result
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
from casfs.trees.snapshot.report import SnapshotOptions

DEFAULT_MAX_BYTES = 20 << 30


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
@click.pass_context
def create(
    ctx: click.Context,
    name: str,
    directory: str,
    message: str,
    defaults: bool,
    patterns: tuple[str, ...],
    dry_run: bool,
    preserve: str,
    max_size: int,
    skip_if_unchanged: bool,
    with_derived: bool,
    allow_secret: bool,
    allowed: tuple[str, ...],
    force: bool,
    as_json: bool,
) -> None:
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
    refuse_home_or_root(path, force)
    message = step_secrets().redact(message)
    start = time.monotonic()
    with open_store(ctx) as store, progress("recording", "files", _expected(store, name)) as update:
        options = SnapshotOptions(
            _properties(preserve), max_size, update, leaves_out_unreadable=True
        )
        if dry_run:
            checkpoints.check_name(name)
            print_dry_run(
                store,
                path,
                defaults=defaults,
                patterns=patterns,
                options=options,
                as_json=as_json,
                with_derived=with_derived,
            )
            return
        is_plain = defaults and not patterns and not preserve and max_size == DEFAULT_MAX_BYTES
        is_plain = is_plain and not with_derived and not allow_secret
        for name_of_file in allowed:
            _allow_purged(store, path / name_of_file)
        by_daemon = is_plain and create_by_daemon(
            store, path, name=name, message=message, skip=skip_if_unchanged
        )
        created = by_daemon or create_checkpoint(
            store,
            name,
            directory=path,
            message=message,
            defaults=defaults,
            patterns=patterns,
            options=options,
            skip_if_unchanged=skip_if_unchanged,
            with_derived=with_derived,
            allow_secret=allow_secret,
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
    echo_result(as_json, value, _line(created, value["seconds"]))
    print_notes(created.report, as_json)


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

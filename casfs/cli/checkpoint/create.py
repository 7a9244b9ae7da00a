"""`checkpoint create`: a directory recorded under a name."""

from __future__ import annotations

import time
from pathlib import Path

import click

from casfs.cli.checkpoint.by_daemon import record_by_daemon
from casfs.cli.checkpoint.options import DEFAULT_MAX_BYTES, RecordOptions
from casfs.cli.checkpoint.recorded import Recorded
from casfs.cli.common import force_option, message_option, options_as, store_root
from casfs.cli.output import json_option
from casfs.cli.sizes import SizeOption
from casfs.cli.snapshot_options import allow_secret_option, snapshot_options
from casfs.system.home import refuse_home_or_root


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
    start = time.monotonic()
    recorded: Recorded | None = None
    if options.is_plain():
        recorded = record_by_daemon(
            store_root(), path, name=name, message=message, skip=options.skip_if_unchanged
        )
    if recorded is None:
        # Not at the top: what the daemon records is recorded without all of this.
        from casfs.cli.checkpoint.record import record_here

        recorded = record_here(path, name, message, options)
    if recorded is not None:
        recorded.echo(time.monotonic() - start)

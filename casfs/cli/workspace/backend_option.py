"""The option `--backend`."""

from __future__ import annotations

import click

from casfs.workspaces import strategy_names

backend_option = click.option(
    "--backend",
    type=click.Choice(strategy_names.PREFERRED_FIRST),
    help="Default: the first that works. erofs-overlay: over an EROFS image (root); overlay: over"
    " the casfs mount (root); fuse-overlayfs: the same in user space; copy: a plain copy.",
)

"""Directories as Merkle trees."""

from __future__ import annotations

from pathlib import Path

import click

from casfs.cli.common import force_option, open_store
from casfs.cli.diff import diff
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.ls import ls
from casfs.cli.output import echo_result, json_option
from casfs.cli.restore import restore
from casfs.cli.snapshot_options import notes, print_dry_run, print_notes, snapshot_options
from casfs.system.home import refuse_home_or_root
from casfs.trees.snapshot import exclusions, policy, working_tree
from casfs.trees.snapshot.report import SnapshotOptions, SnapshotReport


@click.group(cls=LazyGroup)
def tree() -> None:
    """Directories as Merkle trees. A tree is named by its hash or by a checkpoint's name.

    \b
    casfs tree build ./project
    casfs tree diff work@20261122 work --stat
    """


@tree.command()
@click.argument("directory")
@snapshot_options
@force_option
@json_option
def build(
    directory: str, defaults: bool, patterns: tuple[str, ...], dry_run: bool, force: bool
) -> None:
    """Store the tree under DIRECTORY and print its root hash; no ref keeps it.

    What is left out, and which permissions are recorded: see `casfs checkpoint create --help`.

    \b
    casfs tree build ./project
    """
    path = Path(directory)
    report = SnapshotReport()
    refuse_home_or_root(path, force)
    with open_store() as store:
        if dry_run:
            options = SnapshotOptions()
            print_dry_run(store, path, defaults=defaults, patterns=patterns, options=options)
            return
        rules = exclusions.ignore_rules(store, path, report, defaults=defaults, patterns=patterns)
        scanner = policy.load(store).scanner()
        options = SnapshotOptions(scanner=scanner)
        with store.batch() as batch:
            root = working_tree.snapshot(
                store, batch, directory=path, rules=rules, report=report, options=options
            ).tree
    value = {"hash": root, "files": report.files, "bytes": report.bytes, **notes(report)}
    echo_result(value, root)
    print_notes(report)


@tree.command("ls")
@click.argument("tree", metavar="TREE")
@click.argument("path", default="")
@json_option
@click.pass_context
def ls_(ctx: click.Context, tree: str, path: str) -> None:
    """`casfs ls -l TREE:PATH`.

    \b
    casfs tree ls work src
    """
    ctx.invoke(ls, tree=f"{tree}:{path}" if path else tree, long=True)


tree.add_command(diff)
tree.add_command(restore)


@tree.command()
@click.argument("tree", metavar="TREE")
@click.argument("directory")
@click.option("--verify", is_flag=True, help="Hash all content first.")
@click.option("--with-local", is_flag=True, help="Also private and derived files.")
@json_option
@click.pass_context
def mount(ctx: click.Context, tree: str, directory: str, verify: bool, with_local: bool) -> None:
    """Mount TREE natively at DIRECTORY, read-only: no casfs process serves it.

    `workspace open --read-only --backend erofs-overlay`: requires root, and keeps the tree until
    `tree umount`, or until gc finds that a reboot has ended it.

    \b
    casfs tree mount work ./look
    casfs tree mount work@20261122 ./before
    """
    from casfs.cli.workspace.open import open_

    ctx.invoke(
        open_,
        tree=tree,
        directory=directory,
        read_only=True,
        backend="erofs-overlay",
        verify=verify,
        without_local=not with_local,
    )


@tree.command()
@click.argument("directory")
@json_option
@click.pass_context
def umount(ctx: click.Context, directory: str) -> None:
    """End the tree mount at DIRECTORY: `workspace close`.

    A container that uses it goes on with it; the tree is kept until the container ends.

    \b
    casfs tree umount ./look
    """
    from casfs.cli.workspace.commit import close

    ctx.invoke(close, directory=directory, force=False)

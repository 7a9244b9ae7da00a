"""Remotes: stores at another place, to push to, pull from and clone."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import click

from casfs.backend.derived import in_remote
from casfs.cli.common import check_store, json_option, open_store, server_options, store_root
from casfs.cli.json_values import record
from casfs.cli.output import echo_result, warn
from casfs.cli.progress import progress
from casfs.cli.table import Moment, Size, echo_table
from casfs.errors import Conflict, Failed, Invalid, NotFound, Refused, Usage
from casfs.removals import label
from casfs.system.clock import moment
from casfs.system.sizes import readable

ORIGIN = "origin"  # the remote of a clone


@click.group()
def remote() -> None:
    """Stores at another place: a bucket of S3 (s3://BUCKET/PREFIX) or a directory (file:///DIR).

    \b
    casfs remote add backup s3://backups/me --endpoint https://s3.example.org
    """


@remote.command()
@click.argument("name")
@click.argument("url")
@server_options
@json_option
@click.pass_context
def add(
    ctx: click.Context, name: str, url: str, endpoint: str | None, region: str | None, as_json: bool
) -> None:
    """Add a remote to config.toml, once its server has shown that no push can be lost there.

    Credentials come from the environment (AWS_ACCESS_KEY_ID and so on) or the usual AWS files.

    \b
    casfs remote add backup file:///mnt/disk/casfs
    """
    from casfs.object_storage.probe import probe
    from casfs.remotes import remote as remotes

    root, settings = store_root(ctx), remotes.Settings(url, endpoint, region)
    check_store(root)
    if name in remotes.listing(root):
        raise Conflict(f"there is a remote {name!r}; `casfs remote rm` removes it")
    remotes.check_name(name)
    storage = settings.storage()
    probe(storage)
    remotes.create(storage)
    remotes.save(root, name, settings)
    echo_result(as_json, {"name": name, **settings._asdict()}, f"{name} {url}")


@remote.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the remotes of the store.

    \b
    casfs remote list
    """
    from casfs.remotes.remote import listing

    found = [{"name": name, **one._asdict()} for name, one in listing(store_root(ctx)).items()]
    rows = [(one["name"], one["url"], one["endpoint"]) for one in found]
    echo_table(as_json, found, "NAME URL ENDPOINT", rows)


@remote.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also where it alone has some of the store's blobs.")
@json_option
@click.pass_context
def rm(ctx: click.Context, name: str, force: bool, as_json: bool) -> None:
    """Remove a remote from config.toml; what is in it stays.

    Refused while blobs of a lazy pull are there only: `casfs pull` without --lazy brings them.

    \b
    casfs remote rm backup
    """
    from casfs.remotes import remote as remotes

    root = store_root(ctx)
    with open_store(ctx) as store:
        count = sum(1 for _ in in_remote(store.blobs, name))
    if name not in remotes.listing(root):
        raise NotFound(f"no remote {name!r}; see `casfs remote list`")
    if count and not force:
        raise Refused(
            f"{count} blobs of this store are in {name} only; `casfs pull {name}` brings them,"
            " --force gives them up"
        )
    remotes.save(root, name, None)
    shutil.rmtree(root / remotes.DIRECTORY / name, ignore_errors=True)
    echo_result(as_json, {"name": name}, f"{name} removed; what is in it stays")


@remote.command()
@click.argument("name")
@json_option
@click.pass_context
def ls(ctx: click.Context, name: str, as_json: bool) -> None:
    """List what a remote holds: checkpoints, threads, workflows; their time, and a tree's size.

    \b
    casfs remote ls backup
    """
    from casfs.remotes import heads
    from casfs.remotes.remote import Remote

    with Remote.open(store_root(ctx), name) as opened:
        opened.catch_up()
        refs = opened.state.refs()
    found, rows = [], []
    for key, ref in refs.items():
        try:
            record = heads.parsed(key, ref).record
        except Invalid:  # pull skips it
            record = {}
        at, size = record.get("updatedAt") or record.get("createdAt") or 0, ref["size"]
        found.append({"name": key, "hash": ref["hash"], "at": moment(at or None), "size": size})
        rows.append((key, Moment(at), None if size is None else Size(size)))
    echo_table(as_json, found, "NAME DATE SIZE", rows, whole="NAME")


@remote.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Print what would change; change nothing.")
@json_option
@click.pass_context
def gc(ctx: click.Context, name: str, dry_run: bool, as_json: bool) -> None:
    """Delete what no name in the remote reaches, a day after it was found to be so.

    Pushes, pulls and other runs at the same time lose nothing.

    \b
    casfs remote gc backup --dry-run
    """
    from casfs.remotes import gc as collector
    from casfs.remotes.remote import Remote

    with Remote.open(store_root(ctx), name) as opened:
        done = collector.collect(opened, dry_run=dry_run)
    would = "would be " if dry_run else ""
    lines = [
        f"{done.packs} packs, {len(done.orphaned)} {would}given up,"
        f" {len(done.copied)} of them after a copy of what is in use",
        f"{len(done.deleted) + len(done.strays)} {would}deleted, {readable(done.bytes)}",
    ]
    echo_result(as_json, record(done), "\n".join(lines))


@remote.command()
@click.argument("name")
@click.option("--read-data", is_flag=True, help="Read every byte, not only nodes and indexes.")
@json_option
@click.pass_context
def fsck(ctx: click.Context, name: str, read_data: bool, as_json: bool) -> int:
    """Check a remote: its log, its packs, and all that its names reach; exit 1 for faults.

    \b
    casfs remote fsck backup --read-data
    """
    from casfs.cli.fsck import print_report
    from casfs.maintenance import fsck as checker
    from casfs.remotes.remote import Remote
    from casfs.remotes.view import opened

    with (
        Remote.open(store_root(ctx), name) as there,
        opened(there, read_data=read_data) as (view, _),
        progress("checking", "blobs", 0, 0) as update,
    ):
        report = checker.check(view, quarantine=False, progress=update)
    print_report(report, [], as_json)
    return Failed.exit_code if report.faults else 0


@click.command()
@click.argument("name", metavar="REMOTE")
@click.argument("revs", nargs=-1, metavar="REV...")
@click.option("--all", "everything", is_flag=True, help="All checkpoints, threads and workflows.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent; send nothing.")
@click.option("--delete", is_flag=True, help="Delete these names in the remote instead.")
@json_option
@click.pass_context
def push(
    ctx: click.Context, name: str, revs: tuple[str, ...],
    everything: bool, dry_run: bool, delete: bool, as_json: bool,
) -> None:  # fmt: skip
    """Push checkpoints (NAME, NAME@ID), threads with those that they called, workflows/NAME.

    Only what the remote lacks is sent; a push that was interrupted goes on where it was. A name
    that has moved there is refused (exit 4) unless yours follows from its value. What --delete
    leaves without a name, `casfs remote gc` frees.

    \b
    casfs push backup work
    casfs push backup --all
    """
    from casfs.remotes import heads, push
    from casfs.remotes.remote import Remote

    if everything == bool(revs) or (everything and delete):
        raise Usage("name what to push, or --all of it")
    with open_store(ctx) as store, Remote.open(store_root(ctx), name) as opened:
        if delete:
            gone = push.delete(opened, list(revs), dry_run=dry_run)
            verb = "would delete" if dry_run else "deleted"
            echo_result(as_json, record(gone), "\n".join(f"{verb} {label(x)}" for x in gone.refs))
            return
        wanted = heads.of_store(store, revs or heads.all_names(store))
        begin = partial(progress, "pushing", "blobs")
        done = push.push(store, opened, wanted, dry_run=dry_run, begin=begin)
    verb = "would push" if dry_run else "pushed"
    new = f"{done.nodes} nodes, {done.blobs} blobs, {readable(done.bytes)}"
    sent = "" if dry_run else f" as {readable(done.sent)} in {done.packs} packs"
    lines = [f"{verb} {label(one)}" for one in done.refs] or ["everything is there already"]
    echo_result(as_json, record(done), "\n".join([*lines, *([new + sent] * bool(done.refs))]))


@click.command()
@click.argument("name", metavar="REMOTE")
@click.argument("revs", nargs=-1, metavar="[REV]...")
@click.option("--lazy", is_flag=True, help="Nodes now; each file's content when it is read.")
@json_option
@click.pass_context
def pull(ctx: click.Context, name: str, revs: tuple[str, ...], lazy: bool, as_json: bool) -> None:
    """Pull what REMOTE has under these names, or all of it.

    A name that has moved here and there is refused (exit 4), and then none moves.

    \b
    casfs pull backup work --lazy
    """
    from casfs.remotes.remote import Remote

    with open_store(ctx) as store, Remote.open(store_root(ctx), name) as opened:
        _pull(store, opened, revs, lazy, as_json)


@click.command()
@click.argument("url")
@click.argument("directory", metavar="DIR")
@server_options
@click.option("--lazy", is_flag=True, help="Nodes now; each file's content when it is read.")
@json_option
@click.pass_context
def clone(
    ctx: click.Context, url: str, directory: str, endpoint: str | None, region: str | None,
    lazy: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make a new store in DIR of all that is at URL, which becomes its remote `origin`.

    Where it is interrupted, `casfs --store DIR pull origin` goes on.

    \b
    casfs clone s3://backups/me ./again --lazy
    """
    from casfs.remotes import remote as remotes
    from casfs.store import Store

    root, settings = Path(directory).absolute(), remotes.Settings(url, endpoint, region)
    remotes.check(settings.storage())
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise Refused(f"{root} is not empty; give a new directory, or pull into a store")
    with Store.init(root) as store:
        remotes.save(root, ORIGIN, settings)
        with remotes.Remote.open(root, ORIGIN) as opened:
            _pull(store, opened, (), lazy, as_json)


def _pull(store: Any, opened: Any, revs: tuple[str, ...], lazy: bool, as_json: bool) -> None:
    from casfs.remotes.pull import pull

    done = pull(store, opened, list(revs), lazy=lazy, begin=partial(progress, "pulling", "blobs"))
    for one in done.skipped:
        warn(f"{one} is skipped: this casfs does not know what it is, or its record is damaged")
    lines = [f"pulled {label(one)}" for one in done.refs] or ["everything is here already"]
    new = f"{done.nodes} nodes, {done.blobs} blobs{' to be read later' * lazy}"
    line = f"{new}, {readable(done.bytes)}"
    echo_result(as_json, record(done), "\n".join([*lines, *([line] * bool(done.refs))]))

"""Remotes: stores at another place. `casfs.cli.push_pull` has what moves by them."""

from __future__ import annotations

import shutil

import click

from casfs.backend.derived import in_remote
from casfs.cli.common import (
    check_store,
    open_store,
    server_options,
    store_root,
)
from casfs.cli.json_values import record
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_result, json_option
from casfs.cli.progress import progress
from casfs.cli.table import Moment, Size, echo_table
from casfs.cli.terminal import is_asked
from casfs.errors import Conflict, Failed, Invalid, NotFound, Refused
from casfs.system.clock import moment
from casfs.system.sizes import readable


@click.group(cls=LazyGroup)
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
def add(name: str, url: str, endpoint: str | None, region: str | None) -> None:
    """Add a remote to config.toml, once its server has shown that no push can be lost there.

    Credentials come from the environment (AWS_ACCESS_KEY_ID and so on) or the usual AWS files.

    \b
    casfs remote add backup file:///mnt/disk/casfs
    """
    from casfs.object_storage.probe import probe
    from casfs.remotes import remote as remotes

    root = store_root()
    settings = remotes.Settings(url, endpoint, region)
    check_store(root)
    if name in remotes.listing(root):
        raise Conflict(f"there is a remote {name!r}; `casfs remote rm` removes it")
    remotes.check_name(name)
    storage = settings.storage()
    probe(storage)
    remotes.create(storage)
    remotes.save(root, name, settings)
    echo_result({"name": name, **settings._asdict()}, f"{name} {url}")


@remote.command("list")
@json_option
def list_() -> None:
    """List the remotes of the store.

    \b
    casfs remote list
    """
    from casfs.remotes.remote import listing

    remotes = [
        {"name": name, **settings._asdict()} for name, settings in listing(store_root()).items()
    ]
    rows = [
        (
            remote["name"],
            remote["url"],
            remote["endpoint"],
            "trusted" if remote["trusted"] else None,
        )
        for remote in remotes
    ]
    echo_table(remotes, headers="NAME URL ENDPOINT TRUST", rows=rows)


@remote.command()
@click.argument("name")
@click.option("--force", is_flag=True, help="Also where it alone has some of the store's blobs.")
@json_option
def rm(name: str, force: bool) -> None:
    """Remove a remote from config.toml; what is in it stays.

    Refused while blobs of a lazy pull are there only: `casfs pull` without --lazy brings them.

    \b
    casfs remote rm backup
    """
    from casfs.remotes import remote as remotes

    root = store_root()
    with open_store() as store:
        count = sum(1 for _ in in_remote(store.blobs, name))
    if name not in remotes.listing(root):
        raise NotFound(f"no remote {name!r}; see `casfs remote list`")
    if count and not force:
        raise Refused(
            f"{count} blobs of this store are in {name} only; `casfs pull {name}` brings them,"
            " --force gives them up"
        )
    remotes.save(root, name, settings=None)
    shutil.rmtree(root / remotes.DIRECTORY / name, ignore_errors=True)
    echo_result({"name": name}, f"{name} removed; what is in it stays")


@remote.command()
@click.argument("name")
@click.option("--remove", is_flag=True, help="Trust it no longer; what it brought stays as it is.")
@click.option("--yes", is_flag=True, help="Do not ask on a terminal.")
@json_option
def trust(name: str, remove: bool, yes: bool) -> None:
    """Trust a remote that only your own machines write to; asks on a terminal, else needs --yes.

    What a pull brings from there then runs without a question, threads move forward, and
    checkpoints are added to those of this store. Who can write to it can run programs here.

    \b
    casfs remote trust backup
    casfs remote trust backup --remove
    """
    from casfs.remotes import remote as remotes

    root = store_root()
    check_store(root)
    settings = remotes.get(root, name)
    if not remove and not yes:
        if not is_asked():
            raise Refused("a remote is trusted by a person: on a terminal, or with --yes")
        click.echo(f"Who can write to {settings.url} can run programs here.", err=True)
        if not click.confirm(f"Trust {name} as your own?", err=True):
            raise Refused(f"{name} is not trusted")
    changed = settings._replace(trusted=not remove)
    remotes.save(root, name, changed)
    text = f"{name} is {'not ' * remove}trusted"
    echo_result({"name": name, **changed._asdict()}, text)


@remote.command()
@click.argument("name")
@json_option
def ls(name: str) -> None:
    """List what a remote holds: checkpoints, threads, workflows; their time, and a tree's size.

    \b
    casfs remote ls backup
    """
    from casfs.remotes import heads
    from casfs.remotes.purged import named
    from casfs.remotes.remote import Remote

    with Remote.open(store_root(), name) as opened:
        opened.catch_up()
        refs = named(opened.state.refs())
    json_rows = []
    rows = []
    for key, ref in refs.items():
        try:
            record = heads.parsed(key, ref).record
        except Invalid:  # pull skips it
            record = {}
        changed_at = record.get("updatedAt") or record.get("createdAt") or 0
        size = ref["size"]
        json_rows.append(
            {"name": key, "hash": ref["hash"], "at": moment(changed_at or None), "size": size}
        )
        rows.append((key, Moment(changed_at), None if size is None else Size(size)))
    echo_table(json_rows, headers="NAME DATE SIZE", rows=rows, whole="NAME")


@remote.command()
@click.argument("name")
@click.option("--dry-run", is_flag=True, help="Print what would change; change nothing.")
@json_option
def gc(name: str, dry_run: bool) -> None:
    """Delete what no name in the remote reaches, a day after it was found to be so.

    What was purged, as a push has told, is deleted at once, and so are the files that killed pushes
    have left in a directory. Pushes, pulls and other runs at the same time lose nothing.

    \b
    casfs remote gc backup --dry-run
    """
    from casfs.remotes import gc as collector
    from casfs.remotes.remote import Remote

    with Remote.open(store_root(), name) as opened:
        done = collector.collect(opened, dry_run=dry_run)
    would = "would be " if dry_run else ""
    lines = [
        f"{done.packs} packs, {len(done.orphaned)} {would}given up,"
        f" {len(done.copied)} of them after a copy of what is in use",
        f"{len(done.deleted) + len(done.strays)} {would}deleted, {readable(done.bytes)}",
    ]
    if done.unfinished:
        names = ", ".join(done.unfinished)
        lines.append(f"{len(done.unfinished)} files of killed pushes {would}deleted: {names}")
    if done.purged:
        lines.append(f"{len(done.purged)} packs with purged content {would}deleted at once")
    if done.entries:
        lines.append(f"{done.entries} entries of the log {would}rewritten without older records")
    echo_result(record(done), "\n".join(lines))


@remote.command()
@click.argument("name")
@click.option("--read-data", is_flag=True, help="Read every byte, not only nodes and indexes.")
@json_option
def fsck(name: str, read_data: bool) -> int:
    """Check a remote: its log, its packs, and all that its names reach; exit 1 for faults.

    \b
    casfs remote fsck backup --read-data
    """
    from casfs.cli.fsck import print_report
    from casfs.maintenance import fsck as checker
    from casfs.remotes.remote import Remote
    from casfs.remotes.view import opened

    with (
        Remote.open(store_root(), name) as there,
        opened(there, read_data=read_data) as (view, _),
        progress("checking", "blobs", total=0, total_bytes=0) as update,
    ):
        report = checker.check(view, quarantine=False, progress=update)
    print_report(report, [])
    return Failed.exit_code if report.faults else 0

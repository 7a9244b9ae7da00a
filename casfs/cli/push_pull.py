"""What moves between a store and its remotes: push, pull, and clone."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from casfs import config
from casfs.cli.arrived import arrived_lines, some_of
from casfs.cli.common import (
    open_store,
    options_as,
    server_options,
    store_root,
    with_local_option,
)
from casfs.cli.disclosed import agree
from casfs.cli.json_values import record
from casfs.cli.output import echo_result, json_option, warn
from casfs.cli.progress import progress
from casfs.cli.purged_paths import warn_purged
from casfs.cli.terminal import is_asked
from casfs.errors import Refused, Usage
from casfs.store.removals import label
from casfs.system.paths import printable
from casfs.system.sizes import readable

ORIGIN = "origin"  # the remote of a clone
MAX_NAMED = 20  # private files in the output of a push
COMMITS_HOME = "`casfs thread apply --commits` brings those of a thread into your repository"


class PushFlags(NamedTuple):
    everything: bool
    sessions: bool
    dry_run: bool
    yes: bool
    delete: bool
    with_local: bool


@click.command()
@click.argument("name", metavar="REMOTE")
@click.argument("revs", nargs=-1, metavar="REV...")
@click.option("--all", "everything", is_flag=True, help="All checkpoints, threads and workflows.")
@click.option("--sessions", is_flag=True, help="With --all: sessions of attached agents, too.")
@click.option("--dry-run", is_flag=True, help="Print what would be sent; send nothing.")
@click.option("--yes", is_flag=True, help="Send sessions without a question.")
@click.option("--delete", is_flag=True, help="Delete these names in the remote instead.")
@with_local_option
@json_option
@options_as(PushFlags)
def push(name: str, revs: tuple[str, ...], options: PushFlags) -> None:
    """Push checkpoints (NAME, NAME@ID), threads with those that they called, workflows/NAME.

    A session of an attached agent holds what you typed and it read: it leaves by its name, or with
    --all --sessions, after a question that says what is in it.

    Only what the remote lacks is sent; a push that was interrupted goes on where it was. A name
    that has moved there is refused (exit 4) unless yours follows from its value. What --delete
    leaves without a name, `casfs remote gc` frees.

    \b
    casfs push backup work
    casfs push backup --all
    """
    from casfs.cli.snapshot_options import TO_SHARE
    from casfs.remotes import heads, push, staying
    from casfs.remotes.remote import Remote

    everything = options.everything
    if everything == bool(revs) or (options.delete and (everything or options.with_local)):
        raise Usage("name what to push, or --all of it")
    if options.sessions and not everything:
        raise Usage("--sessions goes with --all; a session is also pushed by its name")
    with open_store() as store, Remote.open(store_root(), name) as opened:
        if options.delete:
            gone = push.delete(opened, list(revs), dry_run=options.dry_run)
            verb = "would delete" if options.dry_run else "deleted"
            echo_result(record(gone), "\n".join(f"{verb} {label(x)}" for x in gone.refs))
            return
        names = revs or heads.all_names(store, with_sessions=options.sessions)
        wanted = heads.of_store(store, names)
        staying_sessions = heads.sessions_besides(store, wanted) if everything else 0
        agree(store, wanted, yes=options.yes or options.dry_run, verb="send")
        begin = partial(progress, "pushing", "blobs")
        done = push.push(
            store,
            opened,
            wanted,
            dry_run=options.dry_run,
            begin=begin,
            with_local=options.with_local,
        )
        warn_purged(store, done.purged)
        stays = staying.NOTHING if options.with_local else staying.of_heads(store, wanted.values())
    verb = "would push" if options.dry_run else "pushed"
    new = f"{done.nodes} nodes, {done.blobs} blobs, {readable(done.bytes)}"
    sent = "" if options.dry_run else f" as {readable(done.sent)} in {done.packs} packs"
    is_new = bool(done.refs or done.nodes or done.blobs or done.tombstones)
    lines = [f"{verb} {label(ref)}" for ref in done.refs]
    if done.tombstones:
        what = "tombstones would go along" if options.dry_run else "tombstones went along"
        lines.append(f"{done.tombstones} {what}; `casfs remote gc {name}` deletes the bytes")
    lines.append(new + sent if is_new else "everything is there already")
    if stays.files:
        shown = [
            f"{printable(path)}:{line}" if line else printable(path) for path, line in stays.files
        ]
        suffix = f" and {len(shown) - MAX_NAMED} more" if len(shown) > MAX_NAMED else ""
        named = ", ".join(shown[:MAX_NAMED]) + suffix
        lines.append(f"private, stays here: {named} ({TO_SHARE}; --with-local sends all)")
    if stays.repositories:
        named = ", ".join(map(printable, stays.repositories[:MAX_NAMED]))
        lines.append(f"git repositories stay here with their commits: {named} ({COMMITS_HOME})")
    if staying_sessions:
        lines.append(
            f"sessions of attached agents stay here: {staying_sessions}; push one by its name, or"
            " --all --sessions"
        )
    private = [{"path": os.fsdecode(path), "line": line or None} for path, line in stays.files]
    git = [os.fsdecode(path) for path in stays.repositories]
    value = {**record(done), "private": private, "git": git, "sessions": staying_sessions}
    echo_result(value, "\n".join(lines))


@click.command()
@click.argument("name", metavar="REMOTE")
@click.argument("revs", nargs=-1, metavar="[REV]...")
@click.option("--lazy", is_flag=True, help="Nodes now; each file's content when it is read.")
@click.option("--purge", is_flag=True, help="Purge here, too, what was purged there.")
@click.option("--accept-rollback", is_flag=True, help="REMOTE may have lost what it had.")
@click.option("--replace", is_flag=True, help="Let names of this store give way to those there.")
@with_local_option
@json_option
def pull(
    name: str, revs: tuple[str, ...],
    lazy: bool, purge: bool, replace: bool, accept_rollback: bool, with_local: bool,
) -> None:  # fmt: skip
    """Pull what REMOTE has under these names, or all of it.

    A name moves only where it is here as it was last pulled from REMOTE, or pushed there; any other
    stays, and what REMOTE has is REMOTE.NAME. A thread moves forward only, after a question. What
    arrives runs after `casfs workflow trust` or `casfs thread trust`; that of one's own machines at
    once (`casfs remote trust`). What was purged there and is here stays, unless --purge says so.

    \b
    casfs pull backup work --lazy
    casfs pull backup workflows/develop --replace
    """
    from casfs.remotes.remote import Remote

    with open_store() as store, Remote.open(store_root(), name) as opened:
        if accept_rollback:
            opened.catch_up(accept_rollback=True)
        options = {"purge": purge, "replace": replace, "with_local": with_local}
        _pull(store, opened, revs=revs, lazy=lazy, **options)


@click.command()
@click.argument("url")
@click.argument("directory", metavar="DIR")
@server_options
@click.option("--lazy", is_flag=True, help="Nodes now; each file's content when it is read.")
@with_local_option
@json_option
def clone(
    url: str, directory: str, endpoint: str | None, region: str | None,
    lazy: bool, with_local: bool,
) -> None:  # fmt: skip
    """Make a new store in DIR of all that is at URL, which becomes its remote `origin`.

    Where it is interrupted, the same command goes on, and fetches only the rest.

    \b
    casfs clone s3://backups/me ./again --lazy
    """
    from casfs.remotes import remote as remotes
    from casfs.store.store import Store
    from engine.workflow import shipped

    root = Path(directory).absolute()
    settings = remotes.Settings(url, endpoint, region)
    remotes.check(settings.storage())
    _check_target(root, settings)
    with Store.init(root) as store:
        shipped.install(store)  # first: a remote's workflow does not take one of their names
        remotes.save(root, ORIGIN, settings)
        with remotes.Remote.open(root, ORIGIN) as opened:
            _pull(store, opened, revs=(), lazy=lazy, with_local=with_local)


def _check_target(root: Path, settings: Any) -> None:
    """Raises Refused for a directory with anything but a clone of the same remote, begun or done:
    `clone` makes the store, then notes the remote, then pulls."""
    from casfs.remotes import remote as remotes
    from casfs.store.store import Store

    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return
    known = remotes.listing(root).get(ORIGIN) if root.is_dir() else None
    if known is not None and known._replace(trusted=False) == settings:
        return
    is_begun = root.is_dir() and not (root / config.FILE).exists()
    if is_begun and Store.check_init(root) is not None:
        with Store.open(root) as store:
            is_begun = all(_is_shipped(name, head) for name, head in store.heads.list())
    if not is_begun:
        raise Refused(f"{root} is not empty; give a new directory, or pull into a store")


def _is_shipped(name: str, head: Any) -> bool:
    """Whether a new store has this name by itself."""
    return name.startswith("schemas/") or bool(head.record.get("builtin"))


def _asks(remote: str, thread: Any) -> bool:
    text = f"Thread {thread.id} has moved on in {remote}. Take that? (Yours: `casfs undo --store`.)"
    return click.confirm(text, err=True)


def _pull(
    store: Any,
    opened: Any,
    revs: tuple[str, ...],
    lazy: bool,
    *,
    purge: bool = False,
    replace: bool = False,
    with_local: bool = False,
) -> None:
    from casfs.remotes.pull import PullOptions, pull

    done = pull(
        store,
        opened,
        list(revs),
        lazy=lazy,
        begin=partial(progress, "pulling", "blobs"),
        options=PullOptions(
            purge=purge,
            replace=replace,
            with_local=with_local,
            asks=partial(_asks, opened.name) if is_asked() else None,
        ),
    )
    for text in done.skipped:
        warn(f"{text} is skipped: this casfs does not know what it is, or its record is damaged")
    for text in some_of([f"stays: {why}" for why in done.stayed.values()]):
        warn(text)
    if done.kept:
        warn(
            f"purged in {opened.name}, and kept here: {len(done.kept)} contents;"
            f" `casfs pull {opened.name} --purge` removes them too"
        )
    if done.purged:
        warn(f"purged in {opened.name}: {done.purged} contents; see `casfs purge --list`")
    lines = arrived_lines(
        store, "pulled", names=done.refs, replaced=done.replaced, renamed=done.renamed
    )
    lines = lines or ["everything is here already"] * (not done.stayed)
    new = f"{done.nodes} nodes, {done.blobs} blobs{' to be read later' * lazy}"
    line = f"{new}, {readable(done.bytes)}"
    echo_result(record(done), "\n".join([*lines, *([line] * bool(done.refs))]))

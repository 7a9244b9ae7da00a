"""The long-lived processes, and how things stand: mount, umount, daemon, status, config."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from casfs import config as settings
from casfs.cli import background
from casfs.cli.common import answer, json_option, opened, root, say, say_json
from casfs.errors import CasfsError, NotFound
from casfs.log import Log, to_file
from casfs.store import Store

if TYPE_CHECKING:
    from engine.workspace import Workspaces

foreground_option = click.option("--foreground", is_flag=True, help="Do not go to the background.")
ready_option = click.option("--ready-fd", type=int, hidden=True)


@click.command()
@click.argument("directory")
@click.option("--allow-other", is_flag=True, help="Let other users in, too.")
@click.option("--xattr", is_flag=True, help="Answer user.blake3 (slower listings).")
@foreground_option
@ready_option
@json_option
@click.pass_context
def mount(
    ctx: click.Context,
    directory: str,
    allow_other: bool,
    xattr: bool,
    foreground: bool,
    ready_fd: int | None,
    as_json: bool,
) -> None:
    """Show the store as read-only files under DIRECTORY, an empty directory.

    Returns when the mount answers. End it with `casfs umount DIRECTORY`.
    """
    from casfs import mount as mounts

    where, point = root(ctx), Path(directory).absolute()
    if not (foreground or ready_fd):
        flags = ["--allow-other"] * allow_other + ["--xattr"] * xattr
        with Store.open(where) as store:
            mounts.check(store, point)
        arguments = ["--store", str(where), "mount", str(point), *flags]
        pid = background.detach(arguments, where / "log" / "mount.err")
        answer(as_json, {"mount": str(point), "pid": pid}, f"{point} mounted (pid {pid})")
        return
    log = to_file(where / "log" / "mount.jsonl")

    def serve(ready: Callable[[], None]) -> None:
        with Store.open(where) as store:
            mounts.serve(
                store, point, allow_other=allow_other, xattr=xattr, on_ready=ready, log=log
            )

    _be(serve, ready_fd)


@click.command()
@click.argument("directory")
@click.option("-l", "--lazy", is_flag=True, help="Even when it is in use.")
@json_option
@click.pass_context
def umount(ctx: click.Context, directory: str, lazy: bool, as_json: bool) -> None:
    """End the mount at DIRECTORY; returns when it is over.

    A workspace that is unmounted keeps its changes, and is opened again by `workspace open`.
    """
    from casfs import mount as mounts
    from casfs.workspaces import workspace

    point = workspace.absolute(Path(directory))
    try:
        with opened(ctx) as store:
            workspace.detach(workspace.find(store, point), lazy=lazy)
    except NotFound:  # no such workspace, or no store at all
        mounts.unmount(point, lazy=lazy)
    answer(as_json, {"unmounted": directory}, f"{directory} unmounted")


@click.command()
@click.argument("verb", type=click.Choice(["start", "stop"]), default="start", metavar="[stop]")
@foreground_option
@ready_option
@json_option
@click.pass_context
def daemon(
    ctx: click.Context, verb: str, foreground: bool, ready_fd: int | None, as_json: bool
) -> None:
    """Run the threads of the store in the background; `casfs daemon stop` ends it.

    Threads that were running when a daemon ended, however it ended, are carried on.
    """
    from engine import control

    where = root(ctx)
    if verb == "stop":
        Store.open(where).close()
        pid = control.stop(where)
        answer(as_json, {"pid": pid}, f"{pid} stopped")
        return
    if not (foreground or ready_fd):
        Store.open(where).close()
        arguments = ["--store", str(where), "daemon"]
        pid = background.detach(arguments, where / "log" / "daemon.err")
        answer(as_json, {"pid": pid}, f"{pid} daemon of {where}")
        return
    from engine.daemon import serve

    values = {value.setting.name: value.value for value in settings.load(where, os.environ)}
    path = control.socket_path(where, os.environ)
    log = to_file(where / "log" / "daemon.jsonl")
    limit, upkeep = values["threads.limit"], _upkeep(values)
    made = _workspaces(where, log)
    _be(
        lambda ready: serve(where, path, dict(os.environ), limit, upkeep, log, ready, made),
        ready_fd,
    )


def _workspaces(where: Path, log: Log) -> Workspaces:
    """Overlays for root, who alone may mount them; copies for everybody else."""
    from casfs.cli import lower
    from casfs.workspaces import ways
    from engine.layered import Layered
    from engine.workspace import PLAIN, Workspace, Workspaces

    if ways.WAYS[ways.OVERLAY].missing() is not None:
        return PLAIN

    def open(store: Store, folder: Path) -> Workspace:
        return Layered(store, folder, lambda hash: lower.tree(store, os.environ, hash), log)

    return Workspaces(open, lambda: lower.end(where, os.environ))


def _upkeep(values: Mapping[str, Any]) -> Callable[[Store], None] | None:
    """What the daemon does to keep the limits of the config; nothing where there are none."""
    from casfs.upkeep import gc

    if not values["gc.max_size"] and not values["gc.max_inodes"]:
        return None
    limits = gc.Limits(values["gc.max_size"] or None, values["gc.max_inodes"] or None)
    grace, keep = values["gc.grace_s"], values["gc.keep_checkpoints"]

    def collect(store: Store) -> None:
        gc.collect(store, grace=grace, limits=limits, keep=keep)

    return collect


@click.command()
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Where the store is, whether its daemon runs, where it is mounted."""
    from casfs import mount as mounts
    from engine import control

    with opened(ctx) as store:
        assert store.root is not None
        found = control.find(store.root)
        points = [str(point) for point in mounts.mounted(store.root)]
        value = {"store": str(store.root), "daemon": found, "mounts": points}
    if as_json:
        say_json(value)
        return
    say(f"store   {value['store']}")
    say(f"daemon  pid {found['pid']}, {found['socket']}" if found else "daemon  none")
    for point in points:
        say(f"mount   {point}")


@click.command()
@json_option
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Print each setting, its value and where the value is from."""
    where = settings.store_root(ctx.find_root().obj, os.environ)
    values = [where, *settings.load(where.value, os.environ)]
    if as_json:
        say_json(
            [{"name": v.setting.name, "value": _plain(v.value), "from": v.origin} for v in values]
        )
    else:
        for value in values:
            say(f"{value.setting.name} = {value.value}  ({value.origin}; {value.setting.help})")


def _be(serve: Callable[[Callable[[], None]], None], ready_fd: int | None) -> None:
    """Be the process: report to whoever waits when it is ready, or why it never will be."""
    report = background.reporter(ready_fd)
    reported = False

    def ready() -> None:
        nonlocal reported
        reported = True
        report(background.READY)

    try:
        serve(ready)
    except (CasfsError, OSError) as error:
        if not reported:
            report(" ".join(str(error).split("\n")))
        raise


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value

"""The long-lived processes, and how things stand: mount, umount, daemon, status, config."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from casfs import config as settings
from casfs.cli import background
from casfs.cli.common import answer, json_option, opened, root, say, say_json
from casfs.errors import CasfsError, Invalid, NotFound, Usage
from casfs.system.log import Log, to_file

if TYPE_CHECKING:
    from casfs.mount.worker import Plan
    from casfs.store import Store
    from engine.runtime.workspace import Workspaces

TRANSPORTS = ("auto", "kernel", "pyfuse3")
foreground_option = click.option("--foreground", is_flag=True, help="Do not go to the background.")
ready_option = click.option("--ready-fd", type=int, hidden=True)


@click.command()
@click.argument("directory")
@click.option("--allow-other", is_flag=True, help="Let other users in, too.")
@click.option("--xattr", is_flag=True, help="Answer user.blake3 (slower listings).")
@click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    help="Who speaks to the kernel: ours (kernel), pyfuse3, or ours where it works (auto).",
)
@click.option("--replace", is_flag=True, help="Have a mount served by the program as it is now.")
@click.option("--resume", hidden=True)
@foreground_option
@ready_option
@json_option
@click.pass_context
def mount(
    ctx: click.Context,
    directory: str,
    allow_other: bool,
    xattr: bool,
    transport: str | None,
    replace: bool,
    resume: str | None,
    foreground: bool,
    ready_fd: int | None,
    as_json: bool,
) -> None:
    """Show the store as read-only files under DIRECTORY, an empty directory.

    Returns when the mount answers. End it with `casfs umount DIRECTORY`.
    """
    where, point = root(ctx), Path(directory).absolute()
    if replace:
        if allow_other or xattr or transport:
            raise Usage("--replace keeps a mount as it is: give no other option")
        _replace(where, point, as_json)
        return
    flags = ["--allow-other"] * allow_other + ["--xattr"] * xattr
    if foreground or ready_fd or resume:
        _keep(
            lambda: _plan(where, point, transport, allow_other, xattr, resume is not None),
            flags,
            resume,
            background.Reporter(ready_fd),
        )
        return
    if not (where / "log").is_dir():  # no store: say so in the usual words
        _check_store(where)
    flags += ["--transport", transport] if transport else []
    pid = background.detach(
        ["--store", str(where), "mount", str(point), *flags], where / "log" / "mount.err"
    )
    answer(as_json, {"mount": str(point), "pid": pid}, f"{point} mounted (pid {pid})")


def _plan(
    where: Path, point: Path, transport: str | None, allow_other: bool, xattr: bool, mounted: bool
) -> Plan:
    from casfs.mount import mount_points as mounts
    from casfs.mount.worker import Plan

    if not mounted:
        _check_store(where)
        point = mounts.check(where, point)
    if transport is None:
        values = {value.setting.name: value for value in settings.load(where, os.environ)}
        found = values["mount.transport"]
        transport = found.value
        if transport not in TRANSPORTS:
            known = ", ".join(TRANSPORTS)
            raise Invalid(f"{found.origin}: no transport {transport!r}; there are {known}")
    return Plan(where, point, mounts.source(where), transport, allow_other, xattr)


def _keep(
    make: Callable[[], Plan], flags: list[str], state: str | None, report: background.Reporter
) -> None:
    from casfs.mount import supervisor

    def serve(ready: Callable[[], None]) -> None:
        plan = make()

        def again(transport: str, left: str) -> list[str]:
            program = [sys.executable, "-m", "casfs", "--store", str(plan.store)]
            chosen = ["--transport", transport, *flags]
            return [*program, "mount", str(plan.point), "--foreground", *chosen, "--resume", left]

        log = to_file(plan.store / "log" / "mount.jsonl")
        caller = supervisor.Caller(ready, report.close, again)
        if state is None:
            supervisor.keep(plan, caller, log)
        else:
            supervisor.resume(plan, caller, state, log)

    _be(serve, report)


def _replace(where: Path, point: Path, as_json: bool) -> None:
    from casfs.mount import mount_points as mounts
    from casfs.mount import supervisor

    now = supervisor.replace_program(mounts.served(where, point))
    line = f"{now.mount} served anew (pid {now.keeper})"
    answer(as_json, {"mount": str(now.mount), "pid": now.keeper}, line)


@click.command()
@click.argument("directory")
@click.option("-l", "--lazy", is_flag=True, help="Even when it is in use.")
@json_option
@click.pass_context
def umount(ctx: click.Context, directory: str, lazy: bool, as_json: bool) -> None:
    """End the mount at DIRECTORY; returns when it is over.

    A workspace that is unmounted keeps its changes, and is opened again by `workspace open`.
    When it is busy, the message names who uses it; with -l those go on until they are done.
    """
    from casfs.mount import mount_points as mounts
    from casfs.workspaces import lifecycle, registry

    point = registry.absolute(Path(directory))
    try:
        with opened(ctx) as store:
            lifecycle.detach(registry.find(store, point), lazy=lazy)
    except NotFound:  # no such workspace, or no store at all
        mounts.unmount(point, root=root(ctx), lazy=lazy)
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
    from casfs import daemon_socket

    where = root(ctx)
    if verb == "stop":
        _check_store(where)
        pid = daemon_socket.stop(where)
        answer(as_json, {"pid": pid}, f"{pid} stopped")
        return
    if not (foreground or ready_fd):
        _check_store(where)
        arguments = ["--store", str(where), "daemon"]
        pid = background.detach(arguments, where / "log" / "daemon.err")
        answer(as_json, {"pid": pid}, f"{pid} daemon of {where}")
        return
    from engine.llm.llm_extractor import from_settings
    from engine.runtime.daemon import serve

    values = settings.values(where, os.environ)
    path = daemon_socket.socket_path(where, os.environ)
    log = to_file(where / "log" / "daemon.jsonl")
    limit, upkeep = values["threads.limit"], _upkeep(values)
    made = _workspaces(where, log)

    def be(ready: Callable[[], None]) -> None:
        extractor = from_settings(values, os.environ, log)
        serve(where, path, dict(os.environ), limit, upkeep, log, ready, made, extractor)

    _be(be, background.Reporter(ready_fd))


def _workspaces(where: Path, log: Log) -> Workspaces:
    """Overlays for root, who alone may mount them, over a mount only where the kernel cannot show
    a tree alone; copies for everybody else."""
    from casfs.cli import implicit_mount
    from casfs.workspaces import strategies
    from engine.runtime.overlay_workspace import OverlayWorkspace
    from engine.runtime.workspace import COPYING, Workspace, Workspaces

    if strategies.WAYS[strategies.OVERLAY].missing() is not None:
        return COPYING

    def open(store: Store, folder: Path) -> Workspace:
        return OverlayWorkspace(
            store, folder, lambda hash: implicit_mount.tree(store, os.environ, hash), log
        )

    return Workspaces(open, lambda: implicit_mount.end(where, os.environ))


def _upkeep(values: Mapping[str, Any]) -> Callable[[Store], None] | None:
    """What the daemon does to keep the limits of the config; nothing where there are none."""
    from casfs.maintenance import gc

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
    from casfs import daemon_socket
    from casfs.mount import mount_points as mounts
    from casfs.mount import registry as records

    with opened(ctx) as store:
        assert store.root is not None
        found = daemon_socket.find(store.root)
        points = [str(point) for point in mounts.mounted(store.root)]
        serving = {str(one.mount): one for one in records.listing(store.root)}
        value = {
            "store": str(store.root),
            "daemon": found,
            "mounts": points,
            "serving": [one.as_json() for one in serving.values()],
        }
    if as_json:
        say_json(value)
        return
    say(f"store   {value['store']}")
    say(f"daemon  pid {found['pid']}, {found['socket']}" if found else "daemon  none")
    for point in points:
        say(f"mount   {point}")
        if point in serving:
            say(f"        {serving[point]}")


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


def _be(serve: Callable[[Callable[[], None]], None], report: background.Reporter) -> None:
    """Be the process: report to whoever waits when it is ready, or why it never will be."""
    try:
        serve(lambda: report(background.READY))
    except (CasfsError, OSError) as error:
        report(" ".join(str(error).split("\n")))
        raise


def _check_store(where: Path) -> None:
    """Raises what opening it does."""
    from casfs.store import Store

    Store.open(where).close()


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value

"""The mount of the whole store: mount, umount."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from casfs import config
from casfs.cli import background
from casfs.cli.background import foreground_option, ready_option
from casfs.cli.common import check_store, json_option, open_store, store_root
from casfs.cli.output import echo_result
from casfs.errors import Invalid, NotFound, Usage
from casfs.system.log import to_file

if TYPE_CHECKING:
    from casfs.mount.worker import MountOptions

TRANSPORTS = ("auto", "builtin", "libfuse")
TRANSPORT_ALIASES = {"kernel": "builtin", "pyfuse3": "libfuse"}  # accepted, not shown


class Transport(click.Choice[str]):
    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        return super().convert(TRANSPORT_ALIASES.get(value, value), param, ctx)


@click.command()
@click.argument("directory")
@click.option("--allow-other", is_flag=True, help="Give other users access.")
@click.option("--xattr", is_flag=True, help="Answer user.blake3 (slower listings).")
@click.option(
    "--transport",
    type=Transport(TRANSPORTS),
    help="FUSE implementation: builtin, libfuse (by pyfuse3), or auto (builtin where it works).",
)
@click.option("--with-local", is_flag=True, help="Show private and derived files, too.")
@click.option("--replace", is_flag=True, help="Serve an existing mount with the current program.")
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
    with_local: bool,
    replace: bool,
    resume: str | None,
    foreground: bool,
    ready_fd: int | None,
    as_json: bool,
) -> None:
    """Show the store as read-only files under DIRECTORY, an empty or new directory.

    Returns when the mount answers. End it with `casfs umount DIRECTORY`.
    """
    root = store_root(ctx)
    point = Path(directory).absolute()
    if replace:
        if allow_other or xattr or transport or with_local:
            raise Usage("--replace keeps a mount as it is: give no other option")
        _replace(root, point, as_json)
        return
    flags = ["--allow-other"] * allow_other + ["--xattr"] * xattr
    flags += ["--with-local"] * with_local
    if foreground or ready_fd or resume:

        def options() -> MountOptions:
            mount_options = _options(
                root,
                point,
                transport=transport,
                allow_other=allow_other,
                xattr=xattr,
                mounted=resume is not None,
            )
            return replace_fields(mount_options, with_local=with_local)

        _serve(
            options,
            flags,
            state=resume,
            report=background.Reporter(ready_fd),
        )
        return
    if not (root / "log").is_dir():
        check_store(root)  # raises: no store
    flags += ["--transport", transport] if transport else []
    with _made(point):
        pid = background.start(root, ["mount", str(point), *flags], "mount.err")
    echo_result(as_json, {"mount": str(point), "pid": pid}, f"{point} mounted (pid {pid})")


@contextmanager
def _made(point: Path) -> Iterator[None]:
    """Makes the mount point where only it is missing; it goes again when the mount fails."""
    try:
        point.mkdir()
    except OSError:  # it is there, or starting the mount says what is wrong
        yield
        return
    try:
        yield
    except BaseException:
        with suppress(OSError):
            point.rmdir()
        raise


def _options(
    root: Path, point: Path, transport: str | None, allow_other: bool, xattr: bool, mounted: bool
) -> MountOptions:
    from casfs.mount import mount_points
    from casfs.mount.worker import MountOptions
    from casfs.system import store_mounts

    if not mounted:
        check_store(root)
        point = mount_points.check(root, point)
    if transport is None:
        values = {value.setting.name: value for value in config.load(root, os.environ)}
        setting = values["mount.transport"]
        transport = TRANSPORT_ALIASES.get(setting.value, setting.value)
        if transport not in TRANSPORTS:
            known = ", ".join(TRANSPORTS)
            raise Invalid(f"{setting.origin}: no transport {transport!r}; there are {known}")
    return MountOptions(
        root,
        point,
        source=store_mounts.source(root),
        transport=transport,
        allow_other=allow_other,
        xattr=xattr,
    )


def _serve(
    make: Callable[[], MountOptions],
    flags: list[str],
    state: str | None,
    report: background.Reporter,
) -> None:
    from casfs.mount import supervisor

    def run(ready: Callable[[], None]) -> None:
        options = make()

        def command(transport: str, state: str) -> list[str]:
            program = [sys.executable, "-P", "-m", "casfs", "--store", str(options.store)]
            chosen = ["--foreground", "--transport", transport, *flags]
            return [*program, "mount", str(options.point), *chosen, "--resume", state]

        log = to_file(options.store / "log" / "mount.jsonl")
        hooks = supervisor.SupervisorHooks(ready, report.close, command)
        if state is None:
            supervisor.supervise(options, hooks, log)
        else:
            supervisor.resume(options, hooks, state=state, log=log)

    background.serve(run, report)


def _replace(root: Path, point: Path, as_json: bool) -> None:
    from casfs.mount import mount_points, supervisor

    state = supervisor.replace_program(mount_points.served(root, point))
    line = f"{state.mount} served by the current program (pid {state.supervisor})"
    echo_result(as_json, {"mount": str(state.mount), "pid": state.supervisor}, line)


@click.command()
@click.argument("directory")
@click.option("-l", "--lazy", is_flag=True, help="Also while it is in use.")
@json_option
@click.pass_context
def umount(ctx: click.Context, directory: str, lazy: bool, as_json: bool) -> None:
    """End the mount at DIRECTORY; returns when it has ended.

    An unmounted workspace keeps its changes; `workspace open` opens it again. When the mount
    is busy, the message names the processes that use it; with -l they go on until they end.
    """
    from casfs.mount import mount_points
    from casfs.workspaces import lifecycle, registry

    point = registry.absolute(Path(directory))
    try:
        with open_store(ctx) as store:
            lifecycle.detach(registry.find(store, point), lazy=lazy)
    except NotFound:  # no such workspace, or no store at all
        mount_points.unmount(point, root=store_root(ctx), lazy=lazy)
    echo_result(as_json, {"unmounted": directory}, f"{directory} unmounted")

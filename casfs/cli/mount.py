"""The mount of the whole store: mount, umount."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from casfs import config
from casfs.cli import background
from casfs.cli.background import foreground_option, ready_option
from casfs.cli.common import check_store, open_store, options_as, store_root
from casfs.cli.output import echo_result, json_option
from casfs.errors import Invalid, NotFound, Usage
from casfs.system.log import to_file

if TYPE_CHECKING:
    from casfs.mount.worker import MountOptions

TRANSPORTS = ("builtin", "libfuse")
NATIVE = ("auto", "off")
NO_ALIASES: Mapping[str, str] = {}
TRANSPORT_ALIASES = {"auto": "builtin", "kernel": "builtin", "pyfuse3": "libfuse"}  # not shown


class Transport(click.Choice[str]):
    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        return super().convert(TRANSPORT_ALIASES.get(value, value), param, ctx)


class Flags(NamedTuple):
    allow_other: bool
    xattr: bool
    transport: str | None
    native: str | None
    with_local: bool

    def words(self) -> list[str]:
        """Returns the options as words of a command, but for those with a value."""
        words = {
            "allow-other": self.allow_other,
            "xattr": self.xattr,
            "with-local": self.with_local,
        }
        return [f"--{word}" for word, is_set in words.items() if is_set]

    def values(self) -> list[str]:
        """Returns the other options, with their values."""
        values = {"transport": self.transport, "native": self.native}
        return [word for name, value in values.items() if value for word in (f"--{name}", value)]


@click.command()
@click.argument("directory")
@click.option("--allow-other", is_flag=True, help="Give other users access.")
@click.option("--xattr", is_flag=True, help="Answer user.blake3 (slower listings).")
@click.option(
    "--transport",
    type=Transport(TRANSPORTS),
    help="FUSE implementation: builtin, or libfuse (by pyfuse3).",
)
@click.option(
    "--native",
    type=click.Choice(NATIVE),
    help="For root: whether trees that are walked are mounted by the kernel, too.",
)
@click.option("--with-local", is_flag=True, help="Show private and derived files, too.")
@click.option("--replace", is_flag=True, help="Serve an existing mount with the current program.")
@click.option("--resume", hidden=True)
@foreground_option
@ready_option
@json_option
@options_as(Flags)
def mount(
    directory: str,
    replace: bool,
    resume: str | None,
    foreground: bool,
    ready_fd: int | None,
    options: Flags,
) -> None:
    """Show the store as read-only files under DIRECTORY, an empty or new directory.

    Returns when the mount answers. End it with `casfs umount DIRECTORY`.
    """
    root = store_root()
    point = Path(directory).absolute()
    if replace:
        if options.words() or options.values():
            raise Usage("--replace keeps a mount as it is: give no other option")
        _replace(root, point)
        return
    if foreground or ready_fd or resume:
        _serve(
            lambda: _mount_options(root, point, options, mounted=resume is not None),
            options.words(),
            state=resume,
            report=background.Reporter(ready_fd),
        )
        return
    if not (root / "log").is_dir():
        check_store(root)  # raises: no store
    words = [*options.words(), *options.values()]
    with _made(point):
        pid = background.start(root, ["mount", str(point), *words], "mount.err")
    echo_result({"mount": str(point), "pid": pid}, f"{point} mounted (pid {pid})")


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


def _mount_options(root: Path, point: Path, flags: Flags, mounted: bool) -> MountOptions:
    from casfs.mount import mount_points
    from casfs.mount.worker import MountOptions
    from casfs.system import store_mounts

    if not mounted:
        check_store(root)
        point = mount_points.check(root, point)
    transport = flags.transport or _setting(
        root, "mount.transport", TRANSPORTS, aliases=TRANSPORT_ALIASES
    )
    # Only root may mount, only FUSE answers user.blake3, only the built-in transport sees walks.
    may_be_native = os.geteuid() == 0 and transport == "builtin" and not flags.xattr
    native = may_be_native and (flags.native or _setting(root, "mount.native", NATIVE)) == "auto"
    return MountOptions(
        root,
        point,
        source=store_mounts.source(root),
        transport=transport,
        allow_other=flags.allow_other,
        xattr=flags.xattr,
        with_local=flags.with_local,
        native=native,
    )


def _setting(
    root: Path, name: str, known: tuple[str, ...], aliases: Mapping[str, str] = NO_ALIASES
) -> str:
    """Returns the value of a setting, one of `known`. Raises Invalid."""
    (value,) = (value for value in config.load(root, os.environ) if value.setting.name == name)
    chosen = aliases.get(value.value, str(value.value))
    if chosen not in known:
        what = name.removeprefix("mount.")
        raise Invalid(f"{value.origin}: no {what} {chosen!r}; there are {', '.join(known)}")
    return chosen


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
            native = "auto" if options.native else "off"
            chosen = ["--foreground", "--transport", transport, "--native", native, *flags]
            return [*program, "mount", str(options.point), *chosen, "--resume", state]

        log = to_file(options.store / "log" / "mount.jsonl")
        hooks = supervisor.SupervisorHooks(ready, report.close, command)
        if state is None:
            supervisor.supervise(options, hooks, log)
        else:
            supervisor.resume(options, hooks, state=state, log=log)

    background.serve(run, report)


def _replace(root: Path, point: Path) -> None:
    from casfs.mount import mount_points, supervisor

    state = supervisor.replace_program(mount_points.served(root, point))
    line = f"{state.mount} served by the current program (pid {state.supervisor})"
    echo_result({"mount": str(state.mount), "pid": state.supervisor}, line)


@click.command()
@click.argument("directory")
@click.option("-l", "--lazy", is_flag=True, help="Also while it is in use.")
@json_option
def umount(directory: str, lazy: bool) -> None:
    """End the mount at DIRECTORY; returns when it has ended.

    An unmounted workspace keeps its changes; `workspace open` opens it again. When the mount
    is busy, the message names the processes that use it; with -l they go on until they end.
    """
    from casfs.mount import mount_points
    from casfs.workspaces import lifecycle, registry

    point = registry.absolute(Path(directory))
    try:
        with open_store() as store:
            lifecycle.detach(registry.find(store, point), lazy=lazy)
    except NotFound:  # no such workspace, or no store at all
        mount_points.unmount(point, root=store_root(), lazy=lazy)
    echo_result({"unmounted": directory}, f"{directory} unmounted")

"""The daemon: started, stopped, restarted; its status, its log, a systemd unit for it."""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from casfs import config
from casfs.cli import background
from casfs.cli.background import foreground_option, ready_option
from casfs.cli.common import Count, check_store, store_root
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_json, echo_line, echo_lines, echo_result, json_option, wants_json
from casfs.errors import NoDaemon
from casfs.system.clock import local_time, rfc3339

LOG = "daemon.jsonl"
LOG_POLL_S = 0.2
F = TypeVar("F", bound=Callable[..., Any])


def start_options(command: F) -> F:
    """Adds the options of a start."""
    hold = click.option("--hold", is_flag=True, help="Start no thread; `thread resume` starts one.")
    return hold(foreground_option(ready_option(json_option(command))))


@click.group(cls=LazyGroup, invoke_without_command=True)
@start_options
@click.pass_context
def daemon(ctx: click.Context, /, **options: Any) -> None:
    """Run the threads of the store in the background; `casfs daemon stop` ends it.

    Threads that were running when a daemon ended, however it ended, are carried on.

    \b
    casfs daemon                 the same as `casfs daemon start`
    casfs daemon restart         with the current program, after an upgrade
    casfs daemon logs --follow
    """
    if ctx.invoked_subcommand is None:
        _start(**options)


@daemon.command()
@start_options
def start(**options: Any) -> None:
    """Start the daemon; returns when it is ready.

    \b
    casfs daemon start
    """
    _start(**options)


def _start(hold: bool, foreground: bool, ready_fd: int | None) -> None:
    root = store_root()
    if foreground or ready_fd:
        from casfs.cli.daemon_process import serve_store

        serve_store(root, background.Reporter(ready_fd), hold)
    else:
        _check(root)
        pid = background.start(root, ["daemon", *["--hold"] * hold], "daemon.err")
        echo_result({"pid": pid}, f"{pid} daemon of {root}")


def _check(root: Path) -> None:
    """Raises as opening the store does, and Invalid for a setting, before a process starts."""
    check_store(root)
    config.values(root, os.environ)


@daemon.command()
@click.option("--all", "every", is_flag=True, help="End your daemons of all stores.")
@json_option
def stop(every: bool) -> None:
    """End the daemon; returns when it has ended.

    \b
    casfs daemon stop
    casfs daemon stop --all
    """
    from casfs.system import daemon_socket

    if every:
        ended = daemon_socket.stop_all(os.environ)
        lines = [f"{pid} stopped" for pid in ended]
        echo_lines({"pids": ended}, lines)
        return
    check_store(root := store_root())
    pid = daemon_socket.stop(root)
    echo_result({"pid": pid}, f"{pid} stopped")


@daemon.command()
@json_option
def restart() -> None:
    """End the daemon, if one runs, and start the current program.

    Running threads are carried on: an attempt that was under way is run again.

    \b
    casfs daemon restart
    """
    from casfs.system import daemon_socket

    _check(root := store_root())
    old = daemon_socket.stop(root) if daemon_socket.runs(root) else None
    pid = background.start(root, ["daemon"], "daemon.err")
    ended = f" (was {old})" if old is not None else ""
    echo_result({"pid": pid, "before": old}, f"{pid} daemon of {root}{ended}")


@daemon.command()
@json_option
def status() -> None:
    """Print the daemon's process, version, running and queued threads; exit 5 when none runs.

    \b
    casfs daemon status
    """
    from casfs.system import daemon_socket

    check_store(root := store_root())
    daemon_status = daemon_socket.status(root)
    if daemon_status is None:
        raise NoDaemon(f"{daemon_socket.NO_DAEMON} {root}; start one with `casfs daemon`")
    echo_lines(daemon_status, daemon_lines(daemon_status))


def daemon_lines(state: dict[str, Any]) -> Iterator[str]:
    yield f"daemon  pid {state['pid']}, {state['socket']}, version {state['version'] or 'unknown'}"
    if state["limit"] is None:
        yield f"        {state['unreachable'] or 'does not say what it runs'}"
        return
    called = f", called {len(state['called'])}" if state["called"] else ""
    count = f"{len(state['running'])} of {state['limit']}"
    yield f"        running {count}{called}, queued {len(state['queued'])}"
    if state["running"]:
        yield f"        {' '.join(state['running'])}"
    if held := state["containment"]:
        limits = ", ".join(f"{name} by {by or 'nothing'}" for name, by in held["limits"].items())
        yield f"        attempts held by {held['method']}; limits: {limits}"


@daemon.command()
@click.option("--follow", "-f", is_flag=True, help="Continue as lines are written.")
@click.option("-n", "count", type=Count(1), default=50, show_default=True, metavar="N")
@json_option
def logs(follow: bool, count: int) -> None:
    """Print the last N lines of the daemon's log; with --json, one object a line.

    \b
    casfs daemon logs -n 20 --follow
    """
    check_store(root := store_root())
    path = root / "log" / LOG
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in deque(file, count):
            _print_event(line)
        while follow:
            if line := file.readline():
                _print_event(line)
            else:
                time.sleep(LOG_POLL_S)


def _print_event(line: str) -> None:
    try:
        event = json.loads(line)
        event["time"] = rfc3339(event["time"])
    except (ValueError, KeyError, TypeError):  # cut by a full disk
        return
    if wants_json():
        echo_json(event, pretty=False)
        return
    fields = [f"{name}={value}" for name, value in event.items() if name not in ("time", "event")]
    when = local_time(event["time"])
    echo_line(f"{when} {event.get('event')} {' '.join(fields)}")


@daemon.command()
@json_option
def unit() -> None:
    """Print a systemd unit that runs the daemon of this store for the user.

    \b
    casfs daemon unit > ~/.config/systemd/user/casfs.service
    systemctl --user enable --now casfs.service
    """
    from casfs.attach import user_service

    text = user_service.unit(store_root(), os.environ)
    echo_result({"unit": text}, text.rstrip())

"""Run commands through the action cache."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from casfs import config
from casfs.actions import cache as actions
from casfs.cli.common import answer, json_option, opened, root, say, say_json
from casfs.cli.tree import excludes_option
from casfs.errors import NotFound

TIMED_OUT = 124  # as timeout(1) has it
SIGNALLED = 128  # and the signal's number, as shells have it
PLAIN = {"allow_interspersed_args": False}  # what follows the command is its own
F = TypeVar("F", bound=Callable[..., Any])


def request_options(command: F) -> F:
    """What says which action is meant."""
    for option in (
        click.argument("argv", nargs=-1, required=True, metavar="-- CMD..."),
        excludes_option,
        click.option("--timeout", type=float, metavar="S", help="End it after S seconds."),
        click.option("--env", "names", multiple=True, metavar="K", help="A variable it gets."),
        click.option("--output", "outputs", multiple=True, metavar="PATH", help="What it makes."),
        click.option("--input", "directory", default=".", metavar="DIR", help="What it reads."),
    ):
        command = option(command)
    return command


@click.group()
def action() -> None:
    """Run a command, or replay what it left behind when it ran on the same input.

    The command runs in the current directory if that is inside DIR, else in DIR; it is not in
    a sandbox. It gets an empty stdin, and of the environment PATH and what --env names. The
    key of the cache is: the files below DIR without the outputs (what a checkpoint leaves out
    does not count), CMD, the directory it runs in, that environment with its values, the
    outputs, the platform and the timeout.

    Cached are commands that begin with one of the word lists in the setting
    actions.cacheable, such as ["make", "cargo build"], and those run with --cache; and only
    when they exit with 0, made all outputs and left their input as it was.

    \b
    casfs action run --output out --cache -- make out
    """


@action.command("run", context_settings=PLAIN)
@request_options
@click.option("--cache", is_flag=True, help="Cache this run, whatever the setting says.")
@json_option
@click.pass_context
def run(ctx: click.Context, /, cache: bool, as_json: bool, **given: Any) -> int:
    """Run CMD through the cache; the exit code is its own.

    It runs in the real directory, not in a sandbox: `casfs action --help` says what counts.
    124 when it took too long, 128 and the number when a signal ended it. With --json what it
    writes goes to stderr, and what was done to stdout.

    \b
    casfs action run --output out.o --cache -- cc -c -o out.o main.c
    """
    from casfs.actions import runner

    signal.signal(signal.SIGTERM, _terminated)
    request = _request(**given)
    cached = cache or actions.allows(_prefixes(ctx), request.argv)
    out = sys.stderr.buffer if as_json else sys.stdout.buffer
    streams = runner.Streams(out, sys.stderr.buffer, _tell)
    if not cached:
        _tell("not cached: actions.cacheable does not allow this command; --cache does")
    with opened(ctx) as store:
        done = runner.run(store, request, streams, cached=cached)
    if done.timed_out:
        _tell(f"it took longer than {given['timeout']:g} s and was ended")
    if as_json:
        say_json(asdict(done))
    if done.timed_out:
        return TIMED_OUT
    return done.exit_code if done.exit_code >= 0 else SIGNALLED - done.exit_code


@action.command(context_settings=PLAIN)
@request_options
@json_option
@click.pass_context
def lookup(ctx: click.Context, /, as_json: bool, **given: Any) -> None:
    """Print the result that running CMD would replay; exit 3 and why when there is none.

    \b
    casfs action lookup --output out -- make out
    """
    from casfs.actions import nearest

    with opened(ctx) as store:
        wanted = actions.identify(store, _request(**given))
        found = actions.lookup(store, wanted.hash)
        if found is None:
            raise NotFound(f"miss {wanted.hash[:12]}: {nearest.explain(store, wanted)}")
    answer(as_json, asdict(found), f"{found.hash} took {found.duration_ms / 1000:.2f} s")


@action.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List what is cached: key, when it was last used, program; last used first.

    \b
    casfs action list
    """
    with opened(ctx) as store:
        found = actions.listing(store)
    if as_json:
        say_json([asdict(entry) for entry in found])
    else:
        for entry in found:
            used = datetime.fromtimestamp(entry.used_at / 1000, UTC)
            say(f"{entry.action} {used:%Y-%m-%dT%H:%M:%SZ} {entry.argv0}")


def _request(
    directory: str,
    outputs: tuple[str, ...],
    names: tuple[str, ...],
    timeout: float | None,
    argv: tuple[str, ...],
    defaults: bool,
) -> actions.Request:
    return actions.request(
        argv,
        directory=Path(directory),
        here=Path.cwd(),
        env=os.environ,
        names=names,
        outputs=outputs,
        timeout=timeout,
        defaults=defaults,
    )


def _prefixes(ctx: click.Context) -> list[str]:
    prefixes: list[str] = config.values(root(ctx), os.environ)["actions.cacheable"]
    return prefixes


def _tell(line: str) -> None:
    click.echo(f"casfs: action {line}", err=True)


def _terminated(number: int, frame: object) -> NoReturn:
    """Leave as after an error, so that the command is ended too."""
    sys.exit(SIGNALLED + number)

"""The action cache: run, look up and list cached commands."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from casfs import config
from casfs.actions import cache, key
from casfs.cli.common import open_store, store_root
from casfs.cli.json_values import record
from casfs.cli.lazy_group import LazyGroup
from casfs.cli.output import echo_json, echo_lines, echo_result, json_option, wants_json
from casfs.cli.table import Age, Hash, echo_table
from casfs.errors import CasfsError, NotFound
from casfs.store.store import Store
from casfs.system.clock import local_moment
from casfs.system.safe_text import escape
from casfs.trees.scratch_store import ScratchStore

EXIT_TIMED_OUT = 124  # as of timeout(1)
EXIT_SIGNAL_BASE = 128  # plus the signal's number, as in shells
COMMAND_LAST = {"allow_interspersed_args": False}  # options after CMD belong to it
F = TypeVar("F", bound=Callable[..., Any])


def request_options(command: F) -> F:
    """Adds the options that determine the action."""
    for option in (
        click.argument("argv", nargs=-1, required=True, metavar="-- CMD..."),
        click.option(
            "--default-excludes/--no-default-excludes",
            "defaults",
            help="Leave derived directories and .git out of the key, or nothing (the default).",
        ),
        click.option("--timeout", type=float, metavar="S", help="Time limit in seconds."),
        click.option("--env", "names", multiple=True, metavar="K", help="Variable to pass on."),
        click.option("--output", "outputs", multiple=True, metavar="PATH", help="Output path."),
        click.option("--input", "directory", default=".", metavar="DIR", help="Input directory."),
    ):
        command = option(command)
    return command


@click.group(cls=LazyGroup)
def action() -> None:
    """Cached commands: run one, or replay its result from an earlier run on the same input.

    The command runs in the current directory if that is inside DIR, else in DIR, without a
    sandbox. Its stdin is empty, its environment PATH and the variables of --env. The cache
    key covers all files below DIR except outputs and what .casfsignore names, CMD, the working
    directory, that environment with its values, the outputs, the platform and the timeout.

    Cached are commands that begin with a prefix in the setting actions.cacheable, such as
    ["make", "cargo build"] or the preset ["builds-tests-lints"], and those run with --cache; and
    only when they exit with 0, produce all outputs and leave their input unchanged.

    \b
    casfs action run --output out --cache -- make out
    """


@action.command("run", context_settings=COMMAND_LAST)
@request_options
@click.option(
    "--cache", "always", is_flag=True, help="Cache this run, regardless of actions.cacheable."
)
@json_option
def run(always: bool, **request_args: Any) -> int:
    """Run CMD through the cache; exits with its exit code.

    It runs in the real directory, without a sandbox; `casfs action --help` lists the cache key.
    Exits 124 at the time limit, 128 plus the number of a signal that ended CMD. With --json
    its output goes to stderr, the result to stdout.

    \b
    casfs action run --output out.o --cache -- cc -c -o out.o main.c
    """
    from casfs.actions import runner

    request = _request(**request_args)
    prefixes = config.values(store_root(), os.environ)["actions.cacheable"]
    cached = always or key.allows(prefixes, request.argv)
    out = sys.stderr.buffer if wants_json() else sys.stdout.buffer
    streams = runner.Streams(out, sys.stderr.buffer, _log)
    if not cached:
        _log("not cached: actions.cacheable does not allow this command; use --cache")
    with open_store() as store:
        is_suggested = not prefixes and key.allows([key.PRESET], request.argv)
        if is_suggested and next(store.heads.list(cache.HEADS), None) is None:
            _log(
                f"builds, tests and lints: casfs config set actions.cacheable '[\"{key.PRESET}\"]'"
            )
        done = runner.run(store, request, streams, cached=cached)
    if done.timed_out:
        _log(f"ended at the time limit of {request_args['timeout']:g} s")
    if wants_json():
        echo_json(record(done))
    if done.timed_out:
        return EXIT_TIMED_OUT
    return done.exit_code if done.exit_code >= 0 else EXIT_SIGNAL_BASE - done.exit_code


@action.command(context_settings=COMMAND_LAST)
@request_options
@json_option
def lookup(**request_args: Any) -> None:
    """Print the cached result of CMD; exit 3 with the reason for a cache miss.

    \b
    casfs action lookup --output out -- make out
    """
    from casfs.actions.miss_reason import explain_miss

    with open_store() as store:
        scratch = ScratchStore(store)
        wanted = key.identify(scratch, _request(**request_args))
        cached = cache.lookup(store, wanted.hash)
        if cached is None:
            raise NotFound(f"miss {wanted.hash[:12]}: {explain_miss(scratch, wanted)}")
    echo_result(_result_json(cached), f"{cached.hash} took {cached.duration_ms / 1000:.2f} s")


@action.command("list")
@json_option
def list_() -> None:
    """List cached results: key, last use, time that a hit saves, command line; most recently used
    first.

    \b
    casfs action list
    """
    with open_store() as store:
        entries = [(entry, _details(store, entry)) for entry in cache.list_entries(store)]
    rows = [
        (
            Hash(entry.action),
            Age(entry.used_at),
            _seconds(details["durationMs"]),
            details["command"],
        )
        for entry, details in entries
    ]
    values = [{**record(entry), **details} for entry, details in entries]
    echo_table(values, headers="ACTION USED TOOK COMMAND", rows=rows, whole="ACTION USED TOOK")


@action.command()
@click.argument("key", metavar="ACTION")
@json_option
def show(key: str) -> None:
    """Print a cached result: what its key covers, and what a hit restores.

    \b
    casfs action show 3c444643
    """
    with open_store() as store:
        node = store.node(store.expand(key), "action")
        result = cache.lookup(store, node.hash)
    value = {
        "action": node.hash,
        "key": node.payload,
        "result": _result_json(result) if result else None,
    }
    echo_lines(value, _page(node.payload, result))


def _details(store: Store, entry: cache.Entry) -> dict[str, Any]:
    """Returns the command line and the duration; less where a node is damaged."""
    try:
        command = _command(store.node(entry.action, "action").payload)
        duration = cache.load(store, entry.result).duration_ms
    except CasfsError:
        return {"command": entry.argv0, "durationMs": None}
    return {"command": command, "durationMs": duration}


def _command(payload: Mapping[str, Any]) -> str:
    return shlex.join(payload["argv"]) if payload["step"] is None else cache.argv0(payload)


def _seconds(duration_ms: int | None) -> str:
    return "" if duration_ms is None else f"{duration_ms / 1000:.2f} s"


def _result_json(result: cache.Result) -> dict[str, Any]:
    state = result.outputs
    return {**record(result), "outputs": state.tree}


def _page(payload: Mapping[str, Any], result: cache.Result | None) -> Iterator[str]:
    yield f"command: {_command(payload)}"
    yield f"input: {payload['inputRoot']}, in {payload['cwd']}"
    for name, value in payload["env"].items():
        yield f"env: {name}={value}"
    for path in payload["outputs"]:
        yield f"output: {path}"
    if result is None:
        yield "result: none is cached"
        return
    took = f"{_seconds(result.duration_ms)}, {local_moment(result.created_at)}"
    yield f"result: {result.hash}, exit code {result.exit_code}, {took}"
    yield f"outputs: {result.outputs.tree}"
    yield f"stdout: {result.stdout}"
    yield f"stderr: {result.stderr}"


def _request(
    directory: str,
    outputs: tuple[str, ...],
    names: tuple[str, ...],
    timeout: float | None,
    argv: tuple[str, ...],
    defaults: bool,
) -> key.Request:
    return key.request(
        argv,
        directory=Path(directory),
        working_directory=Path.cwd(),
        env=os.environ,
        names=names,
        outputs=outputs,
        timeout=timeout,
        defaults=defaults,
    )


def _log(line: str) -> None:
    click.echo(f"casfs: action {escape(line, one_line=True)}", err=True)

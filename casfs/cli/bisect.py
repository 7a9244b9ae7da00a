"""`bisect` and `thread bisect`: the first checkpoint or step after which a command fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any

import click

from casfs.cli.common import open_store
from casfs.cli.diff_output import print_patch
from casfs.cli.history import heads
from casfs.cli.json_values import record, times
from casfs.cli.output import echo, echo_json, echo_line, json_option, wants_json, warn
from casfs.cli.run_on_tree import TreeRun, tree_runner
from casfs.errors import CasfsError, Failed, NotFound, Refused
from casfs.history import details, versions
from casfs.history.bisect import BAD, FLAKY, GOOD, SKIPPED, first_bad
from casfs.history.versions import Place
from casfs.store.store import Store
from casfs.threads import lookup, prompts
from casfs.threads.summary import content_text
from casfs.trees.diff import unified_diff

MAX_TEXT_CHARS = 2000
MAX_PATCH_BYTES = 20_000
Row = dict[str, Any]
Test = Callable[[Place], str]


@click.command()
@click.argument("id", metavar="NAME|THREAD")
@click.option("--good", metavar="REV|STEP", help="Where CMD passes (default: the first tree).")
@click.option("--bad", metavar="REV|STEP", help="Where CMD fails (default: the last tree).")
@click.option("--env", "names", multiple=True, metavar="K", help="Variable to pass on.")
@click.option("--no-cache", is_flag=True, help="Run CMD also where its result is cached.")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, help="Run CMD so often on each.")
@click.argument("argv", nargs=-1, required=True, metavar="-- CMD...")
@json_option
@click.pass_context
def bisect(ctx: click.Context, /, id: str, **options: Any) -> int:
    """Find the first checkpoint of NAME, or step of THREAD, after which CMD fails.

    CMD runs in a workspace of its own; stdin is empty, the environment PATH, CASFS_TREE and
    --env, its output goes to stderr. Exit codes as for `git bisect run`: 0 is good, 125 skips the
    tree, others to 127 are bad, the rest stop. Results are cached: a second bisect runs nothing.
    --repeat N runs CMD N times on each tree, cached or not; where they differ it is flaky, and
    skipped. It goes on in threads that a step called, and in its turns. Exits 1 where skips leave
    several, or a tree was flaky.

    \b
    casfs bisect app --good app~9 -- make test
    casfs thread bisect 01K2 --good 3 -- python -m pytest -q
    """
    with open_store() as store:
        if ctx.parent and ctx.parent.info_name == "thread":
            id = lookup.find(store, id).id
        ends = options["good"], options["bad"] or id
        good, bad = (f"{id}@{end}" if end and end.isdecimal() else end for end in ends)
        repeat = options["repeat"]
        runs = dict[str, Row]()
        cached = repeat == 1 and not options["no_cache"]
        with tree_runner(store, options["argv"], names=options["names"], cached=cached) as run:
            test = partial(_test, store, run, runs, repeat)
            rows = [
                _found(store, position) for position in _search(_places(store, good, bad), test)
            ]
    flaky = [heads([run])[0] for run in runs.values() if run["outcome"] == FLAKY]
    if flaky:
        warn(f"CMD is flaky: its runs differ on {', '.join(flaky)}; what is found is not sure")
    echo_json({"runs": [*runs.values()], "found": rows}) if wants_json() else _print(rows)
    return len(rows) > 1 or bool(flaky)


def _places(store: Store, good: str | None, bad: str) -> list[Place]:
    """Returns the versions from the good to the bad one. Raises NotFound, Conflict, Invalid."""
    last, path = versions.find(store, bad)
    hashes = [version.hash for version in last.chain.versions]
    first = versions.find(store, good)[0].version.hash if good else hashes[-1]
    if path or last.version.call or first not in hashes[last.index + 1 :]:
        wrong = f"{good or 'a version'} is not before {bad}, or {bad} has a path or is a turn"
        raise NotFound(f"{wrong}; give whole steps")
    return [Place(last.chain, index) for index in range(hashes.index(first), last.index - 1, -1)]


def _search(places: list[Place], test: Callable[[Place], str]) -> list[Place]:
    """Returns the first bad version, or the candidates; of a step the one within a thread that it
    called, or the turn, that made a bad tree of a good one. Raises Refused for a wrong end."""
    trees = [next(same) for _, same in groupby(places, lambda position: position.version.root)]
    for end, wanted in ((trees[0], GOOD), (trees[-1], BAD)):
        if (outcome := test(end)) != wanted:
            raise Refused(f"{end.version.revision} is {outcome}: give another --{wanted}")
    candidates = [trees[index] for index in first_bad(len(trees), lambda index: test(trees[index]))]
    for inner in reversed([*candidates[0].called()] if len(candidates) == 1 else []):
        with suppress(Refused):  # another part of the step is to blame
            indexes = reversed(range(len(inner.chain.versions)))
            return _search([Place(inner.chain, index) for index in indexes], test)
    return candidates


def _test(store: Store, run: TreeRun, runs: dict[str, Row], repeat: int, position: Place) -> str:
    """Runs CMD on a tree that it has not run on. Raises Failed where that ends the search."""
    if (root := position.version.root) is None:
        return SKIPPED
    if root not in runs:
        outcomes = set[str]()
        for _ in range(repeat):
            done = run(position.version.dated(store))
            if not 0 <= done.exit_code < 128:
                raise Failed(f"exit code {done.exit_code} of CMD on {position.version.revision}")
            outcomes.add({0: GOOD, 125: SKIPPED}.get(done.exit_code, BAD))
        row = {"version": times(details.version(store, position.version)), **record(done)}
        runs[root] = row | {"outcome": FLAKY if len(outcomes) > 1 else outcomes.pop()}
        if not wants_json():
            took = f"{done.duration_ms / 1000:6.2f} s {'cached' * done.hit:<6}"
            echo_line(f"{runs[root]['outcome']:<7} {took} {heads([row])[0]}")
    return str(runs[root]["outcome"])


def _found(store: Store, position: Place) -> Row:
    """Returns a version with its patch, and of a step the ends of its prompt and its output."""
    version = position.version
    before = position.older.version.root if position.older else None
    row = {"version": times(details.version(store, version)), "prompt": None, "output": None}
    row["patch"] = os.fsdecode(
        unified_diff.patch(store, before, new=version.root, limit=MAX_PATCH_BYTES)
    )
    with suppress(CasfsError):
        step = store.node(version.hash, "thread-step")
        row["output"] = content_text(store, step.payload["content"])[-MAX_TEXT_CHARS:]
        thread = lookup.find(store, version.revision.rpartition("@")[0])
        row["prompt"] = prompts.of_step(store, thread, step).text[-MAX_TEXT_CHARS:]
    return row


def _print(rows: list[Row]) -> None:
    if len(rows) > 1:
        echo(f"one of these {len(rows)}, of which all but the last were skipped:")
    for row, head in zip(rows, heads(rows), strict=True):
        echo_line(f"{head} {row['version']['message']}".rstrip())
    for row in rows if len(rows) == 1 else ():
        print_patch(os.fsencode(row["patch"]))
        for name in ("prompt", "output"):
            echo(f"--- end of its {name}\n{row[name]}") if row[name] else None

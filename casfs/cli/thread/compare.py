"""The outcomes of threads side by side, such as those of the forks of one thread."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click

from casfs import canonical, thread_lookup, threads
from casfs.cli.common import json_option, open_store
from casfs.cli.output import echo_json
from casfs.cli.run_on_tree import run_on_tree
from casfs.cli.table import Coloured, Short, echo_table
from casfs.cli.thread.queue import Queue
from casfs.cli.thread.show import COLOURS
from casfs.revisions import step_tree
from casfs.store import Store
from casfs.threads import Thread
from casfs.trees import tree

HEADERS = "ID STATUS STEPS TOKENS TIME FILES EXIT AGENTS NAME"
ID_CHARS = 8  # of the end of an id: forks made at once begin alike
ARGV = "argv"


class _WithArgv(click.Command):
    """A command whose arguments end at `--`; what follows is in `ctx.meta`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[ARGV] = args[at + 1 :]
        return super().parse_args(ctx, args[:at])


@click.command(cls=_WithArgv)
@click.argument("ids", nargs=-1, required=True, metavar="ID... [-- CMD...]")
@json_option
@click.pass_context
def compare(ctx: click.Context, ids: tuple[str, ...], as_json: bool) -> None:
    """Print the outcomes of threads: status, steps, tokens, time, changed files, and the agents in
    which they differ; the exit code of CMD, run on the last tree as by `thread race`.

    \b
    casfs thread compare 8XKQ 9ABC
    casfs thread compare 8XKQ 9ABC -- make test
    """
    with open_store(ctx) as store:
        found = list({(one := thread_lookup.find(store, id)).id: one for id in ids}.values())
        exits: dict[str, int] = {}
        for one in found if (argv := ctx.meta[ARGV]) else ():
            exits[one.id] = run_on_tree(store, step_tree(store, one, None), argv)
        rows = outcomes(store, found, exits)
    if as_json:
        echo_json(rows)
    else:
        echo_outcomes(rows)


def outcomes(
    store: Store, found: Sequence[Thread], exits: Mapping[str, int] | None = None
) -> list[dict[str, Any]]:
    """Returns what `thread compare --json` prints; `exits`: exit codes of a command, by id."""
    queue = Queue.of(store, found)
    return [
        {
            "id": one.id,
            "name": one.record.get("name"),
            "status": queue.state(one),
            "steps": threads.length(store, one),
            "spent": one.record["spent"],
            "files": _changed_files(store, one),
            "exitCode": (exits or {}).get(one.id),
            "agents": {
                role: {"hash": hash, **store.node(hash, "agent").payload}
                for role, hash in threads.agents(store, one).items()
            },
        }
        for one in found
    ]


def _changed_files(store: Store, thread: Thread) -> int | None:
    """Returns how many paths a thread has changed; None without a workspace."""
    first = threads.start(store, thread).payload["workspace"]
    return first and sum(1 for _ in tree.changes(store, first, step_tree(store, thread, None)))


def echo_outcomes(rows: Sequence[Mapping[str, Any]]) -> None:
    cells = [
        (
            Short(row["id"], row["id"][-ID_CHARS:]),
            Coloured(row["status"], COLOURS.get(row["status"])),
            row["steps"],
            row["spent"]["tokens"],
            f"{row['spent']['wallMs'] / 1000:.1f} s",
            row["files"],
            row["exitCode"],
            agents,
            row["name"],
        )
        for row, agents in zip(rows, _differences([row["agents"] for row in rows]), strict=True)
    ]
    echo_table(False, None, HEADERS, cells, whole="ID STATUS")


def _differences(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the agents of each row, with what differs in their configs; where all have the same,
    a role is left out."""

    def several(values: Sequence[Any]) -> bool:
        return len({canonical.encode(one) for one in values}) > 1

    words: list[list[str]] = [[] for _ in rows]
    for role in dict.fromkeys(role for row in rows for role in row):
        agents = [row.get(role, {"package": None, "config": {}}) for row in rows]
        if not several(agents):
            continue
        keys = sorted({key for one in agents for key in one["config"]})
        keys = [key for key in keys if several([one["config"].get(key) for one in agents])]
        for text, one in zip(words, agents, strict=True):
            text.append(f"{role}={one['package']}")
            text += [f"{key}={_text(one['config'][key])}" for key in keys if key in one["config"]]
    return [" ".join(text) for text in words]


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return shlex.join(value)
    return value if isinstance(value, str) else canonical.encode(value).decode()

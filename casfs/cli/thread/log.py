"""The log of a thread: outputs of steps, and turns as they end. Needs no daemon."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from casfs import thread_lookup, threads
from casfs.backend.derived import version_of
from casfs.cli.common import json_option, open_store
from casfs.cli.json_values import times
from casfs.cli.output import echo, echo_json, escape, write_line
from casfs.cli.terminal import color_option, pager, paint
from casfs.cli.thread.show import cache_hit, content_text
from casfs.nodes.node import Node
from casfs.store import Store
from casfs.threads import RUNNING, Thread

POLL_INTERVAL_S = 0.1  # reading the store's version takes microseconds


@click.command()
@click.argument("id")
@click.option(
    "--follow", "-f", is_flag=True, help="Continue until it ends or is suspended; also print turns."
)
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N steps.")
@color_option
@json_option
@click.pass_context
def log(ctx: click.Context, id: str, follow: bool, last: int | None, as_json: bool) -> None:
    """Print the outputs of a thread's steps.

    With --json one line for each step, with --follow also one for each turn (model call) of
    the running step.

    \b
    casfs thread log 01K2 --last 3
    """
    with open_store(ctx) as store:
        found = thread_lookup.find(store, id)
        nodes = _follow(store, found, last) if follow else threads.last_steps(store, found, last)
        with pager(not follow and not as_json):
            for node in nodes:
                if isinstance(node, dict):
                    _print_turn(store, node, as_json)
                else:
                    _print_step(store, node, as_json)


def _follow(store: Store, found: Thread, last: int | None) -> Iterator[Node | dict[str, Any]]:
    """Yields steps as they are recorded, and before each step its turns."""
    version_now = version_of(store.backend)
    after, run, printed = 0, "", 0  # the last step; the running step's run and its turns
    while True:
        version = version_now()
        found = threads.get(store, found.id)
        for node in threads.last_steps(store, found, last, after):
            after = node.payload["index"]
            yield node
        last = None
        intent = found.record.get("intent") or {}
        if intent.get("run", "") != run:
            run, printed = intent.get("run", ""), 0
        count, turns = intent.get("turnCount", 0), intent.get("turns", [])
        if count - len(turns) > printed:
            turns = threads.turns(store, intent)
        for place, hash in enumerate(turns, start=count - len(turns) + 1):
            if place > printed:
                yield {
                    **{key: intent[key] for key in ("index", "role")},
                    "turn": place,
                    "hash": hash,
                }
        printed = max(printed, count)
        if found.status != RUNNING:
            return
        while version_now() == version:
            time.sleep(POLL_INTERVAL_S)


def _print_step(store: Store, node: Node, as_json: bool) -> None:
    text = content_text(store, node.payload["content"])
    if as_json:
        echo_json({**times(node.payload), "hash": node.hash, "output": text}, pretty=False)
        return
    note = f"  {cache_hit(node.payload['cached'])}" if "cached" in node.payload else ""
    head = f"--- {node.payload['index']:06} {node.payload['role']}{note}"
    write_line(paint(escape(head, one_line=True), "cyan"))
    echo(f"{text.rstrip()}\n")


def _print_turn(store: Store, turn: Mapping[str, Any], as_json: bool) -> None:
    node = store.node(turn["hash"])
    if as_json:
        echo_json({**turn, "type": node.type, "payload": node.payload}, pretty=False)
        return
    output = node.payload.get("output")
    text = content_text(store, output) if output and node.type == "react-turn" else node.hash
    head = f"... {turn['index']:06} {turn['role']} turn {turn['turn']}"
    write_line(paint(escape(head, one_line=True), "cyan"))
    echo(f"{text.rstrip()}\n")

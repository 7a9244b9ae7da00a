"""The log of a thread: outputs of steps, failed attempts, turns as they end. Needs no daemon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from casfs.cli.common import Count, open_store
from casfs.cli.json_values import times
from casfs.cli.output import echo, echo_json, echo_part, json_option, wants_json, write_line
from casfs.cli.terminal import color_option, pager, paint
from casfs.cli.thread.follow import (
    Event,
    Finished,
    Output,
    Started,
    Suspended,
    Tool,
    Turn,
    follow,
)
from casfs.cli.thread.show import attempt_note, cache_hit, seconds
from casfs.store.nodes.node import Node
from casfs.store.store import Store
from casfs.system.safe_text import escape
from casfs.threads import attempt_details as attempts
from casfs.threads import live_output, lookup, threads
from casfs.threads.summary import content_text
from casfs.threads.threads import StepNode, Thread


@click.command()
@click.argument("id")
@click.option(
    "--follow",
    "-f",
    "following",
    is_flag=True,
    help="Continue until it ends or is suspended; also print starts, tools, turns and live stdout.",
)
@click.option("--last", type=Count(1), metavar="N", help="Only the last N steps.")
@click.option("--turns", "with_turns", is_flag=True, help="Also the turns and tool calls of steps.")
@color_option
@json_option
def log(id: str, following: bool, last: int | None, with_turns: bool) -> None:
    """Print the outputs of a thread's steps, and of failed attempts at the pending one.

    With --json one line for each step and failed attempt; with --follow also one for each start,
    tool call that runs, turn (model call) and piece of output of the running step.

    \b
    casfs thread log 01K2 --last 3
    """
    with open_store() as store:
        thread = lookup.find(store, id)
        if not following:
            with pager(not wants_json()):
                for node in threads.last_steps(store, thread, last):
                    if with_turns:
                        _print_turns(store, node.payload)
                    _print_step(store, node)
                _print_attempts(store, thread)
            return
        for event in follow(store, thread, last):
            print_event(store, event)


def print_event(store: Store, event: Event) -> None:
    match event:
        case Started(fields):
            _print_start(fields)
        case Turn(fields):
            _print_turn(store, fields)
        case Tool(fields) if wants_json():
            echo_json(dict(fields), pretty=False)
        case Tool(fields):
            write_line(escape(live_output.tool_line(fields["tool"]), one_line=True))
        case Output(fields, text) if wants_json():
            echo_json({**fields, "stdout": text}, pretty=False)
        case Output(_, text):
            echo_part(text)
        case Finished(node, shown):
            _print_step(store, node, shown=shown)
        case Suspended(thread):
            _print_attempts(store, thread)


def _print_start(fields: Mapping[str, Any]) -> None:
    if wants_json():
        echo_json({**times(dict(fields)), "event": "started"}, pretty=False)
    else:
        _print_head(f"... {fields['index']:06} {fields['role']} started{attempt_note(fields)}")


def _print_step(store: Store, node: StepNode, shown: str = "") -> None:
    """`shown`: the beginning of the output, which was printed as it came."""
    step = node.payload
    text = content_text(store, step["content"])
    if wants_json():
        echo_json({**times(step), "hash": node.hash, "output": text}, pretty=False)
        return
    note = f"  {cache_hit(step['cached'])}" if "cached" in step else ""
    if shown and text.startswith(shown):
        echo_part(text[len(shown) :])
        echo("" if text.endswith("\n") else "\n")
        _print_head(f"--- {step['index']:06} {step['role']} finished, {seconds(step)}")
        echo()
    else:
        _print_head(f"--- {step['index']:06} {step['role']}{note}")
        echo(f"{text.rstrip()}\n")


def _print_head(line: str) -> None:
    write_line(paint(escape(line, one_line=True), "cyan"))


def _print_attempts(store: Store, thread: Thread) -> None:
    intent: Mapping[str, Any] = thread.pending or {}
    step_fields = {key: intent[key] for key in ("index", "role") if key in intent}
    for number, hash in enumerate(thread.record.get("attempts") or (), start=1):
        attempt = attempts.read(store, hash)
        if wants_json():
            echo_json({**step_fields, "failedAttempt": number, **attempt}, pretty=False)
        else:
            where = f"{step_fields['index']:06} {step_fields['role']}" if step_fields else "-"
            _print_head(f"--- {where} failed attempt {number}")
            echo("\n".join([*attempts.page(attempt), ""]))


def _print_turns(store: Store, step: Mapping[str, Any]) -> None:
    """Prints the turns of a step, those before a pause first."""
    step_fields = {"index": step["index"], "role": step["role"]}
    entries = [step["paused"], step["detail"]] if "paused" in step else [step["detail"]]
    hashes = [hash for entry in entries for hash in attempts.turns(store, entry)]
    for number, hash in enumerate(hashes, start=1):
        _print_turn(store, {**step_fields, "turn": number, "hash": hash})


def _turn_lines(store: Store, node: Node[Any]) -> list[str]:
    """Returns what was said in a turn, and a line for each tool call."""
    turn = node.payload
    calls: list[Mapping[str, Any]]
    match node.type:
        case "react-turn":
            said = content_text(store, turn["output"])
            calls = [store.node(hash, "react-tool-call").payload for hash in turn["toolCalls"]]
        case "hermes-turn":
            said = turn["content"]
            calls = turn["toolCalls"]
        case "cursor-turn" if turn["kind"] == "tool":
            said = ""
            calls = [{"name": turn["name"]}]
        case "cursor-turn":
            said = content_text(store, turn["text"])
            calls = []
        case _:
            said = node.hash
            calls = []
    return [said.rstrip(), *map(live_output.tool_line, calls)]


def _print_turn(store: Store, turn: Mapping[str, Any]) -> None:
    node = store.node(turn["hash"])
    if wants_json():
        echo_json({**turn, "type": node.type, "payload": node.payload}, pretty=False)
        return
    _print_head(f"... {turn['index']:06} {turn['role']} turn {turn['turn']}")
    echo("\n".join([*_turn_lines(store, node), ""]))

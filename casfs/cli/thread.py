"""Runs of workflows: start, watch, resume, cancel."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from casfs import canonical, threads
from casfs.cli.common import (
    answer,
    json_option,
    opened,
    read_input,
    refuse_too_much,
    root,
    say,
    say_json,
    source,
    tree_root,
    warn,
)
from casfs.errors import CasfsError, Invalid, NotFound, Suspended, Usage
from casfs.nodes.node import Node
from casfs.store import Store
from casfs.threads import ENDED, RUNNING, SUSPENDED, Thread
from casfs.trees import snapshot
from casfs.trees.ignore import Ignore

POLL = 0.1  # seconds between looks at the store's version, a matter of microseconds
agent_option = click.option(
    "--agent", "agents", multiple=True, metavar="ROLE=NAME[:JSON]", help="Who plays a role."
)
wait_option = click.option(
    "--wait", is_flag=True, help="Until it rests: exit 0, 1 (ended with another code), 7."
)


@click.group()
def thread() -> None:
    """Runs of workflows. A thread's id may be given as a unique prefix.

    \b
    casfs thread start develop --input "Fix it" --workspace ./project --wait
    casfs thread log 01K2 --follow
    """


@thread.command()
@click.argument("workflow")
@click.option("--input", "text", required=True, metavar="TEXT|@FILE", help="The task.")
@click.option("--workspace", metavar="DIR|TREE", help="What agents work on: a copy of it.")
@agent_option
@click.option("--max-rounds", type=click.IntRange(1), default=100, show_default=True)
@wait_option
@json_option
@click.pass_context
def start(
    ctx: click.Context,
    workflow: str,
    text: str,
    workspace: str | None,
    agents: tuple[str, ...],
    max_rounds: int,
    wait: bool,
    as_json: bool,
) -> int:
    """Start a thread of WORKFLOW and print its id. Needs the daemon.

    \b
    casfs thread start hello --input "say hello" --agent greeter='command:{"argv": ["date"]}'
    """
    from engine import control

    if text.startswith("@"):
        text = _text(text[1:])
    bound = dict(_binding(one) for one in agents)
    where = root(ctx)
    control.request(where, "status")  # before a large workspace is read for nothing
    tree = None if workspace is None else _workspace(ctx, workspace)
    made = control.request(
        where,
        "start",
        workflow=workflow,
        input=text,
        agents=bound,
        workspace=tree,
        max_rounds=max_rounds,
    )
    if not (wait and as_json):
        answer(as_json, made, made["id"])
    return _wait(ctx, made["id"], as_json) if wait else 0


@thread.command("list")
@json_option
@click.pass_context
def list_(ctx: click.Context, as_json: bool) -> None:
    """List the threads, oldest first.

    \b
    casfs thread list
    """
    with opened(ctx) as store:
        found = [_summary(one) for one in threads.listing(store)]
    if as_json:
        say_json(found)
    else:
        for one in found:
            say(f"{one['id']} {one['status']:9} {one['workflow']:16} {_when(one['updatedAt'])}")


@thread.command()
@click.argument("id")
@json_option
@click.pass_context
def show(ctx: click.Context, id: str, as_json: bool) -> None:
    """Show a thread: what it runs, where it stands, its steps.

    \b
    casfs thread show 01K2
    """
    with opened(ctx) as store:
        found = threads.expand(store, id)
        value = {**_summary(found), **_details(store, found)}
    if as_json:
        say_json(value)
        return
    say(f"{value['id']}  {value['workflow']}  {value['status']}")
    for name in ("reason", "returnCode", "summary"):
        if value.get(name) is not None:
            say(f"{name}: {value[name]}")
    for step in value["steps"]:
        seconds = (step["completedAt"] - step["startedAt"]) / 1000
        status = str(step["status"] or "")
        hit = f"  {_hit(step['cached'])}" if step["cached"] else ""
        say(f"{step['index']:6} {step['role']:14} {status:12} {seconds:8.1f} s{hit}")
    if value["intent"]:
        say(f"{value['intent']['index']:6} {value['intent']['role']:14} in flight")


@thread.command()
@click.argument("id")
@click.option("--follow", "-f", is_flag=True, help="Go on until the thread rests.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N steps.")
@json_option
@click.pass_context
def log(ctx: click.Context, id: str, follow: bool, last: int | None, as_json: bool) -> None:
    """Print what the steps of a thread said; with --json one line a step.

    \b
    casfs thread log 01K2 --last 3
    """
    with opened(ctx) as store:
        found = threads.expand(store, id)
        for node in _follow(store, found, last) if follow else _tail(store, found, last, 0):
            text = store.node(node.payload["content"], "content").payload["text"]
            if as_json:
                say_json({**node.payload, "hash": node.hash, "output": text}, pretty=False)
            else:
                hit = f"  {_hit(node.payload['cached'])}" if "cached" in node.payload else ""
                head = f"--- {node.payload['index']:06} {node.payload['role']}{hit}"
                say(f"{head}\n{text.rstrip()}\n")


@thread.command()
@click.argument("id")
@wait_option
@json_option
@click.pass_context
def resume(ctx: click.Context, id: str, wait: bool, as_json: bool) -> int:
    """Set a suspended thread running again. Needs the daemon.

    \b
    casfs thread resume 01K2 --wait
    """
    return _ask(ctx, "resume", id, wait, as_json)


@thread.command()
@click.argument("id")
@click.option("--at", type=click.IntRange(0), metavar="STEP", help="After this step (the last).")
@agent_option
@wait_option
@json_option
@click.pass_context
def fork(
    ctx: click.Context,
    id: str,
    at: int | None,
    agents: tuple[str, ...],
    wait: bool,
    as_json: bool,
) -> int:
    """Start a new thread from a step of an old one, on the workspace as it was then, and print
    its id. The old one stays as it is. Roles that are not named keep their agents. Needs the
    daemon.

    \b
    casfs thread fork 01K2 --at 3                  what else could have come after step 3
    casfs thread fork 01K2 --at 3 --agent coder='command:{"argv": ["./other"]}'
    """
    return _ask(ctx, "fork", id, wait, as_json, at=at, agents=dict(map(_binding, agents)))


@thread.command()
@click.argument("id")
@json_option
@click.pass_context
def cancel(ctx: click.Context, id: str, as_json: bool) -> int:
    """End a thread with return code 130, and whatever runs for it. Needs the daemon.

    \b
    casfs thread cancel 01K2
    """
    return _ask(ctx, "cancel", id, False, as_json)


def _ask(ctx: click.Context, op: str, id: str, wait: bool, as_json: bool, **arguments: Any) -> int:
    from engine import control

    with opened(ctx) as store:
        found = threads.expand(store, id)
        done = _length(store, found) if wait else 0
    made = control.request(root(ctx), op, id=found.id, **arguments)
    if not (wait and as_json):
        answer(as_json, made, made["id"])
    return _wait(ctx, made["id"], as_json, made.get("step", done)) if wait else 0


def _wait(ctx: click.Context, id: str, as_json: bool, done: int = 0) -> int:
    """Until the thread rests; the steps after `done` are those that were waited for. Raises
    Suspended, or CasfsError where it did not end well."""
    from engine import control

    control.request(root(ctx), "wait", id=id)
    with opened(ctx) as store:
        found = threads.get(store, id)
        end = threads.end(store, found)
        for node in _tail(store, found, None, done):
            if "cached" in node.payload:
                what = f"step {node.payload['index']} {node.payload['role']}"
                click.echo(f"casfs: {what}: {_hit(node.payload['cached'])}", err=True)
    if as_json:
        say_json(_summary(found))
    if found.status == SUSPENDED:
        reason = found.record["reason"]
        raise Suspended(f"thread {id} is suspended: {reason}; go on with `casfs thread resume`")
    if found.status != ENDED or end is None or end.payload["returnCode"] != 0:
        summary = end.payload["summary"] if end else "no end"
        raise CasfsError(f"thread {id} is {found.status}: {summary}")
    return 0


def _text(file: str) -> str:
    try:
        return read_input(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"{source(file)}: byte {error.start} is not UTF-8") from None


def _binding(text: str) -> tuple[str, dict[str, Any]]:
    """ROLE=NAME[:JSON]"""
    role, equals, rest = text.partition("=")
    name, colon, config = rest.partition(":")
    if not equals or not role or not name:
        raise Usage(f"--agent {text!r}: give ROLE=NAME or ROLE=NAME:JSON")
    try:
        value = canonical.parse(config) if colon else {}
    except Invalid as error:
        raise Usage(f"--agent {role}: its config is {error}") from None
    if not isinstance(value, dict):
        raise Usage(f"--agent {role}: its config must be a JSON object")
    return role, {"name": name, "config": value}


def _workspace(ctx: click.Context, text: str) -> str:
    """The tree of a directory, recorded whole, or the tree that a person names."""
    with opened(ctx) as store:
        if not Path(text).is_dir():
            try:
                return tree_root(store, text)
            except NotFound as error:
                raise NotFound(f"no directory {text}, and no such tree: {error}") from None
        refuse_too_much(Path(text), force=False)
        report = snapshot.Report()
        with store.batch() as batch:
            tree = snapshot.build(batch, Path(text), Ignore(), report)
    for warning in report.warnings:
        warn(warning)
    return tree.hash


def _summary(found: Thread) -> dict[str, Any]:
    """From the head alone, so that a damaged thread is listed like any other."""
    return {
        "id": found.id,
        "workflow": found.record.get("workflow", "?"),
        "status": found.status,
        "head": found.hash,
        "start": found.record.get("start"),
        "updatedAt": found.record.get("updatedAt", 0),
        "reason": found.record.get("reason"),
        "returnCode": found.record.get("returnCode"),
        "intent": found.record.get("intent"),
    }


def _details(store: Store, found: Thread) -> dict[str, Any]:
    end = threads.end(store, found)
    start = threads.start(store, found).payload
    return {
        "input": store.node(start["input"], "content").payload["text"],
        "summary": end.payload["summary"] if end else None,
        "steps": [_step(store.node(ref.hash)) for ref in threads.steps(store, found)],
    }


def _step(node: Node) -> dict[str, Any]:
    keys = ("index", "role", "agent", "meta", "workspace", "startedAt", "completedAt")
    more = {"status": node.payload["meta"].get("status"), "cached": node.payload.get("cached")}
    return {"hash": node.hash, **{key: node.payload[key] for key in keys}, **more}


def _length(store: Store, found: Thread) -> int:
    last = threads.last_step(store, found)
    return store.node(last).payload["index"] if last else 0


def _hit(cached: Mapping[str, Any]) -> str:
    """The line on a step whose agent was not run."""
    return f"hit {cached['action'][:12]}: {cached['savedMs'] / 1000:.2f} s saved"


def _tail(store: Store, found: Thread, last: int | None, after: int) -> list[Node]:
    """The last steps (all for None) with an index above `after`, oldest first."""
    nodes: list[Node] = []
    for node in threads.backwards(store, found):
        if len(nodes) == last or node.payload["index"] <= after:
            break
        nodes.append(node)
    return nodes[::-1]


def _follow(store: Store, found: Thread, last: int | None) -> Iterator[Node]:
    after = 0
    while True:
        version = store.backend.version()
        found = threads.get(store, found.id)
        for node in _tail(store, found, last, after):
            after = node.payload["index"]
            yield node
        last = None
        if found.status != RUNNING:
            return
        while store.backend.version() == version:
            time.sleep(POLL)


def _when(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"

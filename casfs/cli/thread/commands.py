"""Runs of workflows: what the daemon is asked for. How they look is `casfs.cli.thread.show`, what
can be done with their past `casfs.cli.thread.past`."""

from __future__ import annotations

from typing import Any

import click

from casfs import threads
from casfs.cli.common import echo_json, echo_result, json_option, open_store, store_root
from casfs.cli.thread.arguments import agent as agent_of
from casfs.cli.thread.arguments import binding, given, limits, recorded
from casfs.cli.thread.past import context, graph, replay, rm
from casfs.cli.thread.show import hit, list_, log, show, summary
from casfs.errors import CasfsError, Suspended, Usage
from casfs.store import Store
from casfs.threads import ENDED, SUSPENDED, Thread

agent_option = click.option(
    "--agent",
    "agents",
    multiple=True,
    metavar="ROLE=NAME[:JSON]",
    help="Who plays a role; a version may follow the name, as in mine>=1.2,<2.",
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


for one in (list_, show, log, context, replay, graph, rm):
    thread.add_command(one)


@thread.command()
@click.argument("workflow")
@click.option("--input", "text", required=True, metavar="TEXT|@FILE", help="The task.")
@click.option("--workspace", metavar="DIR|TREE", help="What agents work on: a copy of it.")
@agent_option
@click.option("--max-rounds", type=click.IntRange(1), default=100, show_default=True)
@click.option("--max-tokens", type=click.IntRange(1), help="Suspend when so many are spent.")
@click.option("--max-seconds", type=click.FloatRange(0, min_open=True), help="The same for time.")
@click.option(
    "--compact-above", type=click.IntRange(1), metavar="TOKENS", help="With --compact-by."
)
@click.option("--compact-by", metavar="NAME[:JSON]", help="The agent that summarises the past.")
@click.option("--idempotency-key", metavar="KEY", help="The same again: the thread there is.")
@wait_option
@json_option
@click.pass_context
def start(
    ctx: click.Context,
    /,
    workflow: str,
    text: str,
    workspace: str | None,
    agents: tuple[str, ...],
    max_rounds: int,
    wait: bool,
    as_json: bool,
    **more: Any,
) -> int:
    """Start a thread of WORKFLOW and print its id. Needs the daemon.

    \b
    casfs thread start hello --input "say hello" --agent greeter='command:{"argv": ["date"]}'
    """
    from casfs import daemon_socket

    bound = dict(binding(one) for one in agents)
    asked = {**limits(**more), "input": given(text)}
    where = store_root(ctx)
    daemon_socket.request(where, "status")  # before a large workspace is read for nothing
    tree = None if workspace is None else recorded(ctx, workspace)
    made = daemon_socket.request(
        where,
        "start",
        workflow=workflow,
        agents=bound,
        workspace=tree,
        max_rounds=max_rounds,
        **asked,
    )
    if not (wait and as_json):
        echo_result(as_json, made, made["id"])
    return _wait(ctx, made["id"], as_json) if wait else 0


@thread.command()
@click.argument("id")
@click.option("--input", "text", metavar="TEXT|@FILE", help="The answer to its question.")
@wait_option
@json_option
@click.pass_context
def resume(ctx: click.Context, id: str, text: str | None, wait: bool, as_json: bool) -> int:
    """Set a suspended thread running again, with those that it waits for and that wait for it.
    Needs the daemon.

    \b
    casfs thread resume 01K2 --wait
    casfs thread resume 01K2 --input '{"approved": true}'
    """
    return _ask(ctx, "resume", id, wait, as_json, input=None if text is None else given(text))


@thread.command()
@click.argument("id")
@click.option("--text", metavar="TEXT|@FILE", help="The summary.")
@click.option("--agent", metavar="NAME[:JSON]", help="Who writes the summary.")
@json_option
@click.pass_context
def compact(
    ctx: click.Context, id: str, text: str | None, agent: str | None, as_json: bool
) -> None:
    """Let a summary stand for all steps so far, from the next step on; nothing is deleted. Needs
    the daemon. Prints the hash of the summary.

    \b
    casfs thread compact 01K2 --agent 'llm:{"model": "small", "baseUrlEnv": "LLM_URL"}'
    """
    from casfs import daemon_socket

    if (text is None) == (agent is None):
        raise Usage("give the summary by --text, or who writes it by --agent")
    with open_store(ctx) as store:
        found = threads.expand(store, id)
    made = daemon_socket.request(
        store_root(ctx),
        "compact",
        id=found.id,
        text=None if text is None else given(text),
        agent=None if agent is None else agent_of(agent, "--agent"),
    )
    echo_result(as_json, made, made["summary"])


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
    return _ask(ctx, "fork", id, wait, as_json, at=at, agents=dict(map(binding, agents)))


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
    from casfs import daemon_socket

    with open_store(ctx) as store:
        found = threads.expand(store, id)
        done = _length(store, found) if wait else 0
    made = daemon_socket.request(store_root(ctx), op, id=found.id, **arguments)
    if not (wait and as_json):
        echo_result(as_json, made, made["id"])
    return _wait(ctx, made["id"], as_json, made.get("step", done)) if wait else 0


def _wait(ctx: click.Context, id: str, as_json: bool, done: int = 0) -> int:
    """Until the thread rests; the steps after `done` are those that were waited for. Raises
    Suspended, or CasfsError where it did not end well."""
    from casfs import daemon_socket

    daemon_socket.request(store_root(ctx), "wait", id=id)
    with open_store(ctx) as store:
        found = threads.get(store, id)
        end = threads.end(store, found)
        for node in threads.last_steps(store, found, None, done):
            if "cached" in node.payload:
                what = f"step {node.payload['index']} {node.payload['role']}"
                click.echo(f"casfs: {what}: {hit(node.payload['cached'])}", err=True)
    if as_json:
        echo_json(summary(found))
    if found.status == SUSPENDED:
        reason = found.record["reason"]
        raise Suspended(f"thread {id} is suspended: {reason}; go on with `casfs thread resume`")
    if found.status != ENDED or end is None or end.payload["returnCode"] != 0:
        how = end.payload["summary"] if end else "no end"
        raise CasfsError(f"thread {id} is {found.status}: {how}")
    return 0


def _length(store: Store, found: Thread) -> int:
    last = threads.last_step(store, found)
    return store.node(last).payload["index"] if last else 0

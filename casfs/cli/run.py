"""`casfs run`: a thread from its start to its result, watched and answered on the terminal."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import termios
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import click

from casfs import config, daemon_socket, thread_lookup, threads
from casfs.agents import HUMAN
from casfs.cli.common import json_option, open_store, store_root
from casfs.cli.daemon import ensure_daemon
from casfs.cli.diff import DiffFormat, print_diff
from casfs.cli.json_values import times
from casfs.cli.output import echo, echo_json, echo_line, warn
from casfs.cli.thread import arguments, changes, commands
from casfs.cli.thread.log import print_event
from casfs.cli.thread.screen import Screen
from casfs.cli.thread.show import coloured
from casfs.cli.thread.wait import check_result, noting_interrupt, watch
from casfs.errors import Conflict, NotFound, Refused, Usage
from casfs.revisions import step_tree
from casfs.store import Store
from casfs.system.safe_text import escape
from casfs.thread_state import state
from casfs.thread_summary import content_text, head_fields
from casfs.threads import SUSPENDED, Thread
from casfs.trees import tree

SINGLE, ROLE = "single", "agent"  # the workflow of one agent, and its role
MAX_PATHS = 200
MAX_QUESTION_CHARS = 4000
OTHERS = ("workflow", "text", "workspace", "no_workspace", "wait", "as_json")  # of `thread start`


@click.command()
@click.argument("target", required=False, metavar="WORKFLOW|AGENT")
@click.argument("text", required=False, metavar="TASK|@FILE|-")
@click.argument("directory", required=False, metavar="DIR")
@click.option(
    "--continue", "again", is_flag=False, flag_value="@last", metavar="ID", help="Come back to it."
)
@click.option("--apply/--no-apply", "applies", default=None, help="Do not ask about its changes.")
@json_option
@click.pass_context
def run(ctx: click.Context, /, applies: bool | None, as_json: bool, **given: Any) -> int:
    """Run a WORKFLOW, or one AGENT, on a copy of DIR (the working directory), and watch it.

    Starts the daemon where none runs, and asks on the terminal what a person has to answer. At the
    end come the changes, and whether to apply them to DIR, which nothing else changes. Ctrl-C
    leaves the thread running; `--continue ID DIR` comes back (ID: default the newest thread), and
    tries a failed step again. With --json one object for each event, the last one for the result.

    \b
    casfs run command:./agent.sh "Fix the tests"
    casfs run develop @task.md ./project --agent llm:small --apply
    """
    target, task, place, again = map(given.pop, ("target", "text", "directory", "again"))
    if again is not None:
        target, task, place = "", None if task else "", target
    if target is None or task is None:
        raise Usage("give a workflow or an agent, and a task; or --continue, and only DIR")
    if not os.path.isdir(directory := os.path.abspath(place or ".")):
        raise NotFound(f"no directory {directory}")
    root = store_root(ctx)
    with open_store(ctx) as store:
        if again is not None:
            id = thread_lookup.find(store, again).id
            ensure_daemon(root)
            with suppress(Conflict):  # it is not suspended, or asks a person
                agents = arguments.agent_fields(given["agents"])
                daemon_socket.request(root, "resume", id=id, **agents)
        else:
            if agent := _agent(root, store, target, given):
                target, given["agents"] = SINGLE, (f"{ROLE}={agent}",)
            ensure_daemon(root)
            task = "@-" if task == "-" else task
            id = commands.begin(ctx, target, task, directory, **given)["id"]
        click.echo(f"casfs: thread {id}", err=True)
        with noting_interrupt(id, f"run --continue {id} {shlex.quote(directory)}"):
            found = _watch(root, store, threads.get(store, id), as_json)
        return _end(ctx, store, found, directory, applies, as_json)


run.params += [one for one in commands.start.params if one.name not in OTHERS]


def _agent(root: Path, store: Store, text: str, given: Mapping[str, Any]) -> str | None:
    """Returns the agent that a text names; None for a workflow. Raises NotFound."""
    from engine.agents import loader
    from engine.workflow import registry, shipped

    flows = [name for name, _ in registry.listing(store)]
    if text in flows:
        return None
    own = arguments.agent_fields((), given["file"]).get("profiles", ())
    known = [*own, *config.agents(root, os.environ), *loader.names()]
    name = re.split("[:<>=!~]", text, maxsplit=1)[0].strip()
    if name not in known:
        raise NotFound(f"no workflow {name!r}, and {loader.unknown(name, [*flows, *known])}")
    if given["agents"]:
        raise Usage(f"--agent is for the roles of a workflow; {name} is an agent")
    if SINGLE not in flows:
        shipped.install(store)  # the store is older than this workflow
    return text


def _watch(root: Path, store: Store, thread: Thread, as_json: bool) -> Thread:
    """Shows a thread, and asks what it asks, until it has ended or waits for something else."""
    screen, done = Screen(store, thread), 0
    while True:
        if as_json:
            watch(store, thread.id, done, lambda event: print_event(store, event, True))
        else:
            watch(store, thread.id, done, screen.show, screen.tick)
            screen.clear()
        thread = threads.get(store, thread.id)
        if as_json or (answer := _ask(store, thread)) is None:
            return thread
        done = threads.length(store, thread)
        try:
            daemon_socket.request(root, "resume", id=thread.id, input=answer)
        except Refused as error:  # it does not fit, or was answered elsewhere
            warn(f"not accepted: {error}")


def _ask(store: Store, thread: Thread) -> str | None:
    """Asks what a thread, or one that it waits for, asks a person. None without an answer."""
    from engine.threads import call_stack
    from engine.workflow import registry

    waits = call_stack.awaited_children(store, thread) if thread.status == SUSPENDED else []
    thread = [thread, *waits][-1]
    if thread.status != SUSPENDED or thread.record["cause"] != HUMAN:
        return None
    role, words = thread.record["intent"]["role"], {}
    echo_line(f"? {thread.record['reason']}")
    if store.node(threads.agents(store, thread)[role]).payload["package"] == "human":
        schema = registry.load(store, threads.workflow(store, thread)).roles[role].schema
        words = _words(schema.get("properties", {}), schema.get("required", ()))
    else:
        echo(content_text(store, thread.record["question"]).strip()[-MAX_QUESTION_CHARS:])
    while (line := _read_line(f"{' or '.join(words) or 'answer'}> ")) == "":
        pass
    return words.get(line or "", line)


def _words(properties: Mapping[str, Any], required: Sequence[str]) -> dict[str, str]:
    """Returns the answers by word, where a report requires only one of a few words."""
    name = required[0] if len(required) == 1 else ""
    values = properties.get(name, {}).get("enum", ())
    return {one: json.dumps({name: one}) for one in values if isinstance(one, str)}


def _read_line(prompt: str) -> str | None:
    """Reads a line with line editing; None at the end of input, or without a terminal."""
    import readline  # noqa: F401  # `input` uses it

    if sys.stdin.isatty() and sys.stdout.isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)  # typed before the question: no answer to it
        with suppress(EOFError, KeyboardInterrupt):
            return input(escape(prompt, one_line=True)).strip()
        echo()
    return None


def _end(
    ctx: click.Context, store: Store, found: Thread, place: str, applies: bool | None, as_json: bool
) -> int:
    """Shows the result, and applies it where that is wanted. Raises as `check_result`."""
    end, first = threads.end(store, found), threads.start(store, found).payload["workspace"]
    last = first and step_tree(store, found, None)
    different = (one.path for one in tree.changes(store, first, last))
    paths = list(islice((one for one in different if b".git" not in one.split(b"/")), MAX_PATHS))
    if as_json:
        echo_json({"event": "over", **times(head_fields(found))}, pretty=False)
    elif end is not None:
        spent, word = found.record["spent"], coloured(state(found), state(found))
        tokens = f", {spent['tokens']} tokens" if spent["tokens"] else ""
        echo_line(f"{word}: {end.payload['summary']}, {spent['wallMs'] / 1000:.1f} s{tokens}")
        if paths:
            print_diff(store, first, last, DiffFormat(True, True, False), paths)
        if len(paths) == MAX_PATHS:
            echo_line(f"… `casfs thread diff {found.id}` shows all")
    check_result(store, found)
    if paths and applies is None and not as_json:
        applies = _read_line(f"Apply to {place}? [y/N] ") in ("y", "Y", "yes")
    if paths and applies:
        done: int = ctx.invoke(changes.apply, id=found.id, directory=place, as_json=as_json)
        return done
    if paths and not as_json:
        verb = shlex.join(["casfs", "thread", "apply", found.id, place])
        echo_line(f"{place} is unchanged; `{verb}` applies the changes")
    return 0
